//! How the cluster DNS Service leads to the resolver.

use topo_lb_common::selection::LEASED;
use topo_lb_core::cluster::State;
use topo_lb_core::cluster::{FrontendKind, Protocol, ServiceId};
use topo_lb_core::dns::DNS_PORT;
use topo_lb_core::dns::lead::{Listeners, upstreams};
use topo_lb_core::dns::names::{Names, Upstreams};
use topo_lb_core::dns::transport::Transport;
use topo_lb_core::plan::Desired;
use topo_lb_core::topology::{Route, Scope, routes};
use topo_lb_kube::source::file::example::updates;

/// The cluster DNS on two nodes, and a headless Service.
const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: here, labels: {zone: a}}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
  - {name: metrics, port: 9153, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-1
  namespace: kube-system
  labels: {kubernetes.io/service-name: kube-dns}
addressType: IPv4
ports:
- {name: dns, port: 1053, protocol: UDP}
- {name: dns-tcp, port: 2053, protocol: TCP}
- {name: metrics, port: 9153, protocol: TCP}
endpoints:
- {addresses: [10.1.0.1], nodeName: here}
- {addresses: [10.2.0.1], nodeName: there}
"#;

fn id() -> ServiceId {
    ServiceId { namespace: "kube-system".into(), name: "kube-dns".into() }
}

fn of(cluster: &str) -> Vec<Route> {
    let mut state = State::default();
    for update in updates(cluster) {
        let _ = state.apply(update, "here");
    }
    routes(&state, "here", Scope::All, None, &id())
}

fn listeners() -> Listeners {
    let addresses = ["192.0.2.7:10053", "[2001:db8::7]:10053"];
    Listeners { service: id(), addresses: addresses.map(|it| it.parse().expect(it)).into() }
}

#[test]
fn dns_leads_here_with_its_own_endpoints_behind_and_other_ports_stay() {
    let plain = of(CLUSTER);
    let mut led = plain.clone();
    listeners().lead(&mut led);
    for (plain, led) in plain.iter().zip(&led) {
        if plain.frontends[0].1.port != DNS_PORT {
            assert_eq!(plain, led, "metrics");
            continue;
        }
        assert_eq!(led.spill, LEASED);
        assert_eq!(led.endpoints.len(), 1);
        assert_eq!(led.endpoints[0].address(), listeners().addresses[0], "of the same family");
        assert_eq!(led.wider, plain.endpoints);
    }
    let mut desired = Desired::new(false);
    let _ = desired.set(id(), led);
    for target in &desired.targets(&id())[..2] {
        let entry = target.entry(0);
        assert_eq!((entry.count, entry.row.len(), entry.spill), (1, 3, LEASED));
        assert!(entry.spilled() == 0.0 && entry.shares().len() == 3);
        assert_eq!(
            target.chosen().len(),
            2,
            "where there is no room for all, without the resolver"
        );
    }
}

#[test]
fn a_cluster_dns_that_refuses_or_is_exposed_leads_nowhere_else() {
    let away = CLUSTER.replace("nodeName", "conditions: {ready: false}, nodeName");
    let other_family = Listeners { addresses: listeners().addresses[1..].to_vec(), ..listeners() };
    for (cluster, listeners) in [(&*away, listeners()), (CLUSTER, other_family)] {
        let plain = of(cluster);
        let mut led = plain.clone();
        listeners.lead(&mut led);
        assert_eq!(plain, led);
    }
    let mut exposed = of(CLUSTER);
    for route in &mut exposed {
        let mut more = route.frontends[0];
        more.0 = FrontendKind::ExternalIp;
        route.frontends.push(more);
    }
    let mut led = exposed.clone();
    listeners().lead(&mut led);
    assert_eq!(exposed, led, "clients outside are not heard");
}

#[test]
fn each_transport_has_its_endpoints_and_none_is_asked_twice() {
    let routes = of(CLUSTER);
    let [udp, tcp] = [Protocol::Udp, Protocol::Tcp].map(|it| upstreams(&routes, it));
    let mut names = Names::default();
    names.set_upstreams(Upstreams { udp, tcp });
    for (transport, port) in [(Transport::Udp, 1053), (Transport::Tcp, 2053)] {
        let mut tried = Vec::new();
        while let Some(next) = names.upstream(transport, &tried, || u32::MAX / 2) {
            assert_eq!(next.port(), port);
            assert!(!tried.contains(&next));
            tried.push(next);
        }
        assert_eq!(tried.len(), 2);
    }
}
