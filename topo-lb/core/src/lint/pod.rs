//! Findings for Pods with an invalid annotation.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Rule};
use crate::cluster::Annotation;
use crate::cluster::client::Unclear;
use crate::explain::{shown, some};

/// Most Pods that a message names.
pub(super) const PODS: usize = 3;

/// A finding for each namespace, each annotation and each value that is neither `true` nor `false`.
#[must_use]
pub fn unclear(all: &[Unclear]) -> Vec<Finding> {
    let mut by_value: BTreeMap<(&str, Annotation, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in all {
        let Unclear { namespace, annotation, value, pod } = one;
        by_value.entry((namespace, *annotation, value)).or_default().insert(pod);
    }
    let findings = by_value.into_iter().map(|((namespace, annotation, value), pods)| {
        let message = format!(
            "annotation {annotation} of {} of its Pods ({}) is ignored: `{}` is neither `true` nor \
             `false`",
            pods.len(),
            some(pods, PODS),
            shown(value),
        );
        Finding::of("", namespace, Rule::Ignored, message)
    });
    findings.collect()
}
