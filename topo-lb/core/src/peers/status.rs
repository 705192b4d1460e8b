//! Whether packets are sent on to a node, and why not.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::cluster::Family;

/// What is known of the way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was not asked often enough to say.
    Asking,
    /// Packets go to this Ethernet address.
    Proved([u8; 6]),
    /// Connections get source NAT.
    Unproved(Unproved),
}

/// Why packets are not sent on to a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// Clients and other nodes do not have one device of this node in common, or no frame can be sent there.
    #[error("{0}")]
    NoUplink(Arc<str>),
    /// The kernel has no route.
    #[error("the kernel has no route to its endpoint {0}: {1}")]
    NoRoute(IpAddr, Arc<str>),
    /// The route leaves by another device than the uplink.
    #[error("the route to its endpoint {0} leaves by {1}")]
    Elsewhere(IpAddr, Arc<str>),
    /// The route has an encapsulation.
    #[error("the route to its endpoint {0} has an encapsulation")]
    Encapsulated(IpAddr),
    /// The next hop does not answer ARP or neighbour discovery.
    #[error("the kernel does not find the Ethernet address of {0}, the next hop to its endpoint")]
    NoNeighbour(IpAddr),
    /// Nobody answers.
    #[error(
        "no agent answers at {}, its next hop: it does not run there, has no direct return or another version, or the \
         network drops addresses that are not its own",
        ethernet(*.0)
    )]
    NoAnswer([u8; 6]),
    /// Another node answers.
    #[error("{}, its next hop, is node {}", ethernet(*.0), .1)]
    Another([u8; 6], Arc<str>),
    /// It answers that it does not know this node.
    #[error(
        "it does not take this node's frames for what was sent on, as it has no room for another node"
    )]
    NotTaken,
}

impl Unproved {
    /// Whether that is so at once, and not only after some misses.
    pub(super) const fn is_certain(&self) -> bool {
        !matches!(self, Self::NoNeighbour(_) | Self::NoAnswer(_))
    }
}

/// An Ethernet address as people write it.
#[must_use]
pub fn ethernet(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// What is told of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub node: Arc<str>,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// `proved`, `asking` or `unproved`.
    pub state: &'static str,
    /// The Ethernet address to which packets are sent on.
    pub ethernet: Option<String>,
    /// Why they are not.
    pub reason: Option<String>,
}

impl Status {
    /// The states, as they are named.
    pub const STATES: [&'static str; 3] = ["proved", "asking", "unproved"];

    pub(super) fn new(node: &Arc<str>, family: Family, standing: &Standing) -> Self {
        let [proved, asking, unproved] = Self::STATES;
        let (state, to, reason) = match standing {
            Standing::Proved(to) => (proved, Some(ethernet(*to)), None),
            Standing::Asking => (asking, None, None),
            Standing::Unproved(why) => (unproved, None, Some(why.to_string())),
        };
        Self { node: Arc::clone(node), family: family.into(), state, ethernet: to, reason }
    }
}
