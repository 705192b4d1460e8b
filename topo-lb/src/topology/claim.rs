//! Frontends that more than one Service port claims. The first by namespace, name and port gets
//! it, so that every node agrees; the others get nothing there.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cluster::{Frontend, Port, ServiceId, State};

use super::{Scope, has_frontends, policy};

/// A Service port: the Service, and the port's place in `spec.ports`.
pub type Claimant<'a> = (&'a ServiceId, usize);

/// The frontends that are claimed more than once, and by whom: the first gets it.
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
    // Services come sorted and ports in order: the first is the lowest.
    claims
}
