//! What the agent task reports: metrics, readiness, Events, and answers to queries.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tracing::warn;

use crate::events::concern::News;
use crate::events::ledger::Ledger;
use crate::events::publish::EventPublisher;
use crate::health;
use crate::metrics::{Figures, count};
use crate::readiness::{OnIsland, Readiness, SelfProbe};
use crate::state_query::{Question, Questions, StateQueryHandle, View, state_query};
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::{Change, Family, Update};
use topo_lb_core::ignored::IgnoredLog;
use topo_lb_core::local;
use topo_lb_core::plan::{Installed, Lack, Meanwhile};
use topo_lb_core::rate::Rate;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_kernel::datapath::inspect::in_front;
use topo_lb_kernel::datapath::inspect::overridden::{self, Precedence};
use topo_lb_kernel::datapath::maps::usage::{self, TableUse};

/// Most pending changes that are timed. More may wait while the maps cannot be written.
const TIMED: usize = 4096;
/// Log limit for tables that are full: a burst, then one line per interval.
const TABLES_LOGGED: (u32, Duration) = (4, Duration::from_secs(600));

/// The owner's reports. No method waits for a receiver.
#[derive(Debug)]
pub struct Telemetry {
    /// The agent's counters.
    pub figures: Arc<Figures>,
    /// Queries from other tasks.
    pub questions: Questions,
    state_query: StateQueryHandle,
    readiness: watch::Sender<Readiness>,
    ledger: Ledger,
    publisher: EventPublisher,
    local: local::LocalLog,
    ignored: IgnoredLog,
    /// `None`: no health checks of load balancers are answered.
    health: Option<health::Checks>,
    /// Changes that are not in the maps yet.
    pending: Vec<Arrival>,
    tables_logged: Rate,
    /// Whether the first plan was carried out; earlier changes are not timed.
    has_begun: bool,
}

/// A change and its time of arrival.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    when: Instant,
    /// When the object changed, if the source says so.
    triggered: Option<SystemTime>,
}

impl Arrival {
    /// A change that arrives now.
    #[must_use]
    pub fn of(update: &Update) -> Self {
        let triggered = match update {
            Update::Slice(Change::Applied(slice)) => slice.triggered,
            _ => None,
        };
        Self { when: Instant::now(), triggered }
    }
}

impl Telemetry {
    /// For an agent that has just started.
    #[must_use]
    pub fn new(figures: Arc<Figures>, publisher: EventPublisher) -> Self {
        let (state_query, questions) = state_query();
        Self {
            figures,
            questions,
            state_query,
            readiness: watch::Sender::default(),
            ledger: Ledger::default(),
            publisher,
            local: local::LocalLog::default(),
            ignored: IgnoredLog::new(Instant::now()),
            health: None,
            pending: Vec::new(),
            tables_logged: Rate::new(TABLES_LOGGED.0, TABLES_LOGGED.1, Instant::now()),
            has_begun: false,
        }
    }

    /// Tells these which Services have a health check.
    pub fn check_health(&mut self, checks: health::Checks) {
        self.health = Some(checks);
    }

    /// Records that the agent only observes.
    pub fn observe(&self) {
        self.change(|readiness| readiness.observes = true);
    }

    /// A handle for queries.
    #[must_use]
    pub fn state_query(&self) -> StateQueryHandle {
        self.state_query.clone()
    }

