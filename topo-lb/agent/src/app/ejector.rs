//! Ejects endpoints to which this node's connects fail, and takes them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use crate::agent_state::AgentState;
use crate::ejection_probe;
use crate::events::concern;
use crate::metrics::{Figures, count};
use topo_lb_core::cluster::{Ejection, Ejections, ServiceId, Update};
use topo_lb_core::ejection::{Due, Probed, Schedule};
use topo_lb_core::plan::Installed;
use topo_lb_core::rate::Rate;
use topo_lb_core::topology::ejected;
use topo_lb_core::turns::Turns;
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::maps::failing::FailingEndpoint;
use topo_lb_kernel::datapath::maps::ring::Ring;

/// Pause between two looks at the ring buffer: endpoints of which none can be ejected may fail very
/// often.
const PAUSE: Duration = Duration::from_millis(10);
/// Most endpoints that are judged at once: one takes up to a tenth of a millisecond.
const JUDGED: usize = 64;
/// Most probes at once; of one namespace half of them.
const PROBES: usize = 64;
/// Log limit: a burst, then one line per interval.
const LOGGED: (u32, Duration) = (10, Duration::from_secs(10));

/// What has happened to endpoints.
pub(super) enum Heard {
    /// Connects to these failed.
    Failing(Vec<FailingEndpoint>),
    /// These were probed.
    Probed(Vec<Answer>),
    /// The ring buffer cannot be read.
    Broken(io::Error),
}

impl Heard {
    /// Endpoints to which connects failed.
    pub(super) fn failing(&self) -> &[FailingEndpoint] {
        match self {
            Self::Failing(all) => all,
            Self::Probed(_) | Self::Broken(_) => &[],
        }
    }
}

/// A probe and its result.
pub(super) type Answer = (Due, Probed);

pub(super) struct Ejector {
    /// `None`: nothing is seen to fail.
    ring: Option<Ring<FailingEndpoint>>,
    /// Why, if so.
    unseen: Option<Arc<str>>,
    /// When to look at the ring buffer again.
    next: Instant,
    /// Endpoints that fail and were not judged yet.
    failing: Turns<FailingEndpoint>,
    schedule: Schedule,
    /// Results of probes, from the tasks that make them.
    answers: mpsc::Receiver<Answer>,
    to_answer: mpsc::Sender<Answer>,
    figures: Arc<Figures>,
    logged: Rate,
}

impl Ejector {
    /// Starts to listen. `unseen`: why this node does not see that connects fail.
    pub(super) fn start(
        datapath: &mut Datapath,
        unseen: Option<String>,
        state: &mut AgentState,
    ) -> Self {
        let (mut ring, mut unseen) = (None, unseen.map(Arc::from));
        if unseen.is_none() {
            match datapath.failing() {
                Ok(opened) => ring = Some(opened),
                Err(error) => unseen = Some(error.into()),
            }
        }
        let (to_answer, answers) = mpsc::channel(PROBES);
        let (burst, interval) = LOGGED;
        let mut ejector = Self {
            ring,
            unseen,
            next: Instant::now(),
            failing: Turns::default(),
            schedule: Schedule::default(),
            answers,
            to_answer,
            figures: Arc::clone(&state.telemetry.figures),
            logged: Rate::new(burst, interval, std::time::Instant::now()),
        };
        ejector.forget(state);
        ejector
    }

    /// Waits for something to happen. Nothing is lost if the caller stops to wait.
    pub(super) async fn next(&mut self) -> Heard {
        let Self { ring, next, answers, failing, .. } = self;
        let mut probed = Vec::new();
        tokio::select! {
            1.. = answers.recv_many(&mut probed, PROBES) => Heard::Probed(probed),
            read = read(ring, next, !failing.is_empty()) => {
                read.map_or_else(Heard::Broken, Heard::Failing)
            }
        }
    }

    /// Takes in what has happened. Returns whether decisions change.
    pub(super) fn take_in(
        &mut self,
        heard: Heard,
        state: &mut AgentState,
        installed: &Installed,
    ) -> bool {
        let mut differs = false;
        match heard {
            Heard::Failing(all) => {
                for one in all {
                    let name = installed.indexes().name(one.service);
                    if let Some(service) = name.and_then(|name| service_of(name)) {
                        self.failing.put(&service, one);
                    }
                }
                for _ in 0..JUDGED {
                    let Some((service, one)) = self.failing.take(|_| true) else { break };
                    differs |= self.eject(service, one, state);
                }
            }
            Heard::Broken(error) => {
                self.ring = None;
                self.unseen = Some(format!("the ring buffer cannot be read: {error}").into());
                self.forget(state);
                differs = true;
            }
            Heard::Probed(all) => {
                for (due, probed) in all {
                    differs |= self.hear(&due, probed, state);
                }
                self.probe(state);
            }
        }
        differs
    }

