//! Findings for Pods with an invalid exclusion annotation.

use std::collections::BTreeMap;

use super::{Finding, Rule};
use crate::exclusion::ANNOTATION;
use crate::explain::shown;
use crate::source::object::Unclear;

/// Most Pods that a message names.
const PODS: usize = 3;

/// A finding for each namespace and each value that is neither `true` nor `false`.
#[must_use]
pub fn unclear(all: &[Unclear]) -> Vec<Finding> {
    let mut by_value: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for one in all {
        by_value.entry((&one.namespace, &one.value)).or_default().push(&one.pod);
    }
    let findings = by_value.into_iter().map(|((namespace, value), pods)| Finding {
        namespace: String::new(),
        name: namespace.to_owned(),
        port: None,
        rule: Rule::Ignored,
        severity: Rule::Ignored.severity(),
        message: format!(
            "annotation {ANNOTATION} of {} of its Pods ({}) is ignored: `{}` is neither `true` nor \
             `false`",
            pods.len(),
            some(pods),
            shown(value),
        ),
        nodes: Vec::new(),
    });
    findings.collect()
}

/// The first of these names, and how many more there are.
pub(super) fn some(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let first: Vec<_> = names.iter().take(PODS).map(|name| shown(name)).collect();
    match names.len().saturating_sub(PODS) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
