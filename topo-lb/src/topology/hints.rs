//! Policy *hints*: what a controller wrote into the EndpointSlices, read as kube-proxy 1.36 reads
//! it (`CategorizeEndpoints`). Soft: it never leaves a Service without endpoints.

use std::net::SocketAddr;

use super::candidate::Candidate;
use super::label::{Here, ZONE};

/// What the hints say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hinted<'a> {
    /// Every ready endpoint is hinted for nodes, some of them for this one.
    Node,
    /// Every ready endpoint is hinted for zones, some of them for this node's.
    Zone(&'a str),
    /// Nothing that this node can follow.
    Off(Off<'a>),
}

/// Why hints are not followed: every usable endpoint is used instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off<'a> {
    /// No endpoint is ready.
    NoneReady,
    /// This ready endpoint has no zone hint, which switches them off for all.
    Unhinted(SocketAddr),
    /// This node has no zone.
    NoZone,
    /// No endpoint is hinted for this node's zone.
    OtherZones(&'a str),
}

/// The members of `ready`, all ready, that the hints leave to this node. There is at least one.
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
    // One that has no hint at all is more to blame than one that has node hints alone.
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
