//! The cells of the table: who dials which address of which Service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use strum::{IntoStaticStr, VariantArray};

use crate::address::Family;
use crate::dial::Transport;
use crate::scene::HERE;
use crate::wiring::{node4, node6};

/// The other node.
pub const THERE: &str = "there";
/// The number of node [`HERE`].
pub const HERE_NUMBER: u8 = 1;
/// The number of node [`THERE`].
pub const THERE_NUMBER: u8 = 2;
/// The Services' own port, for both protocols.
const SERVICE_PORT: u16 = 80;
/// The node port of the first Service; the others follow.
const FIRST_NODE_PORT: u16 = 31_000;

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Caller {
    /// A client on the nodes' network, on no node of the cluster.
    Outside,
    /// A process on node here, outside of all pods.
    Host,
    /// A pod on node here with the node's network.
    HostPod,
    /// A pod on node here that is no endpoint.
    PodHere,
    /// A pod on node there that is no endpoint.
    PodThere,
    /// The endpoint `a` on node here.
    Endpoint,
}

/// What it dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Target {
    /// The ClusterIP.
    ClusterIp,
    /// The node port at node here.
    NodePortHere,
    /// The node port at node there.
    NodePortThere,
    /// The node port at the caller's own loopback address.
    NodePortLoopback,
    /// The load balancer's IP.
    LoadBalancer,
    /// The external IP.
    ExternalIp,
}

/// `spec.externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
pub enum Policy {
    /// Any endpoint.
    Cluster,
    /// From outside, endpoints on the node that is dialled.
    Local,
}

/// The endpoints of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Endpoints {
    /// `a`, on node here.
    Here,
    /// `b`, on node there.
    There,
    /// `a` and `b`.
    Both,
    /// None.
    None,
    /// `a` and `b`, both terminating and serving.
    Terminating,
    /// `a`, terminating and serving, and `b`, ready.
    Draining,
    /// A server on node here, with the node's network.
    HostHere,
    /// A server on node there, with the node's network.
    HostThere,
}

/// What else the Service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Variant {
    /// Nothing.
    Plain,
    /// `sessionAffinity: ClientIP`.
    Affinity,
    /// `loadBalancerSourceRanges` with the client outside, node here and its pods.
    Allowed,
    /// `loadBalancerSourceRanges` without any caller.
    Denied,
}

/// A Service: all of them differ in these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// `spec.externalTrafficPolicy`.
    pub policy: Policy,
    /// Its endpoints.
    pub endpoints: Endpoints,
    /// What else it has.
    pub variant: Variant,
}

/// One way to dial a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The Service.
    pub service: Service,
    /// Which of its addresses.
    pub target: Target,
    /// Who dials.
    pub caller: Caller,
    /// By which protocol.
    pub transport: Transport,
    /// Which family.
    pub family: Family,
}

impl Service {
    /// Every Service.
    pub fn all() -> impl Iterator<Item = Self> {
        Policy::VARIANTS.iter().flat_map(|&policy| {
            Endpoints::VARIANTS.iter().flat_map(move |&endpoints| {
                let of = move |&variant| Self { policy, endpoints, variant };
                Variant::VARIANTS.iter().map(of)
            })
        })
    }

    /// The one with an endpoint on node here, and nothing else.
    #[must_use]
    pub const fn plain() -> Self {
        Self { policy: Policy::Cluster, endpoints: Endpoints::Here, variant: Variant::Plain }
    }

    /// Its name: policy, endpoints, variant.
    #[must_use]
    pub fn name(self) -> String {
        let (policy, endpoints, variant): (&str, &str, &str) =
            (self.policy.into(), self.endpoints.into(), self.variant.into());
        format!("{}-{endpoints}-{variant}", policy.to_lowercase())
    }

    /// Its number, from 1; it is the last part of all its addresses.
    #[must_use]
    pub fn number(self) -> u8 {
        let (endpoints, variants) = (Endpoints::VARIANTS.len(), Variant::VARIANTS.len());
        let place = (self.policy as usize * endpoints + self.endpoints as usize) * variants;
        // There are 64.
        (place + self.variant as usize + 1) as u8
    }

