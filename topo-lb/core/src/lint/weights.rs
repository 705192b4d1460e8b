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
    let (known, unnamed): (Vec<&Option<&str>>, Vec<_>) =
        values.iter().partition(|value| is_named(value));
    let has_rest = named.contains(&ANY);
    if !unnamed.is_empty() && !has_rest {
        let unnamed = some(unnamed.into_iter().map(|value| value.unwrap_or("(none)")), 5);
        let message = match known.is_empty() {
            true => format!(
                "topo-lb.io/weights has no effect, as it names no value of {label} that an endpoint has; \
                 they have {unnamed}"
            ),
            false => format!(
                "endpoints with these values of {label} get no new connections while others can, as \
                 topo-lb.io/weights does not name them: {unnamed}; name them, or give all others a \
                 weight by `*`"
            ),
        };
        find(Rule::Weights, Severity::Warning, message);
    }
    let unused = named.iter().copied().filter(|one| *one != ANY && !values.contains(&Some(*one)));
    let unused: Vec<_> = unused.collect();
    if !unused.is_empty() && (has_rest || !known.is_empty()) {
        let message = format!(
            "no endpoint has these values of {label}, which topo-lb.io/weights names: {}; the others get \
             their share",
            some(unused.into_iter(), 5)
        );
        find(Rule::Weights, Severity::Info, message);
    }
}
