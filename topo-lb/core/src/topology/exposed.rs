//! Which frontends besides ClusterIPs a Service has on this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::cluster::{
    Clients, Exposure, Family, Frontend, FrontendKind, NodePortAddresses, Port, Service, State,
};

/// Which frontends besides ClusterIPs the agent handles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposing {
    /// Addresses of this node at which node ports are served.
    pub node_ports: NodePortAddresses,
    /// Where external IPs may be; others are left alone, because any tenant can write them
    /// (CVE-2020-8554).
    pub external_ips: Vec<IpNet>,
    /// Clients outside of this node are served, too.
    pub outside: bool,
    /// Other nodes send packets of clients outside on to this one, and answers go to the client directly.
    pub direct_return: bool,
}

/// A frontend of a Service port, after what kind of address it has.
pub type FrontendOfKind = (FrontendKind, Frontend);

impl Exposing {
    /// Everything that an agent with `--kube-proxy-replacement` can handle.
    #[must_use]
    pub fn everything() -> Self {
        let anywhere = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let external_ips = anywhere.map(|all: IpAddr| IpNet::new_assert(all, 0)).into();
        Self {
            node_ports: NodePortAddresses::default(),
            external_ips,
            outside: true,
            direct_return: false,
        }
    }

    /// The external IPs that may be translated.
    fn external_ips_of(&self, exposure: &Exposure) -> impl Iterator<Item = IpAddr> {
        let is_allowed = |it: &&IpAddr| self.external_ips.iter().any(|range| range.contains(*it));
        exposure.external_ips.iter().filter(is_allowed).copied()
    }

    /// The load balancer and external IPs of a Service, in any order, perhaps twice.
    pub fn own_addresses(&self, service: &Service) -> impl Iterator<Item = IpAddr> {
        service.exposure.iter().flat_map(|exposure| {
            let balancers = exposure.load_balancer_ips.iter().copied();
            balancers.chain(self.external_ips_of(exposure))
        })
    }

    /// The frontends of one family of the Service's port at `place`, besides its ClusterIPs.
    pub(super) fn of(
        &self,
        state: &State,
        service: &Service,
        place: usize,
        family: Family,
    ) -> Vec<FrontendOfKind> {
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
        let is_limited = exposure.limits(family).is_some();
        // The hooks do not know the source of a connection.
        let is_ours = |_: &&IpAddr| self.outside || !is_limited;
        for &address in exposure.load_balancer_ips.iter().filter(is_ours) {
            add(FrontendKind::LoadBalancerIp, address, port);
        }
        for address in self.external_ips_of(exposure) {
            add(FrontendKind::ExternalIp, address, port);
        }
        if let Some(port) = exposure.node_port(place) {
            let own = self.node_ports.select(state.local_addresses());
            // For processes of the host itself: a Pod's loopback is its own. At ::1 nothing is
            // translated; there `post_bind6` sees that the port is a node port.
            let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            for address in own.into_iter().chain(loopback) {
                add(FrontendKind::NodePort, address, port);
            }
        }
        all
    }
}

/// The frontends of a Service port besides its ClusterIPs, by who dials them.
pub(super) struct ByClients {
    /// For clients of this node, and for those outside for whom there is nothing else.
    pub(super) anywhere: Vec<FrontendOfKind>,
    /// For clients outside, who get other endpoints, or choose in another way.
    pub(super) outside: Vec<FrontendOfKind>,
    /// For packets that another node has sent on.
    pub(super) peers: Vec<FrontendOfKind>,
}

/// Which frontends clients outside have for themselves.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    /// All of them, not only load balancer IPs with source ranges.
    pub(super) all: bool,
    /// Load balancer and external IPs, as the Service has direct return.
    pub(super) returns_directly: bool,
}

impl ByClients {
    pub(super) fn of(
        all: Vec<FrontendOfKind>,
        service: &Service,
        family: Family,
        apart: Apart,
    ) -> Self {
        let has_limits = service.exposure.as_ref().is_some_and(|it| it.limits(family).is_some());
        let is_limited = |kind: FrontendKind| has_limits && kind == FrontendKind::LoadBalancerIp;
        let returns = |kind| apart.returns_directly && kind != FrontendKind::NodePort;
        let for_outside = |(kind, frontend): &FrontendOfKind| {
            let is_apart = apart.all || is_limited(*kind) || returns(*kind);
            !frontend.address.is_loopback() && is_apart
        };
        let outside = all.iter().filter(|it| for_outside(it));
        let outside = outside.map(|&(kind, frontend)| (kind, frontend.of(Clients::Outside)));
        Self {
            outside: outside.collect(),
            peers: all
                .iter()
                .filter(|(kind, _)| returns(*kind))
                .map(|&(kind, frontend)| (kind, frontend.of(Clients::Peers)))
                .collect(),
            // The hooks do not know the source of a connection: the network decides about these.
            anywhere: all.iter().filter(|(kind, _)| !is_limited(*kind)).copied().collect(),
        }
    }
}
