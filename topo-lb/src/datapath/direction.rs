//! The two directions of packets through a device.

use aya::programs::{LinkOrder, TcAttachType};
use aya_obj::generated::bpf_attach_type;

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

    /// The program's name, which is also the prefix of its pins' names.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "topo_lb_ingress",
            Self::Egress => "topo_lb_egress",
        }
    }

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
