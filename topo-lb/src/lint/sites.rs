//! Nodes that a Service cannot tell apart: one of each kind is enough to look from.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Service, State};
use crate::topology::label::{DESIRED_NODEPOOL, NODEPOOL, ZONE};
use crate::topology::{Decision, PolicyKind};

/// A node's value for a label that matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value<'a> {
    /// It has none.
    None,
    /// One that no endpoint has: to keys, what it is makes no difference.
    Alone,
    /// This one.
    Shared(&'a str),
}

/// What a Service can see of a node: its name, where endpoints or hints name it, and its values
/// for the labels that matter.
type Sight<'a> = (Option<&'a str>, Vec<Value<'a>>);

/// The cluster's nodes, by what `service` can see of them. `decision` is one of its decisions, from
/// wherever: the policy is the same everywhere.
pub(super) fn alike<'a>(
    state: &'a State,
    service: &Service,
    decision: &Decision<'_>,
) -> Vec<Vec<&'a str>> {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for (_, slice) in state.slices(&service.id) {
        for endpoint in &slice.endpoints {
            named.extend(endpoint.node().map(|name| &**name));
            named.extend(endpoint.for_nodes().iter().map(|name| &**name));
        }
    }
    let keys: &[&str] = match decision.policy.kind {
        PolicyKind::Keys => &decision.policy.keys,
        PolicyKind::OpenYurt => &[NODEPOOL, DESIRED_NODEPOOL],
        PolicyKind::Hints => &[ZONE],
        PolicyKind::None => &[],
    };
    let by_keys = decision.policy.kind == PolicyKind::Keys;
    let worn: Vec<BTreeSet<&str>> = keys
        .iter()
        .map(|key| {
            let mut values = BTreeSet::new();
            for (_, slice) in state.slices(&service.id) {
                for endpoint in &slice.endpoints {
                    let home = endpoint.node().and_then(|node| state.node(node));
                    values.extend(endpoint.label(key).map(|value| &**value));
                    values.extend(home.and_then(|labels| labels.get(key)).map(|value| &**value));
                    // The hostname of an unknown node is its name.
                    values.extend(endpoint.node().map(|name| &**name));
                }
            }
            values
        })
        .collect();
    let mut kinds: BTreeMap<Sight<'a>, Vec<&'a str>> = BTreeMap::new();
    for (node, labels) in state.nodes() {
        let values = keys.iter().zip(&worn).map(|(key, worn)| match labels.get(key) {
            None => Value::None,
            Some(value) if !by_keys || worn.contains(&**value) => Value::Shared(value),
            Some(_) => Value::Alone,
        });
        let sight = (named.contains(node).then_some(node), values.collect());
        kinds.entry(sight).or_default().push(node);
    }
    kinds.into_values().collect()
}
