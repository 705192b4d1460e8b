//! Requests to the kernel over netlink(7), and notifications from it:
//! `include/uapi/linux/netlink.h`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

/// Timeout for an answer. The kernel answers at once; this only prevents waiting for ever.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel's datagrams have at most 32 KiB (`netlink_recvmsg`), unless one object needs more.
const BUFFER: usize = 64 * 1024;

/// `struct nlmsghdr`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// A netlink socket. It stays in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket; `None` is `NETLINK_ROUTE`, which is zero.
    ///
    /// # Errors
    /// The kernel opens no such socket.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// Sends a request; calls `each` with the kind and the body of each message of the answer.
    ///
    /// # Errors
    /// The kernel refuses, or does not answer.
    pub(crate) fn ask(&self, request: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        send(&self.0, request, SendFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, _) = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            if take(&buffer[..length], &mut each)? {
                return Ok(());
            }
        }
    }
}

/// A non-blocking socket that receives the notifications of these groups (`RTMGRP_*`).
///
/// # Errors
/// The kernel opens no such socket.
pub(crate) fn listen(groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A request with a body of one structure.
pub(crate) fn request(kind: u16, flags: libc::c_int, body: &impl Pod) -> Vec<u8> {
    message(kind, flags | libc::NLM_F_REQUEST, bytemuck::bytes_of(body))
}

fn message(kind: u16, flags: libc::c_int, body: &[u8]) -> Vec<u8> {
    let length = (size_of::<Header>() + body.len()) as u32;
    let header = Header { length, kind, flags: flags as u16, sequence: 0, port: 0 };
    [bytemuck::bytes_of(&header), body].concat()
}

/// Reads a datagram's messages; returns whether the answer ends there. Ignores cut-off messages.
fn take(mut datagram: &[u8], each: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while let Some(header) = head::<Header>(datagram) {
        let length = header.length as usize;
        let Some(body) = datagram.get(size_of::<Header>()..length) else { break };
        match i32::from(header.kind) {
            // Both begin with an error number; in `NLMSG_ERROR`, zero is an acknowledgement.
            libc::NLMSG_DONE | libc::NLMSG_ERROR => match head::<i32>(body).unwrap_or_default() {
                0 => return Ok(true),
                code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
            },
            _ => each(header.kind, body),
        }
        // Messages are aligned to 4 bytes.
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads a `T` from the start of `bytes`.
pub(crate) fn head<T: Pod>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// The value of the first attribute of this type.
pub(crate) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// `NLA_TYPE_MASK`: the type without the flag for nesting.
    const TYPE: u16 = 0x3fff;
    loop {
        let [length, kind] = head::<[u16; 2]>(attributes)?;
        let length = usize::from(length);
        let value = attributes.get(4..length)?;
        if kind & TYPE == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// A zero-terminated text, made printable.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: u16 = 20;
    const DONE: u16 = libc::NLMSG_DONE as u16;
    const ERROR: u16 = libc::NLMSG_ERROR as u16;

    /// A message with a body of any length, aligned as by the kernel.
    fn aligned(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, 0, body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn taken(datagram: &[u8]) -> (io::Result<bool>, Vec<(u16, Vec<u8>)>) {
        let mut all = Vec::new();
        let result = take(datagram, &mut |kind, body: &[u8]| all.push((kind, body.to_vec())));
        (result, all)
    }

    #[test]
    fn messages_come_one_after_the_other_and_then_the_end() {
        let two = [aligned(SOME, b"first"), aligned(SOME + 1, b"")].concat();
        let wanted = vec![(SOME, b"first".to_vec()), (SOME + 1, Vec::new())];
        let (ends, all) = taken(&two);
        assert_eq!((ends.unwrap(), &all), (false, &wanted));
        for end in [aligned(DONE, &[0; 4]), aligned(ERROR, &[0; 4]), aligned(DONE, &[])] {
            let (ends, all) = taken(&[&two[..], &end, &two].concat());
            assert_eq!((ends.unwrap(), &all), (true, &wanted));
        }
    }

    #[test]
    fn an_error_is_a_number_of_errno() {
        for kind in [ERROR, DONE] {
            let (ends, _) = taken(&aligned(kind, &(-libc::ENODEV).to_ne_bytes()));
            assert_eq!(ends.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
        assert!(taken(&aligned(ERROR, &i32::MIN.to_ne_bytes())).0.is_err());
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = message(SOME, 0, b"body");
        for length in 0..whole.len() {
            let (ends, all) = taken(&whole[..length]);
            assert_eq!((ends.unwrap(), all), (false, Vec::new()), "{length} bytes");
        }
        // A length shorter than the header.
        let mut lies = whole;
        lies[..4].copy_from_slice(&3_u32.to_ne_bytes());
        assert!(taken(&lies).1.is_empty());
    }

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let request = request(SOME, libc::NLM_F_DUMP, &7_u32);
        assert_eq!(request.len(), 20);
        assert_eq!(request[..4], 20_u32.to_ne_bytes());
        assert_eq!(request[4..8], [20, 0, 1, 3]);
    }
}
