//! Policy *hints*: a controller's hints in the EndpointSlices, read like kube-proxy 1.36
//! (`CategorizeEndpoints`). Never strict: a Service with usable endpoints keeps some.

use std::net::SocketAddr;

use super::candidate::Candidate;
use super::label::{Here, ZONE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hinted<'a> {
    /// Every ready endpoint has node hints, and some name this node.
    Node,
    /// Every ready endpoint has zone hints, and some name this node's zone.
    Zone(&'a str),
    /// This node cannot follow the hints.
    Off(Off<'a>),
}

/// Why hints are not followed, so that every usable endpoint is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off<'a> {
    /// No endpoint is ready.
    NoneReady,
    /// This ready endpoint has no zone hint, which disables hints for all.
    Unhinted(SocketAddr),
    /// This node has no zone.
    NoZone,
    /// No endpoint is hinted for this node's zone.
    OtherZones(&'a str),
}

/// The members of `ready` (at least one) that the hints leave to this node.
pub(super) fn choose<'a>(
    here: Here<'a>,
    candidates: &[Candidate<'_>],
    ready: &[usize],
) -> (Hinted<'a>, Vec<usize>) {
    let endpoint = |index: usize| candidates[index].site.endpoint;
    let for_node: Vec<_> = ready
        .iter()
        .copied()
        .filter(|&index| endpoint(index).for_nodes().iter().any(|name| **name == *here.name))
        .collect();
    let all_for_nodes = ready.iter().all(|&index| !endpoint(index).for_nodes().is_empty());
    if all_for_nodes && !for_node.is_empty() {
        return (Hinted::Node, for_node);
    }

    let off = |why| (Hinted::Off(why), ready.to_vec());
    let unzoned = || ready.iter().filter(|&&index| endpoint(index).for_zones().is_empty());
    // Prefers to report an endpoint without any hint over one with node hints only.
    let unhinted = unzoned().find(|&&index| endpoint(index).for_nodes().is_empty());
    if let Some(&index) = unhinted.or_else(|| unzoned().next()) {
        return off(Off::Unhinted(candidates[index].address));
    }
    let Some(zone) = here.label(ZONE).filter(|zone| !zone.is_empty()) else {
        return off(Off::NoZone);
    };
    let for_zone: Vec<_> = ready
        .iter()
        .copied()
        .filter(|&index| endpoint(index).for_zones().iter().any(|name| **name == *zone))
        .collect();
    if for_zone.is_empty() { off(Off::OtherZones(zone)) } else { (Hinted::Zone(zone), for_zone) }
}
