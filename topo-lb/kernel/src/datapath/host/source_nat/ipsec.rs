//! IPsec policies for outgoing packets: those that a program sends on would leave as they are.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

use netlink_packet_core::NLM_F_ACK;
use rustix::net::netlink::XFRM;

use crate::netlink::{Netlink, attribute, head, request};

/// `XFRM_MSG_NEWSPDINFO`, `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO`, include/uapi/linux/xfrm.h.
const INFO: u16 = 0x24;
const GET_INFO: u16 = 0x25;
const COUNTS: u16 = 1;

/// A sentence about them, if there are any.
pub(super) fn find() -> Option<String> {
    // Asking would load the kernel's module. Without it, and without that of PF_KEY, there is no policy.
    let sockets = read_to_string("/proc/net/netlink");
    if sockets.is_ok_and(|sockets| !has_xfrm(&sockets)) && !Path::new("/proc/net/pfkey").exists() {
        return None;
    }
    match outgoing_policies() {
        Ok(0) => None,
        Ok(_) => Some("IPsec policies are to encrypt packets to other nodes".to_owned()),
        Err(error) => Some(format!("IPsec policies cannot be counted: {error}")),
    }
}

/// Whether the kernel has a netlink socket of IPsec. Lines of `netlink_native_seq_show`,
/// net/netlink/af_netlink.c: socket, protocol.
fn has_xfrm(sockets: &str) -> bool {
    let protocol = XFRM.as_raw().get().to_string();
    sockets.lines().any(|line| line.split_whitespace().nth(1) == Some(&protocol))
}

fn outgoing_policies() -> io::Result<u32> {
    let mut outgoing = None;
    Netlink::open(Some(XFRM))?.ask(&request(GET_INFO, NLM_F_ACK, &[0; 4]), |kind, body| {
        // Flags, then the counts of incoming and of outgoing policies.
        let counts = body.get(4..).and_then(|attributes| attribute(attributes, COUNTS));
        if kind == INFO
            && let Some([_, out]) = counts.and_then(head::<[u32; 2]>)
        {
            outgoing = Some(out);
        }
    })?;
    outgoing.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipsec_is_asked_only_where_its_module_is() {
        let heading = "sk               Eth Pid        Groups   Rmem\n";
        let with =
            |protocol: u32| format!("{heading}00000000abcdef 0{protocol}\n0000 {protocol}   0\n");
        assert!(!has_xfrm(heading));
        assert!(!has_xfrm(&with(16)));
        assert!(has_xfrm(&with(6)));
    }
}
