//! Services whose EndpointSlices can never match.

use std::collections::BTreeSet;

use crate::cluster::{Family, Port, State};
use crate::explain::{shown, some};
use crate::topology::Decision;

/// What is wrong with a Service port that has no endpoint, though slices of the Service have some: of other
/// ports, or of another family than its ClusterIPs.
pub(super) fn message(state: &State, decision: &Decision<'_>) -> Option<String> {
    let Decision { service, port: own, .. } = decision;
    let slices = state.slices(&service.id).map(|(_, slice)| slice);
    let slices: Vec<_> = slices.filter(|slice| !slice.endpoints.is_empty()).collect();
    if slices.is_empty() {
        return None;
    }
    let ports = || slices.iter().flat_map(|slice| slice.ports.iter());
    if !ports().any(|port| own.matches(port)) {
        let has: BTreeSet<_> = ports().map(in_words).collect();
        let has = match has.is_empty() {
            true => "no port at all".to_owned(),
            false => some(has.iter().map(String::as_str), 3),
        };
        return Some(format!(
            "its EndpointSlices have {has}, and not {}: no endpoint ever serves this port; name them alike",
            in_words(own)
        ));
    }
    let addresses = slices.iter().flat_map(|slice| slice.endpoints.iter().map(|it| it.address));
    let theirs: BTreeSet<Family> = addresses.map(Family::of).collect();
    let has_one = service.cluster_ips.iter().any(|&own| theirs.contains(&Family::of(own)));
    (!has_one).then(|| {
        let theirs = theirs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        format!("its EndpointSlices have only {theirs} addresses, and it has no such ClusterIP")
    })
}

fn in_words(port: &Port) -> String {
    match &*port.name {
        "" => format!("a port without a name of protocol {}", port.protocol),
        name => format!("a port named {} of protocol {}", shown(name), port.protocol),
    }
}
