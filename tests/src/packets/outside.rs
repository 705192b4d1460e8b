//! Frontends of all kinds, and clients outside of the node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData};
use topo_lb_common::address::OUTSIDE;
use topo_lb_common::backend::Locality;
use topo_lb_common::frontend_filter::{ANY_OUTSIDE, FrontendBit, bit};
use topo_lb_common::maps;
use topo_lb_common::record::DROPS;
use topo_lb_common::reply_filter::folded;
use topo_lb_common::snat::Snat;
use topo_lb_common::sources::{ALLOWED, DENIED, FRONTEND_BITS4, FRONTEND_BITS6, Source4, Source6};
use topo_lb_kernel::datapath::maps::encode::{V4, V6};
use topo_lb_kernel::datapath::programs::object::{
    AllFrontends, Constants, MASQUERADE_MARK, TcpPeer,
};

use super::{Hook, Programs, Raw, octets};
use crate::frame::NODE_MAC;

/// The mark of packets to endpoints of other nodes.
pub const MARK: u32 = MASQUERADE_MARK;

impl Programs {
    /// Like [`load`](Self::load), with the programs for guests and for clients outside, as with
    /// `--frontends all`.
    pub fn replacing() -> Result<Self> {
        Self::replacing_with_room(1_024)
    }

    /// Like [`replacing`](Self::replacing), with `entries` per map.
    pub fn replacing_with_room(entries: u32) -> Result<Self> {
        let all_frontends =
            AllFrontends { masquerade_mark: MARK, host_netns: None, returns_directly: true };
        Self::with(
            || Constants::probe(TcpPeer::Service, entries).with_all_frontends(Some(all_frontends)),
            (entries, &[Hook::Ingress, Hook::Egress, Hook::ExternalIngress, Hook::ExternalEgress]),
        )
    }

    /// Writes a frontend with these endpoints, and its bit; every connection sees the write as a change.
    pub fn expose(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[(SocketAddr, Locality)],
    ) -> Result<()> {
        self.publish_any(index, frontend, protocol, endpoints, 0)
    }

    /// As [`expose`](Self::expose), only for clients outside. Without endpoints, their packets are
    /// dropped.
    pub fn expose_outside(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[(SocketAddr, Locality)],
    ) -> Result<()> {
        let wider = if endpoints.is_empty() { DROPS } else { 0 };
        self.publish_any(index, frontend, protocol | OUTSIDE, endpoints, wider)
    }

    pub(super) fn publish_any(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[(SocketAddr, Locality)],
        wider: u16,
    ) -> Result<()> {
        let address = match frontend.ip() {
            IpAddr::V4(ip) => u32::from_ne_bytes(ip.octets()),
            IpAddr::V6(ip) => folded(bytemuck::cast(ip.octets())),
        };
        let FrontendBit { word, mask } = bit(address, frontend.port());
        let map = self.ebpf.map_mut(maps::FRONTENDS).context("a map")?;
        let mut bits = Array::<&mut MapData, u64>::try_from(map)?;
        let before = bits.get(&word, 0)?;
        bits.set(word, before | mask, 0)?;
        if protocol & OUTSIDE != 0 {
            let FrontendBit { word, mask } = ANY_OUTSIDE;
            let before = bits.get(&word, 0)?;
            bits.set(word, before | mask, 0)?;
        }
        if frontend.is_ipv4() {
            self.publish::<V4>(index, frontend, protocol, endpoints, wider)?;
        } else {
            self.publish::<V6>(index, frontend, protocol, endpoints, wider)?;
        }
        self.revise()
    }

    /// Gives connections to endpoints of other nodes these addresses of `device` as their source.
    pub fn give_sources(&mut self, device: u32, four: Ipv4Addr, six: Ipv6Addr) -> Result<()> {
        self.set_snat(Snat {
            address6: six.octets(),
            address4: four.octets(),
            device4: device,
            device6: device,
            direct: device,
            ethernet: NODE_MAC,
            ..Snat::default()
        })
    }

    /// Gives new connections no source any more.
    pub fn stop_giving_sources(&mut self) -> Result<()> {
        self.set_snat(Snat { device4: 0, device6: 0, ..self.snat()? })
    }

    /// Sends no packet on to another node as it came.
    pub fn stop_sending_on(&mut self) -> Result<()> {
        self.set_snat(Snat { direct: 0, ..self.snat()? })
    }

    /// The value of `snat`.
    pub fn snat(&self) -> Result<Snat> {
        let map = self.ebpf.map(maps::SNAT).context("a map")?;
        Ok(Array::<&MapData, Raw<Snat>>::try_from(map)?.get(&0, 0)?.0)
    }

    fn set_snat(&mut self, snat: Snat) -> Result<()> {
        let map = self.ebpf.map_mut(maps::SNAT).context("a map")?;
        Ok(Array::<&mut MapData, Raw<Snat>>::try_from(map)?.set(0, Raw(snat), 0)?)
    }

    /// Denies a frontend to all sources but those of one range.
    pub fn allow_only(
        &mut self,
        frontend: SocketAddr,
        protocol: u8,
        (network, prefix): (IpAddr, u32),
    ) -> Result<()> {
        let client = SocketAddr::new(network, 0);
        let port = frontend.port();
        macro_rules! write {
            ($family:ty, $source:ident, $bits:ident, $map:expr) => {{
                let (address, client) = (octets::<$family>(frontend)?, octets::<$family>(client)?);
                let source = Raw($source { address, port, protocol, reserved: 0, client });
                let map = self.ebpf.map_mut($map).context("a map")?;
                let mut map = LpmTrie::<&mut MapData, Raw<$source>, u32>::try_from(map)?;
                map.insert(&Key::new($bits, source), DENIED, 0)?;
                Ok(map.insert(&Key::new($bits + prefix, source), ALLOWED, 0)?)
            }};
        }
        if frontend.is_ipv4() {
            write!(V4, Source4, FRONTEND_BITS4, maps::SOURCES4)
        } else {
            write!(V6, Source6, FRONTEND_BITS6, maps::SOURCES6)
        }
    }
}
