//! Endpoints that stand for more than one Service port, or for themselves: who dials one of them may mean something
//! else than this port.
//!
//! A selector selects Pods of its own namespace, so only that is looked at.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::candidate;
use super::scope::has_direct;
use crate::cluster::{Port, Service, State};

/// Leaves out of `endpoints` of a Service port:
/// * what is also an endpoint of another of its ports, or of another Service with a ClusterIP, or of a headless one that
///   says itself what becomes of direct dials;
/// * what has a `hostname` in any slice: only those of the headless Service of a StatefulSet have one.
pub(super) fn leave_out(
    state: &State,
    service: &Service,
    port: &Port,
    endpoints: &mut Vec<SocketAddr>,
) {
    if endpoints.is_empty() {
        return;
    }
    let addresses: HashSet<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
    let (mut shared, mut named) = (HashSet::new(), HashSet::new());
    for other in state.in_namespace(&service.id.namespace) {
        let is_own = other.id == service.id;
        // As `Port::matches`: a Service may have thousands of ports.
        let others: HashSet<_> = other
            .ports
            .iter()
            .filter(|it| !is_own || *it != port)
            .map(|it| (&*it.name, it.protocol))
            .collect();
        for (_, slice) in state.slices(&other.id) {
            let counts = (is_own || !other.cluster_ips.is_empty() || has_direct(other))
                && candidate::counts(slice, other);
            let is_of_others = |own: &&Port| counts && others.contains(&(&*own.name, own.protocol));
            let of_others = slice.ports.iter().filter(|own| own.protocol == port.protocol);
            let of_others: Vec<u16> = of_others.filter(is_of_others).map(|own| own.port).collect();
            for one in slice.endpoints.iter().filter(|one| addresses.contains(&one.address)) {
                shared.extend(of_others.iter().map(|&port| SocketAddr::new(one.address, port)));
                if one.has_hostname {
                    named.insert(one.address);
                }
            }
        }
    }
    endpoints.retain(|one| !shared.contains(one) && !named.contains(&one.ip()));
}
