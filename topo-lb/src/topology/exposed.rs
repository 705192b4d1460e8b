//! Which frontends besides ClusterIPs a Service has on this node.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::cluster::{Family, Frontend, FrontendKind, NodePortAddresses, Port, Service, State};

/// Which frontends besides ClusterIPs the agent handles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposing {
    /// Addresses of this node at which node ports are served.
    pub node_ports: NodePortAddresses,
    /// Where external IPs may be; others are left alone, because any tenant can write them
    /// (CVE-2020-8554).
    pub external_ips: Vec<IpNet>,
}

/// A frontend of a Service port, and what kind of address it has.
pub type Exposed = (FrontendKind, Frontend);

impl Exposing {
    /// The frontends of one family of the Service's port at `place`, besides its ClusterIPs. Without load
    /// balancer IPs that not everybody may dial: the hooks do not know the source of a connection.
    pub(super) fn of(
        &self,
        state: &State,
        service: &Service,
        place: usize,
        family: Family,
    ) -> Vec<Exposed> {
        let (Some(exposure), Some(port)) = (&service.exposure, service.ports.get(place)) else {
            return Vec::new();
        };
        let Port { port, protocol, .. } = *port;
        let mut all = Vec::new();
        let mut add = |kind, address, port| {
            if Family::of(address) == family {
                all.push((kind, Frontend::new(address, port, protocol)));
            }
        };
        let is_limited = exposure.has_source_ranges;
        for &address in exposure.load_balancer_ips.iter().filter(|_| !is_limited) {
            add(FrontendKind::LoadBalancerIp, address, port);
        }
        let is_allowed =
            |address: &&IpAddr| self.external_ips.iter().any(|it| it.contains(*address));
        for &address in exposure.external_ips.iter().filter(is_allowed) {
            add(FrontendKind::ExternalIp, address, port);
        }
        if let Some(port) = exposure.node_port(place) {
            let own = self.node_ports.select(state.local_addresses());
            // For processes of the host itself: a Pod's loopback is its own.
            for address in own.into_iter().chain([Ipv4Addr::LOCALHOST.into()]) {
                add(FrontendKind::NodePort, address, port);
            }
        }
        all
    }
}
