//! Groups of nodes that a Service treats alike, so that one of each group is evaluated.

use std::collections::{BTreeMap, BTreeSet};

use super::label::{DESIRED_NODEPOOL, NODEPOOL, ZONE};
use super::{Decision, PolicyKind};
use crate::cluster::{Service, State};

/// A node's value for a label of the policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value<'a> {
    /// The node lacks the label.
    None,
    /// No endpoint has the node's value; to keys, all such values are equal.
    Alone,
    /// An endpoint may have this value.
    Shared(&'a str),
}

/// What a policy sees of a node: its name, if endpoints or hints have it, and its label values; and
/// the node's value of one more label.
type Sight<'a> = (Option<&'a str>, Vec<Value<'a>>, Option<&'a str>);

/// The cluster's nodes, grouped so that the decisions for `service` are the same on all nodes of a
/// group, and that these share their value of the label `also`. `decisions` are those for the ports
/// of `service` on any node.
#[must_use]
pub fn alike<'a>(
    state: &'a State,
    service: &Service,
    decisions: &[Decision<'_>],
    also: Option<&str>,
) -> Vec<Vec<&'a str>> {
    // Hints may be on one port only.
    let has_policy = |one: &&Decision<'_>| one.policy.kind != PolicyKind::None;
    let Some(decision) = decisions.iter().find(has_policy).or(decisions.first()) else {
        return Vec::new();
    };
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
                    // The host name of an unknown Node is its name.
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
        let also = also.and_then(|key| labels.get(key)).map(|value| &**value);
        let sight = (named.contains(node).then_some(node), values.collect(), also);
        kinds.entry(sight).or_default().push(node);
    }
    kinds.into_values().collect()
}
