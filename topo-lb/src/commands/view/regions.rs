//! The regions of zones, as the Nodes say, and what rates become by them. Pure.
//!
//! An agent that watches only its own Node knows the zones of endpoints, and may not know their regions: what it
//! calls *elsewhere* may have stayed in the region. The page knows all Nodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use super::cluster::id;
use crate::{commands::top::Rate, commands::top::Row, commands::top::Zones};
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::topology::label::{REGION, ZONE};

const OF_REGION: usize = Locality::Region as usize;
const ELSEWHERE: usize = Locality::Elsewhere as usize;

/// A zone and a region, each if it is known.
type Place<'a> = (Option<&'a str>, Option<&'a str>);

/// The region of each zone; `None` if its Nodes name several.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions(HashMap<Arc<str>, Option<Arc<str>>>);

impl Regions {
    pub(super) fn of(state: &State) -> Self {
        let mut regions: HashMap<_, Option<Arc<str>>> = HashMap::new();
        for (_, labels) in state.nodes() {
            let (Some(zone), Some(region)) = (labels.get(ZONE), labels.get(REGION)) else {
                continue;
            };
            regions
                .entry(Arc::clone(zone))
                .and_modify(|known| *known = known.take().filter(|known| known == region))
                .or_insert_with(|| Some(Arc::clone(region)));
        }
        Self(regions)
    }

    fn region(&self, zone: &str) -> Option<&str> {
        self.0.get(zone)?.as_deref()
    }

    /// How far one zone is from another; elsewhere if a region is unknown.
    pub(super) fn distance(&self, from: &str, to: &str) -> Locality {
        match (self.region(from), self.region(to)) {
            _ if from == to => Locality::Zone,
            (Some(from), Some(to)) if from == to => Locality::Region,
            _ => Locality::Elsewhere,
        }
    }

    /// Where a node is, by its own labels.
    fn place<'a>(&'a self, state: &'a State, node: &str) -> Place<'a> {
        let labels = state.node(node);
        let label = |key| labels.and_then(|labels| labels.get(key)).map(|value| &**value);
        let zone = label(ZONE);
        (zone, label(REGION).or_else(|| self.region(zone?)))
    }

    /// Where the endpoints of a Service are.
    fn places<'a>(&'a self, state: &'a State, id: &ServiceId) -> HashSet<Place<'a>> {
        let endpoints = state.slices(id).flat_map(|(_, slice)| &slice.endpoints);
        let place = |endpoint: &'a topo_lb_core::cluster::Endpoint| {
            let own = |key| endpoint.label(key).map(|value| &**value);
            let of_node = endpoint.node().map(|node| self.place(state, node));
            let (of_node_zone, of_node_region) = of_node.unwrap_or_default();
            let zone = own(ZONE).or(of_node_zone);
            (zone, own(REGION).or(of_node_region).or_else(|| self.region(zone?)))
        };
        endpoints.map(place).collect()
    }

    /// Calls by its region what agents called *elsewhere* though it stayed there. If all endpoints beyond a
    /// node's zone are in its region, all of it did. If only some are, `zones` says how much did, unless the
    /// agent knows regions itself.
    pub(super) fn correct(
        &self,
        rows: &mut [Row],
        zones: &BTreeMap<Arc<str>, Zones>,
        state: &State,
    ) {
        if self.0.is_empty() {
            return;
        }
        let mut of_nodes: HashMap<Arc<str>, OfNode> = HashMap::new();
        let mut unsettled: Vec<(usize, Arc<str>)> = Vec::new();
        for (at, row) in rows.iter_mut().enumerate() {
            let mut places = None;
            for (node, rate) in &mut row.nodes {
                let of_node = of_nodes.entry(Arc::clone(node)).or_default();
                of_node.region += rate.bytes[OF_REGION];
                if rate.bytes[ELSEWHERE] + rate.connections[ELSEWHERE] <= 0.0 {
                    continue;
                }
                let places = places.get_or_insert_with(|| {
                    id(&row.service).map(|id| self.places(state, &id)).unwrap_or_default()
                });
                match settled(self.place(state, node), places) {
                    Some(Locality::Region) => moved(&mut row.rate, rate, 1.0),
                    Some(_) => of_node.elsewhere += rate.bytes[ELSEWHERE],
                    None => {
                        of_node.unsettled += rate.bytes[ELSEWHERE];
                        unsettled.push((at, Arc::clone(node)));
                    }
                }
            }
        }
        for (at, node) in unsettled {
            let share = of_nodes.get(&node).zip(zones.get(&node));
            let share = share.map_or(0.0, |(of_node, zones)| self.share(of_node, zones));
            if let Some(rate) = rows[at].nodes.get_mut(&node).filter(|_| share > 0.0) {
                moved(&mut rows[at].rate, rate, share);
            }
        }
    }

    /// The share of what is unsettled on a node that stayed in the region, by the zones that it measured.
    fn share(&self, of_node: &OfNode, zones: &Zones) -> f64 {
        if of_node.region > 0.0 || of_node.unsettled <= 0.0 {
            return 0.0;
        }
        let is_elsewhere = |zone: &str| self.distance(&zones.own, zone) == Locality::Elsewhere;
        let elsewhere = zones.to.iter().filter(|(zone, _)| is_elsewhere(zone));
        let elsewhere: f64 = elsewhere.map(|(_, moved)| moved.sent + moved.received).sum();
        1.0 - ((elsewhere - of_node.elsewhere) / of_node.unsettled).clamp(0.0, 1.0)
    }
}

