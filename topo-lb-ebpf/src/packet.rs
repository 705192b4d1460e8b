//! What a packet says: its headers as plain values, and nothing of it changed.
//!
//! Headers are looked at directly where they are where they mostly are, and read by
//! `bpf_skb_load_bytes` elsewhere: they may lie outside of what a program may look at. Nothing is
//! *written* directly: a program that does so has the kernel copy every cloned packet first, also
//! those that are not ours.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use topo_lb_common::address::{SCTP, TCP, UDP};

use crate::family::{Family, V4, V6, bytes6};

/// Bytes of an Ethernet header; a VLAN tag is beside the packet, or the packet is not ours.
pub(crate) const ETHERNET: u32 = 14;

/// FIN of TCP's flags.
pub(crate) const FIN: u8 = 1;
/// SYN of TCP's flags.
pub(crate) const SYN: u8 = 2;
/// RST of TCP's flags.
pub(crate) const RST: u8 = 4;
/// ACK of TCP's flags.
pub(crate) const ACK: u8 = 16;

/// What kind of thing was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// All of a datagram.
    Whole,
    /// A fragment with the transport header.
    First,
    /// A fragment without it.
    Later,
    /// Something that is not translated.
    Other,
    /// It ends too early, or contradicts itself.
    Malformed,
}

/// An IP header, and what follows it.
pub(crate) struct Header<F: Family> {
    pub(crate) source: F::Address,
    pub(crate) destination: F::Address,
    /// Of the datagram, as the packet has it; of fragments only.
    pub(crate) identification: u32,
    /// Offset of what follows: the transport header, unless it is a later fragment.
    pub(crate) transport: u32,
    /// Offset behind the last byte.
    pub(crate) end: u32,
    /// IPv4: the header's checksum, as the packet has it.
    pub(crate) checksum: u16,
    /// Of what follows.
    pub(crate) protocol: u8,
    pub(crate) kind: PacketKind,
}

/// A transport header.
pub(crate) struct Transport {
    /// Both ports, as the packet has them.
    pub(crate) ports: u32,
    /// Host order.
    pub(crate) sequence: u32,
    /// Host order.
    pub(crate) acknowledged: u32,
    /// TCP: bytes of payload.
    pub(crate) payload: u32,
    /// TCP's.
    pub(crate) flags: u8,
    /// TCP: words of the header.
    pub(crate) words: u8,
    pub(crate) is_sound: bool,
}

impl Transport {
    /// Host order.
    #[inline(always)]
    pub(crate) const fn source_port(&self) -> u16 {
        let [a, b, _, _] = self.ports.to_ne_bytes();
        u16::from_be_bytes([a, b])
    }

    /// Host order.
    #[inline(always)]
    pub(crate) const fn destination_port(&self) -> u16 {
        let [_, _, a, b] = self.ports.to_ne_bytes();
        u16::from_be_bytes([a, b])
    }
}

/// Both ports, given in host order, as a packet has them.
#[inline(always)]
pub(crate) const fn ports(source: u16, destination: u16) -> u32 {
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// Words at `offset`, which is a constant: directly where they are in reach.
#[inline(always)]
pub(crate) fn words<const COUNT: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u32; COUNT]> {
    direct(skb, offset).or_else(|| load(skb, offset))
}

/// Words at `offset`, which is a constant, if they are where a program may look.
#[inline(always)]
pub(crate) fn direct<const COUNT: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u32; COUNT]> {
    // SAFETY: fields of the hook's context.
    let (data, end) = unsafe {
        let data = (&raw const (*skb).data).read_volatile() as usize;
        (data, (&raw const (*skb).data_end).read_volatile() as usize)
    };
    let at = data + offset as usize;
    if at + COUNT * 4 > end {
        return None;
    }
    let mut words = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        // SAFETY: within the packet, as the verifier sees, too. The machine reads words at any
        // address; where the host's does not, the kernel has IP headers aligned (NET_IP_ALIGN).
        words[index] = unsafe { (at as *const u32).add(index).read_volatile() };
        index += 1;
    }
    Some(words)
}

