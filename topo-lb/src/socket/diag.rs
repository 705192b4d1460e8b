//! A netlink socket of sock_diag, which sees and ends the sockets of one network namespace.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::message::{self, Kind, Said, Seen};
use crate::cluster::Protocol;

/// The kernel answers at once; a limit all the same, so that nothing hangs for ever.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel fills no datagram beyond 32 KiB (`netlink_recvmsg`), unless one socket needs more.
const BUFFER: usize = 64 * 1024;

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
pub(super) struct Diag {
    socket: OwnedFd,
}

impl Diag {
    /// In the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel gives no such socket.
    pub(super) fn open() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Whether sockets can be seen and ended at all.
    ///
    /// # Errors
    /// They cannot.
    pub(super) fn probe(&self) -> Result<(), Unable> {
        let kind = Kind { family: libc::AF_INET as u8, protocol: Protocol::Udp };
        match self.ask(&message::dump(kind, None), kind, |_| {}) {
            // The kernel has no handler for UDP, nor a module.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unable::Unseen),
            listed => listed?,
        }
        match self.ask(&message::destroy_nothing(kind), kind, |_| {}) {
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
        self.ask(&message::dump(kind, port), kind, |said| {
            if let Said::Socket(seen) = said {
                each(seen);
            }
        })
    }

    /// Ends one socket; whether it was there, and still the same.
    ///
    /// # Errors
    /// The kernel does not let it be ended.
    pub(super) fn end(&self, Seen { kind, id, .. }: Seen) -> io::Result<bool> {
        match self.ask(&message::destroy(kind, id), kind, |_| {}) {
            Ok(()) => Ok(true),
            // There is none with these addresses any more, or another one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn ask(&self, request: &[u8], kind: Kind, mut each: impl FnMut(Said)) -> io::Result<()> {
        send(&self.socket, request, SendFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, _) = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            for said in message::said(&buffer[..length], kind.protocol) {
                match said {
                    Said::End(0) => return Ok(()),
                    Said::End(error) => return Err(io::Error::from_raw_os_error(error)),
                    said => each(said),
                }
            }
        }
    }
}
