//! Asks the kernel for tables, chains and rules of nftables.

use std::io;

use netlink_bindings::nftables::{Chained, Nfgenmsg, Request};

use crate::netlink::Netlink;

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
