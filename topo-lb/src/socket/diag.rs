//! A netlink socket of sock_diag, which sees and ends the sockets of one network namespace.

use std::io;

use rustix::net::netlink::SOCK_DIAG;

use super::message::{self, Kind, Seen};
use crate::cluster::Protocol;
use crate::netlink::Netlink;

/// Why sockets cannot be ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unable {
    /// Neither of them can be listed.
    #[error("this kernel does not show UDP sockets (CONFIG_INET_UDP_DIAG)")]
    Unseen,
    /// They can be listed.
    #[error("this kernel lets nobody end sockets (CONFIG_INET_DIAG_DESTROY)")]
    Endless,
    /// Something else.
    #[error("sock_diag does not serve: {0}")]
    Broken(#[from] io::Error),
}

/// The netlink socket. It stays in the namespace in which it was made.
#[derive(Debug)]
pub(super) struct Diag(Netlink);

impl Diag {
    /// In the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel gives no such socket.
    pub(super) fn open() -> io::Result<Self> {
        Netlink::open(Some(SOCK_DIAG)).map(Self)
    }

    /// Whether sockets can be seen and ended at all.
    ///
    /// # Errors
    /// They cannot.
    pub(super) fn probe(&self) -> Result<(), Unable> {
        let kind = Kind { family: libc::AF_INET as u8, protocol: Protocol::Udp };
        match self.0.ask(&message::dump(kind, None), |_, _| {}) {
            // The kernel has no handler for UDP, nor a module.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unable::Unseen),
            listed => listed?,
        }
        match self.0.ask(&message::destroy_nothing(kind), |_, _| {}) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Err(Unable::Endless),
            // That there is no such socket: it was looked for.
            _ => Ok(()),
        }
    }

    /// The connected sockets of a kind; with `port`, those whose peer has this one.
    ///
    /// # Errors
    /// The kernel does not say.
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

    /// Ends one socket; whether it was there, and still the same.
    ///
    /// # Errors
    /// The kernel does not let it be ended.
    pub(super) fn end(&self, Seen { kind, id, .. }: Seen) -> io::Result<bool> {
        match self.0.ask(&message::destroy(kind, id), |_, _| {}) {
            Ok(()) => Ok(true),
            // There is none with these addresses any more, or another one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
