//! Messages of sock_diag(7): `include/uapi/linux/{sock_diag,inet_diag}.h`.
//!
//! Own code: `netlink-packet-sock-diag` has no `SOCK_DESTROY`.

use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use topo_lb_common::address::mapped;

use crate::cluster::Protocol;
use crate::datapath::maps::encode::protocol_number;
use crate::netlink::{self, head};

/// Lists sockets.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Ends a socket; Linux 4.5 for TCP, 4.9 for UDP.
const SOCK_DESTROY: u16 = 21;

/// `struct inet_diag_sockid`: identifies a socket. The kernel's bytes, returned unchanged.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct Id {
    /// Network order.
    source_port: [u8; 2],
    /// Network order.
    destination_port: [u8; 2],
    /// Network order; an IPv4 address fills the first four bytes.
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct inet_diag_req_v2`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Request {
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    states: u32,
    id: Id,
}

/// `struct inet_diag_msg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Answer {
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    id: Id,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    user: u32,
    inode: u32,
}

const _: () = {
    assert!(size_of::<Id>() == 48);
    assert!(size_of::<Request>() == 56);
    assert!(size_of::<Answer>() == 72);
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// `AF_INET` or `AF_INET6`: the family of the socket, even if its peer is IPv4-mapped.
    pub(super) family: u8,
    pub(super) protocol: Protocol,
}

impl Kind {
    /// Bits of the states (`include/net/tcp_states.h`) in which a socket has a peer and an
    /// application: a connected UDP socket is `ESTABLISHED`.
    fn states(self) -> u32 {
        const ESTABLISHED: u32 = 1 << 1;
        const SYN_SENT: u32 = 1 << 2;
        const FIN_WAIT1: u32 = 1 << 4;
        const FIN_WAIT2: u32 = 1 << 5;
        const CLOSE_WAIT: u32 = 1 << 8;
        match self.protocol {
            Protocol::Udp => ESTABLISHED,
            _ => ESTABLISHED | SYN_SENT | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT,
        }
    }
}

/// A socket as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: Kind,
    pub(super) id: Id,
    /// Where its packets go; an IPv4-mapped peer of an IPv6 socket is IPv4 here.
    pub(super) peer: SocketAddr,
    /// The inode in `/proc/PID/fd`: `socket:[inode]`.
    pub(super) inode: u32,
}

impl Seen {
    #[cfg(test)]
    pub(super) fn made(kind: Kind, peer: SocketAddr) -> Self {
        Self { kind, id: Id::zeroed(), peer, inode: 0 }
    }

    /// The kernel's unique number of this socket.
    pub(super) fn cookie(&self) -> u64 {
        let [low, high] = self.id.cookie;
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Lists all connected sockets of a kind; with `port`, only those with this peer port.
pub(super) fn dump(kind: Kind, port: Option<u16>) -> Vec<u8> {
    let mut id = Id::zeroed();
    id.destination_port = port.unwrap_or(0).to_be_bytes();
    request(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, kind, kind.states(), id)
}

/// Ends a socket, unless another one took its place.
pub(super) fn destroy(kind: Kind, id: Id) -> Vec<u8> {
    request(SOCK_DESTROY, libc::NLM_F_ACK, kind, u32::MAX, id)
}

/// Ends no socket: no socket has port zero or cookie zero.
pub(super) fn destroy_nothing(kind: Kind) -> Vec<u8> {
    destroy(kind, Id::zeroed())
}

fn request(kind: u16, flags: libc::c_int, of: Kind, states: u32, id: Id) -> Vec<u8> {
    let (family, protocol) = (of.family, protocol_number(of.protocol));
    let request = Request { family, protocol, extensions: 0, padding: 0, states, id };
    netlink::request(kind, flags, &request)
}

/// The socket that a message of the kernel describes.
pub(super) fn socket(kind: u16, body: &[u8], protocol: Protocol) -> Option<Seen> {
    (kind == SOCK_DIAG_BY_FAMILY).then(|| seen(body, protocol)).flatten()
}

fn seen(body: &[u8], protocol: Protocol) -> Option<Seen> {
    let answer: Answer = head(body)?;
    let Id { destination, destination_port, .. } = answer.id;
    let [a, b, c, d, ..] = destination;
    let address = match (i32::from(answer.family), mapped(&destination)) {
        (libc::AF_INET, _) => IpAddr::from([a, b, c, d]),
        (_, Some(inside)) => IpAddr::from(inside),
        (_, None) => IpAddr::from(destination),
    };
    Some(Seen {
        kind: Kind { family: answer.family, protocol },
        id: answer.id,
        peer: SocketAddr::new(address, u16::from_be_bytes(destination_port)),
        inode: answer.inode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: Protocol = Protocol::Udp;

    fn answer(family: i32, destination: [u8; 16]) -> Vec<u8> {
        let mut answer = Answer::zeroed();
        answer.family = family as u8;
        answer.inode = 77;
        answer.id.destination = destination;
        answer.id.destination_port = 53_u16.to_be_bytes();
        answer.id.cookie = [1, 2];
        // An attribute follows, as in real messages.
        [bytemuck::bytes_of(&answer), &[5, 0, 8, 0, 0]].concat()
    }

    fn peer(family: i32, destination: [u8; 16]) -> String {
        let answer = answer(family, destination);
        socket(SOCK_DIAG_BY_FAMILY, &answer, UDP).expect("a socket").peer.to_string()
    }

    #[test]
    fn a_peer_is_of_the_family_that_its_packets_are_of() {
        let four = [10, 244, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let inside = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 244, 1, 2];
        let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(peer(libc::AF_INET, four), "10.244.1.2:53");
        assert_eq!(peer(libc::AF_INET6, inside), "10.244.1.2:53");
        assert_eq!(peer(libc::AF_INET6, six), "[fd00::1]:53");
    }

    #[test]
    fn what_is_no_socket_or_cut_off_is_left_out() {
        let whole = answer(libc::AF_INET, [1; 16]);
        let seen = socket(SOCK_DIAG_BY_FAMILY, &whole, UDP).expect("a socket");
        assert_eq!(seen.cookie(), 2 << 32 | 1);
        assert_eq!(socket(SOCK_DIAG_BY_FAMILY + 1, &whole, UDP), None);
        for length in 0..size_of::<Answer>() {
            let cut = socket(SOCK_DIAG_BY_FAMILY, &whole[..length], UDP);
            assert_eq!(cut, None, "{length} bytes");
        }
    }

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let kind = Kind { family: libc::AF_INET as u8, protocol: UDP };
        let request = dump(kind, Some(53));
        assert_eq!(request.len(), 72);
        assert_eq!(request[..4], 72_u32.to_ne_bytes());
        // After the header: family, protocol, and the peer's port after the socket's own.
        assert_eq!(request[16..18], [2, 17]);
        assert_eq!(request[26..28], [0, 53]);
    }
}
