//! Rewrites a packet: addresses, ports, and the checksums that cover them.

use aya_ebpf::bindings::__sk_buff;

use crate::access::{ETHERNET, store};
use crate::checksum::{self, Change};
use crate::family::{Family, V4, V6};
use crate::four_tuple::FourTuple;
use crate::header::{Header, Read};
use crate::transport::{Transport, ports};

/// Writes an address family's headers.
pub(crate) trait Write: Family {
    const IS_IPV6: bool;

    /// The change of the addresses.
    fn change(from: (Self::Address, Self::Address), to: (Self::Address, Self::Address)) -> Change;
    /// Writes the addresses of the header behind the Ethernet header, as [`store`](Self::store)
    /// does, and the ports that follow it directly.
    fn store_all(
        skb: *mut __sk_buff,
        addresses: (Self::Address, Self::Address),
        checksum: u16,
        change: Change,
        ports: u32,
    ) -> bool;
    /// Writes the addresses of the header at `offset`, and updates its checksum, which was
    /// `checksum`, by `change`, the change of the addresses. Returns whether it succeeded.
    fn store(
        skb: *mut __sk_buff,
        offset: u32,
        addresses: (Self::Address, Self::Address),
        checksum: u16,
        change: Change,
    ) -> bool;
}

impl Write for V4 {
    const IS_IPV6: bool = false;

    #[inline(always)]
    fn store_all(
        skb: *mut __sk_buff,
        (source, destination): (u32, u32),
        checksum: u16,
        change: Change,
        ports: u32,
    ) -> bool {
        #[repr(C, packed(2))]
        #[derive(Clone, Copy)]
        struct Tail {
            checksum: u16,
            source: u32,
            destination: u32,
            ports: u32,
        }
        let checksum = change.apply(checksum);
        store(skb, ETHERNET + 10, &Tail { checksum, source, destination, ports })
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
}

impl Write for V6 {
    const IS_IPV6: bool = true;

    #[inline(always)]
    fn store_all(
        skb: *mut __sk_buff,
        addresses: ([u32; 4], [u32; 4]),
        _checksum: u16,
        _change: Change,
        ports: u32,
    ) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = addresses;
        store(skb, ETHERNET + 8, &[a, b, c, d, e, f, g, h, ports])
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
    if header.transport == ETHERNET + F::BYTES {
        return F::store_all(skb, addresses, header.checksum, change, ports);
    }
    if ports != transport.ports && !store(skb, header.transport, &ports) {
        return false;
    }
    F::store(skb, ETHERNET, addresses, header.checksum, change)
}

/// Rewrites the addresses of a fragment without ports. Returns whether it succeeded.
#[inline(always)]
pub(crate) fn readdress<F: Write>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    addresses: (F::Address, F::Address),
) -> bool {
    let change = F::change((header.source, header.destination), addresses);
    F::store(skb, ETHERNET, addresses, header.checksum, change)
}
