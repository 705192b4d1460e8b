//! All objects there are, and every change to them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use ::kube::Api;
use ::kube::runtime::WatchStreamExt;
use ::kube::runtime::watcher::{self, watcher};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use super::listing::is_missing;
use super::resource::{Kept, Name, Watched};
use super::{KubeError, Server};
use crate::cluster::{Node, Service, Slice};
use crate::source::Event;
use crate::source::object::Kind;

/// The server ends a watch after so many seconds, and one that is silent for longer is dead. The
/// actual time lies up to twice as high, so that not all agents come back at once.
const SHORTEST_WATCH: u32 = 75;
/// Pause where the server knows no version of a resource.
const MISSING_PAUSE: Duration = Duration::from_secs(10);
/// A trouble that was not met for so long is over; it is said again when it comes back.
/// Longer than the longest pause between two attempts, which is a minute.
const TROUBLE_OVER: Duration = Duration::from_secs(180);

/// Lists Nodes, EndpointSlices and Services, and follows every change to them.
///
/// The stream never ends: whatever goes wrong is said once as `Trouble` and tried again, at longer
/// and longer intervals of at most a minute. After a gap that the server cannot bridge, all
/// objects are listed and said anew. A change that cannot be read leaves the object as it was.
pub fn follow(server: Server) -> impl Stream<Item = Event> + Send + 'static {
    let watches = [
        Watch::<Node>::new(server.clone()).said().boxed(),
        Watch::<Slice>::new(server.clone()).said().boxed(),
        Watch::<Service>::new(server).said().boxed(),
    ];
    let mut all = Together::default();
    stream::select_all(watches).filter_map(move |said| future::ready(all.take(said)))
}

/// What the watch of one kind says.
enum Said {
    Event(Event),
    /// All objects of this kind have been listed.
    Listed(Kind),
    /// The server does not serve as it should.
    Failing(String),
}

/// What the three watches have said.
#[derive(Default)]
struct Together {
    listed: BTreeSet<Kind>,
    synced: bool,
    /// What goes wrong at present, and when it was last met.
    troubles: HashMap<String, Instant>,
}

impl Together {
    fn take(&mut self, said: Said) -> Option<Event> {
        match said {
            Said::Event(event) => Some(event),
            Said::Listed(kind) => {
                self.listed.insert(kind);
                let complete = [Kind::Node, Kind::Slice, Kind::Service]
                    .iter()
                    .all(|kind| self.listed.contains(kind));
                (complete && !std::mem::replace(&mut self.synced, true)).then_some(Event::Synced)
            }
            Said::Failing(trouble) => {
                // Three watches fail for one reason, and each of them many times.
                let now = Instant::now();
                self.troubles.retain(|_, met| now.duration_since(*met) < TROUBLE_OVER);
                let new = self.troubles.insert(trouble.clone(), now).is_none();
                new.then_some(Event::Trouble(trouble))
            }
        }
    }
}

type Events<T> = BoxStream<'static, watcher::Result<watcher::Event<Watched<T>>>>;

/// The watch of one kind.
struct Watch<T: Kept> {
    server: Server,
    /// Index of the API version in use.
    version: usize,
    /// Versions in a row that the server did not know.
    unknown: usize,
    events: Events<T>,
    /// What was listed so far of a listing that goes on.
    listing: Vec<T>,
    /// What of it could not be read.
    unread: Vec<Name>,
    /// What was said of single objects, by namespace and name.
    wrong: HashMap<Name, String>,
    waiting: VecDeque<Said>,
}

