//! A frontend: the address, port and protocol that a client dials.

use crate::layout::layout;

/// TCP's protocol number.
pub const TCP: u8 = 6;
/// UDP's protocol number.
pub const UDP: u8 = 17;
/// SCTP's protocol number.
pub const SCTP: u8 = 132;
/// `sk_protocol` of an MPTCP socket, which does not fit a byte (`IPPROTO_MPTCP`,
/// include/uapi/linux/in.h).
pub const MPTCP: u32 = 262;

/// The Service protocol of a socket with this `sk_protocol`; `None` if no Service can have it. An
/// MPTCP socket is a TCP client.
#[inline(always)]
pub const fn service_protocol(raw: u32) -> Option<u8> {
    match raw {
        MPTCP => Some(TCP),
        6 | 17 | 132 => Some(raw as u8),
        _ => None,
    }
}

/// Added to [`Frontend::protocol`] of a frontend that only clients outside of this node use. A frontend
/// without it is for clients of this node, and for those outside unless there is one of their own.
pub const OUTSIDE: u8 = 64;

/// Added to [`Frontend::protocol`] of a frontend that only steered Pods use: an endpoint, for which they get
/// another one. Nobody else looks for it.
pub const STEERED: u8 = 32;

/// Added to [`Frontend::protocol`] of a frontend that only packets use which another node has sent on
/// ([`crate::hop`]): they get an endpoint of this node.
pub const PEERS: u8 = 8;

layout! {
    /// A frontend: the key of `services4` and `services6`.
    #[repr(C, align(4))]
    pub struct Frontend<A> as Frontend4<[u8; 4]>, Frontend6<[u8; 16]> {
        /// Network order.
        pub address: A,
        /// Host order, 1–65535.
        pub port: u16,
        /// [`TCP`], [`UDP`] or [`SCTP`]; for clients outside of this node plus [`OUTSIDE`], for steered Pods plus
        /// [`STEERED`], for what other nodes send on plus [`PEERS`].
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_for_some_clients_has_the_number_of_no_protocol() {
        for (protocol, clients) in
            [TCP, UDP, SCTP].into_iter().flat_map(|it| [(it, OUTSIDE), (it, STEERED), (it, PEERS)])
        {
            assert_eq!(protocol & clients, 0);
            assert_eq!(service_protocol((protocol | clients).into()), None);
        }
        assert_eq!(OUTSIDE & STEERED | OUTSIDE & PEERS | STEERED & PEERS, 0);
    }

    #[test]
    fn mptcp_is_tcp_and_its_low_byte_is_not_taken_for_a_protocol() {
        assert_eq!(service_protocol(262), Some(TCP));
        assert_eq!(service_protocol(6), Some(TCP));
        assert_eq!(service_protocol(17), Some(UDP));
        assert_eq!(service_protocol(132), Some(SCTP));
        // 256 + 17 would be UDP if it were cut to a byte.
        assert_eq!(service_protocol(273), None);
        assert_eq!(service_protocol(1), None);
    }
}
