//! What nodes get from a Service port, and what its endpoints get from the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use super::figures::{ByNode, Figures};
use super::{Proxied, Served, TOPO_LB};
use crate::cluster::{Family, Port, Protocol, ServiceId};
use crate::explain;
use crate::topology::direct::Direct;
use crate::topology::label::Site;
use crate::topology::{Decision, NodesByLabel, Route, Scope, Verdict, decide, routes, sites};

/// One Service port in one address family.
pub(super) struct Load<'a> {
    pub(super) port: &'a Port,
    pub(super) family: Family,
    pub(super) served: Served,
    /// Nodes by their value of the label.
    pub(super) groups: BTreeMap<Option<&'a str>, Group<'a>>,
    /// Endpoints that some node uses.
    pub(super) endpoints: BTreeMap<SocketAddr, Endpoint<'a>>,
    /// How many endpoints a policy can choose from.
    pub(super) usable: usize,
    /// How many nodes refuse clients that dial endpoints directly which the policy passes over.
    pub(super) refused_direct: usize,
    /// Nodes that this Service treats alike, and what becomes of the connections of each.
    alike: Vec<(Vec<&'a str>, Share)>,
}

/// What becomes of the connections of a node, in shares of 1. The rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Share {
    /// They go to an endpoint with another value of the label, and on another node.
    pub(super) crossing: f64,
    /// They get no endpoint.
    pub(super) stopped: f64,
}

/// Nodes that share their value of the label.
#[derive(Default)]
pub(super) struct Group<'a> {
    pub(super) nodes: usize,
    /// Sorted by name.
    pub(super) refused: Vec<&'a str>,
    /// Endpoints that they use.
    pub(super) endpoints: BTreeSet<SocketAddr>,
    /// How many clients' connections stay in the group, or on the client's node.
    pub(super) staying: f64,
}

impl Group<'_> {
    /// How many of the nodes are served.
    pub(super) fn clients(&self) -> usize {
        self.nodes - self.refused.len()
    }
}

pub(super) struct Endpoint<'a> {
    pub(super) node: Option<&'a str>,
    /// Its value of the label.
    pub(super) value: Option<&'a str>,
    /// In clients, of which a node is as many as it moves bytes.
    pub(super) load: f64,
    /// Whether some node uses it.
    is_used: bool,
}

/// How many clients the nodes are: 1 each on average, and each as many as it moves bytes.
struct Weights<'a> {
    /// Bytes by name.
    known: Vec<(&'a str, f64)>,
    /// Bytes that are of nobody, for each node.
    spread: f64,
    /// Clients for a byte; `None`: each node is one.
    of_a_byte: Option<f64>,
}

impl<'a> Weights<'a> {
    fn of(figures: Option<&'a ByNode>, nodes: &NodesByLabel<'_>) -> Self {
        let (mut known, mut total, mut spread) = (Vec::new(), 0.0, 0.0);
        for (node, counted) in figures.into_iter().flatten() {
            total += counted.all();
            match node.as_deref().filter(|node| nodes.has(node)) {
                // Sorted, as the figures are.
                Some(node) => known.push((node, counted.all())),
                None => spread += counted.all(),
            }
        }
        let all = nodes.count() as f64;
        let of_a_byte = (total > 0.0).then(|| all / total);
        Self { known, spread: spread / all.max(1.0), of_a_byte }
    }

    fn sum(&self, nodes: &[&str]) -> f64 {
        let Some(of_a_byte) = self.of_a_byte else { return nodes.len() as f64 };
        let bytes: f64 = joined(nodes, &self.known).sum();
        (bytes + self.spread * nodes.len() as f64) * of_a_byte
    }
}

/// The values of those of `nodes` that are in `known`, in one pass over both, which are sorted by name
/// (`NodesByLabel::alike`).
fn joined(nodes: &[&str], known: &[(&str, f64)]) -> impl Iterator<Item = f64> {
    let from = nodes.first().map_or(0, |first| known.partition_point(|(name, _)| name < first));
    let mut rest = &known[from..];
    nodes.iter().map_while(move |node| {
        let skipped = rest.iter().take_while(|(name, _)| name < node).count();
        rest = &rest[skipped..];
        let (name, value) = rest.first()?;
        Some(if name == node { *value } else { 0.0 })
    })
}

