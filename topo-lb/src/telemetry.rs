//! What the owner of the state tells others: figures, readiness, Events, and answers to questions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::cluster::{Change, Family, Update};
use crate::datapath::inspect::overridden::{self, Precedence};
use crate::events::ledger::Ledger;
use crate::events::publish::EventPublisher;
use crate::ignored;
use crate::local;
use crate::metrics::{Figures, count};
use crate::plan::{Installed, Meanwhile};
use crate::readiness::{Proof, Readiness};
use crate::reconcile::Reconciler;
use crate::source::Freshness;
use crate::state_query::{Question, Questions, StateQueryHandle, View, state_query};

/// Changes whose time is taken at once; while the maps cannot be written, more may wait.
const TIMED: usize = 4096;

/// What the owner tells others. Nothing here waits for any of them.
#[derive(Debug)]
pub struct Telemetry {
    /// What is counted.
    pub figures: Arc<Figures>,
    /// What is asked.
    pub questions: Questions,
    state_query: StateQueryHandle,
    readiness: watch::Sender<Readiness>,
    ledger: Ledger,
    publisher: EventPublisher,
    local: local::Told,
    ignored: ignored::Told,
    /// Changes that are on their way into the maps.
    pending: Vec<Arrival>,
    /// The first plan was carried out; what came before it is not timed.
    has_begun: bool,
}

/// A change that came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    when: Instant,
    /// When what it is about happened, if that is said.
    triggered: Option<SystemTime>,
}

