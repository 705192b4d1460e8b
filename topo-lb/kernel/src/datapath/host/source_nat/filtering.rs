//! Rules of others for packets that this node forwards: what a program sends on does not pass them. And the
//! kernel may give the node's address and a port of the programs to a connection of a Pod that it
//! masquerades; then the answers of an endpoint that both dial could go to the wrong one.

use std::fs::read_to_string;
use std::io;
use std::time::Instant;

use libc::{
    NF_DROP, NF_INET_FORWARD, NF_INET_INGRESS, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING,
    NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_NETDEV, c_int,
};
use netlink_bindings::nftables::{ChainAttrs, Nfgenmsg};
use rustix::net::netlink::NETFILTER;

use super::PAUSE;
use crate::netlink::{Netlink, text};
use crate::nftables::{self, TABLE};

/// Looks for such rules.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// When the kernel had no nftables.
    without_tables: Option<Instant>,
    /// Number of the last change of any nftables table when its chains forbade nothing.
    generation: Option<Vec<u8>>,
}

impl Filters {
    /// A sentence about the first that are found, if any.
    pub(super) fn find(&mut self) -> Option<String> {
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
        for family in FAMILIES {
            let mut header = Nfgenmsg::new();
            header.nfgen_family = family as u8;
            nftables::list(
                &netlink,
                |all| drop(all.op_getchain_dump(&header)),
                |attributes| found = found.take().or_else(|| of_chain(attributes)),
            )?;
        }
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

/// The families whose chains packets pass that this node forwards.
const FAMILIES: [c_int; 4] = [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_NETDEV];
/// The hooks there. At ingress, the family netdev has the number of prerouting.
const HOOKS: [c_int; 4] =
    [NF_INET_INGRESS, NF_INET_PRE_ROUTING, NF_INET_FORWARD, NF_INET_POST_ROUTING];

/// A sentence about a chain of somebody else at these hooks, if it has a rule or drops all.
fn of_chain(attributes: &[u8]) -> Option<String> {
    let chain = ChainAttrs::new(attributes);
    let hook = chain.get_hook().ok()?.get_num().ok()?.cast_signed();
    let drops = chain.get_policy().is_ok_and(|policy| policy == NF_DROP.cast_unsigned());
    let has_rules = chain.get_use().is_ok_and(|rules| rules != 0);
    let (table, name) =
        (chain.get_table().unwrap_or_default(), chain.get_name().unwrap_or_default());
    (HOOKS.contains(&hook) && (has_rules || drops) && table != TABLE).then(|| {
        let (name, table) = (text(name.to_bytes()), text(table.to_bytes()));
        format!("the chain {name} of the nftables table {table} is for them, too")
    })
}

#[cfg(test)]
mod tests {
    use libc::{NF_ACCEPT, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT};
    use netlink_bindings::nftables::PushChainAttrs;

    use super::*;

    #[test]
    fn chains_for_forwarded_packets_count_if_they_have_rules_or_drop_all() {
        for (hook, rules, policy, counts) in [
            (NF_INET_INGRESS, 1, NF_ACCEPT, true),
            (NF_INET_PRE_ROUTING, 1, NF_ACCEPT, true),
            (NF_INET_FORWARD, 1, NF_ACCEPT, true),
            (NF_INET_FORWARD, 0, NF_DROP, true),
            (NF_INET_POST_ROUTING, 7, NF_ACCEPT, true),
            (NF_INET_FORWARD, 0, NF_ACCEPT, false),
            (NF_INET_LOCAL_IN, 1, NF_DROP, false),
            (NF_INET_LOCAL_OUT, 1, NF_DROP, false),
        ] {
            let mut chain = Vec::new();
            PushChainAttrs::new(&mut chain)
                .push_table(c"wall")
                .push_name(c"out")
                .nested_hook()
                .push_num(hook.cast_unsigned())
                .end_nested()
                .push_policy(policy.cast_unsigned())
                .push_use(rules);
            let said = of_chain(&chain);
            assert_eq!(said.is_some(), counts, "{hook} {rules} {policy}: {said:?}");
            assert!(said.is_none_or(|said| said.starts_with("the chain out of the nftables table wall")));
        }
    }
}