    /// A receiver of the agent's readiness.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// A function that records the self-probe's result.
    pub fn prover(&self) -> impl FnOnce(SelfProbe) + Send + 'static {
        let readiness = self.readiness.clone();
        move |result| readiness.send_modify(|readiness| readiness.self_probe = result)
    }

    /// Records why connections from outside fail, if they do.
    pub fn lacks_outside(&self, why: Option<&String>) {
        self.readiness.send_if_modified(|readiness| {
            let differs = readiness.outside.as_ref() != why;
            readiness.outside = why.cloned();
            differs
        });
    }

    /// Records how full the tables of connections are, and logs when one begins to be. `used_up`: what to say of
    /// someone's share; it gets whether that was used up.
    pub fn tables(&mut self, tables: &[TableUse; 2], used_up: impl FnOnce(bool) -> Option<String>) {
        let (full_before, used_up_before) = {
            let before = self.readiness.borrow();
            (before.full.is_some(), before.used_up.is_some())
        };
        let full = usage::full(tables, full_before);
        let used_up = used_up(used_up_before);
        let begins = [(&full, full_before), (&used_up, used_up_before)];
        for (sentence, was) in begins {
            if let Some(sentence) = sentence.as_ref().filter(|_| !was)
                && self.tables_logged.take(Instant::now())
            {
                warn!("{sentence}");
            }
        }
        self.change(|readiness| (readiness.full, readiness.used_up) = (full, used_up));
    }

    /// Records which clients outside are not served, if any.
    pub fn leaves_unserved(&self, which: Option<String>) {
        self.readiness.send_if_modified(|readiness| {
            let differs = readiness.unserved != which;
            readiness.unserved = which;
            differs
        });
    }

    /// A function that records overriding foreign programs and the number of unqueried cgroups.
    pub fn precedence(&self) -> impl Fn(&Precedence) + Send + 'static {
        let (readiness, figures) = (self.readiness.clone(), Arc::clone(&self.figures));
        move |precedence| {
            let overridden = overridden::sentence(&precedence.overrides)
                .or_else(|| in_front::sentence(&precedence.in_front));
            figures
                .overridden_hooks
                .store(overridden::hooks(&precedence.overrides) as u64, Relaxed);
            figures.in_front.store(precedence.in_front.len() as u64, Relaxed);
            figures.unasked_cgroups.store(precedence.unasked as u64, Relaxed);
            readiness.send_if_modified(|readiness| {
                let differs = readiness.overridden != overridden;
                readiness.overridden = overridden;
                differs
            });
        }
    }

    /// Records an update from the source; `is_change`: it changes something for some Service.
    pub fn took_in(&mut self, arrival: Arrival, is_change: bool) {
        if is_change && self.has_begun && self.pending.len() < TIMED {
            self.pending.push(arrival);
        }
    }

    /// Counts a listing.
    pub fn listed(&self, update: &Update) {
        let [services, slices, nodes] = &self.figures.listings;
        match update {
            Update::Service(Change::Listed(..)) => count(services),
            Update::Slice(Change::Listed(..)) => count(slices),
            Update::Node(Change::Listed(..)) => count(nodes),
            _ => {}
        }
    }

    /// Records how fresh the state is from now on.
    pub fn fresh(&self, freshness: Freshness) {
        self.change(|readiness| readiness.freshness = freshness);
    }

    /// Records what does not answer this node, which is an island.
    pub fn island(&self, found: OnIsland) {
        let figures = &self.figures.island;
        figures.is_island.store(1, Relaxed);
        figures.dead.store(found.dead as u64, Relaxed);
        figures.silent.store(found.silent as u64, Relaxed);
        self.change(|readiness| (readiness.island, readiness.was_island) = (Some(found), None));
    }

    /// Records that this node is no island any more, and what it was.
    pub fn no_island(&self, sentence: String) {
        let figures = &self.figures.island;
        figures.is_island.store(0, Relaxed);
        figures.dead.store(0, Relaxed);
        figures.silent.store(0, Relaxed);
        self.change(|readiness| {
            (readiness.island, readiness.was_island) = (None, Some(sentence));
        });
    }

    /// Records that everything was listed.
    pub fn complete(&self) {
        self.change(|readiness| readiness.listed = true);
    }

    /// Records which Services, as `namespace/name`, the last agent left unprogrammed.
    pub fn unprogrammed_before<'a>(
        &mut self,
        unprogrammed: impl IntoIterator<Item = (&'a str, Meanwhile)>,
    ) {
        self.ledger.begin(unprogrammed);
    }

    /// Records that the programs are attached and the maps filled.
    pub fn begin(&mut self) {
        self.has_begun = true;
        self.change(|readiness| readiness.programmed = true);
    }

    /// Records that nothing is left to plan, after so many steps, and reports what is new.
    pub fn settled(&mut self, reconciler: &mut Reconciler, installed: &Installed, steps: usize) {
        self.time(steps);
        let recomputed = reconciler.take_recomputed();
        // A Service that begins to wait is not recomputed at, and leads to no step.
        self.figures.waiting.store(reconciler.waiting() as u64, Relaxed);
        if steps > 0 || !recomputed.is_empty() {
            self.figures.programmed(steps, installed);
            self.figures.services.store(reconciler.state().services().len() as u64, Relaxed);
            self.local.look(reconciler.state(), recomputed.keys());
            if let Some(health) = &self.health {
                health.look(reconciler.state(), reconciler.node(), recomputed.keys());
            }
            let told = self.ignored.look(reconciler.state(), recomputed.keys(), Instant::now());
            self.figures.troubles.fetch_add(told as u64, Relaxed);
            for (meanwhile, figure) in Meanwhile::ALL.iter().zip(&self.figures.unprogrammed) {
                let is_so = |lack: &&Lack| match lack.meanwhile {
                    Meanwhile::Nobody => *meanwhile == Meanwhile::KubeProxy,
                    other => *meanwhile == other,
                };
                let lacking = reconciler.unprogrammed().values().filter(is_so);
                figure.store(lacking.count() as u64, Relaxed);
            }
            let mut news = self.ledger.look(reconciler, recomputed);
            news.extend(self.ledger.lacking(reconciler));
            self.publisher.tell(news);
        }
        self.change(|readiness| readiness.stuck = None);
    }

    /// Sends news.
    pub fn tell(&self, news: Vec<News>) {
        self.publisher.tell(news);
    }

    /// Records that a plan failed.
    pub fn failed(&self, why: &str) {
        count(&self.figures.failed_plans);
        self.change(|readiness| readiness.stuck = Some(why.to_owned()));
    }

    /// Records the latency of the changes that are now in the maps.
    fn time(&mut self, steps: usize) {
        let pending = self.pending.drain(..);
        if steps == 0 {
            return;
        }
        let now = SystemTime::now();
        for arrival in pending {
            self.figures.times.programming.observe(arrival.when.elapsed().as_secs_f64());
            if let Some(took) = since(arrival.triggered, self.figures.times.started, now) {
                self.figures.times.network_programming.observe(took.as_secs_f64());
            }
        }
    }

    /// Answers a query.
    pub fn answer(
        &self,
        question: Question,
        reconciler: &Reconciler,
        installed: &Installed,
        devices: &[String],
    ) {
        // The sender may not wait any more.
        match question {
            Question::View(to) => {
                let _ = to.send(View {
                    state: reconciler.snapshot(),
                    unprogrammed: reconciler.unprogrammed().clone(),
                    exposing: reconciler.exposed(),
                    devices: devices.to_vec(),
                    frontends: installed.frontends_in(Family::V4)
                        + installed.frontends_in(Family::V6),
                });
            }
            Question::Reasons(to) => {
                let _ = to.send(self.ledger.reasons(reconciler));
            }
            Question::Refused(counted) => {
                self.publisher.tell(self.ledger.counted(reconciler, &counted));
            }
        }
    }

    /// Notifies receivers only if something differs.
    fn change(&self, change: impl FnOnce(&mut Readiness)) {
        self.readiness.send_if_modified(|readiness| {
            let mut new = readiness.clone();
            change(&mut new);
            let differs = new != *readiness;
            *readiness = new;
            differs
        });
    }
}

