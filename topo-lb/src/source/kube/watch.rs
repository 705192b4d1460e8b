//! All objects there are, and every change to them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::backoff::{self, pause, random};
use super::listing::is_missing;
use super::reach::{Nodes, Reach};
use super::reflect::{Change, Failure, Query, changes};
use super::resource::{StateKind, Watched};
use super::watch_aggregator::{Failing, WatchAggregator, WatchReport, beats};
use super::{KubeError, Server};
use crate::cluster::{self, KnownNodes, Node, Service, Slice, Update};
use crate::source::Event;
use crate::source::object::Kind;

/// The server ends a watch after so many seconds. The actual time lies up to twice as high, so that
/// not all agents come back at once: as client-go does it.
const SHORTEST_WATCH: u32 = 300;
/// Longest pause after a refusal for want of a permission.
const LONGEST_FORBIDDEN: Duration = Duration::from_secs(4);
/// Pause where the server knows no version of a resource.
const MISSING_PAUSE: Duration = Duration::from_secs(10);
/// Lists Nodes, EndpointSlices and Services, and follows every change to them. Objects that are listed
/// are said one by one, and then the names of all there are.
///
/// The stream never ends: whatever goes wrong is said once as `Trouble` and tried again, at longer
/// and longer intervals of at most half a minute. After a gap that the server cannot bridge, all
/// objects are listed and said anew. A change that cannot be read leaves the object as it was.
/// `Freshness` is said after all were listed once, and whenever it changes.
///
/// Of Nodes, only those are followed that `nodes` wants. `KnownNodes` is said after all of them were
/// listed, and before those that are not followed any more are dropped. While all Nodes are wanted and
/// cannot be listed, the own Node is followed.
pub fn follow(server: Server, nodes: Nodes) -> impl Stream<Item = Event> + Send + 'static {
    let said = [
        Watch::<Node>::new(server.clone(), Reach::of(nodes)).said().boxed(),
        Watch::<Slice>::new(server.clone(), Reach::all()).said().boxed(),
        Watch::<Service>::new(server.clone(), Reach::all()).said().boxed(),
        beats(server.watch_health().clone()).boxed(),
    ];
    let mut all = WatchAggregator::new(server.timing().settling);
    stream::select_all(said).flat_map(move |said| {
        if let WatchReport::Event(Event::Update(update)) = &said {
            server.observe(update);
        }
        stream::iter(all.take(said))
    })
}

type Changes<T> = BoxStream<'static, Result<Change<T>, Failure>>;

/// The watch of one kind.
struct Watch<T: StateKind> {
    server: Server,
    reach: Reach,
    /// Index of the API version in use.
    version: usize,
    /// Versions in a row that the server did not know.
    unknown: usize,
    changes: Changes<T>,
    /// Who was listed so far in a listing that goes on.
    listed: Vec<T::Id>,
    /// What was said of single objects.
    wrong: HashMap<T::Id, String>,
    waiting: VecDeque<WatchReport>,
    /// All objects were listed once.
    had_contact: bool,
    /// Attempts in a row that failed.
    failures: u32,
    /// How many watches had begun when the last one failed.
    opened: u64,
    /// No attempt before.
    rest: Option<Instant>,
    /// Since when the server has answered what may be expected to pass, and nothing else.
    passing: Option<Instant>,
}

impl<T: StateKind> Watch<T> {
    fn new(server: Server, reach: Reach) -> Self {
        Self {
            changes: changes(&server, query(0, &reach, true)),
            server,
            reach,
            version: 0,
            unknown: 0,
            listed: Vec::new(),
            wrong: HashMap::new(),
            waiting: VecDeque::new(),
            had_contact: false,
            failures: 0,
            opened: 0,
            rest: None,
            passing: None,
        }
    }

    fn said(self) -> impl Stream<Item = WatchReport> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    async fn next(&mut self) -> WatchReport {
        loop {
            if let Some(said) = self.waiting.pop_front() {
                return said;
            }
            if let Some(until) = self.rest.take() {
                sleep_until(until).await;
            }
            let change = tokio::select! {
                biased;
                () = self.reach.turned() => None,
                change = self.changes.next() => change,
            };
            match change {
                Some(Ok(change)) => self.take(change),
                Some(Err(failure)) => self.failed(&failure).await,
                None => self.begin(true),
            }
        }
    }

