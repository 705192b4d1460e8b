//! The ICMP error "port unreachable" that a refused client gets.

use aya_ebpf::bindings::__sk_buff;

use crate::base::access::{ETHERNET, store};
use crate::base::checksum::fold;
use crate::base::family::{V4, V6};
use crate::base::header::{Header, Read};

/// Time to live, or hop limit, of the error.
const HOPS: u8 = 64;

/// The ICMP error of an address family.
pub(crate) trait Unreachable: Read {
    /// Bytes of the IP and the ICMP header.
    const ERROR_HEADERS: u32;

    /// Whether an address belongs to one host, which may thus get an answer.
    fn is_unicast(address: Self::Address) -> bool;

    /// Writes both headers before a quote of `bytes` bytes with the sum `sum`, as an answer to the
    /// packet whose header was `to`. Returns whether it succeeded.
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool;
}

impl Unreachable for V4 {
    const ERROR_HEADERS: u32 = 28;

    #[inline(always)]
    fn is_unicast(address: u32) -> bool {
        let first = address.to_ne_bytes()[0];
        first != 0 && first != 127 && first < 224
    }

    #[inline(always)]
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool {
        const PORT_UNREACHABLE: [u8; 2] = [3, 3];
        let [high, low] = ((Self::ERROR_HEADERS + bytes) as u16).to_be_bytes();
        let first = u32::from_ne_bytes([0x45, 0, high, low]);
        // "Don't fragment": no identification is needed (RFC 6864).
        let second = u32::from_ne_bytes([0, 0, 0x40, 0]);
        let third = u32::from_ne_bytes([HOPS, Self::ICMP, 0, 0]);
        let addresses = u64::from(to.destination) + u64::from(to.source);
        let header_sum = u64::from(first) + u64::from(second) + u64::from(third) + addresses;
        let [a, b] = (!fold(header_sum)).to_ne_bytes();
        let [kind, code] = PORT_UNREACHABLE;
        let icmp = u32::from_ne_bytes([kind, code, 0, 0]);
        let [c, d] = (!fold(u64::from(icmp) + sum)).to_ne_bytes();
        store(
            skb,
            ETHERNET,
            &[
                first,
                second,
                u32::from_ne_bytes([HOPS, Self::ICMP, a, b]),
                to.destination,
                to.source,
                u32::from_ne_bytes([kind, code, c, d]),
                0,
            ],
        )
    }
}

impl Unreachable for V6 {
    const ERROR_HEADERS: u32 = 48;

    #[inline(always)]
    fn is_unicast(address: [u32; 4]) -> bool {
        address[0].to_ne_bytes()[0] != 0xff && address != [0; 4]
    }

    #[inline(always)]
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool {
        const PORT_UNREACHABLE: [u8; 2] = [1, 4];
        let length = 8 + bytes;
        let [high, low] = (length as u16).to_be_bytes();
        let [kind, code] = PORT_UNREACHABLE;
        let icmp = u32::from_ne_bytes([kind, code, 0, 0]);
        // The pseudo header of RFC 8200 §8.1.
        let mut total = u64::from(icmp)
            + sum
            + u64::from(length.to_be())
            + u64::from(u32::from(Self::ICMP).to_be());
        let mut index = 0;
        while index < 4 {
            total += u64::from(to.source[index]) + u64::from(to.destination[index]);
            index += 1;
        }
        let [c, d] = (!fold(total)).to_ne_bytes();
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (to.destination, to.source);
        store(
            skb,
            ETHERNET,
            &[
                u32::from_ne_bytes([0x60, 0, 0, 0]),
                u32::from_ne_bytes([high, low, Self::ICMP, HOPS]),
                s0,
                s1,
                s2,
                s3,
                d0,
                d1,
                d2,
                d3,
                u32::from_ne_bytes([kind, code, c, d]),
                0,
            ],
        )
    }
}
