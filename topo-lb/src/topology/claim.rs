//! Frontends that more than one Service port claims. The first port by namespace, Service name and
//! place in `spec.ports` gets the frontend, so that all nodes agree. The others get nothing there.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cluster::{Frontend, Port, ServiceId, State};

use super::{Scope, has_frontends, policy};

/// A Service, and the index of a port in its `spec.ports`.
pub type Claimant<'a> = (&'a ServiceId, usize);

/// Frontends with more than one claimant. The first claimant gets the frontend.
#[must_use]
pub fn contested(state: &State, scope: Scope) -> HashMap<Frontend, Vec<Claimant<'_>>> {
    let mut claims: HashMap<Frontend, Vec<Claimant<'_>>> = HashMap::new();
    for id in state.services() {
        let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
            continue;
        };
        if policy::of(service).bypass(scope, service).is_some() {
            continue;
        }
        for (place, port) in service.ports.iter().enumerate() {
            let Port { port, protocol, .. } = *port;
            let ours = |&&address: &&IpAddr| state.local_device(address).is_none();
            for &address in service.cluster_ips.iter().filter(ours) {
                let frontend = Frontend { address, port, protocol };
                claims.entry(frontend).or_default().push((id, place));
            }
        }
    }
    claims.retain(|_, claimants| claimants.len() > 1);
    // Services are sorted and ports in order, so the first claimant is the lowest.
    claims
}
