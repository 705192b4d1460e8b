//! Findings on policies and Namespaces themselves, once for each, however many Services they select.

use std::collections::BTreeSet;

use super::{Finding, Rule};
use crate::cluster::State;
use crate::explain::{label, shown};
use crate::topology::evacuation::Evacuation;
use crate::topology::validation::ANY;
use crate::topology::{Origin, broken, faults};

/// Adds the findings on every TopologyPolicy, ClusterTopologyPolicy and Namespace of `state`.
/// `node_keys`: the labels that some Node carries.
pub(super) fn look(state: &State, node_keys: &BTreeSet<&str>, findings: &mut Vec<Finding>) {
    for policy in state.policies() {
        let origin = Origin::Policy(policy.id.clone());
        let mut add = |rule, message: String| {
            let id = &policy.id;
            findings.push(Finding::of(&id.namespace, &id.name, rule, message));
        };
        let faults = faults(state, policy);
        let is_whole = faults.is_empty();
        faults.into_iter().for_each(|one| add(Rule::Ignored, one));
        if state.selected(policy).next().is_none() {
            add(Rule::SelectsNone, format!("{origin} selects no Service: check its selectors"));
        }
        let keys = policy.policy.spec_topology_keys.iter().filter(|_| is_whole);
        for key in keys.filter(|key| ***key != *ANY && !node_keys.contains(&***key)) {
            let message = format!(
                "no Node carries the label {} of {origin}: the key never matches; label the Nodes, or \
                 remove the key",
                shown(key),
            );
            add(Rule::UnknownKey, message);
        }
    }
    for policy in state.policies() {
        let said = policy.policy.evacuate.as_deref().and_then(|it| Evacuation::read(it).ok());
        let labels = said.iter().flat_map(|it| &it.labels);
        for (key, value) in labels.filter(|(key, value)| state.nodes_with(key, value) == 0) {
            let origin = Origin::Policy(policy.id.clone());
            let message = format!(
                "no Node has the label {} that {origin} evacuates: correct it, or delete the policy",
                label(key, value),
            );
            findings.push(Finding::of(
                &policy.id.namespace,
                &policy.id.name,
                Rule::UnknownKey,
                message,
            ));
        }
    }
    for namespace in state.namespaces() {
        let origin = Origin::Namespace(namespace.name.clone());
        for one in broken(&origin, &namespace.policy) {
            findings.push(Finding::of(&namespace.name, "", Rule::Ignored, one.to_string()));
        }
    }
}
