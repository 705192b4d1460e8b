//! What on this host forbids that the programs choose sources of connections to other nodes.

use std::fs::read_to_string;

use netlink_packet_core::NLM_F_ACK;
use rustix::net::netlink::XFRM;
use topo_lb_common::snat::PORTS;

use crate::netlink::{Netlink, attribute, head, request};

/// `XFRM_MSG_NEWSPDINFO`, `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO`, include/uapi/linux/xfrm.h.
const INFO: u16 = 0x24;
const GET_INFO: u16 = 0x25;
const COUNTS: u16 = 1;

/// A sentence about what forbids it, if anything does.
pub(crate) fn hindrance() -> Option<String> {
    let range = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    range.and_then(|range| of_range(&range)).or_else(|| {
        has_policies().then(|| "IPsec policies are to encrypt packets to other nodes".to_owned())
    })
}

/// Ports that the kernel gives its own clients must not be sources of the programs.
fn of_range(range: &str) -> Option<String> {
    let mut ends = range.split_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    let meets = |own: &(u16, u16)| first <= own.1 && own.0 <= last;
    PORTS.iter().any(meets).then(|| {
        format!("clients of this node have ports {first} to {last} (net.ipv4.ip_local_port_range)")
    })
}

/// Whether there are IPsec policies for outgoing packets: those that a program sends on would leave as
/// they are.
fn has_policies() -> bool {
    let mut outgoing = 0_u32;
    // A kernel without IPsec opens no such socket.
    let _ = Netlink::open(Some(XFRM)).and_then(|netlink| {
        netlink.ask(&request(GET_INFO, NLM_F_ACK, &[0; 4]), |kind, body| {
            // Flags, then the counts of incoming and of outgoing policies.
            let counts = body.get(4..).and_then(|attributes| attribute(attributes, COUNTS));
            if kind == INFO
                && let Some([_, out]) = counts.and_then(head::<[u32; 2]>)
            {
                outgoing = out;
            }
        })
    });
    outgoing != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_range_of_ports_leaves_room_and_a_longer_one_does_not() {
        assert_eq!(of_range("32768\t60999\n"), None);
        for (range, ports) in [
            ("1024\t65535\n", "1024 to 65535"),
            ("15000\t20000\n", "15000 to 20000"),
            ("32768\t61000\n", "32768 to 61000"),
            ("29999\t60999\n", "29999 to 60999"),
        ] {
            let said = of_range(range).expect("a sentence");
            assert!(said.contains(ports), "{said}");
        }
        assert_eq!(of_range(""), None);
    }
}
