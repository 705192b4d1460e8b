//! Rewrites a packet: addresses, ports, and the checksums that cover them.

use aya_ebpf::bindings::__sk_buff;
use core::hint::cold_path;
use topo_lb_common::address::{TCP, UDP};

use crate::base::access::{ETHERNET, direct, store, words};
use crate::base::checksum::{self, Change};
use crate::base::family::{Family, V4, V6};
use crate::base::header::{Header, Read};
use crate::base::transport::{Transport, ports};
use crate::packet::four_tuple::FourTuple;

/// Writes an address family's headers.
pub(crate) trait Write: Family {
    const IS_IPV6: bool;
    /// A header from its third word on, in words of the packet.
    type Tail: Copy;

    /// The change of the addresses.
    fn change(from: (Self::Address, Self::Address), to: (Self::Address, Self::Address)) -> Change;
    /// The header behind the Ethernet header from its third word on, with other addresses. `third`: of
    /// [`Header`]; `change`: that of the addresses.
    fn tail(addresses: (Self::Address, Self::Address), third: u32, change: Change) -> Self::Tail;
    /// Writes the addresses of the header at `offset`, and updates its checksum, which was
    /// `checksum`, by `change`, the change of the addresses. Returns whether it succeeded.
    fn store(
        skb: *mut __sk_buff,
        offset: u32,
        addresses: (Self::Address, Self::Address),
        checksum: u16,
        change: Change,
    ) -> bool;
    /// Takes one from the hops that a packet may still make. Returns false if it has none, or cannot be
    /// written.
    fn hop(skb: *mut __sk_buff) -> bool;
}

impl Write for V4 {
    const IS_IPV6: bool = false;
    type Tail = [u32; 3];

    #[inline(always)]
    fn tail((source, destination): (u32, u32), third: u32, change: Change) -> [u32; 3] {
        let [time_to_live, protocol, high, low] = third.to_ne_bytes();
        let [high, low] = change.apply(u16::from_ne_bytes([high, low])).to_ne_bytes();
        [u32::from_ne_bytes([time_to_live, protocol, high, low]), source, destination]
    }

    #[inline(always)]
    fn change(from: (u32, u32), to: (u32, u32)) -> Change {
        Change::NONE.word(from.0, to.0).word(from.1, to.1)
    }

    #[inline(always)]
    fn store(
        skb: *mut __sk_buff,
        offset: u32,
        (source, destination): (u32, u32),
        checksum: u16,
        change: Change,
    ) -> bool {
        #[repr(C, packed(2))]
        #[derive(Clone, Copy)]
        struct Tail {
            checksum: u16,
            source: u32,
            destination: u32,
        }
        store(skb, offset + 10, &Tail { checksum: change.apply(checksum), source, destination })
    }

    #[inline(always)]
    fn hop(skb: *mut __sk_buff) -> bool {
        let Some([third]) = words(skb, ETHERNET + 8) else {
            return false;
        };
        let [hops, protocol, high, low] = third.to_ne_bytes();
        if hops <= 1 {
            return false;
        }
        let half = |hops| u16::from_ne_bytes([hops, protocol]);
        let change = Change::NONE.half(half(hops), half(hops - 1));
        let [high, low] = change.apply(u16::from_ne_bytes([high, low])).to_ne_bytes();
        store(skb, ETHERNET + 8, &[hops - 1, protocol, high, low])
    }
}

impl Write for V6 {
    const IS_IPV6: bool = true;
    type Tail = [u32; 8];

    #[inline(always)]
    fn tail(addresses: ([u32; 4], [u32; 4]), _third: u32, _change: Change) -> [u32; 8] {
        let ([a, b, c, d], [e, f, g, h]) = addresses;
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn change(from: ([u32; 4], [u32; 4]), to: ([u32; 4], [u32; 4])) -> Change {
        let mut change = Change::NONE;
        let mut index = 0;
        while index < 4 {
            change = change.word(from.0[index], to.0[index]).word(from.1[index], to.1[index]);
            index += 1;
        }
        change
    }

    #[inline(always)]
    fn store(
        skb: *mut __sk_buff,
        offset: u32,
        addresses: ([u32; 4], [u32; 4]),
        _checksum: u16,
        _change: Change,
    ) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = addresses;
        store(skb, offset + 8, &[a, b, c, d, e, f, g, h])
    }

