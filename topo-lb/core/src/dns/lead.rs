//! The cluster DNS Service leads to the resolver of this node while that lives. Pure.

use std::net::SocketAddr;

use topo_lb_common::backend::Locality;
use topo_lb_common::selection::LEASED;

use super::DNS_PORT;
use super::names::Upstream;
use crate::cluster::{Family, FrontendKind, Protocol, ServiceId};
use crate::topology::{Chosen, Route, Verdict};

/// Where the resolver of this node listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// The Service of the cluster DNS.
    pub service: ServiceId,
    /// At most one address of each family.
    pub addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Has a route of the cluster DNS lead to the resolver, with the route's own endpoints in place of it
    /// when its lease has ended. Any other route stays. So does one without an endpoint: the resolver
    /// could forward no query.
    pub fn lead(&self, routes: &mut [Route]) {
        for route in routes.iter_mut().filter(|route| leads_to_dns(route)) {
            let family = route.frontends.first().map(|(_, frontend)| frontend.family());
            let own = self.addresses.iter().find(|own| Some(Family::of(own.ip())) == family);
            let Some(&own) = own else { continue };
            let mut others = std::mem::take(&mut route.endpoints);
            others.append(&mut route.wider);
            others.sort_unstable();
            others.dedup();
            route.parts.clear();
            route.wider = others;
            route.endpoints = vec![Chosen::new(own, Locality::Node)];
            route.spill = LEASED;
            // A client that kept its endpoint would keep it beyond the lease.
            route.affinity_seconds = None;
            route.failures = 0;
        }
    }
}

/// The endpoints that answer DNS over `protocol` by these routes of the cluster DNS.
#[must_use]
pub fn upstreams(routes: &[Route], protocol: Protocol) -> Vec<Upstream> {
    let is_it = |route: &&Route| route.protocol == protocol && leads_to_dns(route);
    let Some(route) = routes.iter().find(is_it) else { return Vec::new() };
    let group = |(chosen, share): (&[Chosen], f64)| {
        let all: Vec<_> = chosen.iter().map(Chosen::address).collect();
        (share > 0.0 && !all.is_empty()).then_some((share, all))
    };
    route.shares().into_iter().filter_map(group).collect()
}

fn leads_to_dns(route: &Route) -> bool {
    // Clients outside of this node are not heard.
    let is_dns = !route.frontends.is_empty()
        && route
            .frontends
            .iter()
            .all(|(kind, frontend)| *kind == FrontendKind::ClusterIp && frontend.port == DNS_PORT);
    is_dns
        && route.protocol != Protocol::Sctp
        && route.verdict == Verdict::Route
        && !route.endpoints.is_empty()
}
