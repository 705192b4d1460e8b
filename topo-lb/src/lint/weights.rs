//! Findings on `topo-lb.io/weights` by value: values of endpoints that are not named, and the reverse.

use std::collections::BTreeSet;

use super::{Finding, Rule, Severity};
use crate::cluster::{ServiceId, State};
use crate::explain::some;
use crate::topology::validation::ANY;
use crate::topology::weights::Weighs;
use crate::topology::{Decision, sites};

/// `decisions` are those for all ports of a Service.
pub(super) fn look(
    state: &State,
    id: &ServiceId,
    decisions: &[Decision<'_>],
    node_keys: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    let Some(Weighs::Values { label, named }) =
        decisions.first().and_then(|one| one.policy.weighs.as_ref())
    else {
        return;
    };
    let mut find = |rule, severity, message| {
        let finding = Finding::of(&id.namespace, &id.name, rule, message);
        findings.push(Finding { severity, ..finding });
    };
    let ports = decisions.iter().flat_map(|one| one.choices.iter().map(move |it| (one, it)));
    let sites = ports.flat_map(|(one, choice)| sites(state, one.service, one.port, choice.family));
    let values: BTreeSet<_> = sites.map(|(_, site)| site.label(label).ok()).collect();
    if !node_keys.contains(label) && !values.iter().any(Option::is_some) {
        let message = format!(
            "no Node carries the label {label} of topo-lb.io/weights, so they have no effect; label the \
             Nodes, or remove the annotation"
        );
        return find(Rule::UnknownKey, Rule::UnknownKey.severity(), message);
    }
    let is_named = |value: &Option<&str>| value.is_some_and(|value| named.contains(&value));
    let unnamed: Vec<_> = values.iter().filter(|value| !is_named(value)).collect();
    if !unnamed.is_empty() && !named.contains(&ANY) {
        let unnamed = unnamed.into_iter().map(|value| value.unwrap_or("(none)"));
        let message = format!(
            "endpoints with these values of {label} get no new connections, as topo-lb.io/weights does not \
             name them: {}; name them, or give all others a weight by `*`",
            some(unnamed, 5)
        );
        find(Rule::Weights, Severity::Warning, message);
    }
    let unused = named.iter().copied().filter(|one| *one != ANY && !values.contains(&Some(*one)));
    let unused: Vec<_> = unused.collect();
    if !unused.is_empty() && !values.is_empty() {
        let message = format!(
            "no endpoint has these values of {label}, which topo-lb.io/weights names: {}; the others get \
             their share",
            some(unused.into_iter(), 5)
        );
        find(Rule::Weights, Severity::Info, message);
    }
}
