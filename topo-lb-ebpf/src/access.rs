//! Access to the bytes of a packet.
//!
//! A program reads headers directly where they usually are, and by `bpf_skb_load_bytes` elsewhere:
//! they may lie outside the part of the packet that a program can reach. Nothing is *written*
//! directly: the kernel would copy every cloned packet before such a program runs, also packets that
//! are not translated.

use core::mem::MaybeUninit;
use core::ptr::from_ref;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_skb_load_bytes, bpf_skb_store_bytes};

/// Bytes of an Ethernet header. A VLAN tag is kept beside the packet; a packet with a tag in its
/// bytes is not translated.
pub(crate) const ETHERNET: u32 = 14;

/// Words at `offset`, which is a constant: read directly if a program can reach them.
#[inline(always)]
pub(crate) fn words<const COUNT: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u32; COUNT]> {
    direct(skb, offset).or_else(|| load(skb, offset))
}

/// Words at `offset`, which is a constant, if a program can reach them directly.
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

/// Copies a value out of a packet; `None` if the packet ends before its last byte.
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

/// Writes a value into a packet. Returns whether it succeeded.
#[inline(always)]
pub(crate) fn store<T: Copy>(skb: *mut __sk_buff, offset: u32, value: &T) -> bool {
    // SAFETY: a context of this hook, and a whole value without padding.
    unsafe {
        bpf_skb_store_bytes(skb, offset, from_ref(value).cast(), size_of::<T>() as u32, 0) == 0
    }
}
