//! Asks connection tracking to which endpoints another proxy sent connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_bindings::conntrack::{Nfgenmsg, OpGetDo};
use rustix::net::netlink::NETFILTER;
use topo_lb_common::address::TCP;
use tracing::warn;

use super::Connection;
use crate::datapath::maps::ended::EndedConnection;
use crate::netlink::Netlink;
use topo_lb_core::once::Once;

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET` (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const GET: u16 = 1 << 8 | 1;
/// Questions in one message: their answers fit into a socket's default buffer.
const TOGETHER: usize = 64;

/// Asks about TCP connections that have ended: connection tracking keeps them for some time (10 s after a RST, 2 min
/// after both FINs: `tcp_timeouts`, net/netfilter/nf_conntrack_proto_tcp.c).
#[derive(Debug, Default)]
pub struct Query {
    socket: Option<Netlink>,
    failed: Once,
}

impl Query {
    /// To which endpoint each connection went, in their order; `None` if that is not known.
    pub fn endpoints(&mut self, connections: &[EndedConnection]) -> Vec<Option<SocketAddr>> {
        match self.ask(connections) {
            Ok(found) => {
                self.failed.ends(&());
                found
            }
            Err(error) => {
                // The next look opens another one.
                self.socket = None;
                if self.failed.begins(()) {
                    warn!(
                        "connection tracking does not say where another proxy sends connections: {error}; their \
                         bytes are counted without a locality (topo_lb_other_sent_bytes_total)"
                    );
                }
                vec![None; connections.len()]
            }
        }
    }

    fn ask(&mut self, connections: &[EndedConnection]) -> io::Result<Vec<Option<SocketAddr>>> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Netlink::open(Some(NETFILTER))?,
        };
        let socket = self.socket.insert(socket);
        let mut found = vec![None; connections.len()];
        for (some, found) in connections.chunks(TOGETHER).zip(found.chunks_mut(TOGETHER)) {
            let question = |place: usize, body: &mut Vec<u8>| question(&some[place], body);
            socket.ask_each(GET, some.len(), question, |place, body| {
                if let Some(to) = found.get_mut(place) {
                    *to = Connection::read(body).map(|one| one.endpoint);
                }
            })?;
        }
        Ok(found)
    }
}

/// Appends the body of a question about a connection.
fn question(connection: &EndedConnection, body: &mut Vec<u8>) {
    let (client, dialled) = (connection.client, connection.dialled);
    let mut header = Nfgenmsg::new();
    header.nfgen_family = if dialled.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let tuple = OpGetDo::encode_request(body, &header).nested_tuple_orig();
    let ip = tuple.nested_tuple_ip();
    let ip = match (client.ip(), dialled.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ip.push_ip_v4_src(from).push_ip_v4_dst(to),
        (IpAddr::V6(from), IpAddr::V6(to)) => ip.push_ip_v6_src(from).push_ip_v6_dst(to),
        // A socket without an address of its own: nothing is tracked for it.
        (_, IpAddr::V4(to)) => ip.push_ip_v4_src(Ipv4Addr::UNSPECIFIED).push_ip_v4_dst(to),
        (_, IpAddr::V6(to)) => ip.push_ip_v6_src(Ipv6Addr::UNSPECIFIED).push_ip_v6_dst(to),
    };
    let proto = ip.end_nested().nested_tuple_proto();
    let proto = proto.push_proto_num(TCP);
    let proto = proto.push_proto_src_port(client.port()).push_proto_dst_port(dialled.port());
    drop(proto);
}
