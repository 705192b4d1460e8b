//! When devices come, go, or are renamed.
//!
//! The kernel's messages say only *that* something changed: what is there now is asked anew each
//! time. So a message that is lost, for lack of room, is no worse than one that came.

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use super::{Device, Pattern};

/// Changes of the devices of this network namespace.
#[derive(Debug)]
pub struct Changes {
    socket: AsyncFd<OwnedFd>,
}

impl Changes {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// The kernel gives no socket, or this is called outside of the runtime.
    pub fn listen() -> io::Result<Self> {
        Self::of(libc::RTMGRP_LINK)
    }

    /// Listens to changes of addresses, rather than of devices.
    ///
    /// # Errors
    ///
    /// As those of [`listen`](Self::listen).
    pub(super) fn of_addresses() -> io::Result<Self> {
        Self::of(libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    }

    fn of(groups: libc::c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all zero is a valid address.
        let mut address: libc::sockaddr_nl = unsafe { zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups as u32;
        let length = size_of::<libc::sockaddr_nl>() as u32;
        // SAFETY: an address of this length.
        let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is the one that the `OwnedFd` keeps open as long as it lives.
        Ok(Self { socket: unsafe { AsyncFd::register(socket)? } })
    }

    /// Returns after something has changed, perhaps more than once.
    ///
    /// # Errors
    ///
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

/// Takes all messages that are there; whether there were any.
fn drain(socket: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [0_u8; 16_384];
    let mut any = false;
    loop {
        // SAFETY: a buffer of this length. What does not fit is cut off, and not missed.
        let length =
            unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if length >= 0 {
            any = true;
            continue;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Messages were lost: that is a change, too.
            Some(libc::ENOBUFS) => any = true,
            Some(libc::EINTR) => {}
            _ if error.kind() == io::ErrorKind::WouldBlock && any => return Ok(true),
            _ => return Err(error),
        }
    }
}

/// The devices that are there now and that a pattern means. Only Ethernet devices: the programs
/// read an Ethernet header.
///
/// # Errors
///
/// The kernel does not say.
pub fn chosen(patterns: &[Pattern]) -> io::Result<Vec<Device>> {
    let mut devices = all()?;
    devices.retain(|device| {
        patterns.iter().any(|pattern| pattern.matches(&device.name)) && is_ethernet(&device.name)
    });
    devices.sort();
    Ok(devices)
}

fn all() -> io::Result<Vec<Device>> {
    // SAFETY: no arguments.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut devices = Vec::new();
    let mut entry = list;
    // SAFETY: the list ends with an entry of zeros; names are terminated.
    unsafe {
        while (*entry).if_index != 0 && !(*entry).if_name.is_null() {
            let name = CStr::from_ptr((*entry).if_name).to_string_lossy().into_owned();
            devices.push(Device { index: (*entry).if_index, name });
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    Ok(devices)
}

/// Whether a device carries Ethernet; one that has gone meanwhile carries nothing.
fn is_ethernet(name: &str) -> bool {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return false;
    }
    // SAFETY: a new descriptor, which nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *place = byte as libc::c_char;
    }
    // SAFETY: a request with a terminated name; on success the kernel has filled in the address.
    unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) == 0
            && request.ifr_ifru.ifru_hwaddr.sa_family == libc::ARPHRD_ETHER
    }
}