    /// Its node port, for both protocols.
    #[must_use]
    pub fn node_port(self) -> u16 {
        FIRST_NODE_PORT + u16::from(self.number())
    }

    /// Its ClusterIP.
    #[must_use]
    pub fn cluster_ip(self, family: Family) -> IpAddr {
        let number = self.number();
        match family {
            Family::V4 => Ipv4Addr::new(10, 96, 2, number).into(),
            Family::V6 => {
                Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x200 + u16::from(number)).into()
            }
        }
    }

    /// The address that its load balancer has given it.
    #[must_use]
    pub fn load_balancer(self, family: Family) -> IpAddr {
        let number = self.number();
        match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, number).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, number.into()).into(),
        }
    }

    /// Its external IP.
    #[must_use]
    pub fn external_ip(self, family: Family) -> IpAddr {
        let number = self.number();
        match family {
            Family::V4 => Ipv4Addr::new(198, 51, 100, number).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, number.into()).into(),
        }
    }
}

/// The address of a node.
#[must_use]
pub fn node(name: &str, family: Family) -> IpAddr {
    let number = if name == HERE { HERE_NUMBER } else { THERE_NUMBER };
    match family {
        Family::V4 => node4(number).into(),
        Family::V6 => node6(number).into(),
    }
}

impl Cell {
    /// Every cell, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        Service::all().flat_map(|service| {
            Target::VARIANTS.iter().flat_map(move |&target| {
                Caller::VARIANTS.iter().flat_map(move |&caller| {
                    Transport::VARIANTS.iter().flat_map(move |&transport| {
                        let of = move |family| Self { service, target, caller, transport, family };
                        Family::BOTH.into_iter().map(of)
                    })
                })
            })
        })
    }

    /// The address that is dialled.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let (service, family) = (self.service, self.family);
        let node_port = service.node_port();
        let (address, port) = match self.target {
            Target::ClusterIp => (service.cluster_ip(family), SERVICE_PORT),
            Target::NodePortHere => (node(HERE, family), node_port),
            Target::NodePortThere => (node(THERE, family), node_port),
            Target::NodePortLoopback => match family {
                Family::V4 => (Ipv4Addr::LOCALHOST.into(), node_port),
                Family::V6 => (Ipv6Addr::LOCALHOST.into(), node_port),
            },
            Target::LoadBalancer => (service.load_balancer(family), SERVICE_PORT),
            Target::ExternalIp => (service.external_ip(family), SERVICE_PORT),
        };
        SocketAddr::new(address, port)
    }

    /// The same cell of the Service without anything else.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { service: Service { variant: Variant::Plain, ..self.service }, ..self }
    }

    /// The names of its properties, from the outermost of the table to the innermost. No two properties
    /// share a name.
    #[must_use]
    pub fn names(&self) -> [&'static str; 6] {
        let (service, wire) = (self.service, self.wire());
        [
            service.policy.into(),
            service.endpoints.into(),
            self.target.into(),
            self.caller.into(),
            service.variant.into(),
            wire,
        ]
    }

    /// The names of protocol and family.
    #[must_use]
    pub fn wire(&self) -> &'static str {
        match (self.transport, self.family) {
            (Transport::Tcp, Family::V4) => "TCP IPv4",
            (Transport::Tcp, Family::V6) => "TCP IPv6",
            (Transport::Udp, Family::V4) => "UDP IPv4",
            (Transport::Udp, Family::V6) => "UDP IPv6",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_cells_and_no_two_services_are_the_same() {
        let cells: Vec<_> = Cell::all().collect();
        assert!(cells.is_sorted());
        let names: BTreeSet<_> = cells.iter().map(Cell::names).collect();
        assert_eq!((cells.len(), names.len()), (64 * 6 * 6 * 4, cells.len()));
        let numbers: Vec<_> = Service::all().map(Service::number).collect();
        assert_eq!(numbers, (1..=64).collect::<Vec<_>>());
    }
}
