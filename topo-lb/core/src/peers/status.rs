//! Whether packets are sent on to a node, and why not.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(Cause),
    doc = "The kind of [`Unproved`], without addresses: what many nodes have in common.",
    derive(PartialOrd, Ord, Serialize, Deserialize),
    serde(rename_all = "kebab-case")
)]
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
        "no agent answers at {}, its next hop: that is a router, no agent runs there or it takes no part (`topo-lb check` \
         there says why), or the network drops addresses that are not its own",
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

impl Cause {
    /// In words, for several nodes.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoUplink => "this node sends nothing on",
            Self::NoRoute => "the kernel has no route to their endpoints",
            Self::Elsewhere => {
                "the routes to their endpoints leave by another device than the uplink"
            }
            Self::Encapsulated => "the routes to their endpoints have an encapsulation",
            Self::NoNeighbour => {
                "the kernel does not find the Ethernet addresses of their next hops"
            }
            Self::NoAnswer => "no agent answers at their next hops",
            Self::Another => "their next hops are other nodes",
            Self::NotTaken => "they have no room for another node",
        }
    }
}

/// An Ethernet address as people write it.
#[must_use]
pub fn ethernet(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Whether packets are sent on to a node, in a word.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum PeerState {
    /// They are.
    Proved,
    /// It is not known yet.
    Asking,
    /// They are not.
    Unproved,
    /// As far as the map says: that node may send packets on to this one.
    Known,
}

impl PeerState {
    /// What an agent says of other nodes.
    pub const OF_AGENT: [Self; 3] = [Self::Proved, Self::Asking, Self::Unproved];
}

/// What is told of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub node: Arc<str>,
    /// The version of IP.
    pub family: Family,
    /// Whether packets are sent on to it.
    pub state: PeerState,
    /// The Ethernet address to which they are.
    pub ethernet: Option<String>,
    /// Why they are not.
    pub reason: Option<String>,
    /// The kind of the reason.
    pub cause: Option<Cause>,
}

impl Status {
    pub(super) fn new(node: &Arc<str>, family: Family, standing: &Standing) -> Self {
        let (state, to, why) = match standing {
            Standing::Proved(to) => (PeerState::Proved, Some(ethernet(*to)), None),
            Standing::Asking => (PeerState::Asking, None, None),
            Standing::Unproved(why) => (PeerState::Unproved, None, Some(why)),
        };
        Self {
            node: Arc::clone(node),
            family,
            state,
            ethernet: to,
            reason: why.map(ToString::to_string),
            cause: why.map(Cause::from),
        }
    }
}
