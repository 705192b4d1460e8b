//! The region of each zone that EndpointSlices name, for an agent that watches its own Node alone: the API
//! server is asked for one Node of the zone, once. So traffic to another zone of this region is told from
//! traffic that leaves it, without a watch of all Nodes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::kube::Api;
use ::kube::api::ListParams;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::backoff::{LONGEST, pause, random};
use super::connect::Server;
use crate::source::Event;
use topo_lb_core::cluster::{Change, Node, REGION, Slice, Update, ZONE, ZoneRegion};
use topo_lb_core::topology::label_name::is_label_value;

/// Zones that are asked for without a pause: as many as a region of a cloud has, several times.
const AT_ONCE: u32 = 16;
/// Pause before each further question. Anybody who may write EndpointSlices can name zones: those of 5,000
/// agents cost an API server at most 84 requests a second.
const SELDOM: Duration = Duration::from_secs(60);
/// Most zones; others are in no known region. Exceeds the zones of any cloud.
const MOST: usize = 256;
/// How long `Synced` waits for the zones of the first listing. An agent that plans without them writes the
/// routes of every Service again when they come.
const FIRST: Duration = Duration::from_millis(200);

/// The zones of this cluster, as its slices name them.
#[derive(Debug)]
struct Zones {
    own: Arc<str>,
    /// This node's Node has a region. Without one there is nothing to compare.
    has_region: bool,
    seen: HashSet<Arc<str>>,
    asked: mpsc::UnboundedSender<Arc<str>>,
    /// Zones that were asked for and have no answer.
    open: usize,
}

/// `watched`, which the node `own` follows, with the region of each zone that its slices name.
pub(super) fn with_zone_regions(
    watched: impl Stream<Item = Event> + Send + 'static,
    server: Server,
    own: Arc<str>,
) -> impl Stream<Item = Event> + Send + 'static {
    let (asked, received) = mpsc::unbounded_channel();
    let questions = Questions { server, zones: received, again: VecDeque::new(), count: 0 };
    let answers =
        stream::unfold(questions, async |mut questions| Some((questions.next().await?, questions)));
    let zones = Zones { own, has_region: false, seen: HashSet::new(), asked, open: 0 };
    let combined =
        Combined { watched: watched.boxed(), answers: answers.boxed(), zones, held: None };
    stream::unfold(combined, async |mut combined| Some((combined.next().await?, combined)))
}

struct Combined {
    watched: BoxStream<'static, Event>,
    /// One for each question.
    answers: BoxStream<'static, Answer>,
    zones: Zones,
    /// `Synced`, and until when it waits for answers.
    held: Option<Instant>,
}

impl Combined {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let answer = if let Some(until) = self.held {
                let answer = match self.zones.open {
                    0 => None,
                    _ => timeout_at(until, self.answers.next()).await.ok().flatten(),
                };
                if answer.is_none() {
                    self.held = None;
                    return Some(Event::Synced);
                }
                answer
            } else {
                tokio::select! {
                    // The watches first: a listing must not wait for answers about zones.
                    biased;
                    event = self.watched.next() => match event? {
                        Event::Synced => {
                            self.held = Some(Instant::now() + FIRST);
                            None
                        }
                        event => {
                            self.zones.observe(&event);
                            return Some(event);
                        }
                    },
                    answer = self.answers.next() => answer,
                }
            };
            self.zones.open = self.zones.open.saturating_sub(usize::from(answer.is_some()));
            if let Some(Answer::Region(region)) = answer {
                return Some(Event::Update(Update::ZoneRegion(region)));
            }
        }
    }
}

impl Zones {
    /// Takes in an event before the state has it.
    fn observe(&mut self, event: &Event) {
        let Event::Update(update) = event else { return };
        match update {
            Update::Slice(Change::Applied(slice)) => self.name(slice),
            Update::Slice(Change::Listed(all, _)) => all.iter().for_each(|slice| self.name(slice)),
            Update::Node(Change::Applied(node)) => self.meet(node),
            Update::Node(Change::Listed(all, _)) => all.iter().for_each(|node| self.meet(node)),
            _ => {}
        }
    }

    fn name(&mut self, slice: &Slice) {
        for zone in slice.endpoints.iter().filter_map(|endpoint| endpoint.label(ZONE)) {
            let is_new = self.seen.len() < MOST && !self.seen.contains(zone);
            if is_new && is_label_value(zone) {
                self.seen.insert(Arc::clone(zone));
                if self.has_region {
                    self.ask(Arc::clone(zone));
                }
            }
        }
    }

    fn meet(&mut self, node: &Node) {
        if node.name == self.own && !self.has_region && node.labels.get(REGION).is_some() {
            self.has_region = true;
            for zone in self.seen.clone() {
                self.ask(zone);
            }
        }
    }

    fn ask(&mut self, zone: Arc<str>) {
        // Fails when the agent ends, and nobody listens any more.
        self.open += usize::from(self.asked.send(zone).is_ok());
    }
}

struct Questions {
    server: Server,
    zones: mpsc::UnboundedReceiver<Arc<str>>,
    /// Zones without a Node at the last question.
    again: VecDeque<Arc<str>>,
    /// How many were asked.
    count: u32,
}

/// What the API server knows of a zone.
enum Answer {
    Region(ZoneRegion),
    /// Its Nodes name no region.
    None,
    NoNode,
}

