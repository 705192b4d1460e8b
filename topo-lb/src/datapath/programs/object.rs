//! What the binary carries: the eBPF object, its hooks, and the shape of its maps.

use std::path::Path;

use aya::EbpfLoader;
use aya::maps::MapType;
use topo_lb_common::address::{Frontend4, Frontend6};
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::backend::{Backend4, Backend6};
use topo_lb_common::connection::{
    Bucket, Connection4, Connection6, Fragment4, Fragment6, Packets, Translation4, Translation6,
    Tuple4, Tuple6,
};
use topo_lb_common::counter::{Counters, Name};
use topo_lb_common::exclusion::{Excluded, ExcludedKey, Levels};
use topo_lb_common::flow::{Flow4, Flow6, FlowKey4, FlowKey6, ReplyKey4, ReplyKey6};
use topo_lb_common::left_out::LeftOut;
use topo_lb_common::maps;
use topo_lb_common::member::{Member, MemberKey4, MemberKey6};
use topo_lb_common::range::Range;
use topo_lb_common::reverse::{Connected4, Connected6};
use topo_lb_common::service::{Service4, Service6};

use crate::datapath::host::feature::Feature;
use crate::plan::Capacity;

/// The programs, built by `cargo xtask build-ebpf`.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TOPO_LB_OBJECT"));

/// `BPF_F_NO_PREALLOC`: an entry takes memory only while it exists.
const NO_PREALLOC: u32 = 1;

/// A hook that a program is attached to. Program, link and hook have one name.
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
    /// All, in the order of attaching: the way back is there before a connection can go.
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

    /// Whether a program here decides where a connection or a datagram goes. The others undo on the
    /// way back what was decided.
    #[must_use]
    pub const fn decides(self) -> bool {
        matches!(self, Self::Connect4 | Self::Connect6 | Self::Sendmsg4 | Self::Sendmsg6)
    }

    /// Those that decide.
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
    pub(crate) const fn attach_type(self) -> u32 {
        match self {
            Self::Connect4 => 10,
            Self::Connect6 => 11,
            Self::Sendmsg4 => 14,
            Self::Sendmsg6 => 15,
            Self::Recvmsg4 => 19,
            Self::Recvmsg6 => 20,
            Self::Getpeername4 => 29,
            Self::Getpeername6 => 30,
        }
    }
}

/// What the peer of a translated TCP connection is to its application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpPeer {
    /// The Service that was dialled; costs each connection an entry in its socket's storage.
    #[default]
    Service,
    /// The endpoint.
    Endpoint,
}

/// What a map must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapSpec {
    pub(crate) name: &'static str,
    pub(crate) map_type: MapType,
    /// Bytes.
    pub(crate) key: u32,
    /// Bytes.
    pub(crate) value: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
    /// Whether the map is pinned, and so outlives the agent.
    pub(crate) is_pinned: bool,
}

/// The shape of every map of `maps::ALL`, in that order.
pub(crate) fn map_specs(capacity: &Capacity) -> [MapSpec; maps::ALL.len()] {
    fn spec<K, V>(name: &'static str, map_type: MapType, max_entries: u32, flags: u32) -> MapSpec {
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        MapSpec { name, map_type, key, value, max_entries, flags, is_pinned: true }
    }
    use MapType::{Array, Hash, LruHash, PerCpuArray, SkStorage};
    let tc = |spec: MapSpec| MapSpec { is_pinned: capacity.connections != 0, ..spec };
    // Each connection has an entry for each way.
    let entries = capacity.connections.saturating_mul(2).max(1);
    let Capacity { services, slots, members, flows, .. } = *capacity;
    [
        spec::<u32, Range>(maps::RANGE, Array, 1, 0),
        spec::<Frontend4, Service4>(maps::SERVICES4, Hash, services, 0),
        spec::<Frontend6, Service6>(maps::SERVICES6, Hash, services, 0),
        spec::<u32, Backend4>(maps::SLOTS4, Array, slots, 0),
        spec::<u32, Backend6>(maps::SLOTS6, Array, slots, 0),
        spec::<MemberKey4, Member>(maps::MEMBERS4, Hash, members, NO_PREALLOC),
        spec::<MemberKey6, Member>(maps::MEMBERS6, Hash, members, NO_PREALLOC),
        spec::<FlowKey4, Flow4>(maps::FLOWS4, LruHash, flows, 0),
        spec::<FlowKey6, Flow6>(maps::FLOWS6, LruHash, flows, 0),
        spec::<ReplyKey4, Frontend4>(maps::REPLIES4, LruHash, flows, 0),
        spec::<ReplyKey6, Frontend6>(maps::REPLIES6, LruHash, flows, 0),
        spec::<i32, Connected4>(maps::CONNECTED4, SkStorage, 0, NO_PREALLOC),
        spec::<i32, Connected6>(maps::CONNECTED6, SkStorage, 0, NO_PREALLOC),
        spec::<AffinityKey, Affinity4>(maps::AFFINITY4, LruHash, flows, 0),
        spec::<AffinityKey, Affinity6>(maps::AFFINITY6, LruHash, flows, 0),
        spec::<u32, Counters>(maps::COUNTERS, PerCpuArray, services, 0),
        spec::<u32, u64>(maps::TORN, PerCpuArray, 1, 0),
        spec::<u32, Name>(maps::NAMES, Hash, services, NO_PREALLOC),
        spec::<u32, LeftOut>(maps::LEFT_OUT, Hash, maps::MOST_LEFT_OUT, NO_PREALLOC),
        spec::<ExcludedKey, Excluded>(maps::EXCLUDED, Hash, maps::MOST_EXCLUDED, NO_PREALLOC),
        spec::<u32, Levels>(maps::EXCLUSION, Array, 1, 0),
        spec::<u32, u32>(maps::REVISION, Array, 1, 0),
        tc(spec::<Tuple4, Connection4>(maps::CONNECTIONS4, LruHash, entries, 0)),
        tc(spec::<Tuple6, Connection6>(maps::CONNECTIONS6, LruHash, entries, 0)),
        tc(spec::<Fragment4, Translation4>(maps::FRAGMENTS4, LruHash, maps::FRAGMENTS, 0)),
        tc(spec::<Fragment6, Translation6>(maps::FRAGMENTS6, LruHash, maps::FRAGMENTS, 0)),
        tc(spec::<u32, Packets>(maps::PACKETS, PerCpuArray, maps::HOOKS, 0)),
        tc(spec::<u32, Bucket>(maps::REFUSALS, PerCpuArray, 1, 0)),
    ]
}

