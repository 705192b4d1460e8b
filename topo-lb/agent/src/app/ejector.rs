//! Leaves out endpoints to which this node's connects fail, and takes them back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

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
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::maps::failing::{FailingEndpoint, FailingRing};

/// Pause between two looks at the ring buffer: endpoints of which none can be left out may fail very
/// often.
const PAUSE: Duration = Duration::from_millis(10);
/// Most probes at once.
const PROBES: usize = 32;
/// Log limit: a burst, then one line per interval.
const LOGGED: (u32, Duration) = (10, Duration::from_secs(10));

/// What has happened to endpoints.
pub(super) enum Heard {
    /// Connects to these failed.
    Failing(Vec<FailingEndpoint>),
    /// One was probed.
    Probed(Due, Probed),
    /// The ring buffer cannot be read.
    Broken(io::Error),
}

/// A probe and its result.
type Answer = (Due, Probed);

pub(super) struct Ejector {
    /// `None`: nothing is seen to fail.
    ring: Option<FailingRing>,
    /// Why, if so.
    unseen: Option<Arc<str>>,
    /// When to look at the ring buffer again.
    next: Instant,
    schedule: Schedule,
    /// Results of probes, from the tasks that make them.
    answers: mpsc::Receiver<Answer>,
    to_answer: mpsc::Sender<Answer>,
    probing: usize,
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
        let ejector = Self {
            ring,
            unseen,
            next: Instant::now(),
            schedule: Schedule::default(),
            answers,
            to_answer,
            probing: 0,
            figures: Arc::clone(&state.telemetry.figures),
            logged: Rate::new(burst, interval, std::time::Instant::now()),
        };
        ejector.tell(state);
        ejector
    }

    /// Waits for something to happen. Nothing is lost if the caller stops to wait.
    pub(super) async fn next(&mut self) -> Heard {
        let Self { ring, next, answers, .. } = self;
        tokio::select! {
            Some((due, probed)) = answers.recv() => Heard::Probed(due, probed),
            failing = failing(ring, next) => failing.map_or_else(Heard::Broken, Heard::Failing),
        }
    }

    /// Takes in what has happened. Returns whether decisions change.
    pub(super) fn take_in(
        &mut self,
        heard: Heard,
        state: &mut AgentState,
        installed: &Installed,
    ) -> bool {
        match heard {
            Heard::Failing(all) => {
                let mut differs = false;
                for one in all {
                    differs |= self.eject(one, state, installed);
                }
                differs
            }
            Heard::Broken(error) => {
                self.ring = None;
                self.unseen = Some(format!("the ring buffer cannot be read: {error}").into());
                self.tell(state);
                true
            }
            Heard::Probed(due, probed) => {
                self.probing -= 1;
                count(&self.figures.ejections.probes[probed as usize]);
                let Some(is_back) = self.schedule.answer(&due, probed, now()) else { return false };
                self.tell(state);
                let Due { service, endpoint } = &due;
                if is_back && self.logged.take(now()) {
                    let why = match probed {
                        Probed::Answered => "it answers a probe",
                        _ => "no endpoint answers a probe of this host",
                    };
                    info!("Service {service}: endpoint {endpoint} is back: {why}");
                }
                true
            }
        }
    }

    /// Leaves an endpoint out, if its Service asks for that and its tier has room.
    fn eject(
        &mut self,
        failing: FailingEndpoint,
        state: &mut AgentState,
        installed: &Installed,
    ) -> bool {
        let FailingEndpoint { service, endpoint, why } = failing;
        let service = installed.indexes().name(service).and_then(|name| service_of(name));
        let Some(service) = service else { return false };
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
            format!("endpoint {endpoint} is left out for {seconds} s, then probed: {cause}");
        let is_first = !cluster.ejections().services.contains_key(&due.service);
        if is_first {
            let uid = cluster.service(&due.service).and_then(|service| service.uid);
            let news = concern::ejected(&due.service, uid, node, endpoint, &sentence);
            state.telemetry.tell(vec![news]);
        }
        if self.logged.take(now()) {
            info!("Service {}: {sentence}", due.service);
        }
        self.tell(state);
        true
    }

    /// Forgets what the cluster's changes have made different. Call it before a plan.
    pub(super) fn keep(&mut self, state: &mut AgentState) {
        let reconciler = &state.reconciler;
        let changed = self.schedule.services().filter(|id| reconciler.is_changed(id));
        let changed: Vec<ServiceId> = changed.cloned().collect();
        let mut differs = false;
        for id in &changed {
            let (cluster, node) = (reconciler.state(), reconciler.node());
            let setting = ejected::setting(cluster, node, id);
            let out = ejected::ejected(cluster, node, id);
            differs |= self.schedule.keep(id, setting, &out, &ejected::ready(cluster, id));
        }
        if differs {
            self.tell(state);
        }
    }

    /// Probes endpoints whose time is over, in tasks of their own.
    pub(super) fn probe(&mut self, state: &AgentState) {
        let room = PROBES - self.probing;
        for due in self.schedule.due(room, now()) {
            let reconciler = &state.reconciler;
            let (cluster, node) = (reconciler.state(), reconciler.node());
            let fellow = ejected::fellow(cluster, node, &due.service, due.endpoint);
            let answers = self.to_answer.clone();
            self.probing += 1;
            tokio::spawn(async move {
                let probed = ejection_probe::probe(due.endpoint, fellow).await;
                // The agent may have stopped.
                let _ = answers.send((due, probed)).await;
            });
        }
    }

    /// Has decisions leave out what the schedule says.
    fn tell(&self, state: &mut AgentState) {
        let (unseen, services) = (self.unseen.clone(), self.schedule.ejections());
        self.figures.ejections.ejected.store(self.schedule.len() as u64, Relaxed);
        state.reconciler.observe(Update::Ejections(Ejections { unseen, services }));
    }
}

/// Waits for endpoints that fail; without a ring buffer, for ever.
async fn failing(
    ring: &mut Option<FailingRing>,
    next: &mut Instant,
) -> io::Result<Vec<FailingEndpoint>> {
    sleep_until(*next).await;
    let read = match ring {
        Some(ring) => ring.next().await,
        None => std::future::pending().await,
    };
    *next = Instant::now() + PAUSE;
    read
}

/// The Service in `namespace/name:port`.
fn service_of(name: &str) -> Option<ServiceId> {
    let (namespace, rest) = name.split_once('/')?;
    let (name, _) = rest.rsplit_once(':')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}