    /// Lists all that is to be watched, and watches from there.
    fn begin(&mut self, cached: bool) {
        self.changes = changes(&self.server, query(self.version, &self.reach, cached));
    }

    fn take(&mut self, change: Change<T>) {
        // That a listing begins is no success yet.
        if !matches!(change, Change::Begin) {
            self.failures = 0;
            self.passing = None;
        }
        match change {
            Change::Begin => self.listed.clear(),
            // Objects are said as they come, and what is gone at the end: a list of all of them would
            // take more memory than they do, and leave holes where it was.
            Change::Listed(object) => {
                self.unknown = 0;
                self.listed.push(object.id());
                if let Some(object) = self.read(object) {
                    self.say(Event::Update(T::update(cluster::Change::Applied(object))));
                }
            }
            Change::Complete => {
                self.unknown = 0;
                self.had_contact = true;
                self.reach.listed();
                self.server.watch_health().listed(T::KIND);
                let listed = std::mem::take(&mut self.listed);
                let all = Event::Update(T::update(cluster::Change::Listed(Vec::new(), listed)));
                let known = Event::Update(Update::KnownNodes(self.reach.now()));
                match (T::KIND, self.reach.now()) {
                    // Nobody must take the others for gone.
                    (Kind::Node, KnownNodes::Own) => {
                        self.waiting.extend([known, all].map(WatchReport::Event))
                    }
                    (Kind::Node, KnownNodes::All) => {
                        self.waiting.extend([all, known].map(WatchReport::Event))
                    }
                    _ => self.say(all),
                }
                self.waiting.push_back(WatchReport::Listed(T::KIND));
            }
            Change::Applied(object) => {
                if let Some(object) = self.read(object) {
                    self.say(Event::Update(T::update(cluster::Change::Applied(object))));
                }
            }
            Change::Deleted(object) => {
                let id = object.id();
                self.wrong.remove(&id);
                self.say(Event::Update(T::update(cluster::Change::Deleted(id))));
            }
        }
    }

