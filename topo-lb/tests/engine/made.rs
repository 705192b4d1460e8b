//! Builders of clusters.

use std::sync::Arc;

use topo_lb_core::cluster::service::{PolicySources, Protocol};
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Endpoint, Labels, Namespace, Node, Placement, PolicyId, Port,
    Service, ServiceId, Slice, SliceId, State, TopologyPolicy, Update,
};
use topo_lb_core::topology::{self, Decision, Route, Scope, Verdict};

pub(crate) const H: &str = "kubernetes.io/hostname";
pub(crate) const Z: &str = "topology.kubernetes.io/zone";
pub(crate) const R: &str = "topology.kubernetes.io/region";

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
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
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        ..Service::default()
    }
}

/// The same Service with other sources of its policy.
pub(crate) fn asking(change: impl FnOnce(&mut PolicySources)) -> Service {
    service().asking(change)
}

/// The same Service with keys, by annotation.
pub(crate) fn keyed(keys: &str) -> Service {
    asking(|policy| policy.topology_keys = Some(keys.into()))
}

/// The same Service with OpenYurt's annotation.
pub(crate) fn openyurt(value: &str) -> Service {
    asking(|policy| policy.openyurt = Some(value.into()))
}

/// The same Service with keys, by field.
pub(crate) fn with_field(keys: &[&str]) -> Service {
    asking(|policy| policy.spec_topology_keys = keys.iter().map(|&key| key.into()).collect())
}

/// A TopologyPolicy of namespace `default` for all its Services.
pub(crate) fn policy(name: &str, change: impl FnOnce(&mut PolicySources)) -> TopologyPolicy {
    let mut sources = PolicySources::default();
    change(&mut sources);
    let id = PolicyId { namespace: "default".into(), name: name.into() };
    TopologyPolicy { id, policy: sources.into(), ..TopologyPolicy::default() }
}

/// The same for all Services of the cluster.
pub(crate) fn of_cluster(policy: TopologyPolicy) -> ClusterTopologyPolicy {
    let id = PolicyId { namespace: "".into(), name: policy.id.name.clone() };
    ClusterTopologyPolicy(TopologyPolicy { id, ..policy })
}

/// Variants of a Service.
pub(crate) trait Asking {
    /// With other sources of its policy.
    fn asking(self, change: impl FnOnce(&mut PolicySources)) -> Self;
}

impl Asking for Service {
    fn asking(mut self, change: impl FnOnce(&mut PolicySources)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }
}

pub(crate) fn endpoint(address: &str, node: &str) -> Endpoint {
    let place = if node.is_empty() { Placement::default() } else { Placement::on(node) };
    Endpoint::new(address.parse().unwrap(), place)
}

fn names(names: &[&str]) -> Box<[Arc<str>]> {
    names.iter().map(|&name| name.into()).collect()
}

/// Variants of an endpoint.
pub(crate) trait Otherwise: Sized {
    fn unready(self) -> Self;
    fn draining(self) -> Self;
    fn gone(self) -> Self;
    fn placed(self, change: impl FnOnce(&mut Placement)) -> Self;
    fn carrying(self, pairs: &[(&str, &str)]) -> Self {
        self.placed(|place| place.labels = labels(pairs))
    }
    fn for_nodes(self, all: &[&str]) -> Self {
        self.placed(|place| place.for_nodes = names(all))
    }
    fn for_zones(self, all: &[&str]) -> Self {
        self.placed(|place| place.for_zones = names(all))
    }
}

impl Otherwise for Endpoint {
    fn unready(self) -> Self {
        Self { ready: false, serving: false, ..self }
    }
    fn draining(self) -> Self {
        Self { ready: false, serving: true, terminating: true, ..self }
    }
    fn gone(self) -> Self {
        Self { ready: false, serving: false, terminating: true, ..self }
    }
    fn placed(mut self, change: impl FnOnce(&mut Placement)) -> Self {
        change(Arc::make_mut(self.place.get_or_insert_default()));
        self
    }
}

/// A slice of `svc` with one TCP port `http`, number 9376.
pub(crate) fn slice(name: &str, endpoints: Vec<Endpoint>) -> Slice {
    Slice {
        id: SliceId { namespace: "default".into(), name: name.into() },
        service: Some(id("svc")),
        ports: vec![port("http", 9376, Protocol::Tcp)],
        endpoints,
        headless: false,
        mirrored: false,
        triggered: None,
        ready_since: Vec::new(),
    }
}

pub(crate) fn port(name: &str, number: u16, protocol: Protocol) -> Port {
    Port { name: name.into(), port: number, protocol }
}

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) services: Vec<Service>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) policies: Vec<TopologyPolicy>,
    pub(crate) cluster_policies: Vec<ClusterTopologyPolicy>,
    /// Seconds since 1970.
    pub(crate) now: Option<i64>,
}

impl Cluster {
    /// A cluster with one Service and one slice.
    pub(crate) fn of(nodes: Vec<Node>, service: Service, endpoints: Vec<Endpoint>) -> Self {
        let slices = vec![slice("svc-1", endpoints)];
        Self { nodes, services: vec![service], slices, ..Self::default() }
    }

    pub(crate) fn state(&self, this_node: &str) -> State {
        let mut state = State::default();
        for update in [
            Update::Node(Change::Listed(self.nodes.clone(), vec![])),
            Update::Service(Change::Listed(self.services.clone(), vec![])),
            Update::Slice(Change::Listed(self.slices.clone(), vec![])),
            Update::Namespace(Change::Listed(self.namespaces.clone(), vec![])),
            Update::TopologyPolicy(Change::Listed(self.policies.clone(), vec![])),
            Update::ClusterTopologyPolicy(Change::Listed(self.cluster_policies.clone(), vec![])),
        ] {
            let _ = state.apply(update, this_node);
        }
        if let Some(now) = self.now {
            let _ = state.apply(Update::Time(now), this_node);
        }
        state
    }

    pub(crate) fn routes(&self, this_node: &str) -> Vec<Route> {
        topology::routes(&self.state(this_node), this_node, Scope::All, None, &id("svc"))
    }

    /// The addresses of `svc` on `this_node`, without ports, sorted; empty if refused.
    pub(crate) fn chosen(&self, this_node: &str) -> Vec<String> {
        let routes = self.routes(this_node);
        for route in &routes {
            assert_eq!(route.verdict == Verdict::Route, !route.endpoints.is_empty());
        }
        let all = routes.iter().flat_map(|route| &route.endpoints);
        all.map(|one| one.address().ip().to_string()).collect()
    }

    /// Applies `ask` to the decision for the first port of `svc`.
    pub(crate) fn decided<T>(&self, this_node: &str, ask: impl FnOnce(&Decision<'_>) -> T) -> T {
        let state = self.state(this_node);
        let decisions = topology::decide(&state, this_node, Scope::All, &id("svc"));
        ask(&decisions[0])
    }
}
