//! All objects, and every change to them.

mod absence;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::backoff::{self, pause, random};
use super::connect::Server;
use super::error::KubeError;
use super::error::{
    is_forbidden, is_gone, is_hang_up, is_missing, is_passing, is_unintelligible, overload,
};
use super::reach::{Nodes, Reach};
use super::reflect::{Failure, Query, Reflected, changes};
use super::resource::{StateKind, Watched};
use super::watch_aggregator::{Failing, WatchAggregator, freshness};
use super::zone_regions::with_zone_regions;
use crate::source::Event;
use crate::source::object::Kind;
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, KnownNodes, Namespace, Node, Service, Slice, TopologyPolicy,
    Update,
};

/// Seconds after which the server ends a watch: from this to twice this at random, so that not all
/// agents reconnect at once. client-go does the same.
const SHORTEST_WATCH: u32 = 300;
/// Longest pause after a 403.
const LONGEST_FORBIDDEN: Duration = Duration::from_secs(4);
/// Pause if the server has no version of a resource.
const MISSING_PAUSE: Duration = Duration::from_secs(10);
/// Lists Nodes, EndpointSlices, Services and what gives them policies, and follows every change. Sends listed objects one by
/// one, and then the ids of all.
///
/// The stream never ends. Reports a failure once as `Trouble`, and retries after growing pauses of
/// at most 30 s. After a gap that the server cannot bridge, lists and sends all objects again. A
/// change that cannot be read leaves the object as it was. Sends `Freshness` after the first
/// complete listing, and when it changes.
///
/// Follows only the Nodes that `nodes` wants. Sends `KnownNodes` after these were listed, and
/// before it drops Nodes that are no longer followed. Follows the own Node while all are wanted but
/// cannot be listed.
///
/// Sends the `ZoneRegion` of each zone that slices name, if the own Node has a region: those of the first
/// listing before `Synced`, if the server answers soon.
pub fn follow(server: Server, nodes: Nodes) -> impl Stream<Item = Event> + Send + 'static {
    let own = Arc::clone(&nodes.own);
    with_zone_regions(follow_reach(server.clone(), Reach::of(nodes)), server, own)
}

/// The same with all Nodes, for a reader that is on none of them.
pub fn follow_all(server: Server) -> impl Stream<Item = Event> + Send + 'static {
    follow_reach(server, Reach::all())
}

fn follow_reach(server: Server, nodes: Reach) -> impl Stream<Item = Event> + Send + 'static {
    let all = WatchAggregator::new(server.session.timing.settling);
    let events = [
        Watch::<Node>::new(server.clone(), nodes, &all).events().boxed(),
        Watch::<Slice>::new(server.clone(), Reach::all(), &all).events().boxed(),
        Watch::<Service>::new(server.clone(), Reach::all(), &all).events().boxed(),
        Watch::<Namespace>::new(server.clone(), Reach::all(), &all).events().boxed(),
        Watch::<TopologyPolicy>::new(server.clone(), Reach::all(), &all).events().boxed(),
        Watch::<ClusterTopologyPolicy>::new(server.clone(), Reach::all(), &all).events().boxed(),
        freshness(server.session.watch_health.clone(), all).boxed(),
    ];
    stream::select_all(events).inspect(move |event| {
        if let Event::Update(update) = event {
            server.observe(update);
        }
    })
}

type Changes<T> = BoxStream<'static, Result<Reflected<T>, Failure>>;

struct Watch<T: StateKind> {
    server: Server,
    reach: Reach,
    /// Index of the API version in use.
    version: usize,
    changes: Changes<T>,
    phase: Phase<T::Id>,
    /// All objects were listed once.
    had_contact: bool,
    attempts: Attempts,
    /// The reported faults of single objects.
    wrong: HashMap<T::Id, String>,
    /// When to list again because objects were deleted.
    relist: Option<Instant>,
    /// What was reported of an optional kind that is not served.
    absence: Option<String>,
    /// What the watches of all kinds are together.
    all: WatchAggregator,
    /// All objects were listed, or there is no such kind; `all` does not know it until what is `waiting` was sent.
    has_listed: bool,
    waiting: VecDeque<Event>,
}

enum Phase<Id> {
    /// The API version in use has brought nothing yet. The server does not have the `missing`
    /// versions before it.
    Probing { missing: usize },
    /// Ids in an incomplete listing.
    Listing(Vec<Id>),
    /// Everything was listed.
    Watching,
}

#[derive(Clone, Copy)]
enum Attempts {
    Succeeding,
    Failing {
        /// Failures in a row.
        count: u32,
        /// How many watches had begun at the last failure.
        opened: u64,
        /// Since when the server has given only answers that may be temporary.
        passing_since: Option<Instant>,
        /// Earliest time of the next attempt.
        next: Instant,
    },
}