    /// The object, if it can be read; says what is wrong with it, unless that was said.
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
        self.waiting.push_back(WatchReport::Event(event));
    }

    async fn failed(&mut self, failure: &Failure) {
        let (verb, error) = match failure {
            Failure::List(error) => ("list", Some(error)),
            Failure::Begin(error) | Failure::Watch(error) => ("watch", Some(error)),
            Failure::Told(_) | Failure::Short | Failure::NoVersion => ("watch", None),
        };
        if error.is_some_and(is_missing) && T::VERSIONS.len() > 1 {
            return self.other_version().await;
        }
        if matches!(failure, Failure::Short) {
            // That this one was open is no success.
            self.opened = (self.opened + 1).min(self.server.watch_health().opened(T::KIND));
        }
        self.pause(error);
        let fell_back = self.reach.fall_back();
        if fell_back.is_some() {
            // That the own Node is listed meanwhile is no sign that all of them can be.
            self.passing = fell_back;
            self.begin(false);
        }
        let trouble = match (failure, error) {
            // Watches end, connections break, and the server forgets what is long ago. If more is
            // wrong than that, the next attempt fails.
            (Failure::Watch(error), _) if !is_unintelligible(error) => None,
            (Failure::Told(status), _) if status.code == 410 => None,
            (Failure::Short, _) => None,
            (Failure::Told(status), _) => {
                let error = ::kube::Error::Api(status.clone());
                Some(self.failing(&error, self.error(&error, verb)))
            }
            (_, Some(error)) if is_gone(error) => {
                // Said instead of a watch, the same would be asked for again and again.
                self.begin(false);
                None
            }
            (_, Some(error)) => {
                let wrong = self.error(error, verb);
                let wrong = if fell_back.is_some() { wrong.of_all_nodes() } else { wrong };
                Some(self.failing(error, wrong))
            }
            (_, None) => Some(Failing {
                trouble: format!(
                    "the API server at {} says no resourceVersion with {}: they cannot be watched",
                    self.server.url(),
                    T::resource(),
                ),
                overload: None,
                passing_since: None,
            }),
        };
        match trouble {
            Some(failing) => self.waiting.push_back(WatchReport::Failing(failing)),
            None => tracing::debug!("watching {} again: {failure:?}", T::resource()),
        }
    }

    /// Has the next attempt wait, for as long as the server says at least.
    fn pause(&mut self, error: Option<&::kube::Error>) {
        let opened = self.server.watch_health().opened(T::KIND);
        if opened != std::mem::replace(&mut self.opened, opened) {
            // A watch was open in between, even though nothing came by it.
            self.failures = 0;
            self.passing = None;
        }
        self.failures = self.failures.saturating_add(1);
        let longest = if !self.had_contact {
            backoff::LONGEST_BEFORE_CONTACT
        } else if error.is_some_and(is_forbidden) {
            // Somebody has to change a role, and waits for this, too.
            LONGEST_FORBIDDEN
        } else if error.is_some_and(is_passing) {
            backoff::LONGEST_OVERLOADED
        } else {
            backoff::LONGEST
        };
        let asked = self.server.retry_after(T::KIND);
        let rest = backoff::at_least(asked, pause(self.failures, longest, random()));
        self.rest = Some(Instant::now() + rest);
    }

    fn failing(&mut self, error: &::kube::Error, wrong: KubeError) -> Failing {
        let since = self.passing.take().unwrap_or_else(Instant::now);
        self.passing = is_passing(error).then_some(since);
        Failing {
            trouble: wrong.to_string(),
            overload: overload(error),
            passing_since: self.passing,
        }
    }

    fn error(&self, error: &::kube::Error, verb: &'static str) -> KubeError {
        KubeError::of(error, self.server.url(), verb, T::resource())
    }

    /// Watches by another version of the API: the server is older or newer than thought.
    async fn other_version(&mut self) {
        self.unknown += 1;
        if self.unknown >= T::VERSIONS.len() {
            let trouble = format!(
                "the API server at {} knows no {} of version {}: Kubernetes 1.17 or later is needed",
                self.server.url(),
                T::resource(),
                T::VERSIONS.join(" or "),
            );
            if self.unknown == T::VERSIONS.len() {
                let failing = Failing { trouble, overload: None, passing_since: None };
                self.waiting.push_back(WatchReport::Failing(failing));
            } else {
                tokio::time::sleep(MISSING_PAUSE).await;
            }
        }
        self.version = (self.version + 1) % T::VERSIONS.len();
        self.begin(true);
    }
}

fn is_unintelligible(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::SerdeError(_) | ::kube::Error::FromUtf8(_))
}

/// Whether the server does not know any more what is asked for, so that all is to be listed again.
pub(super) fn is_gone(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 410)
}

fn is_forbidden(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if status.code == 403)
}

/// Whether a server says so that is starting, overloaded or without its database: one that was just
/// started knows neither tokens nor roles.
fn is_passing(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::Api(status) if matches!(status.code, 401 | 403 | 429 | 500..=599))
}

/// The status of an answer that is the same for all that this agent may ask for.
pub(super) fn overload(error: &::kube::Error) -> Option<u16> {
    match error {
        ::kube::Error::Api(status) if matches!(status.code, 429 | 500..=599) => Some(status.code),
        _ => None,
    }
}

fn query(version: usize, reach: &Reach, cached: bool) -> Query {
    Query { version, selector: reach.selector(), cached, seconds: watch_seconds() }
}

