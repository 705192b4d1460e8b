//! Nodes by their value of a label. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use topo_lb_core::cluster::State;
use topo_lb_core::topology::is_left;
use topo_lb_core::topology::label::{HOSTNAME, ZONE};

/// A label with more values than this groups nothing.
const MOST: usize = 200;

/// Nodes that share a value of the label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Group {
    /// The value; `None` for nodes without the label, and for agents of unknown Nodes.
    pub(super) value: Option<Arc<str>>,
    /// By name.
    pub(super) nodes: Vec<Arc<str>>,
    /// All of its nodes are evacuated (`topo-lb.io/evacuate`).
    pub(super) evacuated: bool,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By value; nodes without one come last.
    pub(super) all: Vec<Group>,
    by_value: HashMap<Arc<str>, usize>,
    /// The group of each node, and its place there.
    places: HashMap<Arc<str>, (usize, usize)>,
    /// How many nodes are in the groups before each.
    before: Vec<usize>,
}

impl Groups {
    /// The Nodes of the cluster, and agents of others.
    pub(super) fn of<'a>(
        state: &State,
        label: &str,
        agents: impl Iterator<Item = &'a Arc<str>>,
    ) -> Self {
        let mut by_value: BTreeMap<Option<Arc<str>>, BTreeSet<Arc<str>>> = BTreeMap::new();
        for (node, labels) in state.nodes() {
            by_value.entry(labels.get(label).cloned()).or_default().insert(node.into());
        }
        let unknown: BTreeSet<_> = agents.filter(|it| state.node(it).is_none()).cloned().collect();
        if !unknown.is_empty() {
            by_value.entry(None).or_default().extend(unknown);
        }
        let without = by_value.remove(&None).map(|nodes| (None, nodes));
        let all: Vec<_> = by_value
            .into_iter()
            .chain(without)
            .map(|(value, nodes)| Group {
                value,
                evacuated: nodes.iter().all(|node| is_left(state, node)),
                nodes: nodes.into_iter().collect(),
            })
            .collect();
        let mut groups = Self::default();
        for (place, group) in all.iter().enumerate() {
            groups.before.push(groups.places.len());
            groups.by_value.extend(group.value.clone().map(|value| (value, place)));
            let nodes = group.nodes.iter().enumerate();
            groups.places.extend(nodes.map(|(at, node)| (Arc::clone(node), (place, at))));
        }
        Self { all, ..groups }
    }

    /// The group of a node, and its place there.
    pub(super) fn place(&self, node: &str) -> Option<(usize, usize)> {
        self.places.get(node).copied()
    }

    /// The number of the node at this place of a group among those of all groups.
    pub(super) fn number(&self, (group, place): (usize, usize)) -> usize {
        self.before[group] + place
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.places.len()
    }

    /// The group with this value, or without one.
    pub(super) fn with(&self, value: Option<&str>) -> Option<usize> {
        match value {
            Some(value) => self.by_value.get(value).copied(),
            None => self.all.len().checked_sub(1).filter(|&last| self.all[last].value.is_none()),
        }
    }
}

/// A label that groups nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Label {
    name: String,
    /// How many values it has.
    values: usize,
}

/// A sentence on a label that groups nothing: no node carries it, or it has too many values. None before
/// there are nodes.
pub(super) fn ungrouped(state: &State, label: &str) -> Option<String> {
    state.nodes().next()?;
    let values = state.nodes().filter_map(|(_, labels)| labels.get(label));
    match values.collect::<HashSet<_>>().len() {
        0 => Some(format!("No Node carries the label {label}: nodes are in one group.")),
        many if many > MOST => Some(format!(
            "The label {label} has {many} values, more than {MOST}: nodes are in one group."
        )),
        _ => None,
    }
}

