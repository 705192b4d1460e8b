//! To which Service port a connection went, and how far its endpoint is: pure.

use std::collections::HashMap;
use std::net::IpAddr;

use topo_lb_common::backend::Locality;

use super::ByServicePort;
use super::Connection;
use crate::cluster::{ServiceId, State};
use crate::topology::{Scope, Verdict, decide, locality, port_name};

/// Counts `connections` by Service port and by locality as seen from `node`. Left out are those that dialled
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Protocol;
    use crate::source::file::example::{CLUSTER, updates};

    fn state(cluster: &str) -> State {
        let mut state = State::default();
        for update in updates(cluster) {
            let _ = state.apply(update, "here");
        }
        state
    }

    fn connection(dialled: &str, endpoint: &str) -> Connection {
        let [dialled, endpoint] = [dialled, endpoint].map(|it| it.parse().unwrap());
        Connection { protocol: Protocol::Tcp, dialled, endpoint }
    }

    #[test]
    fn a_connection_counts_for_its_service_port_by_the_place_of_its_endpoint() {
        let state = state(CLUSTER);
        let id = state.services().next().expect("a Service");
        let service = state.service(id).expect("it");
        let address = service.cluster_ips[0];
        let (_, slice) = state.slices(id).next().expect("a slice");
        let endpoint = format!("{}:{}", slice.endpoints[0].address, slice.ports[0].port);
        let dialled = format!("{address}:80");
        let udp = Connection { protocol: Protocol::Udp, ..connection(&dialled, &endpoint) };
        let all = HashMap::from([
            (connection(&dialled, &endpoint), 3),
            (connection(&dialled, "10.9.9.9:1"), 2),
            (connection("10.9.9.9:80", &endpoint), 5),
            (connection(&format!("{address}:81"), &endpoint), 7),
            (udp, 11),
        ]);
        let of = |node, all| attribute(&state, node, Scope::All, all);
        let name = port_name(service, &service.ports[0]);
        let far = ((name.clone(), Locality::Elsewhere), 5);
        assert_eq!(of("here", all.clone()), ByServicePort::from([far]));
        let near = [((name.clone(), Locality::Node), 3), ((name, Locality::Elsewhere), 2)];
        assert_eq!(of("there", all), ByServicePort::from(near));
    }

    #[test]
    fn a_service_that_is_left_alone_is_not_counted() {
        let cluster =
            CLUSTER.replace("topo-lb.io/topology-keys: rack", "topo-lb.io/handle: 'false'");
        let state = state(&cluster);
        let id = state.services().next().expect("a Service");
        let dialled = format!("{}:80", state.service(id).expect("it").cluster_ips[0]);
        let all = HashMap::from([(connection(&dialled, "10.1.1.1:8080"), 1)]);
        assert!(attribute(&state, "here", Scope::All, all).is_empty());
    }
}
