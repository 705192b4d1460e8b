//! A frame in a driver: read and written in place, as nothing else has it yet.

use aya_ebpf::bindings::xdp_md;
use topo_lb_common::address::{TCP, UDP};

use crate::base::access::{ETHERNET, Packet as _, bounds};
use crate::base::checksum::{self, Change, fold};
use crate::base::family::{V4, V6};
use crate::base::header::Read;
use crate::base::transport::{Transport, ports};
use crate::packet::fast_path::PacketSummary;
use crate::packet::four_tuple::FourTuple;
use crate::packet::rewrite::Write;

/// What routes and limits look at in an IP header besides addresses.
pub(crate) struct Extent {
    /// Bytes of the IP packet, as its header says.
    pub(crate) bytes: u16,
    /// The hops that it may still make.
    pub(crate) hops: u8,
    /// `tos` or `flowinfo` of a question for its way: the type of service, or traffic class and flow label.
    pub(crate) class: u32,
}

/// Writes an address family's headers in place.
pub(crate) trait InPlace: Read + Write {
    /// Of a frame's packet.
    fn extent(frame: *mut xdp_md) -> Option<Extent>;
    /// The sum of both addresses.
    fn sum(addresses: (Self::Address, Self::Address)) -> Change;
    /// Writes the addresses of a header, and takes one from its hops. `change`: that of the addresses.
    ///
    /// # Safety
    /// `header` is the place of a whole header.
    unsafe fn put(header: *mut u32, addresses: (Self::Address, Self::Address), change: Change);
}

impl InPlace for V4 {
    #[inline(always)]
    fn extent(frame: *mut xdp_md) -> Option<Extent> {
        let [first, _, third] = frame.direct(ETHERNET)?;
        let ([_, class, high, low], [hops, ..]) = (first.to_ne_bytes(), third.to_ne_bytes());
        let class = u32::from_ne_bytes([class, 0, 0, 0]);
        Some(Extent { bytes: u16::from_be_bytes([high, low]), hops, class })
    }

    #[inline(always)]
    fn sum(addresses: (u32, u32)) -> Change {
        Change::NONE.plus(addresses.0).plus(addresses.1)
    }

    #[inline(always)]
    unsafe fn put(header: *mut u32, addresses: (u32, u32), change: Change) {
        // SAFETY: as the caller says.
        unsafe {
            let [hops, protocol, high, low] = header.add(2).read_volatile().to_ne_bytes();
            let half = |hops| u16::from_ne_bytes([hops, protocol]);
            let third = u32::from_ne_bytes([hops - 1, protocol, high, low]);
            let change = change.half(half(hops), half(hops - 1));
            let [third, source, destination] = Self::tail(addresses, third, change);
            header.add(2).write_volatile(third);
            header.add(3).write_volatile(source);
            header.add(4).write_volatile(destination);
        }
    }
}

impl InPlace for V6 {
    #[inline(always)]
    fn extent(frame: *mut xdp_md) -> Option<Extent> {
        /// `IPV6_FLOWINFO_MASK`, include/net/ipv6.h.
        const CLASS: u32 = 0x0fff_ffff_u32.to_be();
        let [first, second] = frame.direct(ETHERNET)?;
        let [high, low, _, hops] = second.to_ne_bytes();
        let bytes = u16::from_be_bytes([high, low]).checked_add(40)?;
        Some(Extent { bytes, hops, class: first & CLASS })
    }

    #[inline(always)]
    fn sum(addresses: ([u32; 4], [u32; 4])) -> Change {
        let mut sum = Change::NONE;
        let mut index = 0;
        while index < 4 {
            sum = sum.plus(addresses.0[index]).plus(addresses.1[index]);
            index += 1;
        }
        sum
    }

    #[inline(always)]
    unsafe fn put(header: *mut u32, (source, destination): ([u32; 4], [u32; 4]), _: Change) {
        // SAFETY: as the caller says.
        unsafe {
            let [high, low, next, hops] = header.add(1).read_volatile().to_ne_bytes();
            header.add(1).write_volatile(u32::from_ne_bytes([high, low, next, hops - 1]));
            let mut index = 0;
            while index < 4 {
                header.add(2 + index).write_volatile(source[index]);
                header.add(6 + index).write_volatile(destination[index]);
                index += 1;
            }
        }
    }
}

/// The transport header behind a plain IP header, of a TCP segment or a UDP datagram with so many bytes behind
/// that header. `None`: it contradicts itself.
#[inline(always)]
pub(crate) fn transport<F: Read>(frame: *mut xdp_md, protocol: u8, room: u32) -> Option<Transport> {
    let place = ETHERNET + F::BYTES;
    let mut transport = Transport { is_sound: true, ..Transport::NONE };
    if protocol == TCP {
        let [ports, sequence, acknowledged, word, _] = frame.direct::<5>(place)?;
        let [offset, flags, _, _] = word.to_ne_bytes();
        let bytes = u32::from(offset >> 4) * 4;
        transport.ports = ports;
        transport.sequence = u32::from_be(sequence);
        transport.acknowledged = u32::from_be(acknowledged);
        transport.payload = room.wrapping_sub(bytes);
        transport.flags = flags;
        return if bytes >= 20 && room >= bytes { Some(transport) } else { None };
    }
    let [ports, word] = frame.direct::<2>(place)?;
    let [high, low, _, _] = word.to_ne_bytes();
    let length = u32::from(u16::from_be_bytes([high, low]));
    transport.ports = ports;
    if room >= 8 && length >= 8 && length <= room { Some(transport) } else { None }
}

