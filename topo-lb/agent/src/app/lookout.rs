//! Finds out itself which endpoints are dead, while the node hears nothing from its API server: an island. On
//! every other node it does nothing, and sets no timer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::{info, warn};

use crate::agent_state::AgentState;
use crate::ejection_probe;
use crate::metrics::{Figures, count};
use crate::readiness::OnIsland;
use topo_lb_common::counters::Counters;
use topo_lb_core::cluster::{self, ServiceId, Update};
use topo_lb_core::ejection::Island;
use topo_lb_core::ejection::island::{Answer, Probe};
use topo_lb_core::plan::Installed;
use topo_lb_core::rate::Rate;
use topo_lb_core::stale_write_gate::in_words;
use topo_lb_core::topology::watched;
use topo_lb_kernel::datapath::maps::counters::MappedCounters;
use topo_lb_kernel::datapath::maps::failing::FailingEndpoint;

use super::ejector::service_of;

/// A Service without a new connection for so long is not used.
const USED: Duration = Duration::from_secs(600);
/// Most answers that are taken in at once, and for which there is room.
const ANSWERS: usize = 256;
/// Log limit: a burst, then one line per interval.
const LOGGED: (u32, Duration) = (10, Duration::from_secs(10));

/// A probe, and what came of it.
pub(super) type Heard = (Probe, Answer);

pub(super) struct Lookout {
    maps: PathBuf,
    /// `None`: the node is no island.
    watch: Option<Watch>,
    /// From the tasks that make probes.
    answers: mpsc::Receiver<Heard>,
    to_answer: mpsc::Sender<Heard>,
    figures: Arc<Figures>,
    logged: Rate,
    /// What decisions go by, until the maps do.
    untold: Option<OnIsland>,
}

/// What is known while the node is an island.
struct Watch {
    island: Island,
    /// When the API server was last heard of.
    since: Instant,
    begun: Instant,
    /// `None`: they cannot be read, so every Service counts as used.
    counters: Option<MappedCounters>,
    /// How many connections each Service port has had, by its index.
    counted: HashMap<u32, u64>,
    /// The Services that were used, and when last.
    used: BTreeMap<ServiceId, Instant>,
    /// Their dead endpoints, as decisions know them.
    dead: BTreeMap<ServiceId, Arc<[SocketAddr]>>,
    /// All that have been dead.
    were_dead: BTreeSet<SocketAddr>,
    /// The Services of which no endpoint answers, and all of which none has answered.
    silent: BTreeSet<ServiceId>,
    were_silent: BTreeSet<ServiceId>,
}

impl Lookout {
    /// For an agent that has just started; `maps` is the folder of its maps.
    pub(super) fn new(maps: &Path, state: &AgentState) -> Self {
        let (to_answer, answers) = mpsc::channel(ANSWERS);
        let (burst, interval) = LOGGED;
        Self {
            maps: maps.to_owned(),
            watch: None,
            answers,
            to_answer,
            figures: Arc::clone(&state.telemetry.figures),
            logged: Rate::new(burst, interval, Instant::now()),
            untold: None,
        }
    }

    /// Waits for answers, or until a probe is due. Nothing is lost if the caller stops to wait.
    pub(super) async fn next(&mut self) -> Vec<Heard> {
        let due = self.watch.as_ref().and_then(|watch| watch.island.next(Instant::now()));
        let is_due = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let mut heard = Vec::new();
        tokio::select! {
            1.. = self.answers.recv_many(&mut heard, ANSWERS) => {}
            () = is_due => {}
        }
        heard
    }