    #[inline(always)]
    fn hop(skb: *mut __sk_buff) -> bool {
        let Some([second]) = words(skb, ETHERNET + 4) else {
            return false;
        };
        let [_, _, _, hops] = second.to_ne_bytes();
        hops > 1 && store(skb, ETHERNET + 7, &(hops - 1))
    }
}

/// An IP header from its third word on, and what follows it directly.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tail<T, const WORDS: usize> {
    tail: T,
    words: [u32; WORDS],
}

/// Rewrites a packet whose transport header follows a plain IP header, up to the word that has the checksum:
/// TCP's fifth (`WORDS` = 5), UDP's second. Returns as [`rewrite`]; `None`: nothing is done.
///
/// It calls the kernel once less than [`rewrite`] has to: that takes longer than to compute all this.
#[inline(always)]
fn rewrite_at_once<F: Read + Write, const WORDS: usize>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    from: u32,
    to: (F::Address, F::Address),
    change: Change,
    ports: u32,
) -> Option<bool> {
    let place = ETHERNET + F::BYTES;
    let offset = checksum::offset_in(header.protocol)?;
    let [word] = direct(skb, place + offset / 4 * 4)?;
    if change.is_neutral() {
        cold_path();
        return None;
    }
    if !checksum::replace_addresses(skb, place + offset, change, header.protocol, F::IS_IPV6) {
        return Some(false);
    }
    let Some(mut words) = direct::<WORDS>(skb, place) else {
        return Some(false);
    };
    let rest = Change::NONE.word(from, ports);
    let after = |old, new| checksum::after_addresses(old, new, change, header.protocol, rest);
    let half = |a, b| u16::from_ne_bytes([a, b]);
    let ([a, b, c, d], [e, f, g, h]) = (word.to_ne_bytes(), words[WORDS - 1].to_ne_bytes());
    words[0] = ports;
    words[WORDS - 1] = u32::from_ne_bytes(if offset.is_multiple_of(4) {
        let [e, f] = after(half(a, b), half(e, f)).to_ne_bytes();
        [e, f, g, h]
    } else {
        let [g, h] = after(half(c, d), half(g, h)).to_ne_bytes();
        [e, f, g, h]
    });
    Some(store(skb, ETHERNET + 8, &Tail { tail: F::tail(to, header.third, change), words }))
}

/// Rewrites a packet's addresses and ports. Returns false if it failed: the packet is unusable.
#[inline(always)]
pub(crate) fn rewrite<F: Read + Write>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    transport: &Transport,
    to: &FourTuple<F>,
) -> bool {
    let addresses = (to.source, to.destination);
    let change = F::change((header.source, header.destination), addresses);
    let ports = ports(to.source_port, to.destination_port);
    let is_usual = header.transport == ETHERNET + F::BYTES;
    if is_usual {
        let done = match header.protocol {
            TCP => rewrite_at_once::<F, 5>(skb, header, transport.ports, addresses, change, ports),
            UDP => rewrite_at_once::<F, 2>(skb, header, transport.ports, addresses, change, ports),
            _ => None,
        };
        if let Some(done) = done {
            return done;
        }
    }
    cold_path();
    if let Some(offset) = checksum::offset_in(header.protocol) {
        let offset = header.transport + offset;
        if !checksum::replace_addresses(skb, offset, change, header.protocol, F::IS_IPV6) {
            return false;
        }
        if ports != transport.ports {
            let change = Change::NONE.word(transport.ports, ports);
            if !checksum::replace(skb, offset, change, header.protocol) {
                return false;
            }
        }
    }
    if is_usual {
        let tail = F::tail(addresses, header.third, change);
        return store(skb, ETHERNET + 8, &Tail { tail, words: [ports] });
    }
    if ports != transport.ports && !store(skb, header.transport, &ports) {
        return false;
    }
    F::store(skb, ETHERNET, addresses, header.checksum(), change)
}

/// Rewrites the addresses of a fragment without ports. Returns whether it succeeded.
#[inline(always)]
pub(crate) fn readdress<F: Write>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    addresses: (F::Address, F::Address),
) -> bool {
    let change = F::change((header.source, header.destination), addresses);
    F::store(skb, ETHERNET, addresses, header.checksum(), change)
}
