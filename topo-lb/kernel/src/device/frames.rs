//! Whole frames of one device, to and from agents of other nodes ([`topo_lb_core::peers`]).

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::unix::AsyncFd;
use topo_lb_core::cluster::Family;
use topo_lb_core::peers::frame::{HOP_LIMIT, PORT};
use topo_lb_core::peers::message::LENGTH;

use super::Device;

/// Most bytes of a frame that are read: an IPv6 header is the longest one before a message.
const ROOM: usize = 14 + 40 + 8 + LENGTH;
/// Frames that one call takes.
const TOGETHER: usize = 64;

/// Two sockets (packet(7)), one for each version of IP: their protocol is what the kernel takes frames for. They get
/// what reaches IP: nothing that tc has redirected.
#[derive(Debug)]
pub struct Frames([AsyncFd<Socket>; 2]);

impl Frames {
    /// Opens them. Needs a runtime, and CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(device: &Device) -> io::Result<Self> {
        let [four, six] = Family::BOTH.map(|family| open(family, device));
        Ok(Self([four?, six?]))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn send(&self, family: Family, frame: &[u8]) -> io::Result<()> {
        self.0[place(family)].get_ref().send(frame).map(drop)
    }

    /// Waits for frames of agents, and calls `each` with some; each may be cut off behind a message's end.
    ///
    /// # Errors
    /// The device is down or gone.
    pub async fn hear(&self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let [four, six] = &self.0;
        let mut ready = tokio::select! {
            ready = four.readable() => ready?,
            ready = six.readable() => ready?,
        };
        let mut frame = [0; ROOM + 1];
        for _ in 0..TOGETHER {
            let read = |socket: &AsyncFd<Socket>| io::Read::read(&mut socket.get_ref(), &mut frame);
            match ready.try_io(read) {
                Ok(length) => each(&frame[..length?]),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

fn place(family: Family) -> usize {
    usize::from(family == Family::V6)
}

/// `ETH_P_IP` or `ETH_P_IPV6`.
fn protocol(family: Family) -> u16 {
    (if family == Family::V4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 }) as u16
}

fn open(family: Family, device: &Device) -> io::Result<AsyncFd<Socket>> {
    // Without a protocol, it gets nothing before it has its filter.
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    socket.set_nonblocking(true)?;
    socket.attach_filter(&filter(family))?;
    // SAFETY: integers: zero is a value of each.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol(family).to_be();
    address.sll_ifindex = device.index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is one of this family, with its length, and outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is the one that the `Socket` keeps open as long as it lives.
    Ok(unsafe { AsyncFd::register(socket)? })
}

/// Takes frames to this host that are as an agent's around its message: every other packet that reaches IP costs the
/// first comparisons, and those of somebody far away need the right hop limit and an address that no host has.
fn filter(family: Family) -> Vec<SockFilter> {
    const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const TAKE: u32 = libc::BPF_RET | libc::BPF_K;
    const IP: u32 = 14;
    /// The length of UDP.
    const UDP: u32 = 8 + LENGTH as u32;
    let host = [
        (WORD, (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned()),
        (IS, libc::PACKET_HOST.into()),
    ];
    let protocol = libc::IPPROTO_UDP as u32;
    let ports = u32::from(PORT) << 16 | u32::from(PORT);
    let (first, addresses, begin) = match family {
        Family::V4 => (
            vec![
                (BYTE, IP + 9),
                (IS, protocol),
                (BYTE, IP + 8),
                (IS, HOP_LIMIT.into()),
                // Version 4, no options, and the length of all.
                (BYTE, IP),
                (IS, 0x45),
                (HALF, IP + 2),
                (IS, 20 + UDP),
                // More fragments, and the offset.
                (HALF, IP + 6),
                (AND, 0x3fff),
                (IS, 0),
                (WORD, IP + 20),
                (IS, ports),
            ],
            [IP + 12, IP + 16],
            [192, 0, 2, 1],
        ),
        Family::V6 => (
            vec![
                (HALF, IP + 6),
                (IS, protocol << 8 | u32::from(HOP_LIMIT)),
                (HALF, IP + 4),
                (IS, UDP),
                (WORD, IP + 40),
                (IS, ports),
            ],
            // The begin of an address.
            [IP + 8, IP + 24],
            [0x20, 0x01, 0x0d, 0xb8],
        ),
    };
    let client = u32::from_be_bytes(begin);
    let [source, destination] = addresses;
    let either = [(WORD, source), (IS, client), (WORD, destination), (IS, client)];
    let take = [(TAKE, ROOM as u32 + 1), (TAKE, 0)];
    let program = [&first[..], &host, &either, &take].concat();
    let last = program.len() - 1;
    let jumps = |at: usize| match last - at {
        // The source is not the client: perhaps the destination is.
        4 => (2, 0),
        // To the end.
        left => (0, left as u8 - 1),
    };
    let statement = |(at, &(code, k)): (usize, &(u32, u32))| {
        let (then, otherwise) = if code == IS { jumps(at) } else { (0, 0) };
        SockFilter::new(code as u16, then, otherwise, k)
    };
    program.iter().enumerate().map(statement).collect()
}
