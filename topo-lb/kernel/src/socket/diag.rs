//! A netlink socket of sock_diag, which lists and ends the sockets of one network namespace.

use std::io;

use netlink_packet_sock_diag::inet::SocketId;
use rustix::net::netlink::SOCK_DIAG;

use super::message::{self, Kind, Seen};
use super::rest::Activity;
use crate::netlink::Netlink;
use topo_lb_core::cluster::Protocol;

/// Why sockets cannot be ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unable {
    /// UDP sockets cannot be listed.
    #[error("this kernel does not show UDP sockets (CONFIG_INET_UDP_DIAG)")]
    Unseen,
    /// Sockets can be listed, but not ended.
    #[error("this kernel lets nobody end sockets (CONFIG_INET_DIAG_DESTROY)")]
    Endless,
    /// Another error.
    #[error("sock_diag does not serve: {0}")]
    Broken(#[from] io::Error),
}

/// The netlink socket. It stays in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Diag(Netlink);

impl Diag {
    /// Opens it in the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn open() -> io::Result<Self> {
        Netlink::open(Some(SOCK_DIAG)).map(Self)
    }

    /// Checks that sockets can be listed and ended.
    ///
    /// # Errors
    /// They cannot.
    pub(super) fn probe(&self) -> Result<(), Unable> {
        let kind = Kind { family: libc::AF_INET as u8, protocol: Protocol::Udp };
        match self.0.ask(&message::dump(kind, None), |_, _| {}) {
            // The kernel has no handler for UDP, and no module.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unable::Unseen),
            listed => listed?,
        }
        // No socket has port zero or cookie zero.
        match self.0.ask(&message::destroy(kind, SocketId::new_v4()), |_, _| {}) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Err(Unable::Endless),
            // ENOENT shows that the kernel looked for the socket.
            _ => Ok(()),
        }
    }

    /// Lists the connected sockets of a kind; with `port`, only those with this port at the peer.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub(super) fn sockets(
        &self,
        kind: Kind,
        port: Option<u16>,
        mut each: impl FnMut(Seen),
    ) -> io::Result<()> {
        self.0.ask(&message::dump(kind, port), |said, body| {
            message::socket(said, body, kind.protocol).into_iter().for_each(&mut each);
        })
    }

    /// Lists the established TCP sockets of a family, and what they do; with `port`, only those with this port at
    /// the peer.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub(super) fn active(
        &self,
        family: u8,
        port: Option<u16>,
        mut each: impl FnMut(Seen, Activity),
    ) -> io::Result<()> {
        self.0.ask(&message::dump_active(family, port), |said, body| {
            if let Some((seen, activity)) = message::active(said, body) {
                each(seen, activity);
            }
        })
    }

    /// Ends a socket. Returns false if it is gone, or another one has its addresses.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn end(&self, seen: &Seen) -> io::Result<bool> {
        match self.0.ask(&message::destroy(seen.kind, seen.id.clone()), |_, _| {}) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
