//! Selects the sockets to be ended.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::message::{Kind, Seen};
use topo_lb_core::cluster::{Frontend, Protocol};
use topo_lb_core::plan::Gone;

/// What sockets must not be connected to: endpoints that are gone, with the frontends that their clients
/// dialled, and ClusterIPs that are served since, untranslated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stale {
    frontends: HashMap<SocketAddr, HashSet<Frontend>>,
    early: HashSet<Frontend>,
}

impl Stale {
    /// From these endpoints, for these protocols.
    pub(super) fn of<'a>(gone: impl IntoIterator<Item = &'a Gone>, protocols: &[Protocol]) -> Self {
        let mut all = Self::default();
        for gone in gone {
            let ours = gone.frontends.iter().filter(|it| protocols.contains(&it.protocol));
            for frontend in ours {
                all.frontends.entry(gone.endpoint).or_default().insert(*frontend);
            }
        }
        all
    }

    /// Adds ClusterIPs, whose sockets were connected before they were served.
    pub(super) fn add_early(&mut self, frontends: impl IntoIterator<Item = Frontend>) {
        self.early.extend(frontends);
    }

    /// Takes these ClusterIPs out.
    pub(super) fn take_early(&mut self) -> HashSet<Frontend> {
        std::mem::take(&mut self.early)
    }

    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.early.extend(other.early);
        for (endpoint, frontends) in other.frontends {
            self.frontends.entry(endpoint).or_default().extend(frontends);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.frontends.len() + self.early.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.early.is_empty()
    }

    /// The kinds of sockets to search. IPv6 ones also for IPv4, as their peers may be IPv4-mapped.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let endpoints = self.frontends.iter();
            let early = self.early.iter().filter(|it| it.protocol == protocol);
            let mut of: Vec<_> = endpoints
                .filter(|(_, frontends)| frontends.iter().any(|it| it.protocol == protocol))
                .map(|(endpoint, _)| endpoint.is_ipv4())
                .chain(early.map(|it| it.address.is_ipv4()))
                .collect();
            of.sort_unstable();
            if of.last() == Some(&true) {
                kinds.push(Kind { family: libc::AF_INET as u8, protocol });
            }
            if !of.is_empty() {
                kinds.push(Kind { family: libc::AF_INET6 as u8, protocol });
            }
        }
        kinds
    }

    /// The port of all peers, if they share one: the kernel then skips all other sockets.
    pub(super) fn port(&self) -> Option<u16> {
        let early = self.early.iter().map(|it| it.port);
        let mut ports = self.frontends.keys().map(SocketAddr::port).chain(early);
        let first = ports.next()?;
        ports.all(|port| port == first).then_some(first)
    }

    /// Whether a socket may have to be ended: it is connected to one of these.
    pub(super) fn suspects(&self, socket: &Seen) -> bool {
        self.frontends.contains_key(&socket.peer()) || self.is_early(socket).is_some()
    }

    /// The ClusterIP to which a socket is connected, if it is one of these.
    pub(super) fn is_early(&self, socket: &Seen) -> Option<Frontend> {
        let peer = socket.peer();
        let dialled = Frontend::new(peer.ip(), peer.port(), socket.kind.protocol);
        self.early.get(&dialled).copied()
    }

    /// Whether to end a socket that dialled this frontend and was translated to this endpoint: it
    /// is still connected to it, and the endpoint is gone from the frontend.
    pub(super) fn convicts(&self, socket: &Seen, dialled: &Frontend, endpoint: SocketAddr) -> bool {
        endpoint == socket.peer()
            && dialled.protocol == socket.kind.protocol
            && self.frontends.get(&endpoint).is_some_and(|all| all.contains(dialled))
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_sock_diag::inet::SocketId;

    use super::*;

    fn frontend(address: &str, protocol: Protocol) -> Frontend {
        let address: SocketAddr = address.parse().unwrap();
        Frontend::new(address.ip(), address.port(), protocol)
    }

    fn gone(frontends: &[Frontend], endpoint: &str) -> Gone {
        let endpoint = endpoint.parse().unwrap();
        Gone { service: "default/dns:dns".into(), frontends: frontends.to_vec(), endpoint }
    }

    fn seen(protocol: Protocol, peer: &str) -> Seen {
        let (peer, mut id): (SocketAddr, _) = (peer.parse().unwrap(), SocketId::new_v4());
        (id.destination_address, id.destination_port) = (peer.ip(), peer.port());
        Seen { kind: Kind { family: libc::AF_INET as u8, protocol }, id, inode: 0 }
    }

    const UDP: Protocol = Protocol::Udp;
    const TCP: Protocol = Protocol::Tcp;

    #[test]
    fn a_socket_is_convicted_only_where_everything_fits() {
        let dns = frontend("10.96.0.10:53", UDP);
        let other = frontend("10.96.0.11:53", UDP);
        let stale = Stale::of(&[gone(&[dns], "10.244.0.1:53")], &[UDP]);
        let cases = [
            ("all fits", seen(UDP, "10.244.0.1:53"), dns, "10.244.0.1:53", true),
            ("another Service", seen(UDP, "10.244.0.1:53"), other, "10.244.0.1:53", false),
            ("connected elsewhere since", seen(UDP, "10.244.0.2:53"), dns, "10.244.0.1:53", false),
            ("here since, by itself", seen(UDP, "10.244.0.1:53"), dns, "10.244.0.2:53", false),
            ("another port", seen(UDP, "10.244.0.1:54"), dns, "10.244.0.1:54", false),
            ("another protocol", seen(TCP, "10.244.0.1:53"), dns, "10.244.0.1:53", false),
        ];
        for (case, socket, dialled, endpoint, wanted) in cases {
            let endpoint = endpoint.parse().unwrap();
            assert_eq!(stale.convicts(&socket, &dialled, endpoint), wanted, "{case}");
        }
    }

    #[test]
    fn protocols_that_nobody_asked_for_are_left_out() {
        let web = gone(&[frontend("10.96.0.1:80", TCP)], "10.244.0.1:80");
        assert!(Stale::of([&web], &[UDP]).is_empty());
        assert!(!Stale::of([&web], &[UDP, TCP]).is_empty());
    }

    #[test]
    fn ipv6_sockets_are_looked_at_for_ipv4_too_and_not_the_other_way_round() {
        let kinds = |frontend_: &str, endpoint: &str| -> Vec<i32> {
            let stale = Stale::of(&[gone(&[frontend(frontend_, UDP)], endpoint)], &[UDP]);
            stale.kinds().iter().map(|kind| i32::from(kind.family)).collect()
        };
        assert_eq!(kinds("10.96.0.1:53", "10.244.0.1:53"), [libc::AF_INET, libc::AF_INET6]);
        assert_eq!(kinds("[fd00::1]:53", "[fd01::1]:53"), [libc::AF_INET6]);
    }

    #[test]
    fn a_socket_is_early_if_it_is_connected_to_the_frontend_itself() {
        let dns = frontend("10.96.0.10:53", UDP);
        let mut stale = Stale::default();
        stale.add_early([dns]);
        let early = |protocol, peer| stale.is_early(&seen(protocol, peer));
        assert_eq!(early(UDP, "10.96.0.10:53"), Some(dns));
        for (protocol, peer) in
            [(TCP, "10.96.0.10:53"), (UDP, "10.96.0.10:54"), (UDP, "10.96.0.11:53")]
        {
            assert_eq!(early(protocol, peer), None, "{peer}");
        }
        assert_eq!((stale.port(), stale.kinds().len(), stale.len()), (Some(53), 2, 1));
        let mut all = Stale::default();
        all.merge(stale);
        assert_eq!(all.take_early().len(), 1);
        assert!(all.is_empty() && !all.has_early());
    }

    #[test]
    fn a_port_narrows_the_search_only_if_all_have_it() {
        let dns = frontend("10.96.0.10:53", UDP);
        let mut stale = Stale::of(&[gone(&[dns], "10.244.0.1:5353")], &[UDP]);
        stale.merge(Stale::of(&[gone(&[dns], "10.244.0.2:5353")], &[UDP]));
        assert_eq!(stale.port(), Some(5353));
        stale.merge(Stale::of(&[gone(&[dns], "10.244.0.1:53")], &[UDP]));
        assert_eq!(stale.port(), None);
    }
}
