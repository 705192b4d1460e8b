//! What nodes get from a Service port, and what its endpoints get from the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use topo_lb_common::backend::Locality;

use super::{Proxied, Served};
use crate::cluster::{Family, Port, ServiceId};
use crate::explain;
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
    /// In clients.
    pub(super) load: f64,
}

/// The ports of a Service, in each of its families. Empty if it is not there or has no ClusterIP.
pub(super) fn of<'a>(
    cluster: &'a Proxied,
    nodes: &NodesByLabel<'a>,
    label: &str,
    id: &ServiceId,
) -> Vec<Load<'a>> {
    let Proxied { state, by_kube_proxy } = cluster;
    let decisions = decide(state, "", Scope::All, id);
    let Some(Decision { service, .. }) = decisions.first() else { return Vec::new() };
    let by = if by_kube_proxy.contains(id) { "kube-proxy" } else { "topo-lb" };
    let mut loads = Vec::new();
    for decision in &decisions {
        for choice in &decision.choices {
            let sites = sites(state, service, decision.port, choice.family).into_iter();
            let endpoint = |(address, site): (SocketAddr, Site<'a>)| {
                let (node, value) = (site.node(), site.label(label).ok());
                (address, Endpoint { node, value, load: 0.0 })
            };
            loads.push(Load {
                port: decision.port,
                family: choice.family,
                served: Served {
                    by,
                    policy: explain::policy(decision),
                    refusal_intended: decision.policy.refusal_intended,
                },
                groups: BTreeMap::new(),
                endpoints: sites.map(endpoint).collect(),
                alike: Vec::new(),
            });
        }
    }
    for alike in nodes.alike(service, &decisions, &[label]) {
        let Some(&node) = alike.first() else { continue };
        let value = state.node(node).and_then(|labels| labels.get(label)).map(|value| &**value);
        for route in routes(state, node, Scope::All, None, id) {
            let is_own = |load: &&mut Load<'_>| {
                service.ports.get(route.place) == Some(load.port)
                    && route.frontends.iter().all(|(_, it)| Family::of(it.address) == load.family)
            };
            if let Some(load) = loads.iter_mut().find(is_own) {
                load.add(value, &alike, &route);
            }
        }
    }
    for load in &mut loads {
        load.endpoints.retain(|_, endpoint| endpoint.load > 0.0);
        load.groups.values_mut().for_each(|group| group.refused.sort_unstable());
    }
    loads
}

impl<'a> Load<'a> {
    /// What becomes of the connections of a node; `None` if it is not there.
    pub(super) fn share(&self, node: &str) -> Option<Share> {
        let mut alike = self.alike.iter();
        // Sorted by name: `NodesByLabel::alike`.
        alike.find(|(nodes, _)| nodes.binary_search(&node).is_ok()).map(|(_, share)| *share)
    }

    /// What becomes of all nodes' connections.
    pub(super) fn mean(&self) -> Share {
        let nodes = self.alike.iter().map(|(nodes, _)| nodes.len()).sum::<usize>().max(1) as f64;
        self.alike.iter().fold(Share::default(), |sum, (alike, share)| Share {
            crossing: sum.crossing + share.crossing * alike.len() as f64 / nodes,
            stopped: sum.stopped + share.stopped * alike.len() as f64 / nodes,
        })
    }

    /// Adds the connections of `nodes`, which share this value and this route.
    fn add(&mut self, value: Option<&'a str>, nodes: &[&'a str], route: &Route) {
        let group = self.groups.entry(value).or_default();
        group.nodes += nodes.len();
        if route.verdict != Verdict::Route {
            group.refused.extend(nodes);
            self.alike.push((nodes.to_vec(), Share { crossing: 0.0, stopped: 1.0 }));
            return;
        }
        let before = group.staying;
        for (endpoints, share) in route.shares() {
            let each = nodes.len() as f64 * share / endpoints.len() as f64;
            for chosen in endpoints.iter().filter(|_| share > 0.0) {
                let address = chosen.address();
                let Some(endpoint) = self.endpoints.get_mut(&address) else { continue };
                endpoint.load += each;
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
