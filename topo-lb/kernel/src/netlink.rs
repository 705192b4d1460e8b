//! Requests to the kernel over netlink(7), and notifications from it:
//! `include/uapi/linux/netlink.h`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytemuck::Pod;
use netlink_packet_core::{
    Emitable as _, NLA_HEADER_SIZE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NlasIterator,
};
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

/// Bytes of a question, as a rule.
const QUESTION: usize = 128;

/// A netlink socket. It stays in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket; `None` is `NETLINK_ROUTE`, which is zero.
    ///
    /// # Errors
    /// The kernel opens no such socket.
    pub fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// Sends a request; calls `each` with the kind and the body of each message of the answer.
    ///
    /// # Errors
    /// The kernel refuses, or does not answer.
    pub fn ask(&self, request: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.exchange(request, None, each)
    }

    /// Sends commands; returns once the one with the sequence number `last` is acknowledged.
    ///
    /// # Errors
    /// The kernel refuses a command, or does not answer.
    pub(crate) fn command(&self, commands: &[u8], last: u32) -> io::Result<()> {
        self.exchange(commands, Some(last), |_, _| {})
    }

    /// Sends questions about things of one kind together, each with the body that `write` appends for its place; calls
    /// `each` with the place of a question and the body of its answer. What does not exist has no answer. At most as many
    /// as there is room for in a socket's buffer.
    ///
    /// # Errors
    /// The kernel does not answer, or refuses a question for another reason.
    pub(crate) fn ask_each(
        &self,
        kind: u16,
        questions: usize,
        write: impl Fn(usize, &mut Vec<u8>),
        mut each: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let mut all = Vec::with_capacity(questions * QUESTION);
        for (place, number) in (0..questions).zip(1_u32..) {
            let begin = all.len();
            let mut header = header(kind, NLM_F_REQUEST, number);
            let body = begin + header.buffer_len();
            all.resize(body, 0);
            write(place, &mut all);
            header.length = (all.len() - begin) as u32;
            header.emit(&mut all[begin..body]);
            // Messages are aligned to 4 bytes.
            all.resize(all.len().next_multiple_of(4), 0);
        }
        send(&self.0, &all, SendFlags::empty())?;
        let (mut buffer, mut answered, mut refused) = (vec![0; BUFFER], 0, None);
        while answered < questions {
            let (length, _) = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            for message in messages(&buffer[..length]) {
                answered += 1;
                if message.message_type() != NLMSG_ERROR {
                    each((message.sequence_number() as usize).wrapping_sub(1), message.payload());
                    continue;
                }
                let code = head::<i32>(message.payload()).unwrap_or_default().saturating_neg();
                if code != libc::ENOENT {
                    refused = Some(io::Error::from_raw_os_error(code));
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn exchange(
        &self,
        request: &[u8],
        last: Option<u32>,
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        send(&self.0, request, SendFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, _) = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            if take(&buffer[..length], last, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// A non-blocking socket that receives the notifications of these groups, one bit each. `None` is
/// `NETLINK_ROUTE` (`RTMGRP_*`), as in [`Netlink::open`].
///
/// # Errors
/// The kernel opens no such socket.
pub(crate) fn listen(protocol: Option<Protocol>, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A request with these flags (`NLM_F_*`).
pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    message(kind, flags | NLM_F_REQUEST, 0, body)
}

/// A header without the message's length.
fn header(kind: u16, flags: u16, sequence_number: u32) -> NetlinkHeader {
    let mut header = NetlinkHeader::default();
    (header.message_type, header.flags) = (kind, flags);
    header.sequence_number = sequence_number;
    header
}

fn message(kind: u16, flags: u16, sequence_number: u32, body: &[u8]) -> Vec<u8> {
    let mut header = header(kind, flags, sequence_number);
    header.length = (header.buffer_len() + body.len()) as u32;
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    bytes.extend(body);
    bytes
}

/// The messages of a datagram, without those that are cut off.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        // Messages are aligned to 4 bytes.
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
        Some(message)
    })
}

/// Calls `each` with the kind and the body of each notification of a datagram.
pub(crate) fn notifications(datagram: &[u8], mut each: impl FnMut(u16, &[u8])) {
    // A notification acknowledges nothing.
    let _ = take(datagram, None, &mut each);
}

/// Reads a datagram's messages; returns whether the answer ends there: with any acknowledgement, or
/// with that of the `last` command. Ignores cut-off messages.
fn take(datagram: &[u8], last: Option<u32>, each: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    for message in messages(datagram) {
        match message.message_type() {
            // Both begin with an error number; in `NLMSG_ERROR`, zero is an acknowledgement.
            NLMSG_DONE | NLMSG_ERROR => match head::<i32>(message.payload()).unwrap_or_default() {
                0 if last.is_some_and(|last| last != message.sequence_number()) => {}
                0 => return Ok(true),
                code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
            },
            kind => each(kind, message.payload()),
        }
    }
    Ok(false)
}

/// Reads a `T` from the start of `bytes`.
pub(crate) fn head<T: Pod>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// A zero-terminated text, made printable.
pub(crate) fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).escape_debug().to_string()
}

/// The value of the first attribute of this type.
pub(crate) fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = all.find(|attribute| attribute.kind() == wanted)?;
    let end = found.length().into();
    found.into_inner().get(NLA_HEADER_SIZE..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: u16 = 20;

    /// A message with a body of any length, aligned as by the kernel.
    fn aligned(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, 0, 0, body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn taken(datagram: &[u8]) -> (io::Result<bool>, Vec<(u16, Vec<u8>)>) {
        let mut all = Vec::new();
        let result = take(datagram, None, &mut |kind, body: &[u8]| all.push((kind, body.to_vec())));
        (result, all)
    }

    #[test]
    fn messages_come_one_after_the_other_and_then_the_end() {
        let two = [aligned(SOME, b"first"), aligned(SOME + 1, b"")].concat();
        let wanted = vec![(SOME, b"first".to_vec()), (SOME + 1, Vec::new())];
        let (ends, all) = taken(&two);
        assert_eq!((ends.unwrap(), &all), (false, &wanted));
        for end in [(NLMSG_DONE, &[0; 4][..]), (NLMSG_ERROR, &[0; 4]), (NLMSG_DONE, &[])] {
            let (ends, all) = taken(&[&two[..], &aligned(end.0, end.1), &two].concat());
            assert_eq!((ends.unwrap(), &all), (true, &wanted));
        }
    }

    #[test]
    fn commands_are_done_with_the_last_acknowledgement_or_the_first_error() {
        let answer = |sequence: u32, code: i32| {
            let mut bytes = aligned(NLMSG_ERROR, &code.to_ne_bytes());
            bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
            bytes
        };
        let ends = |answers: &[Vec<u8>]| take(&answers.concat(), Some(2), &mut |_, _: &[u8]| {});
        assert!(!ends(&[answer(0, 0), answer(1, 0)]).unwrap());
        assert!(ends(&[answer(0, 0), answer(1, 0), answer(2, 0)]).unwrap());
        let error = ends(&[answer(0, 0), answer(1, -libc::ENOENT), answer(2, 0)]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn an_error_is_a_number_of_errno() {
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            let (ends, _) = taken(&aligned(kind, &(-libc::ENODEV).to_ne_bytes()));
            assert_eq!(ends.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
        assert!(taken(&aligned(NLMSG_ERROR, &i32::MIN.to_ne_bytes())).0.is_err());
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = message(SOME, 0, 0, b"body");
        for length in 0..whole.len() {
            let (ends, all) = taken(&whole[..length]);
            assert_eq!((ends.unwrap(), all), (false, Vec::new()), "{length} bytes");
        }
        // A length shorter than the header.
        let mut lies = whole;
        lies[..4].copy_from_slice(&3_u32.to_ne_bytes());
        assert!(taken(&lies).1.is_empty());
    }
}
