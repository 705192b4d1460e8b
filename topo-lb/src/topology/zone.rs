//! The zones of endpoints, by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::label::ZONE;
use crate::cluster::State;

/// The zone of each of these addresses that is an endpoint's: that of its EndpointSlice, or else of its
/// Node. Without a zone: `None`.
#[must_use]
pub fn zones_of(state: &State, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Option<Arc<str>>> {
    let mut zones = BTreeMap::new();
    for endpoint in state.all_slices().flat_map(|(_, slice)| &slice.endpoints) {
        if addresses.contains(&endpoint.address) {
            let of_node = || state.node(endpoint.node()?)?.get(ZONE);
            let zone = endpoint.label(ZONE).or_else(of_node).cloned();
            let known = zones.entry(endpoint.address).or_insert(None);
            *known = known.take().or(zone);
        }
    }
    zones
}
