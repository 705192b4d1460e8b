//! Causes of a decision.

use std::net::SocketAddr;

use crate::cluster::{Port, Service, State};

use super::candidate;

/// Why these endpoints are chosen, or why none. OpenYurt's causes name the limit: connections are
/// refused if no endpoint is within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause<'a> {
    /// No policy applies: every usable endpoint.
    Unconstrained,
    /// This key matched, by this node's value.
    Key {
        /// Its index.
        tier: u8,
        /// The key.
        key: &'a str,
        /// This node's value.
        value: &'a str,
    },
    /// No earlier key matched; `*` matches every usable endpoint.
    Any {
        /// Its index.
        tier: u8,
    },
    /// No key matched: refused.
    NoKey,
    /// OpenYurt: on this node.
    Node,
    /// OpenYurt: in this node's pool.
    Pool {
        /// The label that says which.
        label: &'static str,
        /// The pool.
        pool: &'a str,
    },
    /// OpenYurt: this node is in no pool, so its own endpoints.
    NodeForLackOfPool,
    /// Hinted for this node.
    HintedNode,
    /// Hinted for this zone.
    HintedZone(&'a str),
    /// There are hints, but this node does not follow them: every usable endpoint.
    HintsOff(HintsOff<'a>),
    /// The Service port has no endpoint of this family: refused.
    NoEndpoint(Missing),
    /// `internalTrafficPolicy: Local` and no endpoint on this node: refused.
    NoneHere,
    /// No endpoint is ready, and none is draining: refused.
    NoneUsable,
}

/// Why hints are not followed, so that every usable endpoint is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintsOff<'a> {
    /// No endpoint is ready.
    NoneReady,
    /// This ready endpoint has no zone hint, which disables hints for all.
    Unhinted(SocketAddr),
    /// This node has no zone.
    NoZone,
    /// No endpoint is hinted for this node's zone.
    OtherZones(&'a str),
}

/// What a Service port without endpoints lacks. The order is by how much exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// No slice belongs to the Service.
    Slices,
    /// Its slices are empty.
    Endpoints,
    /// Only slices labelled `service.kubernetes.io/headless` have endpoints.
    Headless,
    /// Its slices have endpoints, but not this port.
    Port,
    /// Its slices have endpoints with this port, but of the other family.
    Family,
}

impl Missing {
    pub(super) fn of(state: &State, service: &Service, port: &Port) -> Self {
        let found = state.slices(&service.id).map(|(_, slice)| {
            if slice.endpoints.is_empty() {
                Self::Endpoints
            } else if !candidate::counts(slice, service) {
                Self::Headless
            } else if slice.ports.iter().any(|own| port.matches(own)) {
                Self::Family
            } else {
                Self::Port
            }
        });
        found.max().unwrap_or(Self::Slices)
    }
}

impl<'a> Cause<'a> {
    /// This node's value for the key that decided; of a refusal, the node pool that is the limit.
    #[must_use]
    pub const fn value(&self) -> Option<&'a str> {
        self.key().1
    }

    /// Index of the key that decided; `None` if no key did, or nothing was `chosen`.
    #[must_use]
    pub const fn tier(&self, chosen: usize) -> Option<u8> {
        if chosen == 0 { None } else { self.key().0 }
    }

    /// Index of the key that decided or, with OpenYurt, refused, and this node's value for it.
    const fn key(&self) -> (Option<u8>, Option<&'a str>) {
        match self {
            Self::Key { tier, value, .. } => (Some(*tier), Some(value)),
            Self::Any { tier } => (Some(*tier), None),
            Self::Node | Self::NodeForLackOfPool => (Some(0), None),
            Self::Pool { pool, .. } => (Some(0), Some(pool)),
            Self::Unconstrained
            | Self::NoKey
            | Self::HintedNode
            | Self::HintedZone(_)
            | Self::HintsOff(_)
            | Self::NoEndpoint(_)
            | Self::NoneHere
            | Self::NoneUsable => (None, None),
        }
    }
}
