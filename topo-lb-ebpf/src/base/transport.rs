//! The transport header of a packet, as plain values.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::address::{SCTP, TCP, UDP};

use crate::base::access::{ETHERNET, load, words};
use crate::base::header::{Header, PacketKind, Read};

/// FIN in TCP's flags.
pub(crate) const FIN: u8 = 1;
/// SYN in TCP's flags.
pub(crate) const SYN: u8 = 2;
/// RST in TCP's flags.
pub(crate) const RST: u8 = 4;
/// ACK in TCP's flags.
pub(crate) const ACK: u8 = 16;

/// A transport header.
pub(crate) struct Transport {
    /// Both ports, as in the packet.
    pub(crate) ports: u32,
    /// Host order.
    pub(crate) sequence: u32,
    /// Host order.
    pub(crate) acknowledged: u32,
    /// TCP: bytes of payload.
    pub(crate) payload: u32,
    /// TCP's flags.
    pub(crate) flags: u8,
    /// TCP: length of the header in words of 32 bits.
    pub(crate) words: u8,
    pub(crate) is_sound: bool,
}

impl Transport {
    /// One of which nothing is known yet.
    pub(crate) const NONE: Self = Self {
        ports: 0,
        sequence: 0,
        acknowledged: 0,
        payload: 0,
        flags: 0,
        words: 0,
        is_sound: false,
    };
}

/// Both ports as in a packet, from host order.
#[inline(always)]
pub(crate) const fn ports(source: u16, destination: u16) -> u32 {
    ((source as u32) << 16 | destination as u32).to_be()
}

/// Source and destination port in host order, from both as in a packet.
#[inline(always)]
pub(crate) const fn split_ports(ports: u32) -> (u16, u16) {
    let ports = u32::from_be(ports);
    ((ports >> 16) as u16, ports as u16)
}

/// Both ports, as in the packet: TCP, UDP and SCTP headers begin with them.
#[inline(always)]
pub(crate) fn ports_of<F: Read>(skb: *mut __sk_buff, header: &Header<F>) -> Option<u32> {
    if header.transport == ETHERNET + F::BYTES {
        let [ports] = words(skb, ETHERNET + F::BYTES)?;
        Some(ports)
    } else {
        load(skb, header.transport)
    }
}

/// The transport header of a packet.
#[inline(always)]
pub(crate) fn transport<F: Read>(skb: *mut __sk_buff, header: &Header<F>) -> Transport {
    let mut transport = Transport::NONE;
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
            // A first fragment has the whole datagram's length; zero means more than 65,535 bytes.
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