impl Arrival {
    /// Of a change that comes now.
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
    /// Of an agent that has just started.
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
            local: local::Told::default(),
            ignored: ignored::Told::new(Instant::now()),
            pending: Vec::new(),
            has_begun: false,
        }
    }

    /// Where questions are put.
    #[must_use]
    pub fn state_query(&self) -> StateQueryHandle {
        self.state_query.clone()
    }

    /// Where it is seen how ready the agent is.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Where the self-probe's answer goes.
    pub fn prover(&self) -> impl FnOnce(Proof) + Send + 'static {
        let readiness = self.readiness.clone();
        move |proof| readiness.send_modify(|readiness| readiness.proof = proof)
    }

    /// Where it is told which programs of others run before ours, and how many cgroups were not asked.
    pub fn precedence(&self) -> impl Fn(&Precedence) + Send + 'static {
        let (readiness, figures) = (self.readiness.clone(), Arc::clone(&self.figures));
        move |precedence| {
            let overridden = overridden::sentence(&precedence.overrides);
            figures
                .overridden_hooks
                .store(overridden::hooks(&precedence.overrides) as u64, Relaxed);
            figures.unasked_cgroups.store(precedence.unasked as u64, Relaxed);
            readiness.send_if_modified(|readiness| {
                let differs = readiness.overridden != overridden;
                readiness.overridden = overridden;
                differs
            });
        }
    }

    /// Counts what came from the source; `is_change`: it changes something for some Service.
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

    /// Notes how fresh the state is from now on.
    pub fn fresh(&self, freshness: Freshness) {
        self.change(|readiness| readiness.freshness = freshness);
    }

    /// Notes that all was listed.
    pub fn complete(&self) {
        self.change(|readiness| readiness.listed = true);
    }

    /// Notes which Services, as `namespace/name`, the last agent has left out for lack of room.
    pub fn unprogrammed_before<'a>(
        &mut self,
        unprogrammed: impl IntoIterator<Item = (&'a str, Meanwhile)>,
    ) {
        self.ledger.begin(unprogrammed);
    }

    /// Notes that the programs are attached, and the maps filled.
    pub fn begin(&mut self) {
        self.has_begun = true;
        self.change(|readiness| readiness.programmed = true);
    }

    /// Notes that nothing is left to plan, after so many steps; tells what is news of it.
    pub fn settled(&mut self, reconciler: &mut Reconciler, installed: &Installed, steps: usize) {
        self.time(steps);
        let looked = reconciler.take_looked();
        // One that begins to wait is not looked at, and leads to no step.
        self.figures.waiting.store(reconciler.waiting() as u64, Relaxed);
        if steps > 0 || !looked.is_empty() {
            self.figures.programmed(steps, installed);
            self.figures.services.store(reconciler.state().services().len() as u64, Relaxed);
            self.local.look(reconciler.state(), looked.keys());
            let told = self.ignored.look(reconciler.state(), looked.keys(), Instant::now());
            self.figures.troubles.fetch_add(told as u64, Relaxed);
            for (meanwhile, figure) in Meanwhile::ALL.iter().zip(&self.figures.unprogrammed) {
                let lacks = reconciler.unprogrammed().values();
                figure.store(
                    lacks.filter(|lack| lack.meanwhile == *meanwhile).count() as u64,
                    Relaxed,
                );
            }
            let mut news = self.ledger.look(reconciler, looked);
            news.extend(self.ledger.leave_out(reconciler));
            self.publisher.tell(news);
        }
        self.change(|readiness| readiness.stuck = None);
    }

    /// Notes that a plan could not be carried out.
    pub fn failed(&self, why: &str) {
        count(&self.figures.failed_plans);
        self.change(|readiness| readiness.stuck = Some(why.to_owned()));
    }

    /// Takes the time of the changes that are in the maps now.
    fn time(&mut self, steps: usize) {
        let pending = self.pending.drain(..);
        if steps == 0 {
            return;
        }
        let now = SystemTime::now();
        for arrival in pending {
            self.figures.programming.observe(arrival.when.elapsed());
            if let Some(took) = since(arrival.triggered, self.figures.started, now) {
                self.figures.network_programming.observe(took);
            }
        }
    }

    /// Answers a question.
    pub fn answer(
        &self,
        question: Question,
        reconciler: &Reconciler,
        installed: &Installed,
        devices: &[String],
    ) {
        // Whoever has asked may have gone.
        match question {
            Question::View(to) => {
                let _ = to.send(View {
                    state: reconciler.snapshot(),
                    unprogrammed: reconciler.unprogrammed().clone(),
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

    /// Only what differs is sent.
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

/// How long ago something happened, if it is known, and did not happen before the agent started, as
/// kube-proxy counts. Clocks of two machines differ: what is to come takes no time.
fn since(triggered: Option<SystemTime>, started: SystemTime, now: SystemTime) -> Option<Duration> {
    let triggered = triggered.filter(|triggered| *triggered > started)?;
    Some(now.duration_since(triggered).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::cluster::KnownNodes;
    use crate::events::concern::Refusal;
    use crate::plan::{Capacity, WhenFull};
    use crate::source::file::example::{CLUSTER, updates};
    use crate::topology::Scope;

    #[test]
    fn a_service_that_waits_for_other_nodes_is_counted_though_nothing_is_written_for_it() {
        let figures = Arc::<Figures>::default();
        let mut telemetry =
            Telemetry::new(Arc::clone(&figures), EventPublisher::silent(Arc::default()));
        let mut reconciler = Reconciler::new("here".into(), Scope::All, false);
        let installed = Installed::new(Capacity::default());
        let mut settle = |update| {
            reconciler.observe(update);
            let plan = reconciler.plan(&installed);
            reconciler.carried_out(&plan);
            telemetry.settled(&mut reconciler, &installed, 0);
            figures.waiting.load(Relaxed)
        };
        assert_eq!(settle(Update::KnownNodes(KnownNodes::Own)), 0);
        let waiting: Vec<_> = updates(CLUSTER).into_iter().map(&mut settle).collect();
        assert_eq!(waiting.last(), Some(&1));
        assert_eq!(settle(Update::KnownNodes(KnownNodes::All)), 0);
    }

    /// Why Service ports are refused, of a cluster and with such maps.
    fn reasons(cluster: &str, capacity: Capacity) -> Vec<(String, Refusal)> {
        let mut telemetry = Telemetry::new(Arc::default(), EventPublisher::silent(Arc::default()));
        let mut reconciler = Reconciler::new("here".into(), Scope::All, true);
        reconciler = reconciler.when_full(WhenFull::RefuseStrict);
        let installed = Installed::new(capacity);
        for update in updates(cluster) {
            reconciler.observe(update);
        }
        let plan = reconciler.plan(&installed);
        reconciler.carried_out(&plan);
        telemetry.settled(&mut reconciler, &installed, plan.steps.len());
        let (to, mut answer) = oneshot::channel();
        telemetry.answer(Question::Reasons(to), &reconciler, &installed, &[]);
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
        // kube-proxy has both.
        assert_eq!(reasons(&served, no_frontends), []);
        assert_eq!(reasons(CLUSTER, no_frontends), []);
    }

    #[test]
    fn an_annotation_of_a_service_that_is_ignored_is_a_trouble() {
        let figures = Arc::<Figures>::default();
        let mut telemetry =
            Telemetry::new(Arc::clone(&figures), EventPublisher::silent(Arc::default()));
        let mut reconciler = Reconciler::new("here".into(), Scope::All, false);
        let installed = Installed::new(Capacity::default());
        let mut settle = |cluster: &str| {
            for update in updates(cluster) {
                reconciler.observe(update);
            }
            let plan = reconciler.plan(&installed);
            reconciler.carried_out(&plan);
            telemetry.settled(&mut reconciler, &installed, 0);
            figures.troubles.load(Relaxed)
        };
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
