//! Internet checksums (RFC 1071), updated by the change of the data (RFC 1624): a wrong checksum
//! stays wrong. Sums are of words in the packet's byte order, which suits any machine.

use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::{bpf_csum_update, bpf_l4_csum_replace};
use topo_lb_common::address::{TCP, UDP};

use crate::base::access::{load, store};

/// `BPF_F_IPV6`: no checksum of an IP header compensates for a changed address. Linux 6.16, and the
/// long-term kernels of that time ("bpf: Fix L4 csum update on IPv6 in CHECKSUM_COMPLETE").
const IPV6: u64 = 1 << 7;

/// The change of a checksum's data, as a sum.
#[derive(Clone, Copy)]
pub(crate) struct Change(u64);

impl Change {
    /// No change.
    pub(crate) const NONE: Self = Self(0);

    /// Adds the change of a word of 32 bits at an even offset.
    #[inline(always)]
    pub(crate) const fn word(self, from: u32, to: u32) -> Self {
        Self(self.0 + !from as u64 + to as u64)
    }

    /// Adds the change of a word of 16 bits at an even offset.
    #[inline(always)]
    pub(crate) const fn half(self, from: u16, to: u16) -> Self {
        Self(self.0 + !from as u64 + to as u64)
    }

    /// Adds a word of 32 bits, as if there had been none.
    #[inline(always)]
    pub(crate) const fn plus(self, word: u32) -> Self {
        Self(self.0 + word as u64)
    }

    /// In the form of the kernel's helpers (`__wsum`).
    #[inline(always)]
    pub(crate) const fn sum(self) -> u32 {
        let once = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        ((once >> 32) + once) as u32
    }

    /// Whether a checksum is the same after the change, or the other zero.
    #[inline(always)]
    pub(crate) const fn is_neutral(self) -> bool {
        matches!(fold(self.sum() as u64), 0 | 0xffff)
    }

    /// A checksum after the change.
    #[inline(always)]
    pub(crate) const fn apply(self, checksum: u16) -> u16 {
        !fold(!checksum as u64 + self.sum() as u64)
    }
}

/// A sum as 16 bits.
#[inline(always)]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

/// The checksum that a device computes. Its input is the sum of all covered data, with the pseudo
/// header's sum in the checksum's place. Never zero (`skb_checksum_help`, net/core/dev.c).
#[inline(always)]
pub(crate) const fn computed(sum: u64) -> u16 {
    match !fold(sum) {
        0 => !0,
        checksum => checksum,
    }
}

/// Offset of the checksum in a transport header; `None` if it is not an Internet checksum.
#[inline(always)]
pub(crate) const fn offset_in(protocol: u8) -> Option<u32> {
    match protocol {
        TCP => Some(16),
        UDP => Some(6),
        _ => None,
    }
}

/// Updates the checksum at `offset` for addresses of the IP header, which transport protocols
/// include. The helper handles checksums that a device has yet to compute. Returns whether it
/// succeeded.
#[inline(always)]
pub(crate) fn replace_addresses(
    skb: *mut __sk_buff,
    offset: u32,
    change: Change,
    protocol: u8,
    is_ipv6: bool,
) -> bool {
    let flags = mangled(protocol) | u64::from(BPF_F_PSEUDO_HDR);
    let sum = change.sum();
    // SAFETY: a context of this hook.
    unsafe {
        if !is_ipv6 {
            return bpf_l4_csum_replace(skb, offset, 0, sum.into(), flags) == 0;
        }
        if bpf_l4_csum_replace(skb, offset, 0, sum.into(), flags | IPV6) == 0 {
            return true;
        }
        // A kernel without the flag subtracts this from the device's sum, so add it again.
        if bpf_l4_csum_replace(skb, offset, 0, sum.into(), flags) != 0 {
            return false;
        }
        bpf_csum_update(skb, sum);
        true
    }
}

/// The checksum after [`replace_addresses`] has replaced `old` by `new` because of a `change` that
/// [is not neutral](Change::is_neutral), and after the change of the `rest`, outside the pseudo header.
///
/// A checksum that a device has yet to compute does not cover the rest: the kernel has then added the change
/// to a sum, and has otherwise subtracted it from a sum's complement. That differs in everything but a change
/// of zero.
#[inline(always)]
pub(crate) fn after_addresses(
    old: u16,
    new: u16,
    change: Change,
    protocol: u8,
    rest: Change,
) -> u16 {
    let is_udp = protocol == UDP;
    // UDP's zero means that there is no checksum; a sum of zero is written as 0xffff.
    if is_udp && old == 0 {
        return new;
    }
    let mark = |checksum: u16| if is_udp && checksum == 0 { 0xffff } else { checksum };
    if new == mark(change.apply(old)) { mark(rest.apply(new)) } else { new }
}

/// Updates the checksum at `offset` for data outside the pseudo header; false on failure.
#[inline(always)]
pub(crate) fn replace(skb: *mut __sk_buff, offset: u32, change: Change, protocol: u8) -> bool {
    // SAFETY: a context of this hook.
    unsafe { bpf_l4_csum_replace(skb, offset, 0, change.sum().into(), mangled(protocol)) == 0 }
}

/// Whether a device has yet to compute the checksum at `offset`, which is `stored` now. The context
/// does not show it, but the helper does not change such a checksum for data outside the pseudo
/// header. So this function changes the checksum, compares, and restores it. `None` if the packet
/// cannot be read or written.
#[inline(always)]
pub(crate) fn is_pending(skb: *mut __sk_buff, offset: u32, stored: u16) -> Option<bool> {
    // SAFETY: a context of this hook. A sum of one changes every checksum.
    if unsafe { bpf_l4_csum_replace(skb, offset, 0, 1, 0) } != 0 {
        return None;
    }
    let is_pending = load::<u16>(skb, offset)? == stored;
    (is_pending || store(skb, offset, &stored)).then_some(is_pending)
}

/// UDP's zero means that there is no checksum; it stays zero.
#[inline(always)]
fn mangled(protocol: u8) -> u64 {
    if protocol == UDP { BPF_F_MARK_MANGLED_0.into() } else { 0 }
}