    /// Takes in the result of a probe.
    fn hear(&mut self, due: &Due, probed: Probed, state: &mut AgentState) -> bool {
        count(&self.figures.ejections.probes[probed as usize]);
        let Some(is_back) = self.schedule.answer(due, probed, now()) else { return false };
        self.tell(&due.service, state);
        let Due { service, endpoint } = due;
        if is_back && self.logged.take(now()) {
            let why = match probed {
                Probed::Answered => "it answers a probe",
                _ => "no endpoint answers a probe of this host",
            };
            info!("Service {service}: endpoint {endpoint} is back: {why}");
        }
        true
    }

    /// Leaves an endpoint out, if its Service asks for that and its tier has room.
    fn eject(
        &mut self,
        service: ServiceId,
        failing: FailingEndpoint,
        state: &mut AgentState,
    ) -> bool {
        let FailingEndpoint { endpoint, why, .. } = failing;
        let reconciler = &state.reconciler;
        let (cluster, node) = (reconciler.state(), reconciler.node());
        let may = ejected::may_eject(cluster, node, &service, endpoint);
        let Some(setting) = may else { return false };
        let due = Due { service, endpoint };
        let Some(time) = self.schedule.fail(&due, setting, why, now()) else { return false };
        count(&self.figures.ejections.ejections[why as usize]);
        let (until, failures) = (now() + time, setting.failures);
        let cause = Ejection { endpoint, until, failures, why }.cause();
        let seconds = time.as_secs();
        let sentence =
            format!("endpoint {endpoint} is ejected for {seconds} s, then probed: {cause}");
        let is_first = !cluster.ejections().services.contains_key(&due.service);
        if is_first {
            let uid = cluster.service(&due.service).and_then(|service| service.uid);
            let news = concern::ejected(&due.service, uid, node, endpoint, &sentence);
            state.telemetry.tell(vec![news]);
        }
        if self.logged.take(now()) {
            info!("Service {}: {sentence}", due.service);
        }
        self.tell(&due.service, state);
        true
    }

    /// Forgets what the cluster's changes have made different. Call it before a plan.
    pub(super) fn keep(&mut self, state: &mut AgentState) {
        let reconciler = &state.reconciler;
        let changed = reconciler.changed().filter(|id| self.schedule.knows(id));
        let changed: Vec<ServiceId> = changed.cloned().collect();
        for id in &changed {
            let reconciler = &state.reconciler;
            let (cluster, node) = (reconciler.state(), reconciler.node());
            let setting = ejected::setting(cluster, node, id);
            let out = ejected::ejected(cluster, node, id);
            if self.schedule.keep(id, setting, &out, &ejected::ready(cluster, id)) {
                self.tell(id, state);
            }
        }
    }

    /// Probes endpoints whose time is over, in tasks of their own.
    pub(super) fn probe(&mut self, state: &AgentState) {
        for due in self.schedule.due(PROBES, now()) {
            let reconciler = &state.reconciler;
            let (cluster, node) = (reconciler.state(), reconciler.node());
            let fellow = ejected::fellow(cluster, node, &due.service, due.endpoint);
            // Another Service may refuse the probe itself.
            let is_refused = reconciler.refuses_dials_of(due.endpoint);
            let answers = self.to_answer.clone();
            tokio::spawn(async move {
                let probed = match is_refused {
                    true => Probed::Unknown,
                    false => ejection_probe::probe(due.endpoint, fellow).await,
                };
                // The agent may have stopped.
                let _ = answers.send((due, probed)).await;
            });
        }
    }

    /// Has decisions eject endpoints of a Service, as the schedule says.
    fn tell(&self, service: &ServiceId, state: &mut AgentState) {
        self.figures.ejections.ejected.store(self.schedule.len() as u64, Relaxed);
        let ejections = self.schedule.ejections(service);
        state.reconciler.observe(Update::ServiceEjections(service.clone(), ejections));
    }

    /// Says that nothing is ejected any more, and whether this node sees that connects fail.
    fn forget(&mut self, state: &mut AgentState) {
        (self.schedule, self.failing) = Default::default();
        self.figures.ejections.ejected.store(0, Relaxed);
        let unseen = self.unseen.clone();
        let island = state.reconciler.state().ejections().island.clone();
        let all = Ejections { unseen, island, ..Ejections::default() };
        state.reconciler.observe(Update::Ejections(all));
    }
}

/// Waits for endpoints that fail; without a ring buffer, for ever. Not while others wait to be judged.
async fn read(
    ring: &mut Option<Ring<FailingEndpoint>>,
    next: &mut Instant,
    others_wait: bool,
) -> io::Result<Vec<FailingEndpoint>> {
    sleep_until(*next).await;
    let read = match ring {
        Some(ring) if others_wait => ring.next().now_or_never().unwrap_or(Ok(Vec::new())),
        Some(ring) => ring.next().await,
        None => std::future::pending().await,
    };
    *next = Instant::now() + PAUSE;
    read
}

/// The Service in `namespace/name:port`.
pub(super) fn service_of(name: &str) -> Option<ServiceId> {
    let (namespace, rest) = name.split_once('/')?;
    let (name, _) = rest.rsplit_once(':')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}