    /// Takes in answers, and begins the probes that are due. Returns whether decisions change.
    pub(super) fn take_in(&mut self, heard: Vec<Heard>, state: &mut AgentState) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        let now = Instant::now();
        let mut touched = BTreeSet::new();
        for (probe, answer) in heard {
            count(&self.figures.island.probes[answer as usize]);
            touched.extend(watch.island.answer(&probe, answer, now));
        }
        for probe in watch.island.due(now) {
            // Another Service may refuse the probe itself.
            let is_refused = state.reconciler.refuses_dials_of(probe.endpoint);
            let to = self.to_answer.clone();
            tokio::spawn(async move {
                let answer = match is_refused {
                    true => Answer::Unasked,
                    false => ejection_probe::knock(probe.endpoint).await,
                };
                // The agent may have stopped.
                let _ = to.send((probe, answer)).await;
            });
        }
        self.tell(touched, state)
    }

    /// Endpoints to which connects of this node have just failed: they are probed next.
    pub(super) fn suspect(&mut self, failing: &[FailingEndpoint]) {
        if let Some(watch) = &mut self.watch {
            let now = Instant::now();
            failing.iter().for_each(|one| watch.island.suspect(one.endpoint, now));
        }
    }

    /// Looks whether the node is an island, and which Services are used. Returns whether decisions change.
    pub(super) fn look(&mut self, state: &mut AgentState, installed: &Installed) -> bool {
        let now = Instant::now();
        // What is held back must not be written for this either.
        let may_write = state.write_gate.may_write();
        let Some(since) = state.silence.island(now).filter(|_| may_write) else {
            return self.end(state);
        };
        let is_first = self.watch.is_none();
        let watch = self.watch.get_or_insert_with(|| Watch::begin(&self.maps, since, now));
        let new = watch.look(state, installed, now);
        if is_first {
            let services = new.len();
            let silent = in_words(now.saturating_duration_since(watch.since));
            warn!(
                "this node is an island: the API server has not been heard of for {silent}. Endpoints of the Services \
                 that are used ({services}) are probed, and those that do not answer get no new connections"
            );
            state.telemetry.island(OnIsland::default());
        }
        self.tell(new, state)
    }

    /// Takes everything back, if the node was an island. Returns whether it was.
    fn end(&mut self, state: &mut AgentState) -> bool {
        let Some(watch) = self.watch.take() else { return false };
        self.untold = None;
        let lasted = in_words(watch.begun.elapsed());
        let mut found = match watch.were_dead.len() {
            0 if watch.were_silent.is_empty() => {
                "every endpoint answered that it probed".to_owned()
            }
            0 => String::new(),
            1 => "1 endpoint did not answer and got no new connections".to_owned(),
            many => format!("{many} endpoints did not answer and got no new connections"),
        };
        if !watch.were_silent.is_empty() {
            let and = if found.is_empty() { "" } else { "; " };
            let services = match watch.were_silent.len() {
                1 => "1 Service".to_owned(),
                many => format!("{many} Services"),
            };
            found += &format!(
                "{and}for a time no endpoint of a port of {services} answered, and connections went on as before"
            );
        }
        let sentence = format!("this node was an island for {lasted}; {found}");
        info!("{sentence}. The API server is back, and endpoints are as it says");
        state.telemetry.no_island(sentence);
        state.reconciler.observe(Update::Island(None));
        true
    }

    /// Follows the API server's first word, and changes of decisions. Call it before a plan.
    pub(super) fn keep(&mut self, state: &mut AgentState) {
        let Some(watch) = &mut self.watch else { return };
        let now = Instant::now();
        if state.silence.island(now).is_none() {
            self.end(state);
            return;
        }
        let changed = state.reconciler.changed().filter(|id| watch.dead.contains_key(*id));
        let changed: BTreeSet<ServiceId> = changed.cloned().collect();
        for id in &changed {
            watch.watch(id, state, now);
        }
        self.tell(changed, state);
    }

    /// Reports what does not answer, now that the maps go by it: before, the dead still get new connections.
    pub(super) fn settled(&mut self, state: &AgentState) {
        if let Some(found) = self.untold.take() {
            state.telemetry.island(found);
        }
    }

    /// Has decisions leave out who is dead of these Services, if that differs. Returns whether it does.
    fn tell(
        &mut self,
        services: impl IntoIterator<Item = ServiceId>,
        state: &mut AgentState,
    ) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        let mut differs = false;
        for id in services {
            let (dead, is_silent) = (watch.island.dead(&id), watch.island.is_silent(&id));
            let before = watch.dead.get(&id);
            let was_silent = watch.silent.contains(&id);
            if before == Some(&dead) && is_silent == was_silent {
                continue;
            }
            // First: it matters more than its endpoints, if the limit of the log does not allow for all.
            if is_silent != was_silent && self.logged.take(Instant::now()) {
                match is_silent {
                    true => info!(
                        "Service {id}: no endpoint of a port answers, so its connections go on as before: it may be this \
                         node's own network that is broken"
                    ),
                    false => info!("Service {id}: an endpoint of each port answers again"),
                }
            }
            let (was, is) = (before.map_or(&[][..], |it| it), &dead[..]);
            for (these, those, is_out) in [(is, was, true), (was, is, false)] {
                for endpoint in these.iter().filter(|one| those.binary_search(one).is_err()) {
                    let what = match (is_out, watch.island.answers(*endpoint)) {
                        (true, _) => "does not answer, and gets no new connections",
                        (false, true) => "is back",
                        (false, false) => {
                            "gets new connections again, as no endpoint of its port is known to answer"
                        }
                    };
                    if self.logged.take(Instant::now()) {
                        info!("Service {id}: endpoint {endpoint} {what}");
                    }
                }
            }
            watch.were_dead.extend(dead.iter());
            watch.dead.insert(id.clone(), dead);
            if is_silent {
                watch.silent.insert(id.clone());
                watch.were_silent.insert(id);
            } else {
                watch.silent.remove(&id);
            }
            differs = true;
        }
        if differs {
            let all: BTreeSet<_> = watch.dead.values().flat_map(|dead| dead.iter()).collect();
            self.untold = Some(OnIsland { dead: all.len(), silent: watch.silent.len() });
            let island = cluster::Island { since: watch.since, services: watch.dead.clone() };
            state.reconciler.observe(Update::Island(Some(island)));
        }
        differs
    }
}

