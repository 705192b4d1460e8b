//! Findings for clients in a service mesh.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::PODS;
use super::{Finding, Rule};
use crate::cluster::mesh::Meshed;
use crate::explain::{shown, some};
use crate::flag::{EXCLUDE_ANNOTATED_PODS, EXCLUDE_NAMESPACES};

/// A finding for each namespace that is in a mesh or has Pods in one, except `excluded` namespaces.
#[must_use]
pub fn meshed(all: &[Meshed], excluded: &[String]) -> Vec<Finding> {
    let all = all.iter().filter(|one| !excluded.contains(&one.namespace));
    let (whole, pods): (Vec<_>, Vec<_>) = all.partition(|one| one.pod.is_none());
    let named: BTreeSet<&str> = whole.iter().map(|one| &*one.namespace).collect();
    let mut by_namespace: BTreeMap<&str, Vec<&Meshed>> = BTreeMap::new();
    for pod in pods.into_iter().filter(|one| !named.contains(&*one.namespace)) {
        by_namespace.entry(&pod.namespace).or_default().push(pod);
    }
    let whole = whole.into_iter().map(|one| {
        let what = format!("the namespace is in a mesh of {} ({})", one.mesh, shown(&one.by));
        finding(&one.namespace, &what)
    });
    let pods = by_namespace.into_iter().map(|(namespace, pods)| {
        let (count, first) = (pods.len(), pods[0]);
        let what = format!(
            "{count} of its Pods {} in a mesh of {} ({}): {}",
            if count == 1 { "is" } else { "are" },
            first.mesh,
            shown(&first.by),
            some(pods.iter().filter_map(|one| one.pod.as_deref()).collect::<BTreeSet<_>>(), PODS),
        );
        finding(namespace, &what)
    });
    whole.chain(pods).collect()
}

fn finding(namespace: &str, what: &str) -> Finding {
    let message = format!(
        "{what}; its proxy sees the address of an endpoint instead of the Service's, and loses the \
         mesh's routes: start the agents with {EXCLUDE_NAMESPACES} {}, or start them with \
         {EXCLUDE_ANNOTATED_PODS} and annotate the Pods with topo-lb.io/exclude: \"true\"",
        shown(namespace)
    );
    Finding::of("", namespace, Rule::Meshed, message)
}
