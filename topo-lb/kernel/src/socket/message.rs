//! Messages of sock_diag(7).

use std::net::SocketAddr;

use netlink_packet_core::{Emitable as _, NLM_F_ACK, NLM_F_DUMP, Parseable as _};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_packet_sock_diag::{SOCK_DESTROY, SOCK_DIAG_BY_FAMILY};

use super::rest::Activity;
use crate::datapath::maps::encode::protocol_number;
use crate::netlink;
use topo_lb_core::cluster::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// `AF_INET` or `AF_INET6`: the family of the socket, even if its peer is IPv4-mapped.
    pub(super) family: u8,
    pub(super) protocol: Protocol,
}

impl Kind {
    /// The states in which a socket has a peer and an application: a connected UDP socket is
    /// `ESTABLISHED`.
    fn states(self) -> StateFlags {
        let others = match self.protocol {
            Protocol::Udp => StateFlags::empty(),
            _ => {
                StateFlags::SYN_SENT
                    | StateFlags::FIN_WAIT1
                    | StateFlags::FIN_WAIT2
                    | StateFlags::CLOSE_WAIT
            }
        };
        StateFlags::ESTABLISHED | others
    }
}

/// A socket as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: Kind,
    pub(super) id: SocketId,
    /// The inode in `/proc/PID/fd`: `socket:[inode]`.
    pub(super) inode: u32,
}

impl Seen {
    /// Where its packets go; an IPv4-mapped peer of an IPv6 socket is IPv4 here.
    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.id.destination_address.to_canonical(), self.id.destination_port)
    }

    /// The kernel's unique number of this socket.
    pub(super) fn cookie(&self) -> u64 {
        // The lower half first, each in native order; topo-lb runs only on little-endian machines.
        u64::from_le_bytes(self.id.cookie)
    }
}

/// Lists all connected sockets of a kind; with `port`, only those with this peer port.
pub(super) fn dump(kind: Kind, port: Option<u16>) -> Vec<u8> {
    let id = SocketId { destination_port: port.unwrap_or(0), ..SocketId::new_v4() };
    request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, kind, kind.states(), id, ExtensionFlags::empty())
}

/// Lists the established TCP sockets of a family, and what they do; with `port`, only those with this peer port.
pub(super) fn dump_active(family: u8, port: Option<u16>) -> Vec<u8> {
    let kind = Kind { family, protocol: Protocol::Tcp };
    let id = SocketId { destination_port: port.unwrap_or(0), ..SocketId::new_v4() };
    let states = StateFlags::ESTABLISHED;
    request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, kind, states, id, ExtensionFlags::INFO)
}

/// Ends a socket, unless another one took its place.
pub(super) fn destroy(kind: Kind, id: SocketId) -> Vec<u8> {
    request(SOCK_DESTROY, NLM_F_ACK, kind, StateFlags::all(), id, ExtensionFlags::empty())
}

fn request(
    message: u16,
    flags: u16,
    kind: Kind,
    states: StateFlags,
    id: SocketId,
    extensions: ExtensionFlags,
) -> Vec<u8> {
    let request = InetRequest {
        family: kind.family,
        protocol: protocol_number(kind.protocol),
        extensions,
        states,
        socket_id: id,
    };
    let mut body = vec![0; request.buffer_len()];
    request.emit(&mut body);
    netlink::request(message, flags, &body)
}

/// The socket that a message of the kernel describes.
pub(super) fn socket(message: u16, body: &[u8], protocol: Protocol) -> Option<Seen> {
    let answer = InetResponseHeader::parse(body).ok().filter(|_| message == SOCK_DIAG_BY_FAMILY)?;
    let kind = Kind { family: answer.family, protocol };
    Some(Seen { kind, id: answer.socket_id, inode: answer.inode })
}

/// `INET_DIAG_INFO`
const INFO: u16 = 2;

/// The TCP socket that a message of the kernel describes, and what it does.
pub(super) fn active(message: u16, body: &[u8]) -> Option<(Seen, Activity)> {
    let seen = socket(message, body, Protocol::Tcp)?;
    let answer = InetResponseHeader::parse(body).ok()?;
    let info = netlink::attribute(body.get(answer.buffer_len()..)?, INFO)?;
    Some((seen, Activity::shown(answer.recv_queue, info)?))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const UDP: Protocol = Protocol::Udp;

    fn answer(family: i32, destination: IpAddr) -> Vec<u8> {
        let socket_id = SocketId {
            destination_port: 53,
            destination_address: destination,
            cookie: [1, 0, 0, 0, 2, 0, 0, 0],
            ..SocketId::new_v4()
        };
        let (state, timer, recv_queue, send_queue, uid, inode) = (1, None, 0, 0, 0, 77);
        let family = family as u8;
        let header = InetResponseHeader {
            family,
            state,
            timer,
            socket_id,
            recv_queue,
            send_queue,
            uid,
            inode,
        };
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        // An attribute follows, as in real messages.
        [bytes, vec![5, 0, 8, 0, 0]].concat()
    }

    #[test]
    fn a_peer_is_of_the_family_that_its_packets_are_of() {
        for (family, destination, peer) in [
            (libc::AF_INET, "10.244.1.2", "10.244.1.2:53"),
            (libc::AF_INET6, "::ffff:10.244.1.2", "10.244.1.2:53"),
            (libc::AF_INET6, "fd00::1", "[fd00::1]:53"),
        ] {
            let answer = answer(family, destination.parse().unwrap());
            let seen = socket(SOCK_DIAG_BY_FAMILY, &answer, UDP).expect("a socket");
            assert_eq!((seen.peer().to_string().as_str(), seen.inode), (peer, 77));
            assert_eq!(seen.cookie(), 2 << 32 | 1);
            assert_eq!(socket(SOCK_DIAG_BY_FAMILY + 1, &answer, UDP), None);
            assert_eq!(socket(SOCK_DIAG_BY_FAMILY, &answer[..71], UDP), None, "cut off");
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