/// The time since an event; `None` if it is unknown or was before the agent started, as kube-proxy
/// counts. Zero if it is in the future, as clocks of machines differ.
fn since(triggered: Option<SystemTime>, started: SystemTime, now: SystemTime) -> Option<Duration> {
    let triggered = triggered.filter(|triggered| *triggered > started)?;
    Some(now.duration_since(triggered).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use topo_lb_core::cluster::KnownNodes;
    use topo_lb_core::plan::{Capacity, WhenFull};
    use topo_lb_core::refusal::Refusal;
    use topo_lb_core::topology::Scope;
    use topo_lb_kube::source::file::example::{CLUSTER, updates};

    /// An agent that writes nothing.
    struct Agent {
        telemetry: Telemetry,
        reconciler: Reconciler,
        installed: Installed,
    }

    impl Agent {
        fn new(capacity: Capacity) -> Self {
            let reconciler = Reconciler::new("here".into(), Scope::All, true);
            Self {
                telemetry: Telemetry::new(Arc::default(), EventPublisher::silent(Arc::default())),
                reconciler: reconciler.when_full(WhenFull::RefuseStrict),
                installed: Installed::new(capacity),
            }
        }

        /// Returns what the agent counts then.
        fn settle(&mut self, updates: impl IntoIterator<Item = Update>) -> &Figures {
            for update in updates {
                self.reconciler.observe(update);
            }
            let plan = self.reconciler.plan(&self.installed);
            self.reconciler.carried_out(&plan, &self.installed);
            self.telemetry.settled(&mut self.reconciler, &self.installed, plan.steps.len());
            &self.telemetry.figures
        }
    }

    #[test]
    fn a_service_that_waits_for_other_nodes_is_counted_though_nothing_is_written_for_it() {
        let mut agent = Agent::new(Capacity::default());
        let mut settle = |updates| agent.settle(updates).waiting.load(Relaxed);
        assert_eq!(settle(vec![Update::KnownNodes(KnownNodes::Own)]), 0);
        assert_eq!(settle(updates(CLUSTER)), 1);
        assert_eq!(settle(vec![Update::KnownNodes(KnownNodes::All)]), 0);
    }

    /// Why Service ports refuse, in this cluster and with these sizes of the maps.
    fn reasons(cluster: &str, capacity: Capacity) -> Vec<(String, Refusal)> {
        let mut agent = Agent::new(capacity);
        agent.settle(updates(cluster));
        let (to, mut answer) = oneshot::channel();
        agent.telemetry.answer(Question::Reasons(to), &agent.reconciler, &agent.installed, &[]);
        let reasons = answer.try_recv().unwrap().into_iter();
        reasons.map(|(name, why)| (name.to_string(), why)).collect()
    }

    #[test]
    fn a_port_that_is_refused_for_want_of_room_has_a_reason_of_its_own() {
        let refused = |why| vec![("default/a:80".to_owned(), why)];
        let served = CLUSTER.replace("nodeName: there", "nodeName: here");
        let roomy = Capacity::default();
        let no_members = Capacity { members: 0, ..roomy };
        let no_frontends = Capacity { services: 0, ..roomy };
        assert_eq!(reasons(&served, roomy), []);
        assert_eq!(reasons(&served, no_members), refused(Refusal::NoRoom));
        assert_eq!(reasons(CLUSTER, no_members), refused(Refusal::Policy));
        // kube-proxy handles both.
        assert_eq!(reasons(&served, no_frontends), []);
        assert_eq!(reasons(CLUSTER, no_frontends), []);
    }

    #[test]
    fn an_annotation_of_a_service_that_is_ignored_is_a_trouble() {
        let mut agent = Agent::new(Capacity::default());
        let mut settle = |cluster: &str| agent.settle(updates(cluster)).troubles.load(Relaxed);
        assert_eq!(settle(CLUSTER), 0);
        let wrong = CLUSTER.replace("topo-lb.io/topology-keys: rack", "topo-lb.io/handle: 'False'");
        assert_eq!(settle(&wrong), 1);
        assert_eq!(settle(&wrong.replace("10.1.1.1", "10.1.1.2")), 1, "once");
    }

    #[test]
    fn what_happened_before_the_start_is_not_timed() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(since(None, at(10), at(20)), None);
        assert_eq!(since(Some(at(9)), at(10), at(20)), None);
        assert_eq!(since(Some(at(15)), at(10), at(20)), Some(Duration::from_secs(5)));
        assert_eq!(since(Some(at(30)), at(10), at(20)), Some(Duration::ZERO));
    }
}
