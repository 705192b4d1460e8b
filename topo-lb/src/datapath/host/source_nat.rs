//! What on this host forbids that the programs choose sources of connections to other nodes.

use std::fs::read_to_string;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use netlink_bindings::nftables::Nfgenmsg;
use netlink_packet_core::NLM_F_ACK;
use rustix::net::netlink::{NETFILTER, XFRM};
use topo_lb_common::snat::PORTS;

use crate::datapath::masquerade::TABLE;
use crate::netlink::{Netlink, attribute, head, request, text};
use crate::nftables;

/// `XFRM_MSG_NEWSPDINFO`, `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO`, include/uapi/linux/xfrm.h.
const INFO: u16 = 0x24;
const GET_INFO: u16 = 0x25;
const COUNTS: u16 = 1;

/// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_USE`, `NFTA_CHAIN_TYPE` and
/// `NFTA_HOOK_HOOKNUM`, include/uapi/linux/netfilter/nf_tables.h.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_USE: u16 = 6;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_POST_ROUTING`, include/uapi/linux/netfilter.h.
const POST_ROUTING: u32 = 4;

/// How long an answer counts that says what forbids it, or that the kernel does not say.
const PAUSE: Duration = Duration::from_secs(10);

/// Looks for what forbids it.
#[derive(Debug, Default)]
pub(crate) struct Hindrances {
    nat: Option<NatLook>,
}

/// What nftables said.
#[derive(Debug)]
struct NatLook {
    at: Instant,
    /// Number of the last change of any table then; `None`: the kernel did not say.
    generation: Option<Vec<u8>>,
    found: Option<String>,
}

impl Hindrances {
    /// A sentence about what forbids it, if anything does.
    pub(crate) fn find(&mut self) -> Option<String> {
        let range = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
        range.and_then(|range| of_range(&range)).or_else(of_ipsec).or_else(|| self.of_nat())
    }

    /// The kernel may give the node's address and a port of the programs to a connection of a Pod that it
    /// masquerades; then the answers of an endpoint that both dial could go to the wrong one. Where it
    /// does so, it tracks every connection of the node, whoever masquerades.
    fn of_nat(&mut self) -> Option<String> {
        for file in ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"] {
            if read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == "nat")) {
                return Some(
                    "iptables has a table `nat`, so the kernel translates, too".to_owned(),
                );
            }
        }
        if let Some(last) = &self.nat
            && (last.found.is_some() || last.generation.is_none())
            && last.at.elapsed() < PAUSE
        {
            return last.found.clone();
        }
        let before = self.nat.take().filter(|last| last.found.is_none());
        let before = before.and_then(|last| last.generation);
        let (generation, found) = match look_at_chains(before.as_deref()) {
            Ok((generation, found)) => (Some(generation), found),
            // No nf_tables.
            Err(error) if has_no_tables(&error) => (None, None),
            Err(error) => (None, Some(format!("chains of nftables cannot be listed: {error}"))),
        };
        self.nat = Some(NatLook { at: Instant::now(), generation, found: found.clone() });
        found
    }
}

fn has_no_tables(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    // `nfnetlink_rcv_msg` says EINVAL without the module.
    matches!(number, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

/// The number of the last change of any table, and what its chains forbid. `before`: that of a look that
/// found nothing.
fn look_at_chains(before: Option<&[u8]>) -> io::Result<(Vec<u8>, Option<String>)> {
    let netlink = Netlink::open(Some(NETFILTER))?;
    let generation = nftables::generation(&netlink)?;
    let mut found = None;
    if before != Some(&generation) {
        nftables::list(
            &netlink,
            |all| drop(all.op_getchain_dump(&Nfgenmsg::new())),
            |attributes| found = found.take().or_else(|| of_chain(attributes)),
        )?;
    }
    Ok((generation, found))
}

/// A chain of somebody else with rules about sources.
fn of_chain(attributes: &[u8]) -> Option<String> {
    let number = |bytes| head::<u32>(bytes).map(u32::from_be);
    let name = |kind| attribute(attributes, kind).map(text);
    let hook = attribute(attribute(attributes, CHAIN_HOOK)?, HOOK_NUMBER).and_then(number)?;
    let rules = attribute(attributes, CHAIN_USE).and_then(number)?;
    let (table, chain) = (name(CHAIN_TABLE)?, name(CHAIN_NAME)?);
    let is_ours = table.as_bytes() == TABLE.to_bytes();
    (name(CHAIN_TYPE)? == "nat" && hook == POST_ROUTING && rules != 0 && !is_ours).then(|| {
        format!("the chain {chain} of the nftables table {table} also gives connections a source")
    })
}

/// Ports that the kernel gives its own clients must not be sources of the programs.
fn of_range(range: &str) -> Option<String> {
    let mut ends = range.split_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    (first <= PORTS.1 && PORTS.0 <= last).then(|| {
        format!("clients of this node have ports {first} to {last} (net.ipv4.ip_local_port_range)")
    })
}

/// IPsec policies for outgoing packets: those that a program sends on would leave as they are.
fn of_ipsec() -> Option<String> {
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
    fn the_default_range_of_ports_leaves_room_and_a_longer_one_does_not() {
        assert_eq!(of_range("32768\t60999\n"), None);
        for (range, ports) in [
            ("1024\t65535\n", "1024 to 65535"),
            ("15000\t20000\n", "15000 to 20000"),
            ("10000\t12000\n", "10000 to 12000"),
            ("29999\t60999\n", "29999 to 60999"),
        ] {
            let said = of_range(range).expect("a sentence");
            assert!(said.contains(ports), "{said}");
        }
        assert_eq!(of_range(""), None);
    }

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
