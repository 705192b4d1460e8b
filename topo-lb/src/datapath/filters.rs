//! Filters of a device's clsact queueing discipline, as the kernel lists them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::tc::Direction;

/// The kernel answers at once; a limit all the same, so that nothing hangs for ever.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel fills no datagram beyond 32 KiB (`netlink_recvmsg`).
const BUFFER: usize = 64 * 1024;
/// `NLM_F_REQUEST | NLM_F_DUMP`, include/uapi/linux/netlink.h.
const DUMP: u16 = 0x301;
/// `TCA_KIND`, `TCA_OPTIONS`, include/uapi/linux/rtnetlink.h.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// `TCA_BPF_NAME`, include/uapi/linux/pkt_cls.h.
const BPF_NAME: u16 = 7;

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

/// `struct tcmsg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Message {
    family: u8,
    padding: [u8; 3],
    device: u32,
    handle: u32,
    parent: u32,
    /// The priority in the upper half, the protocol in the lower.
    info: u32,
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Filter {
    /// The lower is asked first.
    pub(super) priority: u16,
    pub(super) handle: u32,
    /// `bpf` or `u32`, say, and the program's name, if it has one.
    pub(super) name: String,
}

/// Asks the kernel, in the network namespace in which it was opened.
pub(super) struct Filters(OwnedFd);

impl Filters {
    /// # Errors
    /// The kernel gives no socket.
    pub(super) fn open() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        // NETLINK_ROUTE is zero, which is the default.
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// The filters of a device; none where it has no clsact queueing discipline.
    ///
    /// # Errors
    /// The kernel does not say: the device is gone, perhaps.
    pub(super) fn of(&self, device: u32, direction: Direction) -> io::Result<Vec<Filter>> {
        send(&self.0, &request(device, direction), SendFlags::empty())?;
        let mut all = Vec::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, _) = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            if take(&buffer[..length], &mut all)? {
                all.sort();
                all.dedup();
                return Ok(all);
            }
        }
    }
}

fn request(device: u32, direction: Direction) -> Vec<u8> {
    // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS or TC_H_MIN_EGRESS), include/uapi/linux/pkt_sched.h.
    let parent = match direction {
        Direction::Ingress => 0xffff_fff2,
        Direction::Egress => 0xffff_fff3,
    };
    let length = size_of::<Header>() + size_of::<Message>();
    let header = Header {
        length: length as u32,
        kind: libc::RTM_GETTFILTER,
        flags: DUMP,
        sequence: 0,
        port: 0,
    };
    let message = Message { device, parent, ..Message::zeroed() };
    [bytemuck::bytes_of(&header), bytemuck::bytes_of(&message)].concat()
}

/// Takes the filters of a datagram; whether it was the last one.
fn take(mut datagram: &[u8], all: &mut Vec<Filter>) -> io::Result<bool> {
    while let Some(header) = head::<Header>(datagram) {
        let length = header.length as usize;
        let Some(body) = datagram.get(size_of::<Header>()..length) else { break };
        match i32::from(header.kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = head::<i32>(body).unwrap_or_default();
                return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-code)) };
            }
            kind if kind == i32::from(libc::RTM_NEWTFILTER) => all.extend(filter(body)),
            _ => {}
        }
        // Each begins at a multiple of four.
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// `None` for what stands for a priority as a whole, and is no filter.
fn filter(body: &[u8]) -> Option<Filter> {
    let message = head::<Message>(body)?;
    if message.handle == 0 {
        return None;
    }
    let attributes = body.get(size_of::<Message>()..)?;
    let kind = text(attribute(attributes, KIND)?);
    let program = attribute(attributes, OPTIONS).and_then(|options| attribute(options, BPF_NAME));
    let name = match program {
        Some(program) => format!("{kind} {}", text(program)),
        None => kind,
    };
    Some(Filter { priority: (message.info >> 16) as u16, handle: message.handle, name })
}

/// The value of the first attribute of a type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// `NLA_TYPE_MASK`: without the flag that it is nested.
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

/// A terminated text, printable.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).escape_debug().to_string()
}

fn head<T: Pod>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (4 + value.len()) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (size_of::<Header>() + body.len()) as u32;
        let header = Header { length, kind, flags: 0, sequence: 0, port: 0 };
        [bytemuck::bytes_of(&header), body].concat()
    }

    fn body(handle: u32) -> Vec<u8> {
        let message = Message { handle, info: 7 << 16 | 0x0300, ..Message::zeroed() };
        let options = attribute_of(BPF_NAME, b"to_pod\0");
        [
            bytemuck::bytes_of(&message),
            &attribute_of(KIND, b"bpf\0"),
            &attribute_of(OPTIONS | 0x8000, &options),
        ]
        .concat()
    }

    #[test]
    fn filters_come_one_after_the_other_and_then_the_end() {
        let mut all = Vec::new();
        let first =
            [message(libc::RTM_NEWTFILTER, &body(0)), message(libc::RTM_NEWTFILTER, &body(1))];
        assert!(!take(&first.concat(), &mut all).unwrap());
        assert_eq!(all, [Filter { priority: 7, handle: 1, name: "bpf to_pod".to_owned() }]);
        assert!(take(&message(libc::NLMSG_DONE as u16, &[0; 4]), &mut all).unwrap());
    }

    #[test]
    fn an_error_is_a_number_of_errno() {
        let no_device = message(libc::NLMSG_ERROR as u16, &(-libc::ENODEV).to_ne_bytes());
        let error = take(&no_device, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn what_is_cut_off_is_no_filter() {
        let whole = message(libc::RTM_NEWTFILTER, &body(1));
        for length in 0..whole.len() {
            let mut all = Vec::new();
            assert!(!take(&whole[..length], &mut all).unwrap());
            assert_eq!(all, []);
        }
        let body = body(1);
        for length in 0..body.len() {
            // Cut inside of a message: it neither panics nor loops.
            let _ = filter(&body[..length]);
        }
    }

    #[test]
    fn the_kernel_lists_no_filters_of_the_loopback_device() {
        let filters = Filters::open().expect("a socket");
        assert_eq!(filters.of(1, Direction::Egress).unwrap_or_default(), []);
    }
}