/// Copies a value out of a packet; `None` where the packet ends before.
#[inline(always)]
pub(crate) fn load<T: Copy>(skb: *mut __sk_buff, offset: u32) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: a context of this hook; the helper fills all of the value, also where it fails.
    unsafe {
        let result = bpf_skb_load_bytes(
            skb.cast(),
            offset,
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
        );
        if result == 0 { Some(value.assume_init()) } else { None }
    }
}

/// Bytes of the packet, without what the device put beside it.
#[inline(always)]
pub(crate) fn length(skb: *mut __sk_buff) -> u32 {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).len).read_volatile() }
}

/// Reading an address family's headers.
pub(crate) trait Read: Family {
    /// `skb->protocol`, in host order.
    const ETHER_TYPE: u16;
    /// The protocol of ICMP.
    const ICMP: u8;

    /// Bytes of a header without options or extensions.
    const BYTES: u32;

    /// The header at `offset`: behind the Ethernet header, unless it is one that an ICMP error
    /// quotes (`is_quote`), which ends early.
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self>;
}

impl Read for V4 {
    const ETHER_TYPE: u16 = 0x0800;
    const ICMP: u8 = 1;
    const BYTES: u32 = 20;

    #[inline(always)]
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self> {
        let mut header = Header {
            source: 0,
            destination: 0,
            identification: 0,
            transport: 0,
            end: 0,
            checksum: 0,
            protocol: 0,
            kind: PacketKind::Malformed,
        };
        let words =
            if is_quote { load::<[u32; 5]>(skb, offset) } else { words::<5>(skb, ETHERNET) };
        let Some([first, second, third, source, destination]) = words else {
            return header;
        };
        let [version, _, high, low] = first.to_ne_bytes();
        let total = u32::from(u16::from_be_bytes([high, low]));
        let [_, _, flags, offset_low] = second.to_ne_bytes();
        let [_, protocol, sum_high, sum_low] = third.to_ne_bytes();
        let bytes = u32::from(version & 15) * 4;
        header.source = source;
        header.destination = destination;
        header.identification = second & u32::from_ne_bytes([0xff, 0xff, 0, 0]);
        header.transport = offset + bytes;
        header.checksum = u16::from_ne_bytes([sum_high, sum_low]);
        header.protocol = protocol;
        // A packet that segmentation will cut may be longer than its header can say (BIG TCP).
        let room = length(skb).wrapping_sub(offset);
        let total = if total == 0 && room > 0xffff { room } else { total };
        header.end = offset + total;
        if version >> 4 != 4 || bytes < 20 || total < bytes || (!is_quote && total > room) {
            return header;
        }
        header.kind = if flags & 0x1f != 0 || offset_low != 0 {
            PacketKind::Later
        } else if flags & 0x20 != 0 {
            PacketKind::First
        } else {
            PacketKind::Whole
        };
        header
    }
}

/// Extension headers that are passed over before a packet is taken for none of ours.
const EXTENSIONS: u32 = 6;

impl Read for V6 {
    const ETHER_TYPE: u16 = 0x86dd;
    const ICMP: u8 = 58;
    const BYTES: u32 = 40;

    #[inline(always)]
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self> {
        let mut header = Header {
            source: [0; 4],
            destination: [0; 4],
            identification: 0,
            transport: offset + 40,
            end: 0,
            checksum: 0,
            protocol: 0,
            kind: PacketKind::Malformed,
        };
        let words =
            if is_quote { load::<[u32; 10]>(skb, offset) } else { words::<10>(skb, ETHERNET) };
        let Some([first, second, a, b, c, d, e, f, g, h]) = words else {
            return header;
        };
        let [high, low, protocol, _] = second.to_ne_bytes();
        header.source = [a, b, c, d];
        header.destination = [e, f, g, h];
        header.protocol = protocol;
        let room = length(skb).wrapping_sub(offset + 40);
        let payload = u32::from(u16::from_be_bytes([high, low]));
        let payload = if payload == 0 && room > 0xffff { room } else { payload };
        header.end = offset + 40 + payload;
        if first.to_ne_bytes()[0] >> 4 != 6 || (!is_quote && payload > room) {
            return header;
        }
        header.kind = PacketKind::Whole;
        extensions(skb, &mut header);
        header
    }
}

