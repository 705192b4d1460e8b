//! What on this host forbids that the programs choose sources of connections to other nodes.

use std::fs::read_to_string;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use netlink_bindings::nftables::Nfgenmsg;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use rustix::net::netlink::{NETFILTER, XFRM};
use topo_lb_common::snat::PORTS;

use crate::datapath::masquerade::TABLE;
use crate::netlink::{Netlink, attribute, head, request, text};
use crate::nftables;

/// `XFRM_MSG_NEWSPDINFO`, `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO`, include/uapi/linux/xfrm.h.
const INFO: u16 = 0x24;
const GET_INFO: u16 = 0x25;
const COUNTS: u16 = 1;

/// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_CHAIN_USE` and
/// `NFTA_HOOK_HOOKNUM`, include/uapi/linux/netfilter/nf_tables.h.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD`, `NF_INET_POST_ROUTING` and `NF_DROP`,
/// include/uapi/linux/netfilter.h.
const FORWARDED: [u32; 3] = [0, 2, 4];
const DROP: u32 = 0;

/// `struct fib_rule_hdr`, `FR_ACT_TO_TBL`, `FRA_PRIORITY` and `FRA_TABLE`, include/uapi/linux/fib_rules.h.
const RULE_HEADER: usize = 12;
const RULE_FAMILY: usize = 0;
const RULE_ACTION: usize = 7;
const TO_TABLE: u8 = 1;
const RULE_PRIORITY: u16 = 6;
const RULE_TABLE: u16 = 15;
/// The tables that the kernel's own rules look up: default, main and local.
const USUAL_TABLES: RangeInclusive<u32> = 253..=255;

/// How long an answer counts that says what forbids it, or that the kernel has no nftables.
const PAUSE: Duration = Duration::from_secs(10);

/// Looks for what forbids it.
#[derive(Debug, Default)]
pub(crate) struct Hindrances {
    /// What was found last, and when.
    found: Option<(Instant, String)>,
    /// When the kernel had no nftables.
    without_tables: Option<Instant>,
    /// Number of the last change of any nftables table when its chains forbade nothing.
    generation: Option<Vec<u8>>,
}

impl Hindrances {
    /// A sentence about what forbids it, if anything does.
    pub(crate) fn find(&mut self) -> Option<String> {
        if let Some((at, found)) = &self.found
            && at.elapsed() < PAUSE
        {
            return Some(found.clone());
        }
        let range = read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
        let found = range
            .and_then(|range| of_range(&range))
            .or_else(of_rules)
            .or_else(of_ipsec)
            .or_else(|| self.of_others());
        self.found = found.clone().map(|found| (Instant::now(), found));
        found
    }

    /// What a program sends on passes no rule of others. And the kernel may give the node's address and a
    /// port of the programs to a connection of a Pod that it masquerades; then the answers of an endpoint
    /// that both dial could go to the wrong one.
    fn of_others(&mut self) -> Option<String> {
        let mut legacy = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"].into_iter();
        legacy.find_map(of_names).or_else(|| {
            self.of_chains().unwrap_or_else(|error| {
                Some(format!("chains of nftables cannot be listed: {error}"))
            })
        })
    }

    fn of_chains(&mut self) -> io::Result<Option<String>> {
        if self.without_tables.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(None);
        }
        let netlink = Netlink::open(Some(NETFILTER))?;
        let generation = match nftables::generation(&netlink) {
            Err(error) if has_no_tables(&error) => {
                self.without_tables = Some(Instant::now());
                return Ok(None);
            }
            generation => generation?,
        };
        self.without_tables = None;
        if self.generation.as_ref() == Some(&generation) {
            return Ok(None);
        }
        let mut found = None;
        nftables::list(
            &netlink,
            |all| drop(all.op_getchain_dump(&Nfgenmsg::new())),
            |attributes| found = found.take().or_else(|| of_chain(attributes)),
        )?;
        self.generation = found.is_none().then_some(generation);
        Ok(found)
    }
}

