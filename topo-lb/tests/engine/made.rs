//! Clusters made by hand.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use topo_lb::cluster::service::Protocol;
use topo_lb::cluster::{
    Node, Service, ServiceId, ServicePort, Slice, SliceEndpoint, SliceId, SlicePort, State, Update,
};
use topo_lb::topology::{self, Decision, Route, Scope, Verdict};

pub(crate) const H: &str = "kubernetes.io/hostname";
pub(crate) const Z: &str = "topology.kubernetes.io/zone";
pub(crate) const R: &str = "topology.kubernetes.io/region";

pub(crate) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<Arc<str>, Arc<str>> {
    pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect()
}

pub(crate) fn node(name: &str, pairs: &[(&str, &str)]) -> Node {
    Node { name: name.into(), labels: labels(pairs) }
}

pub(crate) fn id(name: &str) -> ServiceId {
    ServiceId { namespace: "default".into(), name: name.into() }
}

/// A Service `svc` with ClusterIP 10.96.0.1 and one TCP port 80 named `http`.
pub(crate) fn service() -> Service {
    Service {
        id: id("svc"),
        uid: None,
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        ports: vec![ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        policy: Arc::default(),
        internal_local: false,
        external_local: false,
        affinity_seconds: None,
        skipped: None,
    }
}

/// The same with keys, by annotation.
pub(crate) fn keyed(keys: &str) -> Service {
    let mut service = service();
    Arc::make_mut(&mut service.policy).topology_keys = Some(keys.into());
    service
}

pub(crate) fn endpoint(address: &str, node: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: address.parse::<IpAddr>().unwrap(),
        node: (!node.is_empty()).then(|| node.into()),
        labels: BTreeMap::new(),
        ready: true,
        serving: true,
        terminating: false,
        for_nodes: Vec::new(),
        for_zones: Vec::new(),
    }
}

/// What an endpoint can be otherwise.
pub(crate) trait Otherwise {
    fn unready(self) -> Self;
    fn draining(self) -> Self;
    fn gone(self) -> Self;
    fn carrying(self, pairs: &[(&str, &str)]) -> Self;
    fn for_nodes(self, names: &[&str]) -> Self;
    fn for_zones(self, names: &[&str]) -> Self;
}

impl Otherwise for SliceEndpoint {
    fn unready(self) -> Self {
        Self { ready: false, serving: false, ..self }
    }
    fn draining(self) -> Self {
        Self { ready: false, serving: true, terminating: true, ..self }
    }
    fn gone(self) -> Self {
        Self { ready: false, serving: false, terminating: true, ..self }
    }
    fn carrying(self, pairs: &[(&str, &str)]) -> Self {
        Self { labels: labels(pairs), ..self }
    }
    fn for_nodes(self, names: &[&str]) -> Self {
        Self { for_nodes: names.iter().map(|&name| name.into()).collect(), ..self }
    }
    fn for_zones(self, names: &[&str]) -> Self {
        Self { for_zones: names.iter().map(|&name| name.into()).collect(), ..self }
    }
}

/// A slice of `svc` with one TCP port `http` of number 9376.
pub(crate) fn slice(name: &str, endpoints: Vec<SliceEndpoint>) -> Slice {
    Slice {
        id: SliceId { namespace: "default".into(), name: name.into() },
        service: Some(id("svc")),
        ports: vec![port("http", 9376, Protocol::Tcp)],
        endpoints,
        triggered: None,
    }
}

pub(crate) fn port(name: &str, number: u16, protocol: Protocol) -> SlicePort {
    SlicePort { name: name.into(), port: number, protocol }
}

/// All the objects there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) services: Vec<Service>,
    pub(crate) slices: Vec<Slice>,
}

impl Cluster {
    /// One Service, one slice.
    pub(crate) fn of(nodes: Vec<Node>, service: Service, endpoints: Vec<SliceEndpoint>) -> Self {
        Self { nodes, services: vec![service], slices: vec![slice("svc-1", endpoints)] }
    }

    pub(crate) fn state(&self, this_node: &str) -> State {
        let mut state = State::default();
        let _ = state.apply(Update::AllNodes(self.nodes.clone(), vec![]), this_node);
        let _ = state.apply(Update::AllServices(self.services.clone(), vec![]), this_node);
        let _ = state.apply(Update::AllSlices(self.slices.clone(), vec![]), this_node);
        state
    }

    /// Routes of `svc`.
    pub(crate) fn routes(&self, this_node: &str) -> Vec<Route> {
        topology::routes(&self.state(this_node), this_node, Scope::All, &id("svc"))
    }

    /// The addresses that `svc` has on `this_node`, without ports, sorted; none where refused.
    pub(crate) fn chosen(&self, this_node: &str) -> Vec<String> {
        let routes = self.routes(this_node);
        for route in &routes {
            assert_eq!(route.verdict == Verdict::Route, !route.endpoints.is_empty());
        }
        let all = routes.iter().flat_map(|route| &route.endpoints);
        all.map(|one| one.address().ip().to_string()).collect()
    }

    /// Something of the decision for the first port of `svc`.
    pub(crate) fn decided<T>(&self, this_node: &str, ask: impl FnOnce(&Decision<'_>) -> T) -> T {
        let state = self.state(this_node);
        let decisions = topology::decide(&state, this_node, Scope::All, &id("svc"));
        ask(&decisions[0])
    }
}