/// Passes over the extension headers of RFC 8200 §4 that may stand before a transport header.
#[inline(always)]
fn extensions(skb: *mut __sk_buff, header: &mut Header<V6>) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    for _ in 0..EXTENSIONS {
        if !matches!(header.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
            return;
        }
        let Some([word, identification]) = load::<[u32; 2]>(skb, header.transport) else {
            header.kind = PacketKind::Malformed;
            return;
        };
        let [next, length, third, fourth] = word.to_ne_bytes();
        let mut bytes = (u32::from(length) + 1) * 8;
        match header.protocol {
            // The destination is not the last one yet.
            ROUTING if fourth != 0 => {
                header.kind = PacketKind::Other;
                return;
            }
            FRAGMENT => {
                bytes = 8;
                header.identification = identification;
                if third != 0 || fourth & 0xf8 != 0 {
                    header.kind = PacketKind::Later;
                    header.protocol = next;
                    return;
                }
                // A fragment that is all of its datagram (RFC 6946) needs nothing remembered.
                if fourth & 1 != 0 {
                    header.kind = PacketKind::First;
                }
            }
            _ => {}
        }
        header.protocol = next;
        header.transport += bytes;
    }
    header.kind = PacketKind::Other;
}

/// Both ports, as the packet has them: what TCP, UDP and SCTP begin with.
#[inline(always)]
pub(crate) fn ports_of<F: Read>(skb: *mut __sk_buff, header: &Header<F>) -> Option<u32> {
    if header.transport == ETHERNET + F::BYTES {
        let [ports] = words(skb, ETHERNET + F::BYTES)?;
        Some(ports)
    } else {
        load(skb, header.transport)
    }
}

/// The transport header of a packet; of what is quoted by an ICMP error only the ports.
#[inline(always)]
pub(crate) fn transport<F: Read>(skb: *mut __sk_buff, header: &Header<F>) -> Transport {
    let mut transport = Transport {
        ports: 0,
        sequence: 0,
        acknowledged: 0,
        payload: 0,
        flags: 0,
        words: 0,
        is_sound: false,
    };
    let room = header.end.wrapping_sub(header.transport);
    let is_usual = header.transport == ETHERNET + F::BYTES;
    match header.protocol {
        TCP => {
            let words = if is_usual {
                words::<5>(skb, ETHERNET + F::BYTES)
            } else {
                load::<[u32; 5]>(skb, header.transport)
            };
            let Some([ports, sequence, acknowledged, word, _]) = words else {
                return transport;
            };
            let [offset, flags, _, _] = word.to_ne_bytes();
            transport.ports = ports;
            transport.sequence = u32::from_be(sequence);
            transport.acknowledged = u32::from_be(acknowledged);
            transport.flags = flags;
            transport.words = offset >> 4;
            let bytes = u32::from(transport.words) * 4;
            transport.payload = room.wrapping_sub(bytes);
            transport.is_sound = bytes >= 20 && header.end > header.transport && room >= bytes;
        }
        UDP => {
            let words = if is_usual {
                words::<2>(skb, ETHERNET + F::BYTES)
            } else {
                load::<[u32; 2]>(skb, header.transport)
            };
            let Some([ports, word]) = words else {
                return transport;
            };
            let [high, low, _, _] = word.to_ne_bytes();
            let length = u32::from(u16::from_be_bytes([high, low]));
            transport.ports = ports;
            // A first fragment has the length of the whole; zero stands for more than 65,535.
            let fits = length <= room || header.kind == PacketKind::First;
            transport.is_sound = header.end > header.transport
                && room >= 8
                && (length == 0 && room > 0xffff || length >= 8 && fits);
        }
        SCTP => {
            let Some([ports, _, _]) = load::<[u32; 3]>(skb, header.transport) else {
                return transport;
            };
            transport.ports = ports;
            transport.is_sound = header.end > header.transport && room >= 12;
        }
        _ => {}
    }
    transport
}

/// Who connects, for session affinity: unlike a network namespace's cookie, which counts from one,
/// it has its highest bit set.
pub(crate) trait Client: Family {
    fn client(address: Self::Address) -> u64;
}

impl Client for V4 {
    #[inline(always)]
    fn client(address: u32) -> u64 {
        1 << 63 | address as u64
    }
}

impl Client for V6 {
    #[inline(always)]
    fn client(address: [u32; 4]) -> u64 {
        let [head, tail] = {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes6(address);
            [
                u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
            ]
        };
        1 << 63 | head.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ tail
    }
}