impl<T: Kept> Watch<T> {
    fn new(server: Server) -> Self {
        Self {
            events: events::<T>(&server, 0),
            server,
            version: 0,
            unknown: 0,
            listing: Vec::new(),
            unread: Vec::new(),
            wrong: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    fn said(self) -> impl Stream<Item = Said> + Send {
        stream::unfold(self, async |mut watch| Some((watch.next().await, watch)))
    }

    async fn next(&mut self) -> Said {
        loop {
            if let Some(said) = self.waiting.pop_front() {
                return said;
            }
            match self.events.next().await {
                Some(Ok(event)) => self.take(event),
                Some(Err(error)) => self.failed(&error).await,
                None => self.events = events::<T>(&self.server, self.version),
            }
        }
    }

    fn take(&mut self, event: watcher::Event<Watched<T>>) {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                self.unread.clear();
            }
            watcher::Event::InitApply(object) => {
                self.unknown = 0;
                let name = (object.namespace().to_owned(), object.name().to_owned());
                match self.read(object) {
                    Some(object) => self.listing.push(object),
                    None => self.unread.push(name),
                }
            }
            watcher::Event::InitDone => {
                self.unknown = 0;
                let all = std::mem::take(&mut self.listing);
                let unread = std::mem::take(&mut self.unread);
                self.say(Event::Update(T::all(all, unread)));
                self.waiting.push_back(Said::Listed(T::KIND));
            }
            watcher::Event::Apply(object) => {
                if let Some(object) = self.read(object) {
                    self.say(Event::Update(object.one()));
                }
            }
            watcher::Event::Delete(object) => {
                let (namespace, name) = (object.namespace(), object.name());
                self.wrong.remove(&(namespace.to_owned(), name.to_owned()));
                self.say(Event::Update(T::gone(namespace, name)));
            }
        }
    }

    /// The object, if it can be read; says what is wrong with it, unless that was said.
    fn read(&mut self, object: Watched<T>) -> Option<T> {
        let key = (object.namespace().to_owned(), object.name().to_owned());
        let (object, wrong) = match object.object {
            Ok((object, left_out)) => (Some(object), left_out.map(|left_out| left_out.to_string())),
            Err(error) => (None, Some(format!("{error}; the object is ignored as it is now"))),
        };
        match wrong {
            None => {
                self.wrong.remove(&key);
            }
            Some(wrong) => {
                if self.wrong.insert(key, wrong.clone()).as_ref() != Some(&wrong) {
                    self.say(Event::Trouble(wrong));
                }
            }
        }
        object
    }

    fn say(&mut self, event: Event) {
        self.waiting.push_back(Said::Event(event));
    }

    async fn failed(&mut self, error: &watcher::Error) {
        let (verb, request) = match error {
            watcher::Error::InitialListFailed(request) => ("list", Some(request)),
            watcher::Error::WatchStartFailed(request) => ("watch", Some(request)),
            watcher::Error::WatchFailed(request) => ("watch", Some(request)),
            watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => ("watch", None),
        };
        if request.is_some_and(is_missing) && T::VERSIONS.len() > 1 {
            return self.other_version().await;
        }
        let trouble = match (error, request) {
            // Watches end, connections break, and the server forgets what is long ago. If more is
            // wrong than that, the next attempt fails.
            (watcher::Error::WatchFailed(request), _) if !is_unintelligible(request) => None,
            (watcher::Error::WatchError(status), _) if status.code == 410 => None,
            (watcher::Error::WatchError(status), _) => {
                let error = ::kube::Error::Api(status.clone());
                Some(self.error(&error, verb).to_string())
            }
            (_, Some(request)) => Some(self.error(request, verb).to_string()),
            (_, None) => Some(format!(
                "the API server at {} says no resourceVersion with {}: they cannot be watched",
                self.server.url(),
                T::resource(),
            )),
        };
        match trouble {
            Some(trouble) => self.waiting.push_back(Said::Failing(trouble)),
            None => tracing::debug!("watching {} again: {error}", T::resource()),
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
                self.waiting.push_back(Said::Failing(trouble));
            } else {
                tokio::time::sleep(MISSING_PAUSE).await;
            }
        }
        self.version = (self.version + 1) % T::VERSIONS.len();
        self.events = events::<T>(&self.server, self.version);
    }
}

fn is_unintelligible(error: &::kube::Error) -> bool {
    matches!(error, ::kube::Error::SerdeError(_) | ::kube::Error::FromUtf8(_))
}

fn events<T: Kept>(server: &Server, version: usize) -> Events<T> {
    let api = Api::<Watched<T>>::all_with(server.client(), &T::VERSIONS[version]);
    // Randomly keyed hashing is randomness enough.
    let random = RandomState::new().build_hasher().finish() % u64::from(SHORTEST_WATCH);
    let seconds = SHORTEST_WATCH + u32::try_from(random).unwrap_or_default();
    let config = watcher::Config::default().page_size(T::PAGE).timeout(seconds);
    watcher(api, config).default_backoff().boxed()
}
