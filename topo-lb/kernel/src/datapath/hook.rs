//! The cgroup socket hooks to which topo-lb attaches programs.

use std::collections::BTreeMap;

use aya_obj::generated::bpf_attach_type;

/// A hook. Its program and its link have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// `connect` of IPv4 sockets.
    Connect4,
    /// `connect` of IPv6 sockets.
    Connect6,
    /// `sendmsg` with an address, IPv4 UDP.
    Sendmsg4,
    /// `sendmsg` with an address, IPv6 UDP.
    Sendmsg6,
    /// `recvmsg`, IPv4 UDP.
    Recvmsg4,
    /// `recvmsg`, IPv6 UDP.
    Recvmsg6,
    /// `getpeername`, IPv4.
    Getpeername4,
    /// `getpeername`, IPv6.
    Getpeername6,
}

impl Hook {
    /// All, in the order of attaching: replies must be translated before a connection is.
    pub const ALL: [Self; 8] = [
        Self::Recvmsg4,
        Self::Recvmsg6,
        Self::Getpeername4,
        Self::Getpeername6,
        Self::Sendmsg4,
        Self::Sendmsg6,
        Self::Connect4,
        Self::Connect6,
    ];

    /// Whether a program here chooses the endpoint. The others undo the translation for replies.
    #[must_use]
    pub const fn decides(self) -> bool {
        matches!(self, Self::Connect4 | Self::Connect6 | Self::Sendmsg4 | Self::Sendmsg6)
    }

    /// The hooks that choose the endpoint.
    pub(crate) fn deciding() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|hook| hook.decides())
    }

    /// Name of the hook, its program and its pinned link.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect4 => "connect4",
            Self::Connect6 => "connect6",
            Self::Sendmsg4 => "sendmsg4",
            Self::Sendmsg6 => "sendmsg6",
            Self::Recvmsg4 => "recvmsg4",
            Self::Recvmsg6 => "recvmsg6",
            Self::Getpeername4 => "getpeername4",
            Self::Getpeername6 => "getpeername6",
        }
    }

    /// `enum bpf_attach_type`, include/uapi/linux/bpf.h.
    pub const fn attach_type(self) -> bpf_attach_type {
        use bpf_attach_type::*;
        match self {
            Self::Connect4 => BPF_CGROUP_INET4_CONNECT,
            Self::Connect6 => BPF_CGROUP_INET6_CONNECT,
            Self::Sendmsg4 => BPF_CGROUP_UDP4_SENDMSG,
            Self::Sendmsg6 => BPF_CGROUP_UDP6_SENDMSG,
            Self::Recvmsg4 => BPF_CGROUP_UDP4_RECVMSG,
            Self::Recvmsg6 => BPF_CGROUP_UDP6_RECVMSG,
            Self::Getpeername4 => BPF_CGROUP_INET4_GETPEERNAME,
            Self::Getpeername6 => BPF_CGROUP_INET6_GETPEERNAME,
        }
    }
}

/// A program that keeps node ports from being bound, and its hook. Its pinned link has the program's name.
pub(crate) type Guard = (&'static str, bpf_attach_type);

/// The kernel's ids of our programs, by hook.
pub type ProgramIds = BTreeMap<Hook, u32>;