/// The ports of a Service, in each of its families. Empty if it is not there or has no ClusterIP. `figures`:
/// what agents have counted, if anybody asked them.
pub(super) fn of<'a>(
    cluster: &'a Proxied,
    nodes: &NodesByLabel<'a>,
    label: &str,
    id: &ServiceId,
    figures: Option<&Figures>,
) -> Vec<Arc<Load<'a>>> {
    let Proxied { state, by_kube_proxy } = cluster;
    let decisions = decide(state, "", Scope::All, id);
    let Some(Decision { service, .. }) = decisions.first() else { return Vec::new() };
    let by = if by_kube_proxy.contains(id) { "kube-proxy" } else { TOPO_LB };
    let (mut loads, mut weights) = (Vec::new(), Vec::new());
    for decision in &decisions {
        for choice in &decision.choices {
            let sites = sites(state, service, decision.port, choice.family).into_iter();
            let endpoint = |(address, site): (SocketAddr, Site<'a>)| {
                let (node, value) = (site.node(), site.label(label).ok());
                (address, Endpoint { node, value, load: 0.0, is_used: false })
            };
            loads.push(Load {
                port: decision.port,
                family: choice.family,
                served: Served {
                    by,
                    // What it does is in the loads: a Service without an endpoint there does not change.
                    policy: explain::Policy {
                        evacuations: Vec::new(),
                        ..explain::policy(decision)
                    },
                    refusal_intended: decision.policy.refusal_intended,
                },
                groups: BTreeMap::new(),
                endpoints: sites.map(endpoint).collect(),
                usable: choice.usable,
                refused_direct: 0,
                alike: Vec::new(),
            });
            let is_counted = decision.port.protocol == Protocol::Tcp;
            let counted = figures.filter(|_| is_counted).and_then(|it| it.port(id, decision.port));
            weights.push(Weights::of(counted, nodes));
        }
    }
    for alike in nodes.alike(service, &decisions, &[label]) {
        let Some(&node) = alike.first() else { continue };
        let value = state.node(node).and_then(|labels| labels.get(label)).map(|value| &**value);
        for route in routes(state, node, Scope::All, None, id) {
            let is_own = |load: &Load<'_>| {
                service.ports.get(route.place) == Some(load.port)
                    && route.frontends.iter().all(|(_, it)| Family::of(it.address) == load.family)
            };
            let Some(at) = loads.iter().position(is_own) else { continue };
            match route.direct() {
                Direct::Allow => loads[at].add(value, &alike, weights[at].sum(&alike), &route),
                Direct::Refuse => loads[at].refused_direct += alike.len(),
                // Nobody knows how many clients are steered.
                Direct::Steer => {}
            }
        }
    }
    for load in &mut loads {
        load.endpoints.retain(|_, endpoint| endpoint.is_used);
        load.groups.values_mut().for_each(|group| group.refused.sort_unstable());
    }
    loads.into_iter().map(Arc::new).collect()
}

impl<'a> Load<'a> {
    /// What becomes of the bytes of these nodes, sorted by name: how many of them there are, for each share.
    pub(super) fn shares<'l>(
        &'l self,
        bytes: &'l [(&str, f64)],
    ) -> impl Iterator<Item = (f64, Share)> + 'l {
        self.alike.iter().map(|(nodes, share)| (joined(nodes, bytes).sum(), *share))
    }

    /// What becomes of all nodes' connections.
    pub(super) fn mean(&self) -> Share {
        let nodes = self.alike.iter().map(|(nodes, _)| nodes.len()).sum::<usize>().max(1) as f64;
        self.alike.iter().fold(Share::default(), |sum, (alike, share)| Share {
            crossing: sum.crossing + share.crossing * alike.len() as f64 / nodes,
            stopped: sum.stopped + share.stopped * alike.len() as f64 / nodes,
        })
    }

    /// Adds the connections of `nodes`, which share this value and this route, and are so many clients.
    fn add(&mut self, value: Option<&'a str>, nodes: &[&'a str], clients: f64, route: &Route) {
        let group = self.groups.entry(value).or_default();
        group.nodes += nodes.len();
        if route.verdict != Verdict::Route {
            group.refused.extend(nodes);
            self.alike.push((nodes.to_vec(), Share { crossing: 0.0, stopped: 1.0 }));
            return;
        }
        let before = group.staying;
        for (endpoints, share) in route.shares() {
            let part = share / endpoints.len() as f64;
            let each = nodes.len() as f64 * part;
            for chosen in endpoints.iter().filter(|_| share > 0.0) {
                let address = chosen.address();
                let Some(endpoint) = self.endpoints.get_mut(&address) else { continue };
                endpoint.load += clients * part;
                endpoint.is_used = true;
                group.endpoints.insert(address);
                let is_near = value.is_some() && endpoint.value == value;
                if is_near || chosen.locality == Locality::Node {
                    group.staying += each;
                }
            }
        }
        let staying = (group.staying - before) / nodes.len() as f64;
        // Sums of shares may exceed 1 by what floating-point numbers lose.
        let crossing = (1.0 - staying).clamp(0.0, 1.0);
        self.alike.push((nodes.to_vec(), Share { crossing, stopped: 0.0 }));
    }
}
