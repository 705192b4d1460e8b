//! Floods: Ethernet frames that a guest sends as fast as its device takes them.

use std::ffi::CString;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::netns::NetNs;
use crate::wait::{PATIENCE, until};

/// Sends frames out of a device of a network namespace, again and again until `time` is over.
/// Returns how many were sent.
///
/// # Errors
/// There is no such device, or it takes no frame.
pub fn flood(netns: &NetNs, device: &str, frames: &[Vec<u8>], time: Duration) -> Result<u64> {
    netns.run(|| {
        let socket = raw(device)?;
        let (end, mut sent) = (Instant::now() + time, 0);
        for batch in frames.chunks(256).cycle() {
            for frame in batch {
                // A full queue refuses a frame: the next one is tried at once.
                sent += u64::from(socket.send(frame).is_ok());
            }
            if Instant::now() > end {
                break;
            }
        }
        ensure!(sent > 0, "{device} takes no frame");
        Ok(sent)
    })
}

/// Sends each frame out of a device of a network namespace once.
///
/// # Errors
/// There is no such device, or it takes no frame.
pub fn send_each(netns: &NetNs, device: &str, frames: &[Vec<u8>]) -> Result<()> {
    netns.run(|| {
        let socket = raw(device)?;
        frames.iter().try_for_each(|frame| {
            // A full queue refuses a frame.
            until("a device that takes a frame", PATIENCE, || {
                Ok(socket.send(frame).map(drop).map_err(|error| error.to_string()))
            })
            .map(drop)
        })
    })
}

/// A socket that sends frames out of a device of this thread's network namespace, and receives none.
fn raw(device: &str) -> Result<Socket> {
    let name = CString::new(device)?;
    // SAFETY: the name is terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    ensure!(index != 0, "no device {device}");
    let socket =
        Socket::new(Domain::PACKET, Type::RAW, None).context("cannot make a raw socket")?;
    // SAFETY: the storage is zeroed and has room for any address; the length is that of this one.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let link = storage.cast::<libc::sockaddr_ll>();
            (*link).sll_family = libc::AF_PACKET as libc::sa_family_t;
            (*link).sll_ifindex = index.cast_signed();
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })?
    };
    socket.bind(&address).with_context(|| format!("cannot bind to {device}"))?;
    Ok(socket)
}