/// Bytes of one node, as its agent calls them.
#[derive(Debug, Default)]
struct OfNode {
    /// To its region.
    region: f64,
    /// To elsewhere, of Services without an endpoint in the region beyond the zone.
    elsewhere: f64,
    /// To elsewhere, of the other Services.
    unsettled: f64,
}

/// How far all endpoints beyond the zone are; `None`: not all equally far, or there are none.
fn settled((zone, region): Place<'_>, places: &HashSet<Place<'_>>) -> Option<Locality> {
    let beyond = || places.iter().filter(|(other, _)| zone.is_none() || *other != zone);
    let is_near = |(_, other): &&Place<'_>| region.is_some() && *other == region;
    match (beyond().any(|it| is_near(&it)), beyond().any(|it| !is_near(&it))) {
        (true, false) => Some(Locality::Region),
        (false, true) => Some(Locality::Elsewhere),
        _ => None,
    }
}

/// Moves this share of what one node did elsewhere to its region, there and in the sum of all nodes.
fn moved(sum: &mut Rate, of_node: &mut Rate, share: f64) {
    let kinds =
        [(&mut sum.bytes, &mut of_node.bytes), (&mut sum.connections, &mut of_node.connections)];
    for (sum, of_node) in kinds {
        let part = of_node[ELSEWHERE] * share;
        of_node[ELSEWHERE] -= part;
        of_node[OF_REGION] += part;
        sum[ELSEWHERE] = (sum[ELSEWHERE] - part).max(0.0);
        sum[OF_REGION] += part;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::top::Moved;
    use topo_lb_core::cluster::{Change, Update};
    use topo_lb_kube::source::object::{Object, parse};

    /// Zones a and b in region r, zone x in region s; `near` has endpoints in a and b, `far` in x, `both` in b
    /// and x.
    fn state() -> State {
        let node = |(name, zone, region): (&str, &str, &str)| {
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": {
                ZONE: zone, REGION: region}}})
        };
        let nodes = [("a1", "a", "r"), ("b1", "b", "r"), ("x1", "x", "s")].map(node);
        let slice = |(name, nodes): (&str, &[&str])| {
            let endpoints = nodes.iter().map(
                |node| json!({"addresses": ["10.0.0.1"], "nodeName": node, "zone": &node[..1]}),
            );
            json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
                   "addressType": "IPv4",
                   "metadata": {"namespace": "d", "name": name,
                                "labels": {"kubernetes.io/service-name": name}},
                   "ports": [], "endpoints": endpoints.collect::<Vec<_>>()})
        };
        let slices =
            [("near", &["a1", "b1"][..]), ("far", &["x1"]), ("both", &["b1", "x1"])].map(slice);
        let mut state = State::default();
        for object in nodes.into_iter().chain(slices) {
            let update = match parse(object).expect("an object") {
                Object::Node(node) => Update::Node(Change::Applied(node)),
                Object::Slice(slice, _) => Update::Slice(Change::Applied(slice)),
                other => panic!("{other:?}"),
            };
            let _ = state.apply(update, "");
        }
        state
    }

    /// What a1 did to a Service.
    fn row(service: &str, bytes: [f64; 4]) -> Row {
        let rate = Rate { bytes, connections: bytes.map(|it| it / 100.0), ..Rate::default() };
        let nodes = [("a1".into(), rate.clone())].into();
        Row { service: service.into(), rate, nodes, ..Row::default() }
    }

    /// Bytes of all Services and of the node after the correction.
    fn corrected(mut rows: Vec<Row>, to: &[(&str, f64)]) -> Vec<[f64; 4]> {
        let state = state();
        let to = to.iter().map(|(zone, bytes)| {
            ((*zone).into(), Moved { sent: bytes / 2.0, received: bytes / 2.0 })
        });
        let zones =
            [("a1".into(), Zones { own: "a".into(), to: to.collect(), ..Zones::default() })].into();
        Regions::of(&state).correct(&mut rows, &zones, &state);
        for row in &rows {
            assert_eq!(row.rate, row.nodes["a1"]);
            assert_eq!(row.rate.connections, row.rate.bytes.map(|it| it / 100.0));
        }
        rows.into_iter().map(|row| row.rate.bytes).collect()
    }

    #[test]
    fn what_an_agent_calls_elsewhere_is_priced_by_the_regions_of_the_nodes() {
        // An agent that knows no regions: all bytes to b and x are elsewhere to it.
        let rows = vec![
            row("d/near", [1.0, 2.0, 0.0, 300.0]),
            row("d/far", [0.0, 0.0, 0.0, 100.0]),
            row("d/both", [0.0, 0.0, 0.0, 200.0]),
        ];
        let to = [("a", 3.0), ("b", 450.0), ("x", 150.0)];
        assert_eq!(
            corrected(rows, &to),
            [[1.0, 2.0, 300.0, 0.0], [0.0, 0.0, 0.0, 100.0], [0.0, 0.0, 150.0, 50.0]]
        );
    }

    #[test]
    fn an_agent_that_knows_regions_is_believed() {
        let rows =
            vec![row("d/near", [0.0, 0.0, 50.0, 0.0]), row("d/both", [0.0, 0.0, 70.0, 30.0])];
        let wanted = [[0.0, 0.0, 50.0, 0.0], [0.0, 0.0, 70.0, 30.0]];
        // Maps are read one after the other: the sums differ a little.
        assert_eq!(corrected(rows, &[("b", 130.0), ("x", 20.0)]), wanted);
    }

    #[test]
    fn without_zones_that_were_measured_what_may_be_either_stays_elsewhere() {
        let rows = vec![row("d/both", [0.0, 0.0, 0.0, 9.0]), row("d/gone", [0.0, 0.0, 0.0, 5.0])];
        let mut unmeasured = rows.clone();
        let state = state();
        Regions::of(&state).correct(&mut unmeasured, &BTreeMap::new(), &state);
        assert_eq!(unmeasured, rows);
        // Of a Service that is gone, the zones still tell.
        assert_eq!(corrected(rows, &[("b", 14.0)]), [[0.0, 0.0, 9.0, 0.0], [0.0, 0.0, 5.0, 0.0]]);
    }

    #[test]
    fn a_zone_of_two_regions_has_none() {
        let mut state = state();
        let labels = [(ZONE, "a"), (REGION, "s")];
        let labels = labels.map(|(key, value)| (key.into(), value.into()));
        let node =
            topo_lb_core::cluster::Node { name: "a2".into(), labels: labels.into_iter().collect() };
        let regions = Regions::of(&state);
        let to = |regions: &Regions| ["a", "b", "x", "?"].map(|zone| regions.distance("a", zone));
        let [zone, region, elsewhere] = [Locality::Zone, Locality::Region, Locality::Elsewhere];
        assert_eq!(to(&regions), [zone, region, elsewhere, elsewhere]);
        let _ = state.apply(Update::Node(Change::Applied(node)), "");
        assert_eq!(to(&Regions::of(&state)), [zone, elsewhere, elsewhere, elsewhere]);
    }
}