impl Watch {
    fn begin(maps: &Path, since: Instant, now: Instant) -> Self {
        let counters = MappedCounters::open(maps)
            .inspect_err(|error| warn!("every Service counts as used: {error}"));
        Self {
            island: Island::new(fastrand::u64(..), now),
            since,
            begun: now,
            counters: counters.ok(),
            counted: HashMap::new(),
            used: BTreeMap::new(),
            dead: BTreeMap::new(),
            were_dead: BTreeSet::new(),
            silent: BTreeSet::new(),
            were_silent: BTreeSet::new(),
        }
    }

    /// Watches over Services that are used now, and lets those sleep that are not. Returns the new ones.
    fn look(
        &mut self,
        state: &AgentState,
        installed: &Installed,
        now: Instant,
    ) -> BTreeSet<ServiceId> {
        let mut new = BTreeSet::new();
        for (index, name) in installed.indexes().iter() {
            let before = self.counted.get(&index).copied().unwrap_or(0);
            let counted = match &self.counters {
                // What cannot be read now is read a second later.
                Some(counters) => counters.of(index).map_or(before, |all| connections(&all)),
                None => 0,
            };
            self.counted.insert(index, counted);
            let is_used = counted != before || self.counters.is_none();
            let Some(id) = service_of(name).filter(|_| is_used) else { continue };
            if self.used.insert(id.clone(), now).is_none() {
                new.insert(id);
            }
        }
        for id in &new {
            self.watch(id, state, now);
        }
        for (id, last) in &self.used {
            self.island.sleep(id, now.duration_since(*last) > USED, now);
        }
        new
    }

    /// Watches over the endpoints of a Service, as decisions are now.
    fn watch(&mut self, id: &ServiceId, state: &AgentState, now: Instant) {
        let reconciler = &state.reconciler;
        let (cluster, node, scope) = (reconciler.state(), reconciler.node(), reconciler.scope());
        self.island.watch(id, watched::groups(cluster, node, scope, id), now);
    }
}

/// How many connections a Service port has had that were not refused.
const fn connections(counted: &Counters) -> u64 {
    let Counters { same_node, same_zone, same_region, elsewhere, .. } = counted;
    same_node.wrapping_add(*same_zone).wrapping_add(*same_region).wrapping_add(*elsewhere)
}
