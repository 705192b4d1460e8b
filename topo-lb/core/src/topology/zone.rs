//! The zones of endpoints, by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::label::ZONE;
use super::label_name::is_label_value;
use crate::cluster::{Labels, State};

/// The zone in a Node's labels; none if its value is no label's, so that a metric can name it.
#[must_use]
pub fn zone_of(labels: &Labels) -> Option<&Arc<str>> {
    labels.get(ZONE).filter(|zone| is_label_value(zone))
}

/// The zone of each of these addresses that is an endpoint's: that of its EndpointSlice, or else of its
/// Node. Without a zone: `None`.
#[must_use]
pub fn zones_of(state: &State, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Option<Arc<str>>> {
    let mut zones = BTreeMap::new();
    for endpoint in state.all_slices().flat_map(|(_, slice)| &slice.endpoints) {
        if addresses.contains(&endpoint.address) {
            let own = endpoint.label(ZONE).filter(|zone| is_label_value(zone));
            let zone = own.or_else(|| zone_of(state.node(endpoint.node()?)?)).cloned();
            let known = zones.entry(endpoint.address).or_insert(None);
            *known = known.take().or(zone);
        }
    }
    zones
}
