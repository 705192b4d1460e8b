//! To which Service port a connection counts that another proxy made.

use std::collections::HashMap;

use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::Protocol;
use topo_lb_core::cluster::State;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::port_name;
use topo_lb_kernel::observe::{ByServicePort, Connection, attribute};
use topo_lb_kube::source::file::example::{CLUSTER, updates};

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
    let cluster = CLUSTER.replace("topo-lb.io/topology-keys: rack", "topo-lb.io/handle: 'false'");
    let state = state(&cluster);
    let id = state.services().next().expect("a Service");
    let dialled = format!("{}:80", state.service(id).expect("it").cluster_ips[0]);
    let all = HashMap::from([(connection(&dialled, "10.1.1.1:8080"), 1)]);
    assert!(attribute(&state, "here", Scope::All, all).is_empty());
}
