//! The network namespace of this process.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketType, socket};

/// The cookie of this process's network namespace, which programs get by `bpf_get_netns_cookie`.
/// `None`: the kernel does not tell (`SO_NETNS_COOKIE`, e8b9eab99232, Linux 5.14).
///
/// # Errors
/// A socket cannot be made.
pub fn cookie() -> io::Result<Option<NonZeroU64>> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: an open socket; the kernel writes at most `length` bytes, for which `cookie` has room.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    Ok(if result == 0 { NonZeroU64::new(cookie) } else { None })
}
