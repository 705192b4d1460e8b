//! Sends whole frames by one device, to agents of other nodes ([`topo_lb_core::peers`]).

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, Socket, Type};

use super::Device;

/// A socket (packet(7)) that gets nothing.
#[derive(Debug)]
pub struct Frames(Socket);

impl Frames {
    /// Opens it. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(device: &Device) -> io::Result<Self> {
        // Without a protocol: what a device receives would have to be copied for it.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        socket.set_nonblocking(true)?;
        // SAFETY: integers: zero is a value of each.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = device.index.cast_signed();
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is one of this family, with its length, and outlives the call.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(socket))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.0.send(frame).map(drop)
    }
}
