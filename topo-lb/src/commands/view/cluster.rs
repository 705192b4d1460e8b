//! What the cluster looks like now, followed for as long as the page is served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::{ServiceId, State, Update};
use topo_lb_core::topology::evacuation::turned;
use topo_lb_kube::source::clock::now;
use topo_lb_kube::source::kube::{KubeTarget, connect_to_show, follow_all};
use topo_lb_kube::source::{Event, file};

/// The pause between two publications: a busy cluster changes many times a second.
const PAUSE: Duration = Duration::from_millis(500);
/// While no object changes, the clock is looked at so often: evacuations end by it.
const GLANCE: Duration = Duration::from_secs(5);
/// Most sentences of a kind that are kept.
const SENTENCES: usize = 8;
const OLD: &str =
    "The API server is silent: the cluster is shown as it was when the server last answered.";

/// Where the cluster is described.
#[derive(Clone, Debug)]
pub enum Described {
    /// By an API server.
    By(KubeTarget),
    /// By manifests, a file or a folder.
    In(PathBuf),
    /// Nowhere: nodes have no groups, and nothing says where connections lead.
    Nowhere,
}

impl Described {
    /// What it takes to begin.
    pub(super) fn awaited(&self) -> String {
        match self {
            Self::By(_) => {
                "the credentials of the API server: does the plugin that the kubeconfig names \
                            (users, exec) hang, or ask for something?"
                    .to_owned()
            }
            Self::In(path) => format!("a listing of {}", path.display()),
            Self::Nowhere => "agents".to_owned(),
        }
    }
}

/// The cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    /// Grows with each publication.
    pub(super) revision: u64,
    pub(super) state: State,
    /// What is being done before all is known.
    pub(super) begins: Option<String>,
    /// Why the API server does not serve, and why objects are ignored; the oldest first.
    pub(super) unserved: Vec<String>,
    pub(super) faults: Vec<String>,
    /// Whether the API server sends no changes now.
    pub(super) is_old: bool,
}

