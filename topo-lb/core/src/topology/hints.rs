//! Policy *hints*: a controller's hints in the EndpointSlices, read like kube-proxy 1.36
//! (`CategorizeEndpoints`). Never strict: a Service with usable endpoints keeps some.

use super::candidate::Candidate;
use super::cause::{Cause, HintsOff};
use super::label::{Here, ZONE};

/// The members of `ready` (at least one) that the hints leave to this node: if every ready endpoint
/// has node hints, those hinted for this node; else, if every one has zone hints, those hinted for
/// its zone; else, or if there are none, all.
pub(super) fn choose<'a>(
    here: Here<'a>,
    candidates: &[Candidate<'_>],
    ready: &[usize],
) -> (Cause<'a>, Vec<usize>) {
    let endpoint = |index: usize| candidates[index].site.endpoint;
    let for_node: Vec<_> = ready
        .iter()
        .copied()
        .filter(|&index| endpoint(index).for_nodes().iter().any(|name| **name == *here.name))
        .collect();
    let all_for_nodes = ready.iter().all(|&index| !endpoint(index).for_nodes().is_empty());
    if all_for_nodes && !for_node.is_empty() {
        return (Cause::HintedNode, for_node);
    }

    let off = |why| (Cause::HintsOff(why), ready.to_vec());
    let unzoned = || ready.iter().filter(|&&index| endpoint(index).for_zones().is_empty());
    // Prefers to report an endpoint without any hint over one with node hints only.
    let unhinted = unzoned().find(|&&index| endpoint(index).for_nodes().is_empty());
    if let Some(&index) = unhinted.or_else(|| unzoned().next()) {
        return off(HintsOff::Unhinted(candidates[index].address));
    }
    let Some(zone) = here.label(ZONE).filter(|zone| !zone.is_empty()) else {
        return off(HintsOff::NoZone);
    };
    let for_zone: Vec<_> = ready
        .iter()
        .copied()
        .filter(|&index| endpoint(index).for_zones().iter().any(|name| **name == *zone))
        .collect();
    if for_zone.is_empty() {
        off(HintsOff::OtherZones(zone))
    } else {
        (Cause::HintedZone(zone), for_zone)
    }
}
