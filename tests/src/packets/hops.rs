//! Direct return: other nodes, and frontends for what they send on.

use std::net::SocketAddr;

use anyhow::Result;
use topo_lb_common::address::PEERS as TO_PEERS;
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{Tuple4, Tuple6};
use topo_lb_common::hop::{Hop4, Hop6, Peer};
use topo_lb_common::maps;
use topo_lb_common::members::{CHOSEN, Member, NODE_SHIFT};
use topo_lb_kernel::datapath::maps::encode::{Layout as _, V4, V6};

use super::{Programs, octets};

impl Programs {
    /// Writes the entry of another node's Ethernet address, for both versions of IP.
    pub fn know_peer(&mut self, ethernet: [u8; 6], value: u32) -> Result<()> {
        [4, 6].into_iter().try_for_each(|version| {
            self.insert(maps::PEERS, Peer { ethernet, version, reserved: 0 }, value)
        })
    }

    /// Removes it.
    pub fn forget_peer(&mut self, ethernet: [u8; 6]) -> Result<()> {
        [4, 6].into_iter().try_for_each(|version| {
            self.remove::<_, u32>(maps::PEERS, Peer { ethernet, version, reserved: 0 })
        })
    }

    /// As [`expose`](Self::expose), only for what other nodes send on.
    pub fn expose_to_peers(
        &mut self,
        index: u32,
        frontend: SocketAddr,
        protocol: u8,
        endpoints: &[(SocketAddr, Locality)],
    ) -> Result<()> {
        self.publish_any(index, frontend, protocol | TO_PEERS, endpoints, 0)
    }

    /// Writes the tag of an endpoint's node.
    pub fn place(&mut self, index: u32, endpoint: SocketAddr, node: u16) -> Result<()> {
        let member = Member { state: CHOSEN | u32::from(node) << NODE_SHIFT };
        let port = endpoint.port();
        if endpoint.is_ipv4() {
            let key = V4::member(index, octets::<V4>(endpoint)?, port);
            self.insert(maps::MEMBERS4, key, member)
        } else {
            let key = V6::member(index, octets::<V6>(endpoint)?, port);
            self.insert(maps::MEMBERS6, key, member)
        }
    }

    /// Makes all flows look as if no packet had arrived for so long.
    pub(super) fn age_hops(&mut self, ticks: u32) -> Result<()> {
        for (key, mut hop) in self.entries::<Tuple4, Hop4>(maps::HOPS4)? {
            hop.last_used = hop.last_used.saturating_sub(ticks);
            self.insert(maps::HOPS4, key, hop)?;
        }
        for (key, mut hop) in self.entries::<Tuple6, Hop6>(maps::HOPS6)? {
            hop.last_used = hop.last_used.saturating_sub(ticks);
            self.insert(maps::HOPS6, key, hop)?;
        }
        Ok(())
    }

    /// How many flows are sent on.
    pub fn hops(&self) -> Result<usize> {
        let four = self.entries::<Tuple4, Hop4>(maps::HOPS4)?.len();
        Ok(four + self.entries::<Tuple6, Hop6>(maps::HOPS6)?.len())
    }
}