impl Questions {
    /// The answer to the next question; no end while `Zones` may ask.
    async fn next(&mut self) -> Option<Answer> {
        let zone = tokio::select! {
            biased;
            Some(zone) = self.zones.recv() => {
                if self.count >= AT_ONCE {
                    sleep(SELDOM).await;
                }
                zone
            }
            () = sleep(SELDOM), if !self.again.is_empty() => self.again.pop_front()?,
            else => return None,
        };
        self.count = self.count.saturating_add(1);
        let answer = self.ask(&zone).await;
        if matches!(answer, Answer::NoNode) {
            self.again.push_back(zone);
        }
        Some(answer)
    }

    /// Asks until there is an answer.
    async fn ask(&self, zone: &Arc<str>) -> Answer {
        let nodes = Api::<v1::Node>::all(self.server.client());
        let params = ListParams::default().labels(&format!("{ZONE}={zone}")).limit(1);
        let mut failures = 0;
        loop {
            match nodes.list_metadata(&params).await {
                Ok(list) => {
                    let Some(node) = list.items.into_iter().next() else { return Answer::NoNode };
                    let region = node.metadata.labels.and_then(|mut labels| labels.remove(REGION));
                    let region_of = |region: String| {
                        Answer::Region(ZoneRegion { zone: Arc::clone(zone), region: region.into() })
                    };
                    return region.map_or(Answer::None, region_of);
                }
                Err(error) => debug!("the region of the zone {zone} is not known yet: {error}"),
            }
            failures += 1;
            sleep(pause(failures, LONGEST, random())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;

    use serde_json::{Value, json};
    use tokio::time::timeout;
    use topo_lb_core::cluster::{Endpoint, Labels, Placement, SliceId};
    use topo_lb_fake_api::NODES;

    use super::super::fake::Fake;
    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn own(region: &[(&str, &str)]) -> Event {
        let node = Node { name: "n1".into(), labels: labels(region) };
        Event::Update(Update::Node(Change::Applied(node)))
    }

    fn slice(zones: &[&str]) -> Event {
        let endpoints = zones.iter().map(|zone| {
            let place = Placement { labels: labels(&[(ZONE, zone)]), ..Placement::default() };
            Endpoint::new([10, 0, 0, 1].into(), place)
        });
        Event::Update(Update::Slice(Change::Applied(Slice {
            id: SliceId { namespace: "shop".into(), name: "web".into() },
            endpoints: endpoints.collect(),
            ..Slice::default()
        })))
    }

    fn node(name: &str, zone: &str, region: Option<&str>) -> Value {
        let labels: BTreeMap<_, _> = [(ZONE, Some(zone)), (REGION, region)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    }

    /// What comes of these events on the node `n1`, until nothing comes for a second.
    async fn heard(fake: &Fake, events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let events: Vec<_> = events.into_iter().collect();
        let watched = stream::iter(events).chain(stream::pending());
        let mut all = pin!(with_zone_regions(watched, fake.server.clone(), "n1".into()));
        let mut heard = Vec::new();
        while let Ok(Some(event)) = timeout(Duration::from_secs(1), all.next()).await {
            match event {
                Event::Update(Update::ZoneRegion(one)) => {
                    heard.push(format!("{} in {}", one.zone, one.region));
                }
                Event::Synced => {
                    heard.push("synced".to_owned());
                    fake.state().refuse.clear();
                }
                _ => {}
            }
        }
        heard
    }

    #[tokio::test]
    async fn each_zone_is_asked_for_once_and_those_of_the_first_listing_before_it_is_complete() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1")), node("n3", "b", Some("r2"))]);
        fake.fill(NODES, [node("n4", "a", Some("r1")), node("n5", "bare", None)]);
        let mine = || own(&[(REGION, "r1")]);
        let events =
            [slice(&["a", "b", "a"]), mine(), slice(&["b", "bare", "gone"]), mine(), Event::Synced];
        let mut heard = heard(&fake, events).await;
        // The answers come in any order.
        heard[..2].sort();
        assert_eq!(heard, ["a in r1", "b in r2", "synced"]);
        assert_eq!(fake.requested("labelSelector"), 4, "{:?}", fake.state().requests);
    }

    #[tokio::test]
    async fn a_node_without_a_region_asks_nothing() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1"))]);
        let events = [own(&[(ZONE, "b")]), slice(&["a"]), Event::Synced];
        assert_eq!(heard(&fake, events).await, ["synced"]);
        assert_eq!(fake.requested(NODES), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_a_zone_is_not_asked_and_many_are_asked_slowly() {
        let fake = Fake::new(&[NODES]).await;
        let many: Vec<_> = (0..1_000).map(|number| format!("zone-{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let wrong = slice(&["", "a,topology.kubernetes.io/region=r1", "a b"]);
        assert_eq!(heard(&fake, [own(&[(REGION, "r1")]), wrong]).await, [""; 0]);
        assert_eq!(fake.requested("labelSelector"), 0);
        let events = [own(&[(REGION, "r1")]), slice(&many), Event::Synced];
        assert_eq!(heard(&fake, events).await, ["synced"]);
        assert_eq!(fake.requested("labelSelector"), AT_ONCE as usize);
        let (asked, mut received) = mpsc::unbounded_channel();
        let mut zones =
            Zones { own: "n1".into(), has_region: true, seen: HashSet::new(), asked, open: 0 };
        zones.observe(&slice(&many));
        assert_eq!((zones.open, zones.seen.len()), (MOST, MOST));
        assert!(received.try_recv().is_ok());
    }

    #[tokio::test]
    async fn a_server_that_fails_is_asked_again_and_keeps_no_agent_from_its_start() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1"))]);
        fake.state().refuse.insert(NODES, (500, "not now"));
        let events = [own(&[(REGION, "r1")]), slice(&["a"]), Event::Synced];
        assert_eq!(heard(&fake, events).await, ["synced", "a in r1"]);
    }
}