/// What the programs are told when they are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    tcp_peer_is_service: u8,
    has_exclusions: u8,
    has_set_retval: u8,
    has_mptcp_sock: u8,
    has_coarse_clock: u8,
}

impl Constants {
    /// As this kernel can.
    #[must_use]
    pub fn probe(tcp_peer: TcpPeer) -> Self {
        let is_there = |feature: Feature| u8::from(feature.is_there() == Some(true));
        Self {
            tcp_peer_is_service: u8::from(tcp_peer == TcpPeer::Service),
            has_exclusions: 0,
            has_set_retval: is_there(Feature::SetRetval),
            has_mptcp_sock: is_there(Feature::MptcpSock),
            has_coarse_clock: is_there(Feature::CoarseClock),
        }
    }

    /// The same, with programs that look whether a client is excluded.
    #[must_use]
    pub const fn with_exclusions(self, has_exclusions: bool) -> Self {
        Self { has_exclusions: has_exclusions as u8, ..self }
    }

    /// Puts them into programs that are to be loaded.
    pub fn put<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, value) in [
            ("TCP_PEER_IS_SERVICE", &self.tcp_peer_is_service),
            ("HAS_EXCLUSIONS", &self.has_exclusions),
            ("HAS_SET_RETVAL", &self.has_set_retval),
            ("HAS_MPTCP_SOCK", &self.has_mptcp_sock),
            ("HAS_COARSE_CLOCK", &self.has_coarse_clock),
        ] {
            loader.override_global(name, value, true);
        }
    }

    /// Whether a refused connection is `ECONNREFUSED`.
    pub(crate) fn reports_refused(&self) -> bool {
        self.has_set_retval != 0
    }
}

/// A loader that makes the maps of these shapes, under `pin_dir` where one is given.
pub(crate) fn loader<'a>(
    map_specs: &[MapSpec],
    constants: &'a Constants,
    pin_dir: Option<&Path>,
) -> EbpfLoader<'a> {
    let mut loader = EbpfLoader::new();
    // Nothing is relocated against the kernel's own types.
    loader.btf(None);
    constants.put(&mut loader);
    if !map_specs.iter().any(|spec| spec.name == maps::CONNECTIONS4 && spec.is_pinned) {
        // Without tc nobody reads the marks.
        loader.map_max_entries(maps::ANSWERERS, 1);
    }
    for spec in map_specs {
        loader.map_max_entries(spec.name, spec.max_entries);
        if let Some(pin_dir) = pin_dir.filter(|_| spec.is_pinned) {
            loader.map_pin_path(spec.name, pin_dir.join(spec.name));
        }
    }
    loader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_of_the_abi_has_a_shape_in_the_same_order() {
        let names = map_specs(&Capacity::default()).map(|spec| spec.name);
        assert_eq!(names, maps::ALL);
    }

    #[test]
    fn hooks_have_names_of_their_own() {
        let mut names = Hook::ALL.map(Hook::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Hook::ALL.len());
    }
}
