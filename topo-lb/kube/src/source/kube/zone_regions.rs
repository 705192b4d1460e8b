//! The region of each zone that EndpointSlices name, for an agent that watches its own Node alone: the API
//! server is asked for one Node of the zone, once. So traffic to another zone of this region is told from
//! traffic that leaves it, without a watch of all Nodes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::kube::Api;
use ::kube::api::ListParams;
use futures::{Stream, stream};
use k8s_openapi::api::core::v1;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use super::backoff::{LONGEST, pause, random};
use super::connect::Server;
use topo_lb_core::cluster::{Change, Node, REGION, Slice, Update, ZONE, ZoneRegion};
use topo_lb_core::topology::label_name::is_label_value;

/// Zones that are asked for without a pause: as many as a region of a cloud has, several times.
const AT_ONCE: u32 = 16;
/// Pause before each further question. Anybody who may write EndpointSlices can name zones: those of 5,000
/// agents cost an API server at most 84 requests a second.
const SELDOM: Duration = Duration::from_secs(60);
/// Most zones; others are in no known region. Exceeds the zones of any cloud.
const MOST: usize = 256;

/// The zones of this cluster, as its slices name them.
#[derive(Debug)]
pub(super) struct Zones {
    own: Arc<str>,
    /// This node's Node has a region. Without one there is nothing to compare.
    has_region: bool,
    seen: HashSet<Arc<str>>,
    asked: mpsc::UnboundedSender<Arc<str>>,
}

/// The zones in updates for the node `own`, and the answers about them.
pub(super) fn zone_regions(
    server: Server,
    own: Arc<str>,
) -> (Zones, impl Stream<Item = Update> + Send + 'static) {
    let (asked, zones) = mpsc::unbounded_channel();
    let questions = Questions { server, zones, again: VecDeque::new(), count: 0 };
    let answers = stream::unfold(questions, async |mut questions| {
        Some((Update::ZoneRegion(questions.next().await?), questions))
    });
    (Zones { own, has_region: false, seen: HashSet::new(), asked }, answers)
}

impl Zones {
    /// Takes in an update before the state has it.
    pub(super) fn observe(&mut self, update: &Update) {
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
                self.ask(self.has_region.then_some(zone));
            }
        }
    }

    fn meet(&mut self, node: &Node) {
        if node.name == self.own && !self.has_region && node.labels.get(REGION).is_some() {
            self.has_region = true;
            self.ask(&self.seen);
        }
    }

    fn ask<'a>(&self, zones: impl IntoIterator<Item = &'a Arc<str>>) {
        // Nobody listens any more when the agent ends.
        zones.into_iter().for_each(|zone| drop(self.asked.send(Arc::clone(zone))));
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
    Region(Arc<str>),
    /// Its Nodes name no region.
    None,
    NoNode,
}

impl Questions {
    async fn next(&mut self) -> Option<ZoneRegion> {
        loop {
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
            match self.ask(&zone).await {
                Answer::Region(region) => return Some(ZoneRegion { zone, region }),
                Answer::None => {}
                Answer::NoNode => self.again.push_back(zone),
            }
        }
    }