/// Labels that some node carries, and that group nodes: those with few values first, but the zone
/// before all.
pub(super) fn labels(state: &State) -> Vec<Label> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, labels) in state.nodes() {
        for (key, value) in labels.iter() {
            values.entry(key).or_default().insert(value);
        }
    }
    values.retain(|key, values| *key != HOSTNAME && values.len() <= MOST);
    let label = |(name, values): (&str, BTreeSet<&str>)| Label {
        name: name.to_owned(),
        values: values.len(),
    };
    let mut labels: Vec<_> = values.into_iter().map(label).collect();
    labels.sort_by_key(|label| (label.name != ZONE, label.values == 1, label.values));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_core::cluster::{
        Change, Endpoint, Node, Placement, Port, Protocol, Service, ServiceId, Slice, SliceId,
        Update,
    };
    use topo_lb_core::what_if;

    fn state(nodes: &[(&str, &[(&str, &str)])]) -> State {
        let nodes = nodes.iter().map(|(name, labels)| Node {
            name: (*name).into(),
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        });
        let mut state = State::default();
        let _ = state.apply(Update::Node(Change::Listed(nodes.collect(), Vec::new())), "");
        state
    }

    #[test]
    fn nodes_without_the_label_and_unknown_agents_come_last() {
        let state = state(&[("n1", &[(ZONE, "b")]), ("n2", &[]), ("n3", &[(ZONE, "a")])]);
        let agents = ["n1".into(), "stranger".into()];
        let groups = Groups::of(&state, ZONE, agents.iter());
        let names: Vec<_> = groups.all.iter().map(|it| (it.value.as_deref(), &*it.nodes)).collect();
        let wanted: [(_, &[Arc<str>]); 3] = [
            (Some("a"), &["n3".into()]),
            (Some("b"), &["n1".into()]),
            (None, &["n2".into(), "stranger".into()]),
        ];
        assert_eq!(names, wanted);
        assert_eq!(groups.place("stranger"), Some((2, 1)));
        assert_eq!((groups.with(Some("b")), groups.with(None)), (Some(1), Some(2)));
        assert_eq!(
            ["n3", "n1", "stranger"].map(|it| groups.place(it).map(|place| groups.number(place))),
            [Some(0), Some(1), Some(3)]
        );
        assert_eq!((groups.place("n9"), groups.with(Some("c"))), (None, None));
    }

    #[test]
    fn a_zone_is_shown_as_evacuated_while_it_is() {
        let mut state =
            state(&[("n1", &[(ZONE, "a")]), ("n2", &[(ZONE, "b")]), ("n3", &[(ZONE, "b")])]);
        let id = ServiceId { namespace: "default".into(), name: "web".into() };
        let port = Port { name: "".into(), port: 80, protocol: Protocol::Tcp };
        let service = Service {
            id: id.clone(),
            cluster_ips: vec!["10.96.0.1".parse().unwrap()],
            ports: vec![port.clone()],
            ..Service::default()
        };
        let on = |address: &str, node: &str| {
            let place = Placement { node: Some(node.into()), ..Placement::default() };
            Endpoint { ready: true, ..Endpoint::new(address.parse().unwrap(), place) }
        };
        let slice = Slice {
            id: SliceId { namespace: "default".into(), name: "web-1".into() },
            service: Some(id),
            ports: vec![port],
            endpoints: vec![on("10.0.0.1", "n1"), on("10.0.0.2", "n2")],
            ..Slice::default()
        };
        let _ = state.apply(Update::Service(Change::Applied(service)), "");
        let _ = state.apply(Update::Slice(Change::Applied(slice)), "");
        let evacuated = |state: &State| -> Vec<bool> {
            Groups::of(state, ZONE, [].iter()).all.iter().map(|it| it.evacuated).collect()
        };
        assert_eq!(evacuated(&state), [false, false]);
        let text = "topology.kubernetes.io/zone=b; until=1970-01-01T00:16:40Z";
        what_if::evacuate(&mut state, text).unwrap();
        for (now, wanted) in [(999, [false, true]), (1_000, [false, false])] {
            let _ = state.apply(Update::Time(now), "");
            assert_eq!(evacuated(&state), wanted, "{now}");
        }
    }

    #[test]
    fn labels_that_group_nothing_are_not_offered() {
        let names: Vec<String> = (0..=MOST).map(|number| format!("n{number}")).collect();
        let labels_of: Vec<_> = names
            .iter()
            .map(|name| [(HOSTNAME, &**name), ("serial", &**name), (ZONE, "a"), ("os", "linux")])
            .collect();
        let nodes: Vec<(&str, &[_])> =
            names.iter().zip(&labels_of).map(|(name, labels)| (&**name, &labels[..])).collect();
        let state = state(&nodes);
        let told = ["serial", "none", "os"].map(|label| ungrouped(&state, label));
        let [Some(many), Some(none), None] = told else { panic!("{told:?}") };
        assert!(many.contains("has 201 values") && none.starts_with("No Node carries"), "{many}");
        let labels = labels(&state);
        let names: Vec<_> = labels.iter().map(|label| &*label.name).collect();
        assert_eq!(names, [ZONE, "os"]);
    }
}