/// The Ethernet addresses of a frame, its receiver's first.
pub(crate) type Ends = ([u8; 6], [u8; 6]);

/// The Ethernet addresses of a frame.
#[inline(always)]
pub(crate) fn ends(frame: *mut xdp_md) -> Option<Ends> {
    let [[a, b, c, d], [e, f, g, h], [i, j, k, l]] = frame.direct::<3>(0)?.map(u32::to_ne_bytes);
    Some(([a, b, c, d, e, f], [g, h, i, j, k, l]))
}

/// Writes the Ethernet addresses of a frame.
///
/// # Safety
/// `data` is the beginning of a frame with a whole Ethernet header, also for the verifier.
#[inline(always)]
unsafe fn put_ends(data: usize, (receiver, sender): Ends) {
    let [a, b, c, d, e, f] = receiver;
    let [g, h, i, j, k, l] = sender;
    let ethernet = data as *mut u32;
    // SAFETY: as the caller says.
    unsafe {
        ethernet.write_volatile(u32::from_ne_bytes([a, b, c, d]));
        ethernet.add(1).write_volatile(u32::from_ne_bytes([e, f, g, h]));
        ethernet.add(2).write_volatile(u32::from_ne_bytes([i, j, k, l]));
    }
}

/// Gives a frame other Ethernet addresses, and its packet one hop less. `None`: it is as it was.
#[inline(always)]
pub(crate) fn hop<F: InPlace>(
    frame: *mut xdp_md,
    packet: &PacketSummary<F>,
    ends: Ends,
) -> Option<()> {
    let (data, end) = bounds(frame);
    if data + (ETHERNET + F::BYTES) as usize > end {
        return None;
    }
    // SAFETY: within the frame, as the verifier sees, too; words at any address as in `base::access`.
    unsafe {
        put_ends(data, ends);
        let addresses = (packet.source, packet.destination);
        F::put((data + ETHERNET as usize) as *mut u32, addresses, Change::NONE);
    }
    Some(())
}

/// The stored checksum of a TCP segment or a UDP datagram behind a plain IP header. `None`: it may be one that a
/// device has yet to compute, as in packets between network namespaces of a host. That is the sum of the pseudo
/// header: the context does not show it, so one in 65,535 others is taken for such a one, too. `room`: as in
/// [`transport`].
#[inline(always)]
pub(crate) fn checksum<F: InPlace>(
    frame: *mut xdp_md,
    packet: &PacketSummary<F>,
    room: u32,
) -> Option<u16> {
    let offset = checksum::offset_in(packet.protocol)?;
    let [word] = frame.direct(ETHERNET + F::BYTES + offset / 4 * 4)?;
    let [a, b, c, d] = word.to_ne_bytes();
    let stored = u16::from_ne_bytes(if offset.is_multiple_of(4) { [a, b] } else { [c, d] });
    let sum = F::sum((packet.source, packet.destination))
        .plus(u16::from(packet.protocol).to_be().into())
        .plus((room as u16).to_be().into());
    let pending = fold(sum.sum().into());
    // A sum of zero has two forms.
    if stored == pending || stored == 0 && pending == 0xffff { None } else { Some(stored) }
}

/// Rewrites a frame, whose stored checksum is before the end of the first `WORDS` words of its transport header.
/// `None`: it is as it was.
#[inline(always)]
pub(crate) fn rewrite<F: InPlace, const WORDS: usize>(
    frame: *mut xdp_md,
    packet: &PacketSummary<F>,
    stored: u16,
    to: &FourTuple<F>,
    ends: Ends,
) -> Option<()> {
    let (data, end) = bounds(frame);
    let place = data + (ETHERNET + F::BYTES) as usize;
    if place + WORDS * 4 > end {
        return None;
    }
    let addresses = (to.source, to.destination);
    let change = F::change((packet.source, packet.destination), addresses);
    let ports = ports(to.source_port, to.destination_port);
    let is_udp = packet.protocol == UDP;
    // UDP's zero means that there is no checksum; a sum of zero is written as 0xffff.
    let checksum = match change.word(packet.ports, ports).apply(stored) {
        _ if is_udp && stored == 0 => 0,
        0 if is_udp => 0xffff,
        checksum => checksum,
    };
    let offset = checksum::offset_in(packet.protocol)? as usize;
    // SAFETY: within the frame, as the verifier sees, too; words at any address as in `base::access`.
    unsafe {
        put_ends(data, ends);
        F::put((data + ETHERNET as usize) as *mut u32, addresses, change);
        (place as *mut u32).write_volatile(ports);
        ((place + offset) as *mut u16).write_volatile(checksum);
    }
    Some(())
}

/// Interface index of the frame's device.
#[inline(always)]
pub(crate) fn device(frame: *mut xdp_md) -> u32 {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*frame).ingress_ifindex).read_volatile() }
}

/// The EtherType, host order; `None`: the frame ends before it.
#[inline(always)]
pub(crate) fn ether_type(frame: *mut xdp_md) -> Option<u16> {
    let [[high, low, ..]] = frame.direct::<1>(12)?.map(u32::to_ne_bytes);
    Some(u16::from_be_bytes([high, low]))
}