    /// Asks until there is an answer.
    async fn ask(&self, zone: &str) -> Answer {
        let nodes = Api::<v1::Node>::all(self.server.client());
        let params = ListParams::default().labels(&format!("{ZONE}={zone}")).limit(1);
        let mut failures = 0;
        loop {
            match nodes.list_metadata(&params).await {
                Ok(list) => {
                    let Some(node) = list.items.into_iter().next() else { return Answer::NoNode };
                    let region = node.metadata.labels.and_then(|mut labels| labels.remove(REGION));
                    return region.map_or(Answer::None, |region| Answer::Region(region.into()));
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
    use std::time::Duration;

    use futures::StreamExt as _;
    use serde_json::{Value, json};
    use tokio::time::timeout;
    use topo_lb_core::cluster::{Endpoint, Labels, Placement, SliceId};
    use topo_lb_fake_api::NODES;

    use super::super::fake::Fake;
    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn own(region: &[(&str, &str)]) -> Update {
        Update::Node(Change::Applied(Node { name: "n1".into(), labels: labels(region) }))
    }

    fn slice(zones: &[&str]) -> Update {
        let endpoints = zones.iter().map(|zone| {
            let place = Placement { labels: labels(&[(ZONE, zone)]), ..Placement::default() };
            Endpoint::new([10, 0, 0, 1].into(), place)
        });
        Update::Slice(Change::Applied(Slice {
            id: SliceId { namespace: "shop".into(), name: "web".into() },
            endpoints: endpoints.collect(),
            ..Slice::default()
        }))
    }

    fn node(name: &str, zone: &str, region: Option<&str>) -> Value {
        let labels: BTreeMap<_, _> = [(ZONE, Some(zone)), (REGION, region)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    }

    /// The answers, until nothing comes for a second.
    async fn answers(all: impl Stream<Item = Update>) -> Vec<String> {
        let mut all = std::pin::pin!(all);
        let mut heard = Vec::new();
        while let Ok(Some(Update::ZoneRegion(one))) =
            timeout(Duration::from_secs(1), all.next()).await
        {
            heard.push(format!("{} in {}", one.zone, one.region));
        }
        heard.sort();
        heard
    }

    #[tokio::test]
    async fn each_zone_is_asked_for_once() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1")), node("n3", "b", Some("r2"))]);
        fake.fill(NODES, [node("n4", "a", Some("r1")), node("n5", "bare", None)]);
        let (mut zones, all) = zone_regions(fake.server.clone(), "n1".into());
        zones.observe(&slice(&["a", "b", "a"]));
        zones.observe(&own(&[(REGION, "r1")]));
        zones.observe(&slice(&["b", "bare", "gone"]));
        zones.observe(&own(&[(REGION, "r1")]));
        assert_eq!(answers(all).await, ["a in r1", "b in r2"]);
        assert_eq!(fake.requested("labelSelector"), 4, "{:?}", fake.state().requests);
    }

    #[tokio::test]
    async fn a_node_without_a_region_asks_nothing() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1"))]);
        let (mut zones, all) = zone_regions(fake.server.clone(), "n1".into());
        zones.observe(&own(&[(ZONE, "b")]));
        zones.observe(&slice(&["a"]));
        assert_eq!(answers(all).await, [""; 0]);
        assert_eq!(fake.requested(NODES), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_a_zone_is_not_asked_and_many_are_asked_slowly() {
        let fake = Fake::new(&[NODES]).await;
        let (mut zones, all) = zone_regions(fake.server.clone(), "n1".into());
        zones.observe(&own(&[(REGION, "r1")]));
        zones.observe(&slice(&["", "a,topology.kubernetes.io/region=r1", "a b"]));
        let many: Vec<_> = (0..1_000).map(|number| format!("zone-{number}")).collect();
        zones.observe(&slice(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(zones.seen.len(), MOST);
        assert_eq!(answers(all).await, [""; 0]);
        assert_eq!(fake.requested("labelSelector"), AT_ONCE as usize);
    }

    #[tokio::test]
    async fn a_server_that_fails_is_asked_again() {
        let fake = Fake::new(&[NODES]).await;
        fake.fill(NODES, [node("n2", "a", Some("r1"))]);
        fake.state().refuse.insert(NODES, (500, "not now"));
        let (mut zones, all) = zone_regions(fake.server.clone(), "n1".into());
        zones.observe(&own(&[(REGION, "r1")]));
        zones.observe(&slice(&["a"]));
        let mut all = Box::pin(all);
        assert!(timeout(Duration::from_millis(200), all.next()).await.is_err());
        fake.state().refuse.clear();
        assert_eq!(answers(all).await, ["a in r1"]);
    }
}
