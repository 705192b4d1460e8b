//! To which Service port a connection went, and how far its endpoint is: pure.

use std::collections::HashMap;
use std::net::IpAddr;

use topo_lb_common::backend::Locality;

use super::ByServicePort;
use super::Connection;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::topology::{Scope, Verdict, decide, locality, port_name};

/// Counts `connections` by Service port and by locality as seen from `node`. Skips those that dialled
/// no ClusterIP, and those to Services that topo-lb leaves alone. An endpoint that is gone is elsewhere.
#[must_use]
pub fn attribute(
    state: &State,
    node: &str,
    scope: Scope,
    connections: HashMap<Connection, u64>,
) -> ByServicePort {
    let mut counted = ByServicePort::new();
    if connections.is_empty() {
        return counted;
    }
    let mut by_address: HashMap<IpAddr, &ServiceId> = HashMap::new();
    for id in state.services() {
        let addresses = state.service(id).into_iter().flat_map(|service| &service.cluster_ips);
        by_address.extend(addresses.map(|address| (*address, id)));
    }
    let mut is_handled: HashMap<&ServiceId, bool> = HashMap::new();
    for (connection, times) in connections {
        let Connection { protocol, dialled, endpoint } = connection;
        let Some(&id) = by_address.get(&dialled.ip()) else { continue };
        let is_handled = *is_handled.entry(id).or_insert_with(|| {
            let decisions = decide(state, node, scope, id);
            decisions.first().is_some_and(|one| one.verdict() != Verdict::Bypass)
        });
        let Some(service) = state.service(id).filter(|_| is_handled) else { continue };
        let port = service.ports.iter();
        let mut port = port.filter(|it| (it.port, it.protocol) == (dialled.port(), protocol));
        let Some(port) = port.next() else { continue };
        let locality =
            locality(state, node, service, port, endpoint).unwrap_or(Locality::Elsewhere);
        *counted.entry((port_name(service, port), locality)).or_default() += times;
    }
    counted
}
