//! The eBPF object in this binary, and its load-time constants.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::num::NonZeroU64;
use std::path::Path;

use aya::EbpfLoader;
use clap::ValueEnum;
use topo_lb_common::maps;

use super::tcp_fields::TcpFields;
use crate::datapath::host::btf::{Btf, KERNEL};
use crate::datapath::host::feature::Feature;
use crate::datapath::maps::spec::MapSpec;

/// The programs, built by `cargo xtask build-ebpf`.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TOPO_LB_OBJECT"));

/// What getpeername returns to a TCP client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TcpPeer {
    /// The ClusterIP that the client dialled.
    // Costs each connection an entry in its socket's storage.
    #[default]
    Service,
    /// The endpoint. Connecting is faster, because no state is kept.
    Endpoint,
}

/// The load-time constants of the programs.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    service_ports: u32,
    half_open_room: u32,
    seed: u64,
    tcp_peer_is_service: u8,
    has_exclusions: u8,
    observes: u8,
    counts_all: u8,
    has_set_retval: u8,
    has_mptcp_sock: u8,
    has_coarse_clock: u8,
    serves_all_frontends: u8,
    returns_directly: u8,
    masquerade_mark: u32,
    host_netns: u64,
    v6only_bit: u32,
    tcp_fields: TcpFields,
}

/// The bit of `skb->mark` for packets to masquerade. docs/kube-proxy-free.md has who uses which others.
pub const MASQUERADE_MARK: u32 = 0x1000;

/// What the programs need to serve frontends of all kinds (`--frontends all`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllFrontends {
    /// The bit of `skb->mark` by which packets of clients outside to endpoints of other nodes are
    /// masqueraded. Zero: clients outside are not served.
    pub masquerade_mark: u32,
    /// The cookie of the host's network namespace, where 127.0.0.1 has node ports; `None`: nowhere.
    pub host_netns: Option<NonZeroU64>,
    /// Packets of clients outside are sent on to other nodes as they are, where these are proved.
    pub returns_directly: bool,
}

impl AllFrontends {
    /// Whether clients outside of this node are served.
    #[must_use]
    pub const fn serves_outside(&self) -> bool {
        self.masquerade_mark != 0
    }
}

/// Where a socket's flag `IPV6_V6ONLY` is in `struct sock`, in bits; zero if programs cannot read it: then
/// every IPv6 socket counts as one that takes IPv4, too.
fn v6only_bit() -> u32 {
    let bit = || Btf::read(Path::new(KERNEL))?.bit_offset("sock", &["__sk_common", "skc_ipv6only"]);
    if Feature::READS_SOCKETS.is_there() == Some(true) { bit().unwrap_or_default() } else { 0 }
}

impl Constants {
    /// As this kernel supports; without exclusions, for ClusterIPs. `service_ports`: room for Service ports.
    #[must_use]
    pub fn probe(tcp_peer: TcpPeer, service_ports: u32) -> Self {
        let is_there = |feature: Feature| u8::from(feature.is_there() == Some(true));
        Self {
            service_ports,
            half_open_room: maps::DEFAULT_HALF_OPEN,
            seed: RandomState::new().build_hasher().finish(),
            tcp_peer_is_service: u8::from(tcp_peer == TcpPeer::Service),
            has_exclusions: 0,
            observes: 0,
            counts_all: 0,
            has_set_retval: is_there(Feature::SET_RETVAL),
            has_mptcp_sock: is_there(Feature::MPTCP_SOCK),
            has_coarse_clock: is_there(Feature::COARSE_CLOCK),
            serves_all_frontends: 0,
            returns_directly: 0,
            masquerade_mark: 0,
            host_netns: 0,
            v6only_bit: 0,
            tcp_fields: TcpFields::default(),
        }
    }

    /// The same, with tables for so many half-open connections.
    #[must_use]
    pub const fn with_half_open_room(self, half_open_room: u32) -> Self {
        Self { half_open_room, ..self }
    }

    /// The same, with programs that check whether a client is excluded or steered.
    #[must_use]
    pub const fn with_exclusions(self, has_exclusions: bool) -> Self {
        Self { has_exclusions: has_exclusions as u8, ..self }
    }

    /// The same, with programs that translate nothing, if `observes`.
    #[must_use]
    pub const fn with_observing(self, observes: bool) -> Self {
        Self { observes: observes as u8, ..self }
    }

