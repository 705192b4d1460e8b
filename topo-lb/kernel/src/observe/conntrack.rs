//! A connection that another proxy translates, as connection tracking tells of it
//! (net/netfilter/nf_conntrack_netlink.c).

use std::net::{IpAddr, SocketAddr};

use netlink_bindings::conntrack::{ConntrackAttrs, IterableTupleAttrs, Nfgenmsg};
use topo_lb_common::address::{SCTP, TCP, UDP};

use topo_lb_core::cluster::Protocol;

/// A connection whose destination was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Its protocol.
    pub protocol: Protocol,
    /// What the client dialled.
    pub dialled: SocketAddr,
    /// Who answers.
    pub endpoint: SocketAddr,
}

impl Connection {
    /// Reads the body of a notification; `None` if the destination was not replaced, the protocol is none
    /// of a Service, or the message is not whole.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let attributes = ConntrackAttrs::new(body.get(Nfgenmsg::len()..)?);
        let (protocol, _, dialled) = ends(&attributes.get_tuple_orig().ok()?)?;
        let (_, endpoint, _) = ends(&attributes.get_tuple_reply().ok()?)?;
        (dialled != endpoint).then_some(Self { protocol, dialled, endpoint })
    }
}

/// Protocol, source and destination of one direction.
fn ends(tuple: &IterableTupleAttrs<'_>) -> Option<(Protocol, SocketAddr, SocketAddr)> {
    let (ip, proto) = (tuple.get_tuple_ip().ok()?, tuple.get_tuple_proto().ok()?);
    let protocol = match proto.get_proto_num().ok()? {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        SCTP => Protocol::Sctp,
        _ => return None,
    };
    let (source, destination): (IpAddr, IpAddr) = match ip.get_ip_v4_src() {
        Ok(source) => (source.into(), ip.get_ip_v4_dst().ok()?.into()),
        Err(_) => (ip.get_ip_v6_src().ok()?.into(), ip.get_ip_v6_dst().ok()?.into()),
    };
    let source = SocketAddr::new(source, proto.get_proto_src_port().ok()?);
    Some((protocol, source, SocketAddr::new(destination, proto.get_proto_dst_port().ok()?)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        attribute(kind | libc::NLA_F_NESTED as u16, &parts.concat())
    }

    /// `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.
    fn tuple(kind: u16, protocol: u8, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let ip = |v4: u16, address| match address {
            IpAddr::V4(it) => attribute(v4, &it.octets()),
            IpAddr::V6(it) => attribute(v4 + 2, &it.octets()),
        };
        let proto = [
            attribute(1, &[protocol]),
            attribute(2, &from.port().to_be_bytes()),
            attribute(3, &to.port().to_be_bytes()),
        ];
        let ips = [ip(1, from.ip()), ip(2, to.ip())];
        nested(kind, &[nested(1, &ips), nested(2, &proto)])
    }

    /// A notification of a connection.
    fn body(protocol: u8, client: &str, dialled: &str, endpoint: &str) -> Vec<u8> {
        let [client, dialled, endpoint] = [client, dialled, endpoint].map(|it| it.parse().unwrap());
        let tuples =
            [tuple(1, protocol, client, dialled), tuple(2, protocol, endpoint, client)].concat();
        [vec![libc::AF_INET as u8, 0, 0, 0], tuples].concat()
    }

    #[test]
    fn the_endpoint_is_the_source_of_replies() {
        let read = Connection::read(&body(6, "10.0.0.9:999", "10.96.0.1:80", "10.0.0.1:8080"));
        let wanted = Connection {
            protocol: Protocol::Tcp,
            dialled: "10.96.0.1:80".parse().unwrap(),
            endpoint: "10.0.0.1:8080".parse().unwrap(),
        };
        assert_eq!(read, Some(wanted));
        let read = Connection::read(&body(17, "[fd00::9]:9", "[fd00::1]:53", "[fd00::2]:5353"));
        assert_eq!(read.unwrap().endpoint, "[fd00::2]:5353".parse().unwrap());
    }

    #[test]
    fn what_nobody_translated_is_left_out() {
        let same = body(6, "10.0.0.9:999", "10.0.0.1:80", "10.0.0.1:80");
        let icmp = body(1, "10.0.0.9:999", "10.96.0.1:80", "10.0.0.1:80");
        assert_eq!([same, icmp].map(|it| Connection::read(&it)), [None, None]);
    }

    #[test]
    fn a_message_that_is_cut_off_or_twisted_does_no_harm() {
        let whole = body(6, "10.0.0.9:999", "10.96.0.1:80", "10.0.0.1:8080");
        for length in 0..whole.len() {
            assert_eq!(Connection::read(&whole[..length]), None, "{length} bytes");
        }
        for place in 0..whole.len() {
            let mut twisted = whole.clone();
            twisted[place] ^= 0xff;
            let _ = Connection::read(&twisted);
        }
    }
}
