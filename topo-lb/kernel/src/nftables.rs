//! Asks the kernel for tables, chains and rules of nftables.

use std::ffi::CStr;
use std::io;

use libc::{NF_DROP, NF_INET_FORWARD, NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6};
use netlink_bindings::nftables::{ChainAttrs, Chained, Nfgenmsg, Request};
use rustix::net::netlink::NETFILTER;

use crate::netlink::{Netlink, attribute, text};

/// The name of topo-lb's table.
pub(crate) const TABLE: &CStr = c"topo-lb";

/// `NFTA_GEN_ID`, include/uapi/linux/netfilter/nf_tables.h.
const GENERATION: u16 = 1;

/// Sends the request that `ask` makes; calls `each` with the attributes of each object of the answer.
/// That what was asked for is missing is no error.
///
/// # Errors
/// The kernel refuses, or does not answer.
pub(crate) fn list(
    netlink: &Netlink,
    ask: impl FnOnce(Request<'_>),
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut request = Chained::new(0);
    ask(request.request());
    let asked = netlink.ask(request.finalize().buf(), |_, body| {
        if let Some(attributes) = body.get(Nfgenmsg::len()..) {
            each(attributes);
        }
    });
    match asked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        asked => asked,
    }
}

/// The number of the last change of any table of this network namespace.
///
/// # Errors
/// As [`list`].
pub(crate) fn generation(netlink: &Netlink) -> io::Result<Vec<u8>> {
    let mut number = None;
    list(
        netlink,
        |all| drop(all.op_getgen_do(&Nfgenmsg::new())),
        |attributes| number = attribute(attributes, GENERATION).map(<[u8]>::to_vec),
    )?;
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The chains that drop what is forwarded unless a rule accepts it, as `family table chain`. Their rules are not read.
///
/// # Errors
/// The kernel has no nftables, or does not answer.
pub fn chains_that_drop_forwarded() -> io::Result<Vec<String>> {
    let netlink = Netlink::open(Some(NETFILTER))?;
    let mut found = Vec::new();
    for (family, name) in [(NFPROTO_INET, "inet"), (NFPROTO_IPV4, "ip"), (NFPROTO_IPV6, "ip6")] {
        let mut header = Nfgenmsg::new();
        header.nfgen_family = family as u8;
        list(
            &netlink,
            |all| drop(all.op_getchain_dump(&header)),
            |attributes| found.extend(of_chain(name, attributes)),
        )?;
    }
    Ok(found)
}

fn of_chain(family: &str, attributes: &[u8]) -> Option<String> {
    let chain = ChainAttrs::new(attributes);
    let hook = chain.get_hook().ok()?.get_num().ok()?.cast_signed();
    let drops = chain.get_policy().is_ok_and(|policy| policy == NF_DROP.cast_unsigned());
    let [table, name] =
        [chain.get_table(), chain.get_name()].map(|it| text(it.unwrap_or_default().to_bytes()));
    (hook == NF_INET_FORWARD && drops).then(|| format!("{family} {table} {name}"))
}