impl<T: StateKind> Watch<T> {
    fn new(server: Server, reach: Reach, all: &WatchAggregator) -> Self {
        Self {
            changes: changes(&server, query(0, &reach, true)),
            server,
            reach,
            version: 0,
            phase: Phase::Probing { missing: 0 },
            had_contact: false,
            attempts: Attempts::Succeeding,
            wrong: HashMap::new(),
            relist: None,
            absence: None,
            all: all.clone(),
            has_listed: false,
            waiting: VecDeque::new(),
        }
    }

    fn events(self) -> impl Stream<Item = Event> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                if let Event::Freshness(freshness) = event {
                    self.all.told(freshness);
                }
                return event;
            }
            if std::mem::take(&mut self.has_listed) {
                self.waiting.extend(self.all.listed(T::KIND));
                continue;
            }
            if let Attempts::Failing { next, .. } = self.attempts {
                sleep_until(next).await;
            }
            let relist = self.relist;
            let change = tokio::select! {
                biased;
                () = self.reach.turned() => None,
                () = async { sleep_until(relist.unwrap_or_else(Instant::now)).await }, if relist.is_some() => {
                    self.relist = None;
                    self.begin(false);
                    continue;
                }
                change = self.changes.next() => change,
            };
            match change {
                Some(Ok(change)) => self.take(change),
                Some(Err(failure)) => self.failed(&failure).await,
                None => self.begin(true),
            }
        }
    }

    /// Lists everything in reach, and watches from there.
    fn begin(&mut self, cached: bool) {
        self.changes = changes(&self.server, query(self.version, &self.reach, cached));
    }

    fn take(&mut self, change: Reflected<T>) {
        // The begin of a listing is not a success yet.
        if !matches!(change, Reflected::Begin) {
            self.attempts = Attempts::Succeeding;
        }
        match change {
            Reflected::Begin => {
                if !matches!(self.phase, Phase::Probing { .. }) {
                    self.phase = Phase::Listing(Vec::new());
                }
            }
            // Sends objects as they come, and removes missing ones at the end: a list of all
            // objects would need more memory than the state itself, and fragment the heap.
            Reflected::Listed(object) => {
                match &mut self.phase {
                    Phase::Listing(listed) => listed.push(object.id()),
                    phase => *phase = Phase::Listing(vec![object.id()]),
                }
                if let Some(object) = self.read(object) {
                    self.say(Event::Update(T::update(Change::Applied(object))));
                }
            }
            Reflected::Complete => {
                let listed = match std::mem::replace(&mut self.phase, Phase::Watching) {
                    Phase::Listing(listed) => listed,
                    Phase::Probing { .. } | Phase::Watching => Vec::new(),
                };
                self.had_contact = true;
                if self.absence.take().is_some() && T::IS_CUSTOM {
                    self.say(Event::Kept(T::KIND, false));
                }
                self.reach.listed();
                self.server.session.watch_health.listed(T::KIND);
                let all = Event::Update(T::update(Change::Listed(Vec::new(), listed)));
                let known = Event::Update(Update::KnownNodes(self.reach.now()));
                match (T::KIND, self.reach.now()) {
                    // `KnownNodes` first, so that the other Nodes do not count as deleted.
                    (Kind::Node, KnownNodes::Own) => self.waiting.extend([known, all]),
                    (Kind::Node, KnownNodes::All) => self.waiting.extend([all, known]),
                    _ => self.say(all),
                }
                self.has_listed = true;
            }
            Reflected::Applied(object) => {
                if let Some(object) = self.read(object) {
                    self.say(Event::Update(T::update(Change::Applied(object))));
                }
            }
            Reflected::Deleted(_) if T::IS_CUSTOM => {
                self.relist
                    .get_or_insert_with(|| Instant::now() + self.server.session.timing.deletion);
            }
            Reflected::Deleted(object) => {
                let id = object.id();
                self.wrong.remove(&id);
                self.say(Event::Update(T::update(Change::Deleted(id))));
            }
        }
    }

    /// The object, if it can be read. Reports a fault once.
    fn read(&mut self, object: Watched<T>) -> Option<T> {
        let id = object.id();
        let (object, wrong) = match object.object {
            Ok((object, skipped)) => (Some(object), skipped.map(|skipped| skipped.to_string())),
            Err(error) => (None, Some(format!("{error}; this version of the object is ignored"))),
        };
        match wrong {
            None => {
                self.wrong.remove(&id);
            }
            Some(wrong) => {
                if self.wrong.insert(id, wrong.clone()).as_ref() != Some(&wrong) {
                    self.say(Event::Trouble(wrong));
                }
            }
        }
        object
    }

    fn say(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    async fn failed(&mut self, failure: &Failure) {
        let (verb, error) = match failure {
            Failure::List(error) => ("list", Some(error)),
            Failure::Begin(error) | Failure::Watch(error) | Failure::Told(error) => {
                ("watch", Some(error))
            }
            Failure::Short | Failure::NoVersion => ("watch", None),
        };
        // Only the answer to a request tells that a version is missing, not the end of a watch.
        let is_answer = !matches!(failure, Failure::Told(_));
        if is_answer && error.is_some_and(is_missing) && T::VERSIONS.len() > 1 {
            return self.other_version().await;
        }
        if T::OPTIONAL
            && let Some(error) =
                error.filter(|error| is_answer && is_missing(error) || is_forbidden(error))
        {
            return self.absent(verb, error);
        }
        let fell_back = self.reach.fall_back();
        if fell_back.is_some() {
            self.begin(false);
        }
        let passing_since = self.pause(failure, error, fell_back);
        let failing = match (failure, error) {
            // Normal ends of a watch. If more is wrong, the next attempt fails.
            (Failure::Short, _) => None,
            (Failure::Watch(error), _) if !is_unintelligible(error) => None,
            (Failure::Begin(error), _) if is_hang_up(error) && self.is_first_failure() => None,
            (_, Some(error)) if is_gone(error) => {
                // Retrying a watch from an expired version would never succeed.
                self.begin(false);
                None
            }
            (_, Some(error)) => {
                let wrong = KubeError::of(error, self.server.url(), verb, T::resource());
                let wrong = if fell_back.is_some() { wrong.of_all_nodes() } else { wrong };
                Some(Failing {
                    trouble: wrong.to_string(),
                    overload: overload(error),
                    passing_since,
                })
            }
            (_, None) => Some(Failing::lasting(format!(
                "the API server at {} says no resourceVersion with {}: they cannot be watched",
                self.server.url(),
                T::resource(),
            ))),
        };
        match failing {
            Some(failing) => self.waiting.extend(self.all.failing(failing)),
            None => tracing::debug!("watching {} again: {failure:?}", T::resource()),
        }
    }

    fn is_first_failure(&self) -> bool {
        matches!(self.attempts, Attempts::Failing { count: 1, .. })
    }

    /// Delays the next attempt, at least for as long as the server asks. Returns since when the
    /// server has given only answers that may be temporary.
    fn pause(
        &mut self,
        failure: &Failure,
        error: Option<&::kube::Error>,
        fell_back: Option<Instant>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let opened = self.server.session.watch_health.opened(T::KIND);
        let (mut count, mut passing_since) = (0, None);
        if let Attempts::Failing { count: last, opened: before, passing_since: since, .. } =
            self.attempts
        {
            // A watch that was open in between is a success, even without events, unless short.
            let short = u64::from(matches!(failure, Failure::Short));
            if before + short >= opened {
                (count, passing_since) = (last, since);
            }
        }
        // Listing the own Node does not mean that all Nodes can be listed.
        passing_since = fell_back.or(passing_since);
        if let Some(error) = error {
            passing_since = is_passing(error).then(|| passing_since.unwrap_or(now));
        }
        count = count.saturating_add(1);
        let longest = if !self.had_contact {
            backoff::LONGEST_BEFORE_CONTACT
        } else if error.is_some_and(is_forbidden) {
            // A person who fixes the role waits for the effect.
            LONGEST_FORBIDDEN
        } else if error.is_some_and(is_passing) {
            backoff::LONGEST_OVERLOADED
        } else {
            backoff::LONGEST
        };
        let asked = self.server.session.retry_after(T::KIND);
        let next = now + backoff::at_least(asked, pause(count, longest, random()));
        self.attempts = Attempts::Failing { count, opened, passing_since, next };
        passing_since
    }

    /// Tries another version of the API: the server is older or newer than expected.
    async fn other_version(&mut self) {
        let known = T::VERSIONS.len();
        let missing = match self.phase {
            Phase::Probing { missing } => missing + 1,
            Phase::Listing(_) | Phase::Watching => 1,
        };
        self.phase = Phase::Probing { missing };
        if missing == known {
            let trouble = format!(
                "the API server at {} knows no {} of version {}: Kubernetes 1.17 or later is needed",
                self.server.url(),
                T::resource(),
                T::VERSIONS.join(" or "),
            );
            self.waiting.extend(self.all.failing(Failing::lasting(trouble)));
        } else if missing > known {
            tokio::time::sleep(MISSING_PAUSE).await;
        }
        self.version = (self.version + 1) % known;
        self.begin(true);
    }
}

fn query(version: usize, reach: &Reach, cached: bool) -> Query {
    Query { version, selector: reach.selector(), cached, seconds: watch_seconds() }
}

/// The time limit of a watch in seconds, chosen at random.
pub(super) fn watch_seconds() -> u32 {
    let more = random() % u64::from(SHORTEST_WATCH);
    SHORTEST_WATCH + u32::try_from(more).unwrap_or_default()
}

#[cfg(test)]
mod tests;