/// A table of legacy iptables, whose rules are not known. `file` lists its tables.
fn of_names(file: &str) -> Option<String> {
    match read_to_string(file) {
        Ok(names) => {
            let name = names.lines().next()?;
            Some(format!("the table {name} of legacy iptables may have rules for them, too"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("{file} cannot be read: {error}")),
    }
}

/// Whether the kernel has no nftables.
fn has_no_tables(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    // `nfnetlink_rcv_msg` says EINVAL without the module.
    matches!(number, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

/// Rules of routing besides the kernel's own ones: the helper by which a program sends a packet on looks
/// up its route without the mark and the incoming device (`bpf_redirect_neigh`, net/core/filter.c).
fn of_rules() -> Option<String> {
    let request = request(libc::RTM_GETRULE, NLM_F_DUMP, &[0; RULE_HEADER]);
    let mut found = None;
    let listed = Netlink::open(None).and_then(|netlink| {
        netlink.ask(&request, |kind, body| {
            if kind == libc::RTM_NEWRULE {
                found = found.take().or_else(|| of_rule(body));
            }
        })
    });
    match listed {
        Ok(()) => found,
        Err(error) => Some(format!("rules of routing cannot be listed: {error}")),
    }
}

fn of_rule(body: &[u8]) -> Option<String> {
    let attributes = body.get(RULE_HEADER..)?;
    let number = |kind| attribute(attributes, kind).and_then(head::<u32>).unwrap_or_default();
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&body[RULE_FAMILY].into());
    let is_usual = body[RULE_ACTION] == TO_TABLE && USUAL_TABLES.contains(&number(RULE_TABLE));
    (is_ip && !is_usual).then(|| {
        format!(
            "the rule of `ip rule` with priority {} may lead to other nodes in another way",
            number(RULE_PRIORITY)
        )
    })
}

/// A chain of somebody else that packets pass which this node forwards.
fn of_chain(attributes: &[u8]) -> Option<String> {
    let number = |bytes| head::<u32>(bytes).map(u32::from_be);
    let name = |kind| attribute(attributes, kind).map(text);
    let hook = attribute(attribute(attributes, CHAIN_HOOK)?, HOOK_NUMBER).and_then(number)?;
    let rules = attribute(attributes, CHAIN_USE).and_then(number)?;
    let drops = attribute(attributes, CHAIN_POLICY).and_then(number) == Some(DROP);
    let (table, chain) = (name(CHAIN_TABLE)?, name(CHAIN_NAME)?);
    let is_ours = table.as_bytes() == TABLE.to_bytes();
    (FORWARDED.contains(&hook) && (rules != 0 || drops) && !is_ours)
        .then(|| format!("the chain {chain} of the nftables table {table} is for them, too"))
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

    /// A chain of the table `wall` as the kernel lists it.
    fn chain(hook: u32, rules: u32, policy: u32) -> Vec<u8> {
        let attribute = |kind: u16, value: &[u8]| {
            let length = (4 + value.len()) as u16;
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        [
            attribute(CHAIN_TABLE, b"wall\0"),
            attribute(CHAIN_NAME, b"out\0"),
            attribute(CHAIN_HOOK, &attribute(HOOK_NUMBER, &hook.to_be_bytes())),
            attribute(CHAIN_POLICY, &policy.to_be_bytes()),
            attribute(CHAIN_USE, &rules.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn chains_for_forwarded_packets_count_if_they_have_rules_or_drop_all() {
        let (input, output) = (1, 3);
        for (hook, rules, policy, counts) in [
            (0, 1, 1, true),
            (2, 1, 1, true),
            (2, 0, DROP, true),
            (4, 7, 1, true),
            (2, 0, 1, false),
            (input, 1, DROP, false),
            (output, 1, DROP, false),
        ] {
            let said = of_chain(&chain(hook, rules, policy));
            assert_eq!(said.is_some(), counts, "{hook} {rules} {policy}: {said:?}");
            assert!(said.is_none_or(|said| said.starts_with("the chain out of the nftables table wall")));
        }
    }

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
