//! The two directions of packets through a device, and the clients behind it.

use aya::programs::{LinkOrder, TcAttachType};
use aya_obj::generated::bpf_attach_type;
use serde::Serialize;

/// The direction of packets through a device.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Direction {
    /// Received by the node.
    Ingress,
    /// Sent by the node.
    Egress,
}

impl Direction {
    /// Both, in the order of attaching: replies must be translated before a connection is.
    pub const BOTH: [Self; 2] = [Self::Egress, Self::Ingress];

    /// Its index in `packets`.
    pub(crate) const fn hook(self) -> u32 {
        self as u32
    }

    pub(crate) const fn attach_type(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }

    pub(crate) const fn tcx_type(self) -> bpf_attach_type {
        match self {
            Self::Ingress => bpf_attach_type::BPF_TCX_INGRESS,
            Self::Egress => bpf_attach_type::BPF_TCX_EGRESS,
        }
    }

    /// The place nearest to the client: foreign programs then see endpoints in both directions.
    pub(crate) fn order(self) -> LinkOrder {
        match self {
            Self::Ingress => LinkOrder::first(),
            Self::Egress => LinkOrder::last(),
        }
    }
}

/// The clients behind a device. Each role has its own two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A guest of this node: a device of `--tc-devices`.
    Guest,
    /// Clients outside of this node: a device with an address of the node.
    External,
}

impl Role {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Guest, Self::External];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Guest => Self::External,
            Self::External => Self::Guest,
        }
    }

    /// The name of its program for a direction, which is also the prefix of its pins' names.
    #[must_use]
    pub const fn program(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Guest, Direction::Ingress) => "topo_lb_ingress",
            (Self::Guest, Direction::Egress) => "topo_lb_egress",
            (Self::External, Direction::Ingress) => "topo_lb_external_ingress",
            (Self::External, Direction::Egress) => "topo_lb_external_egress",
        }
    }
}