/// Follows the cluster without end, and gives it to `sender`. Tells `ready` first whether that is possible.
pub(super) async fn follow(
    described: Described,
    sender: watch::Sender<Arc<Cluster>>,
    ready: oneshot::Sender<anyhow::Result<()>>,
) {
    let (events, begins) = match open(&described).await {
        Ok(opened) => opened,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let first = Cluster { begins: Some(begins), ..Cluster::default() };
    sender.send_replace(Arc::new(first.clone()));
    // Nobody reads after an error elsewhere.
    let _ = ready.send(Ok(()));
    publish(events, sender, first).await;
}

/// The events, and what to say before the first of them.
async fn open(described: &Described) -> anyhow::Result<(BoxStream<'static, Event>, String)> {
    Ok(match described {
        Described::By(target) => {
            let server = connect_to_show(target).await?;
            let begins = format!("The cluster is being listed from {}.", server.url());
            (follow_all(server).boxed(), begins)
        }
        Described::In(path) => {
            let events = file::follow(path.clone()).context("--manifests")?;
            (events.boxed(), format!("Reading {}.", path.display()))
        }
        Described::Nowhere => {
            let begins = "No cluster is described, so nodes have no groups, and nothing says where \
                          connections lead: give --kubeconfig or --manifests.";
            (stream::pending().boxed(), begins.to_owned())
        }
    })
}

/// Publishes a change at once, and what changes within [`PAUSE`] after it together. Takes events all the
/// time: a listing requests its next page only when somebody waits for it.
async fn publish(
    mut events: BoxStream<'static, Event>,
    sender: watch::Sender<Arc<Cluster>>,
    mut cluster: Cluster,
) {
    let mut pause_ends = Instant::now();
    loop {
        match timeout(GLANCE, events.next()).await {
            Ok(Some(event)) => cluster.take(event),
            Ok(None) => return,
            Err(_) => {
                let before = cluster.state.now();
                let _ = cluster.state.apply(Update::Time(now()), "");
                if !turned(&cluster.state, before) {
                    continue;
                }
            }
        }
        // Takes what is there already even if no pause is left.
        while let Ok(Some(event)) = timeout_at(pause_ends, events.next()).await {
            cluster.take(event);
        }
        let _ = cluster.state.apply(Update::Time(now()), "");
        cluster.revision += 1;
        sender.send_replace(Arc::new(cluster.clone()));
        pause_ends = Instant::now() + PAUSE;
    }
}

impl Cluster {
    /// Problems, and what is missing because of them.
    pub(super) fn sentences(&self) -> Vec<&str> {
        // What is being done is no news beside why it does not succeed.
        let begins = self.begins.iter().filter(|_| self.unserved.is_empty());
        begins.chain(&self.unserved).chain(&self.faults).map(|it| &**it).collect()
    }

    fn take(&mut self, event: Event) {
        match event {
            // The page is on no node, so nothing is seen from one.
            Event::Update(update) => drop(self.state.apply(update, "")),
            // All is listed, so the server serves.
            Event::Synced => {
                self.begins = None;
                self.unserved.clear();
            }
            Event::Unserved(sentence) => say(&mut self.unserved, sentence),
            Event::Trouble(sentence) => say(&mut self.faults, sentence),
            Event::Mended(sentence) => self.faults.retain(|fault| *fault != sentence),
            Event::Freshness(Freshness::AsOf(_)) if !self.is_old => {
                self.is_old = true;
                say(&mut self.unserved, OLD.to_owned());
            }
            // What was wrong meanwhile may be over; what is not is said again.
            Event::Freshness(Freshness::Live) if self.is_old => {
                self.is_old = false;
                self.unserved.clear();
                self.faults.clear();
            }
            Event::Pods(_) | Event::Freshness(_) | Event::Kept(..) => {}
        }
    }
}

/// Adds a sentence that is not there yet; the oldest one makes way.
fn say(sentences: &mut Vec<String>, sentence: String) {
    if !sentences.contains(&sentence) {
        if sentences.len() == SENTENCES {
            sentences.remove(0);
        }
        sentences.push(sentence);
    }
}

/// The Service of `namespace/name`.
pub(super) fn id(name: &str) -> Option<ServiceId> {
    let (namespace, name) = name.split_once('/')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

/// Whether nothing that a decision for this Service reads has changed, given the same Nodes. States share
/// objects that are the same.
pub(super) fn is_same(old: &State, new: &State, id: &ServiceId) -> bool {
    let same_service = match (old.service(id), new.service(id)) {
        (Some(old), Some(new)) => std::ptr::eq(old, new) || old == new,
        (None, None) => true,
        _ => false,
    };
    let same =
        |((a, old), (b, new)): ((_, &_), (_, &_))| a == b && (std::ptr::eq(old, new) || old == new);
    same_service
        && old.has_same_policies(new, id)
        && old.slices(id).count() == new.slices(id).count()
        && old.slices(id).zip(new.slices(id)).all(same)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// A page of a listing is requested only when somebody waits for its objects.
    #[tokio::test(start_paused = true)]
    async fn a_listing_goes_on_between_two_publications() {
        const PAGES: u64 = 100;
        let page = |number| async move {
            sleep(Duration::from_millis(10)).await;
            Event::Trouble(format!("page {number}"))
        };
        let listing = stream::iter(0..PAGES).then(page).chain(stream::pending());
        let (sender, mut shown) = watch::channel(Arc::default());
        let publications = tokio::spawn(publish(listing.boxed(), sender, Cluster::default()));
        let begin = Instant::now();
        let last = format!("page {}", PAGES - 1);
        let is_complete = |it: &Arc<Cluster>| it.faults.contains(&last);
        let revision = shown.wait_for(is_complete).await.expect("a publisher").revision;
        publications.abort();
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert_eq!(revision, 3, "the first page at once, and then at every pause");
    }

    #[test]
    fn a_problem_is_said_once_and_that_of_the_server_ends_with_the_first_listing() {
        let mut cluster = Cluster { begins: Some("listing".into()), ..Cluster::default() };
        cluster.take(Event::Trouble("no object".into()));
        assert_eq!(cluster.sentences(), ["listing", "no object"]);
        for sentence in ["no nodes", "no nodes", "no slices"] {
            cluster.take(Event::Unserved(sentence.into()));
        }
        assert_eq!(cluster.sentences(), ["no nodes", "no slices", "no object"]);
        cluster.take(Event::Synced);
        assert_eq!(cluster.sentences(), ["no object"]);
        cluster.take(Event::Mended("no object".into()));
        assert!(cluster.sentences().is_empty());
        for number in 0..99 {
            cluster.take(Event::Trouble(format!("fault {number}")));
        }
        assert_eq!(cluster.sentences().len(), SENTENCES);
    }

    #[test]
    fn an_api_server_that_is_back_takes_its_sentences_with_it() {
        let mut cluster = Cluster::default();
        let old = || Event::Freshness(Freshness::AsOf(std::time::SystemTime::UNIX_EPOCH));
        cluster.take(Event::Trouble("one object".into()));
        cluster.take(Event::Freshness(Freshness::Live));
        assert_eq!(cluster.sentences(), ["one object"], "it was never away");
        cluster.take(old());
        cluster.take(old());
        assert_eq!(cluster.sentences(), [OLD, "one object"]);
        cluster.take(Event::Freshness(Freshness::Live));
        assert!(cluster.sentences().is_empty());
    }
}
