//! Asks the kernel for tables, chains and rules of nftables.

use std::ffi::CStr;
use std::io;

use netlink_bindings::nftables::{Chained, Nfgenmsg, Request};

use crate::netlink::{Netlink, attribute};

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