    /// The same, with programs that tell of the TCP connections that they do not translate, if `counts_all`.
    #[must_use]
    pub const fn with_counting(self, counts_all: bool) -> Self {
        Self { counts_all: counts_all as u8, ..self }
    }

    /// The same, with programs that serve frontends of all kinds, if given.
    #[must_use]
    pub fn with_all_frontends(self, all_frontends: Option<AllFrontends>) -> Self {
        all_frontends.map_or(
            self,
            |AllFrontends { masquerade_mark, host_netns, returns_directly }| Self {
                serves_all_frontends: 1,
                masquerade_mark,
                host_netns: host_netns.map_or(0, NonZeroU64::get),
                returns_directly: u8::from(returns_directly),
                v6only_bit: v6only_bit(),
                ..self
            },
        )
    }

    /// The same, with the places of what the kernel counts of TCP sockets.
    #[must_use]
    pub const fn with_tcp_fields(self, tcp_fields: TcpFields) -> Self {
        Self { tcp_fields, ..self }
    }

    /// Sets them in programs that are not loaded yet.
    pub fn put<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader.override_global("SERVICE_PORTS", &self.service_ports, true);
        loader.override_global("HALF_OPEN_ROOM", &self.half_open_room, true);
        loader.override_global("SEED", &self.seed, true);
        loader.override_global("MASQUERADE_MARK", &self.masquerade_mark, true);
        loader.override_global("HOST_NETNS", &self.host_netns, true);
        loader.override_global("V6ONLY_BIT", &self.v6only_bit, true);
        self.tcp_fields.put(loader);
        for (name, value) in [
            ("TCP_PEER_IS_SERVICE", &self.tcp_peer_is_service),
            ("HAS_EXCLUSIONS", &self.has_exclusions),
            ("OBSERVES", &self.observes),
            ("COUNTS_ALL", &self.counts_all),
            ("HAS_SET_RETVAL", &self.has_set_retval),
            ("HAS_MPTCP_SOCK", &self.has_mptcp_sock),
            ("HAS_COARSE_CLOCK", &self.has_coarse_clock),
            ("SERVES_ALL_FRONTENDS", &self.serves_all_frontends),
            ("RETURNS_DIRECTLY", &self.returns_directly),
        ] {
            loader.override_global(name, value, true);
        }
    }

    /// The number by which clients outside share entries of `devices`. Another one each time, so that nobody can
    /// choose addresses that share an entry with a given client.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether a refused connection gets `ECONNREFUSED`.
    pub(crate) fn reports_refused(&self) -> bool {
        self.has_set_retval != 0
    }
}

/// A loader that creates maps of these shapes, pinned under `pin_dir` if given.
pub(crate) fn loader<'a>(
    map_specs: &[MapSpec],
    constants: &'a Constants,
    pin_dir: Option<&Path>,
) -> EbpfLoader<'a> {
    let mut loader = EbpfLoader::new();
    // No program is relocated against the kernel's own types.
    loader.btf(None);
    constants.put(&mut loader);
    let is_pinned = |name| map_specs.iter().any(|spec| spec.name == name && spec.is_pinned);
    if !is_pinned(maps::CONNECTIONS4) {
        // Without tc, no program reads the marks.
        loader.map_max_entries(maps::REPLY_FILTER, 1);
    }
    for spec in map_specs {
        loader.map_max_entries(spec.name, spec.max_entries);
        if let Some(pin_dir) = pin_dir.filter(|_| spec.is_pinned) {
            loader.map_pin_path(spec.name, pin_dir.join(spec.name));
        }
    }
    if !is_pinned(maps::FRONTENDS) {
        // Beside kube-proxy, no program reads the bits.
        loader.map_max_entries(maps::FRONTENDS, 1);
    }
    loader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masquerade_mark_is_no_bit_that_others_use_by_default() {
        for (who, bits) in [
            ("kube-proxy", 0xc000),
            // `DefaultMarkBit`, plugins/meta/portmap/main.go.
            ("the CNI plugin portmap", 0x2000),
            // `MARK_MAGIC_HOST_MASK`, bpf/lib/common.h.
            ("Cilium", 0x0f00),
            ("Calico", 0xffff_0000_u32),
            ("the AWS VPC CNI", 0x80),
            ("Weave Net", 0x6_0000),
            ("Tailscale", 0xff_0000),
            ("Istio", 0x539),
        ] {
            assert_eq!(MASQUERADE_MARK & bits, 0, "{who}");
        }
        assert!(MASQUERADE_MARK.is_power_of_two());
    }
}
