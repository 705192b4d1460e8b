//! The traffic of the newest look, by groups of nodes: what the map shows. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;
use topo_lb_common::backend::Locality;

use super::before::Before;
use super::cluster::{Cluster, id, is_same};
use super::groups::{Groups, labels};
use super::leads::{Leads, by_locality};
use super::lines::{Line, Lines};
use super::regions::Regions;
use super::treatment::uncounted;
use crate::{commands::top::Rate, commands::top::Row, commands::top::Zones};
use topo_lb_agent::metrics::zones::named;
use topo_lb_core::topology::evacuation::turned;
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::topology::{NodesByLabel, Scope};

/// What one node does, a second: connections by locality, bytes by locality, refused and failed connections.
type OfNode = [f64; 2 * Locality::ALL.len() + 1];

/// Rates by group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Flows {
    /// One for each group.
    groups: Vec<Rate>,
    /// For each group one for each node: `None` without an answer of its agent.
    nodes: Vec<Vec<Option<OfNode>>>,
    lines: Vec<Line>,
    /// The same as they would be without the evacuations in force; empty without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<Line>,
    /// How many lines there are.
    all_lines: usize,
    /// On how many nodes the bytes of lines were measured. On others they are estimated.
    measured: usize,
    total: Rate,
}

/// The cluster by one label. Remembers where Services lead until that changes.
#[derive(Debug, Default)]
pub(super) struct Lens {
    label: String,
    scope: Scope,
    cluster: Arc<Cluster>,
    regions: Regions,
    /// How many Services nobody counts, as they have no policy.
    pub(super) uncounted: usize,
    pub(super) groups: Arc<Groups>,
    leads: HashMap<Arc<str>, Arc<Leads>>,
    before: Option<Before>,
}

/// The groups, as the page gets them once.
#[derive(Debug, Serialize)]
pub(super) struct PageGroups<'a> {
    label: &'a str,
    labels: Vec<super::groups::Label>,
    groups: &'a [super::groups::Group],
    services: usize,
    sentences: Vec<&'a str>,
}

impl Lens {
    pub(super) fn new(label: &str) -> Self {
        Self { label: label.to_owned(), ..Self::default() }
    }

    /// Takes a newer cluster, and forgets what has changed.
    pub(super) fn take(&mut self, cluster: &Arc<Cluster>, agents: &[Arc<str>], scope: Scope) {
        let is_new = self.cluster.revision != cluster.revision || self.scope != scope;
        let is_placed = agents.iter().all(|agent| self.groups.place(agent).is_some());
        if !is_new && is_placed {
            return;
        }
        let (old, new) = (&self.cluster.state, &cluster.state);
        self.uncounted = uncounted(new, scope);
        if old.nodes().eq(new.nodes()) && is_placed && self.scope == scope {
            self.leads.retain(|service, _| id(service).is_some_and(|id| is_same(old, new, &id)));
        } else {
            self.groups = Arc::new(Groups::of(new, &self.label, agents.iter()));
            self.regions = Regions::of(new);
            self.leads.clear();
            self.before = None;
        }
        // Evacuations end also while no object changes.
        if turned(new, old.now()) {
            self.leads.clear();
        }
        self.before = Before::of(new, self.before.take());
        // Evacuations come and end while the nodes stay.
        let evacuates = new.evacuations().next().is_some();
        if evacuates || self.groups.all.iter().any(|group| group.evacuated) {
            self.groups = Arc::new(Groups::of(new, &self.label, agents.iter()));
        }
        self.scope = scope;
        self.cluster = Arc::clone(cluster);
    }

