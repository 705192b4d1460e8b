//! To which Service port a connection counts that another proxy made.

use std::collections::HashMap;
use std::net::SocketAddr;

use topo_lb_common::backend::Locality;
use topo_lb_common::totals::Totals;
use topo_lb_core::cluster::{Change, Protocol, State, Update};
use topo_lb_core::metrics::Tier;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::port_name;
use topo_lb_kernel::datapath::maps::ended::EndedConnection;
use topo_lb_kernel::datapath::maps::totals::Group;
use topo_lb_kernel::observe::{
    ByServicePort, Connection, KnownAddresses, Other, Untranslated, attribute,
};
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

/// A connection that moved as many bytes as `sent`.
fn ended(dialled: &str, sent: u64) -> EndedConnection {
    let client = "10.0.0.9:40000".parse().expect("an address");
    let dialled = dialled.parse().expect("an address");
    EndedConnection { client, dialled, totals: Totals { sent, ..Totals::default() } }
}

#[test]
fn a_connection_that_was_not_translated_counts_once_wherever_it_went() {
    let state = state(CLUSTER);
    let id = state.services().next().expect("a Service");
    let service = state.service(id).expect("it");
    let frontend = format!("{}:80", service.cluster_ips[0]);
    let (_, slice) = state.slices(id).next().expect("a slice");
    let endpoint = SocketAddr::new(slice.endpoints[0].address, slice.ports[0].port);
    let other_port = SocketAddr::new(endpoint.ip(), 1);
    let name = port_name(service, &service.ports[0]);
    let all = [
        ended(&frontend, 1),
        ended(&endpoint.to_string(), 2),
        ended(&other_port.to_string(), 4),
        ended("192.0.2.1:443", 8),
        ended(&frontend, 16),
        ended(&frontend, 32),
        ended("10.7.0.1:443", 64),
    ];
    let mut counted = Untranslated::default();
    let gone = "10.9.9.9:1".parse().ok();
    let pods = ["10.7.0.0/16".parse().expect("a range")];
    counted.count(&mut KnownAddresses::default(), (&state, "here"), &pods, &all, |left| {
        assert_eq!(left, [all[0], all[4], all[5]]);
        // The last one has no answer.
        vec![Some(endpoint), gone]
    });
    let group = |tier| Group { service: Some(name.clone()), locality: Locality::Elsewhere, tier };
    let sent: Vec<_> = counted.by_service.iter().map(|(of, it)| (of.clone(), it.sent)).collect();
    assert_eq!(sent, [(group(Tier::Left), 17), (group(Tier::Direct), 2)]);
    let others: Vec<_> = counted.others.iter().map(|(to, (it, _))| (*to, it.sent)).collect();
    let wanted = [(Other::Pods, 68), (Other::Unknown, 32), (Other::Elsewhere, 8)];
    assert_eq!(others, wanted);
    let far: Vec<_> = counted.far.values().map(|moved| moved.sent).collect();
    assert_eq!(far.iter().sum::<u64>(), 19);
    assert_eq!(
        counted.connections,
        ByServicePort::from([((name.clone(), Locality::Elsewhere), 2)])
    );

    let mut near = Untranslated::default();
    let known = &mut KnownAddresses::default();
    near.count(known, (&state, "there"), &[], &all[1..2], |_| unreachable!("nothing is left"));
    let tier = Tier::Direct;
    let group = Group { service: Some(name), locality: Locality::Node, tier };
    assert_eq!(near.by_service.keys().collect::<Vec<_>>(), [&group]);
    assert!(near.far.is_empty());

    counted.keep(&state);
    assert_eq!(counted.by_service.len(), 2);
    counted.keep(&State::default());
    assert!(counted.by_service.is_empty() && counted.connections.is_empty());
}

#[test]
fn an_endpoint_of_two_services_counts_for_the_first_by_name_with_a_cluster_ip() {
    // Its slice comes first. A name that goes on with a hyphen is before the one that ends there if a port follows.
    for (name, address) in [("b", "10.96.0.2"), ("a-peers", "10.96.0.2"), ("9a", "None")] {
        let second = CLUSTER
            .replace("{name: a,", &format!("{{name: {name},"))
            .replace("name: a-1", "name: a-0")
            .replace("service-name: a", &format!("service-name: {name}"))
            .replace("10.96.0.1", address)
            .replace("name: here", "name: beside");
        let state = state(&format!("{CLUSTER}\n---\n{second}"));
        let ids: Vec<_> = state.services().cloned().collect();
        assert_eq!(ids.len(), 2, "{ids:?}");
        let (_, slice) = state.slices(&ids[0]).next().expect("a slice");
        let endpoint = SocketAddr::new(slice.endpoints[0].address, slice.ports[0].port);
        let mut counted = Untranslated::default();
        let (known, all) = (&mut KnownAddresses::default(), [ended(&endpoint.to_string(), 1)]);
        counted.count(known, (&state, "here"), &[], &all, |_| Vec::new());
        let of = counted.by_service.keys().filter_map(|group| group.service.clone());
        assert_eq!(of.collect::<Vec<_>>(), ["default/a:80".into()], "{name}");
    }
}

#[test]
fn what_is_known_of_addresses_follows_changes() {
    let mut state = state(CLUSTER);
    let id = state.services().next().expect("a Service").clone();
    let (_, slice) = state.slices(&id).next().expect("a slice");
    let endpoint = SocketAddr::new(slice.endpoints[0].address, slice.ports[0].port);
    let known = &mut KnownAddresses::default();
    let mut sent = |state: &State, node: &str| {
        let mut counted = Untranslated::default();
        let all = [ended("10.96.0.1:80", 1), ended("10.96.0.9:80", 2), ended("10.9.9.9:80", 4)];
        let all = [&all[..], &[ended(&endpoint.to_string(), 8)]].concat();
        counted.count(known, (state, node), &[], &all, |left| vec![Some(endpoint); left.len()]);
        let of = |tier| {
            let mut all = counted.by_service.iter().filter(move |(of, _)| of.tier == tier);
            all.next().map(|(of, it)| (of.locality, it.sent))
        };
        let [left, direct] = [Tier::Left, Tier::Direct].map(of);
        (left, direct, counted.others.get(&Other::Elsewhere).map(|(it, _)| it.sent))
    };
    let near = |sent| Some((Locality::Node, sent));
    // The second look has nothing to find.
    for _ in 0..2 {
        assert_eq!(sent(&state, "there"), (near(1), near(8), Some(6)));
    }
    for update in updates(&CLUSTER.replace("10.96.0.1", "10.96.0.9")) {
        let _ = state.apply(update, "there");
    }
    assert_eq!(sent(&state, "there"), (near(2), near(8), Some(5)));
    let _ = state.apply(Update::Service(Change::Deleted(id)), "there");
    assert_eq!(sent(&state, "there"), (None, None, Some(7)));
}
