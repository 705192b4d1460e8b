//! Waits for changes of devices, addresses and routes.
//!
//! Only the arrival of a message counts, as the caller then lists everything. So a message that is
//! lost for want of buffer space does no harm.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::unix::AsyncFd;

use crate::netlink;

/// Addresses and routes: the default route decides about the primary address.
const ADDRESSES: libc::c_int = libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;

/// Changes of the devices of this network namespace, of their addresses, and of routes.
#[derive(Debug)]
pub struct Changes {
    socket: AsyncFd<OwnedFd>,
}

impl Changes {
    /// Listens from now on.
    ///
    /// # Errors
    /// The kernel opens no socket, or the caller is outside of the runtime.
    pub fn listen() -> io::Result<Self> {
        Self::of(libc::RTMGRP_LINK | ADDRESSES)
    }

    /// Listens to changes of addresses and routes alone.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub(super) fn of_addresses() -> io::Result<Self> {
        Self::of(ADDRESSES)
    }

    fn of(groups: libc::c_int) -> io::Result<Self> {
        let socket = netlink::listen(None, groups as u32)?;
        // SAFETY: the descriptor is the one that the `OwnedFd` keeps open as long as it lives.
        Ok(Self { socket: unsafe { AsyncFd::register(socket)? } })
    }

    /// Returns after a change, possibly more than once per change.
    ///
    /// # Errors
    /// The socket is broken.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| drain(socket.get_ref())) {
                Ok(Ok(true)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(false)) | Err(_) => {}
            }
        }
    }
}

/// Reads all waiting messages; returns whether there were any.
fn drain(socket: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [0_u8; 16_384];
    let mut any = false;
    loop {
        // A message that does not fit is cut off; its content is not needed.
        match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            // Messages were lost: that also means a change.
            Ok(_) | Err(Errno::NOBUFS) => any = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if any => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