/// After how many seconds the server is to end a watch.
pub(super) fn watch_seconds() -> u32 {
    let more = random() % u64::from(SHORTEST_WATCH);
    SHORTEST_WATCH + u32::try_from(more).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ::kube::core::Status;

    use super::super::KubeTarget;
    use super::super::connect::{Timing, connect_with};
    use super::*;

    const MINUTES: Duration = Duration::from_secs(600);

    fn refused(code: u16, number: usize) -> ::kube::Error {
        let status = Status::failure(&format!("not now, request {number}"), "Test").with_code(code);
        ::kube::Error::Api(Box::new(status))
    }

    /// A watch that goes by `changes`; no server is asked.
    async fn watch(
        changes: impl Stream<Item = Result<Change<Service>, Failure>> + Send + 'static,
    ) -> Watch<Service> {
        let target = KubeTarget::Server("http://127.0.0.1:1".to_owned());
        let server = connect_with(&target, Timing::DEFAULT).await.unwrap();
        let mut watch = Watch::new(server, Reach::all());
        watch.changes = changes.boxed();
        watch
    }

    /// The pauses between two attempts, for ten minutes from the first failure on; and what is said.
    async fn pauses(
        watch: Watch<Service>,
        mut all: WatchAggregator,
    ) -> (Vec<Duration>, Vec<Event>) {
        let (until, mut last) = (Instant::now() + MINUTES, None);
        let (mut pauses, mut said) = (Vec::new(), Vec::new());
        let mut watch = std::pin::pin!(watch.said());
        while let Ok(Some(one)) = tokio::time::timeout_at(until, watch.next()).await {
            if matches!(one, WatchReport::Failing(_)) {
                let now = Instant::now();
                pauses.extend(last.replace(now).map(|before| now - before));
            }
            said.extend(all.take(one));
        }
        (pauses, said)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_never_reached_is_tried_every_three_seconds() {
        let nobody = || {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            Err(Failure::List(::kube::Error::Service(refused.into())))
        };
        let watch = watch(stream::repeat_with(nobody)).await;
        let (pauses, said) = pauses(watch, WatchAggregator::new(Duration::ZERO)).await;
        let longest = pauses.iter().max().unwrap();
        assert!(*longest <= Duration::from_millis(3_002), "{longest:?}");
        // Half of a pause is chance: it takes 1.5 s to 3 s.
        assert!((190..=420).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
        assert_eq!(said.len(), 1, "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_time_is_tried_every_eight_seconds_and_named_once() {
        let listed = stream::iter([Ok(Change::Begin), Ok(Change::Complete)]);
        let mut number = 0;
        let refusals = stream::repeat_with(move || {
            number += 1;
            let code = if number % 2 == 0 { 429 } else { 503 };
            Err(Failure::Begin(refused(code, number)))
        });
        let watch = watch(listed.chain(refusals)).await;
        let (pauses, said) = pauses(watch, WatchAggregator::new(Duration::from_secs(20))).await;
        let longest = pauses.iter().max().unwrap();
        assert!(*longest <= Duration::from_millis(8_002), "{longest:?}");
        // Half of a pause is chance: it takes 4 s to 8 s, and the first few are shorter.
        assert!((70..200).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
        let troubles = said.iter().filter(|event| matches!(event, Event::Trouble(_))).count();
        assert_eq!(troubles, 1, "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_went_away_is_tried_every_half_minute() {
        let listed = stream::iter([Ok(Change::Begin), Ok(Change::Complete)]);
        let nobody = || {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            Err(Failure::Begin(::kube::Error::Service(refused.into())))
        };
        let watch = watch(listed.chain(stream::repeat_with(nobody))).await;
        let (pauses, _) = pauses(watch, WatchAggregator::new(Duration::ZERO)).await;
        let longest = pauses.iter().max().unwrap();
        assert!((8..=30).contains(&longest.as_secs()), "{longest:?}");
        // They take 15 s to 30 s, and the first few are shorter.
        assert!((20..60).contains(&pauses.len()), "{} pauses in ten minutes", pauses.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ends_watches_as_they_begin_is_not_asked_without_pause() {
        let listed = stream::iter([Ok(Change::Begin), Ok(Change::Complete)]);
        let short = stream::repeat_with(|| Err(Failure::Short)).take(40);
        let last = stream::iter([Ok(Change::Complete)]);
        let watch = watch(listed.chain(short).chain(last)).await;
        let begun = Instant::now();
        let mut said = std::pin::pin!(watch.said());
        let mut listings = 0;
        while listings < 2 {
            listings += usize::from(matches!(said.next().await, Some(WatchReport::Listed(_))));
        }
        assert!(begun.elapsed() > MINUTES / 2, "{:?} for 40 watches", begun.elapsed());
    }
}
