//! Connections that share a limit, and which of them is evicted when it is reached. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// The client that a connection counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A process that can open the socket's file.
    Local,
    /// An address of this node or of its Pods, which share an IPv6 network.
    Near(IpAddr),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 /64 network: one host can use every address of it.
    V6([u8; 8]),
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl Peer {
    /// A client on this node.
    pub(crate) fn near(address: IpAddr) -> Self {
        Self::Near(address.to_canonical())
    }
}

/// The key of a member of a [`Crowd`].
#[derive(Debug)]
pub(crate) struct Ticket {
    peer: Peer,
    number: u64,
}

impl Ticket {
    /// Differs between members that entered one after the other.
    pub(super) fn low_byte(&self) -> u8 {
        self.number.to_le_bytes()[0]
    }
}

/// Members by peer, oldest first.
#[derive(Debug)]
pub(crate) struct Crowd<T> {
    limit: usize,
    length: usize,
    next: u64,
    peers: HashMap<Peer, BTreeMap<u64, T>>,
}

impl<T> Crowd<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, length: 0, next: 0, peers: HashMap::new() }
    }

    /// Adds a member. Beyond the limit, evicts a member and returns it.
    pub(crate) fn enter(&mut self, peer: Peer, member: T) -> (Ticket, Option<T>) {
        let number = self.next;
        self.next += 1;
        self.length += 1;
        self.peers.entry(peer).or_default().insert(number, member);
        let out = if self.length > self.limit { self.evict() } else { None };
        (Ticket { peer, number }, out)
    }

    /// Evicts the oldest member of the peer with the most members; of several such peers, the
    /// oldest.
    pub(super) fn evict(&mut self) -> Option<T> {
        let oldest = |members: &BTreeMap<u64, T>| members.keys().next().copied();
        let (&peer, members) = self
            .peers
            .iter()
            .max_by_key(|(_, members)| (members.len(), Reverse(oldest(members))))?;
        let number = oldest(members)?;
        self.leave(&Ticket { peer, number })
    }

    /// Removes a member, if it is still there.
    pub(crate) fn leave(&mut self, ticket: &Ticket) -> Option<T> {
        let members = self.peers.get_mut(&ticket.peer)?;
        let member = members.remove(&ticket.number)?;
        if members.is_empty() {
            self.peers.remove(&ticket.peer);
        }
        self.length -= 1;
        Some(member)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u8) -> Peer {
        Peer::V4(Ipv4Addr::new(10, 0, 0, number))
    }

    #[test]
    fn the_oldest_of_the_largest_peer_makes_way() {
        let mut crowd = Crowd::new(4);
        for (peer_of, member) in [(1, "a"), (2, "b"), (2, "c"), (1, "d")] {
            assert_eq!(crowd.enter(peer(peer_of), member).1, None, "{member}");
        }
        assert_eq!(crowd.enter(peer(2), "e").1, Some("b"), "2 has three");
        assert_eq!(crowd.enter(peer(3), "f").1, Some("a"), "1 and 2 have two, and a is oldest");
        assert_eq!(crowd.enter(peer(3), "g").1, Some("c"), "2 and 3 have two, and c is oldest");
        assert_eq!(crowd.enter(peer(3), "h").1, Some("f"));
    }

    #[test]
    fn who_has_left_makes_way_for_nobody() {
        let mut crowd = Crowd::new(2);
        let (first, _) = crowd.enter(peer(1), "a");
        assert_eq!(crowd.leave(&first), Some("a"));
        assert_eq!(crowd.leave(&first), None);
        assert_eq!(crowd.enter(peer(1), "b").1, None);
        assert_eq!(crowd.enter(peer(1), "c").1, None);
        assert_eq!(crowd.evict(), Some("b"));
        assert_eq!((crowd.evict(), crowd.evict()), (Some("c"), None));
    }

    #[test]
    fn an_address_counts_as_what_one_host_can_have() {
        let peer = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.2"), peer("10.0.0.1"));
        assert_eq!(peer("fd00::1"), peer("fd00::2:1"));
        assert_ne!(peer("fd00:0:0:1::1"), peer("fd00::1"));
        let near = |text: &str| Peer::near(text.parse().unwrap());
        assert_eq!(near("::ffff:10.0.0.1"), near("10.0.0.1"));
        assert_ne!(near("fd00::1"), near("fd00::2"), "Pods of a node share an IPv6 network");
    }

    proptest! {
        /// The limit holds, and no peer's only connection is evicted while another peer has two.
        #[test]
        fn a_single_connection_makes_way_for_no_crowd(
            limit in 1_usize..32,
            steps in prop::collection::vec((0_u8..8, any::<bool>()), 1..256),
        ) {
            let mut crowd = Crowd::new(limit);
            let mut tickets = Vec::new();
            for (number, leaves) in steps {
                if leaves && !tickets.is_empty() {
                    let ticket = tickets.remove(usize::from(number) % tickets.len());
                    crowd.leave(&ticket);
                    continue;
                }
                let most = crowd.peers.values().map(BTreeMap::len).max().unwrap_or(0);
                let (ticket, out) = crowd.enter(peer(number), peer(number));
                tickets.push(ticket);
                if let Some(out) = out {
                    let left = crowd.peers.get(&out).map_or(0, BTreeMap::len);
                    prop_assert!(left + 1 >= most, "{left} are left of {most}");
                }
                prop_assert!(crowd.length <= limit);
                prop_assert_eq!(crowd.length, crowd.peers.values().map(BTreeMap::len).sum::<usize>());
            }
        }
    }
}