    /// The groups, for who asked for `label`; `ungrouped` says why it is not that of this lens.
    pub(super) fn page<'a>(&'a self, label: &'a str, ungrouped: Option<&'a str>) -> PageGroups<'a> {
        PageGroups {
            label,
            labels: labels(&self.cluster.state),
            groups: &self.groups.all,
            services: self.cluster.state.services().len(),
            sentences: self.cluster.sentences().into_iter().chain(ungrouped).collect(),
        }
    }

    /// Where all traffic goes: that of `rows`, and bytes as nodes measured them if the groups are zones.
    /// `answered`: nodes whose agents have answered.
    pub(super) fn all_flows(
        &mut self,
        rows: &[Row],
        zones: &BTreeMap<Arc<str>, Zones>,
        answered: &HashSet<Arc<str>>,
    ) -> Flows {
        let zones = Some(zones).filter(|_| self.label == ZONE);
        self.flows(rows.iter(), zones.unwrap_or(&BTreeMap::new()), answered)
    }

    /// Where the traffic of one Service goes. Nodes measure bytes by zone for all Services together.
    pub(super) fn flows_of(&mut self, row: Option<&Row>, answered: &HashSet<Arc<str>>) -> Flows {
        self.flows(row.into_iter(), &BTreeMap::new(), answered)
    }

    fn flows<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a Row> + Clone,
        zones: &BTreeMap<Arc<str>, Zones>,
        answered: &HashSet<Arc<str>>,
    ) -> Flows {
        self.learn(rows.clone());
        let all = rows.clone();
        let groups = &self.groups.all;
        let node = |node| answered.contains(node).then(OfNode::default);
        let mut flows = Flows {
            groups: vec![Rate::default(); groups.len()],
            nodes: groups.iter().map(|group| group.nodes.iter().map(node).collect()).collect(),
            measured: zones.len(),
            ..Flows::default()
        };
        let mut lines = Lines::default();
        for row in rows {
            let leads = self.leads.get(&row.service);
            flows.total.add(&row.rate);
            for (node, rate) in &row.nodes {
                let Some((group, place)) = self.groups.place(node) else { continue };
                let number = self.groups.number((group, place));
                flows.groups[group].add(rate);
                if let Some(sums) = &mut flows.nodes[group][place] {
                    let more = rate.connections.into_iter().chain(rate.bytes);
                    let more = more.chain([rate.refused + rate.failed]);
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
                for locality in Locality::ALL {
                    let leads = leads.map_or(&[][..], |leads| leads.from(number, locality));
                    lines.estimate(group, locality, leads, rate, zones.contains_key(node));
                }
            }
        }
        for (node, zones) in zones {
            let Some((group, _)) = self.groups.place(node) else { continue };
            for (zone, moved) in &zones.to {
                let distance = self.regions.distance(&zones.own, zone);
                let is_own = distance == Locality::Zone;
                let to = if is_own { Some(group) } else { self.of_zone(zone) };
                lines.measure(group, to, distance, *moved);
            }
        }
        // A thousand nodes with 17 digits each would be most of the picture.
        let sums = flows.nodes.iter_mut().flatten().flatten().flatten();
        sums.for_each(|sum| *sum = (*sum * 100.0).round() / 100.0);
        (flows.lines, flows.all_lines) = lines.largest();
        if let Some(before) = &mut self.before {
            flows.before = before.lines(all, &self.label, &self.groups, self.scope);
        }
        flows
    }

    /// The group of the endpoints of a zone; nodes without the label, if agents do not know the zone.
    fn of_zone(&self, zone: &str) -> Option<usize> {
        self.groups.with(Some(zone).filter(|zone| *zone != named(None)))
    }

    /// Computes where Services with traffic lead, on all CPUs.
    fn learn<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) {
        let state = &self.cluster.state;
        let busy = rows.filter(|row| !row.nodes.is_empty());
        let new = busy.filter(|row| !self.leads.contains_key(&row.service));
        // Agents may name ever more Services that nobody knows.
        let is_known = |row: &&Row| id(&row.service).is_some_and(|id| state.service(&id).is_some());
        let new: Vec<_> = new.filter(is_known).collect();
        if new.is_empty() {
            return;
        }
        let nodes = NodesByLabel::of(state);
        let leads = new.par_iter().map(|row| {
            let leads = id(&row.service)
                .map(|id| {
                    Leads::of(
                        by_locality,
                        state,
                        &nodes,
                        &self.label,
                        &self.groups,
                        self.scope,
                        &id,
                    )
                })
                .unwrap_or_default();
            (Arc::clone(&row.service), Arc::new(leads))
        });
        let leads: Vec<_> = leads.collect();
        self.leads.extend(leads);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::commands::top::Moved;
    use topo_lb_core::cluster::{Change, State, Update};
    use topo_lb_core::topology::label::ZONE;
    use topo_lb_core::what_if::evacuate;
    use topo_lb_kube::source::object::{Object, parse};

    /// Four nodes in three zones of one region, and a Service with endpoints on a1, b1 and c1.
    fn cluster(keys: &str) -> Arc<Cluster> {
        let node = |(name, zone)| {
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": {
                ZONE: zone, "topology.kubernetes.io/region": "r"}}})
        };
        let nodes = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")].map(node);
        let endpoint = |(node, last): (&str, u8)| {
            json!({"addresses": [format!("10.0.0.{last}")], "nodeName": node,
                   "conditions": {"ready": true}})
        };
        let endpoints = [("a1", 1), ("b1", 2), ("c1", 3)].map(endpoint);
        let service = [
            json!({"kind": "Service", "apiVersion": "v1",
                   "metadata": {"namespace": "d", "name": "web",
                                "annotations": {"topo-lb.io/topology-keys": keys}},
                   "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                            "ports": [{"port": 80, "protocol": "TCP"}]}}),
            json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
                   "addressType": "IPv4",
                   "metadata": {"namespace": "d", "name": "web-1",
                                "labels": {"kubernetes.io/service-name": "web"}},
                   "ports": [{"port": 8080, "protocol": "TCP"}],
                   "endpoints": endpoints}),
        ];
        let mut state = State::default();
        for object in nodes.into_iter().chain(service) {
            let _ = state.apply(
                match parse(object).expect("an object") {
                    Object::Node(node) => Update::Node(Change::Applied(node)),
                    Object::Service(service) => Update::Service(Change::Applied(service)),
                    Object::Slice(slice, _) => Update::Slice(Change::Applied(slice)),
                    other => panic!("{other:?}"),
                },
                "",
            );
        }
        Arc::new(Cluster { revision: 1, state, ..Cluster::default() })
    }

    fn row(node: &str, connections: [f64; 4]) -> Row {
        let rate = Rate { connections, ..Rate::default() };
        let nodes = BTreeMap::from([(node.into(), rate.clone())]);
        Row { service: "d/web".into(), rate, nodes, ..Row::default() }
    }

    /// From, to, connections or bytes, the estimated share.
    type Shown = (usize, Option<usize>, f64, f64);

    fn lines(keys: &str, node: &str, connections: [f64; 4]) -> Vec<Shown> {
        let mut lens = Lens::new(ZONE);
        lens.take(&cluster(keys), &[], Scope::All);
        let flows = lens.flows_of(Some(&row(node, connections)), &HashSet::new());
        let line = |it: &Line| (it.from, it.to, it.connections, it.estimated.connections);
        let mut lines: Vec<_> = flows.lines.iter().map(line).collect();
        lines.sort_by_key(|line| (line.0, line.1));
        lines
    }

    #[test]
    fn traffic_within_the_zone_has_one_target() {
        let all = lines("topology.kubernetes.io/zone", "a2", [0.0, 6.0, 0.0, 0.0]);
        assert_eq!(all, [(0, Some(0), 6.0, 0.0)]);
        // Whatever the decision is by now.
        let all = lines("topology.kubernetes.io/zone", "a1", [5.0, 0.0, 0.0, 0.0]);
        assert_eq!(all, [(0, Some(0), 5.0, 0.0)]);
    }

    #[test]
    fn traffic_to_several_zones_is_divided_evenly_and_marked() {
        let all = lines("*", "a2", [0.0, 2.0, 6.0, 0.0]);
        assert_eq!(all, [(0, Some(0), 2.0, 0.0), (0, Some(1), 3.0, 1.0), (0, Some(2), 3.0, 1.0)]);
    }

    #[test]
    fn traffic_that_no_decision_explains_has_no_target() {
        let all = lines("topology.kubernetes.io/zone", "a2", [0.0, 0.0, 4.0, 1.0]);
        assert_eq!(all, [(0, None, 5.0, 0.0)]);
    }

    /// An agent of a node that knows no regions.
    #[test]
    fn traffic_that_an_agent_calls_elsewhere_has_lines_within_the_region() {
        let all = lines("*", "a2", [0.0, 2.0, 0.0, 6.0]);
        assert_eq!(all, [(0, Some(0), 2.0, 0.0), (0, Some(1), 3.0, 1.0), (0, Some(2), 3.0, 1.0)]);
    }

    /// Without it, any endpoint gets a third.
    #[test]
    fn while_something_is_evacuated_there_are_also_the_lines_of_before() {
        let mut lens = Lens::new(ZONE);
        let mut before = |revision, state: &State| -> Vec<Shown> {
            let state = state.clone();
            lens.take(
                &Arc::new(Cluster { revision, state, ..Cluster::default() }),
                &[],
                Scope::All,
            );
            let flows = lens.flows_of(Some(&row("a2", [0.0, 2.0, 4.0, 0.0])), &HashSet::new());
            assert_eq!(flows.lines.len(), 2 + usize::from(flows.before.is_empty()));
            let line = |it: &Line| (it.from, it.to, it.connections, it.estimated.connections);
            let mut lines: Vec<_> = flows.before.iter().map(line).collect();
            lines.sort_by_key(|line| (line.0, line.1));
            lines
        };
        let mut state = cluster("*").state.clone();
        assert_eq!(before(2, &state), []);
        let text = "topology.kubernetes.io/zone=b; until=1970-01-01T00:16:40Z";
        evacuate(&mut state, text).expect("an evacuation");
        let _ = state.apply(Update::Time(999), "");
        let all = [(0, Some(0), 2.0, 0.0), (0, Some(1), 2.0, 0.0), (0, Some(2), 2.0, 0.0)];
        assert_eq!(before(3, &state), all);
        let _ = state.apply(Update::Time(1_000), "");
        assert_eq!(before(4, &state), []);
    }

    #[test]
    fn nodes_without_an_answer_have_no_numbers() {
        let mut lens = Lens::new(ZONE);
        lens.take(&cluster("*"), &["stranger".into()], Scope::All);
        let flows = lens.flows_of(Some(&row("a2", [1.0, 2.0, 0.0, 0.0])), &["a2".into()].into());
        assert_eq!(flows.nodes[0][0], None);
        assert_eq!(flows.nodes[0][1], Some([1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        assert_eq!((flows.nodes.len(), flows.total.all()), (4, 3.0));
        assert_eq!(lens.groups.all[3].nodes, ["stranger".into()]);
    }

    /// Of a2 and c1, which each move 900 bytes a second to any zone: a2 has measured.
    fn bytes_by(label: &str) -> (usize, Vec<Shown>) {
        let mut lens = Lens::new(label);
        lens.take(&cluster("*"), &[], Scope::All);
        let rate = Rate { bytes: [0.0, 0.0, 900.0, 0.0], ..Rate::default() };
        let nodes = ["a2", "c1"].map(|node| (node.into(), rate.clone())).into();
        let row = Row { service: "d/web".into(), nodes, ..Row::default() };
        let to = [("b", 800.0), ("c", 90.0), ("(unknown)", 6.0), ("far", 4.0), ("a", 2.0)];
        let moved = |bytes| Moved { sent: bytes / 4.0, received: bytes * 3.0 / 4.0 };
        let to = to.map(|(zone, bytes)| (zone.into(), moved(bytes))).into();
        let zones = [("a2".into(), Zones { own: "a".into(), to, ..Zones::default() })].into();
        let flows = lens.all_flows(&[row], &zones, &HashSet::new());
        let line = |it: &Line| (it.from, it.to, it.bytes, it.estimated.bytes);
        let mut lines: Vec<_> = flows.lines.iter().map(line).collect();
        lines.sort_by_key(|line| (line.0, line.1));
        // Of what a2 measured, to zones of its region.
        for line in flows.lines.iter().filter(|it| (it.from, flows.measured) == (0, 1)) {
            let far = f64::from(u8::from(line.to != Some(0)));
            let elsewhere = f64::from(u8::from(line.to.is_none()));
            assert_eq!((line.far, line.elsewhere, line.sent), (far, elsewhere, line.bytes / 4.0));
        }
        (flows.measured, lines)
    }

    #[test]
    fn bytes_to_a_zone_are_what_the_node_has_measured() {
        let (measured, lines) = bytes_by(ZONE);
        let of_a2 = [
            (0, None, 10.0, 0.0),
            (0, Some(0), 2.0, 0.0),
            (0, Some(1), 800.0, 0.0),
            (0, Some(2), 90.0, 0.0),
        ];
        let of_c1 = [(2, Some(0), 450.0, 1.0), (2, Some(1), 450.0, 1.0)];
        assert_eq!((measured, lines), (1, [&of_a2[..], &of_c1].concat()));
    }

    #[test]
    fn bytes_to_groups_that_are_no_zones_are_estimated() {
        let (measured, lines) = bytes_by("topology.kubernetes.io/region");
        assert_eq!((measured, lines), (0, vec![(0, Some(0), 1800.0, 0.0)]));
    }

    #[test]
    fn services_that_only_agents_name_are_not_remembered() {
        let mut lens = Lens::new(ZONE);
        lens.take(&cluster("*"), &[], Scope::All);
        let stranger = Row { service: "d/stranger".into(), ..row("a2", [0.0, 0.0, 6.0, 0.0]) };
        let flows = lens.flows_of(Some(&stranger), &HashSet::new());
        assert_eq!((flows.total.all(), flows.lines[0].to), (6.0, None));
        assert!(lens.leads.is_empty());
    }

    #[test]
    fn a_changed_service_is_decided_again_and_another_is_not() {
        let mut lens = Lens::new(ZONE);
        lens.take(&cluster("*"), &[], Scope::All);
        let _ = lens.flows_of(Some(&row("a2", [0.0, 0.0, 6.0, 0.0])), &HashSet::new());
        assert_eq!(lens.leads.len(), 1);
        let same = Cluster { revision: 2, ..(*cluster("*")).clone() };
        lens.take(&Arc::new(same), &[], Scope::All);
        assert_eq!(lens.leads.len(), 1);
        let other = Cluster { revision: 3, ..(*cluster("topology.kubernetes.io/zone")).clone() };
        lens.take(&Arc::new(other), &[], Scope::All);
        assert!(lens.leads.is_empty());
    }
}
