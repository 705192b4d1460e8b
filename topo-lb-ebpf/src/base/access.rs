//! Access to the bytes of a packet.
//!
//! A program reads headers directly if it can reach them, and otherwise by `bpf_skb_load_bytes`. It
//! *writes* nothing directly: the kernel would then copy every cloned packet before the program
//! runs, also packets that are not translated.

use core::hint::cold_path;
use core::mem::MaybeUninit;
use core::ptr::from_ref;

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::{bpf_skb_load_bytes, bpf_skb_store_bytes};

/// Bytes of an Ethernet header. The kernel stores a VLAN tag beside the packet; a packet with a tag
/// in its bytes is not translated.
pub(crate) const ETHERNET: u32 = 14;

/// A packet at a hook whose head a program reads at once.
pub(crate) trait Packet: Copy {
    /// As [`direct`].
    fn direct<const COUNT: usize>(self, offset: u32) -> Option<[u32; COUNT]>;
    /// As [`length`].
    fn length(self) -> u32;
}

impl Packet for *mut __sk_buff {
    #[inline(always)]
    fn direct<const COUNT: usize>(self, offset: u32) -> Option<[u32; COUNT]> {
        direct(self, offset)
    }

    #[inline(always)]
    fn length(self) -> u32 {
        length(self)
    }
}

/// Of a frame in several buffers (Linux 5.18), it is the first one.
impl Packet for *mut xdp_md {
    #[inline(always)]
    fn direct<const COUNT: usize>(self, offset: u32) -> Option<[u32; COUNT]> {
        let (data, end) = bounds(self);
        words_between(data + offset as usize, end)
    }

    #[inline(always)]
    fn length(self) -> u32 {
        let (data, end) = bounds(self);
        (end - data) as u32
    }
}

/// The begin and the end of what a program reaches of a frame.
#[inline(always)]
pub(crate) fn bounds(frame: *mut xdp_md) -> (usize, usize) {
    // SAFETY: fields of the hook's context.
    unsafe {
        let data = (&raw const (*frame).data).read_volatile() as usize;
        (data, (&raw const (*frame).data_end).read_volatile() as usize)
    }
}

/// Words at `offset`, which is a constant: read directly if a program can reach them.
#[inline(always)]
pub(crate) fn words<const COUNT: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u32; COUNT]> {
    if let Some(words) = direct(skb, offset) {
        return Some(words);
    }
    cold_path();
    load(skb, offset)
}

/// Words at `offset`, which is a constant, if a program can reach them directly.
#[inline(always)]
pub(crate) fn direct<const COUNT: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u32; COUNT]> {
    // SAFETY: fields of the hook's context.
    let (data, end) = unsafe {
        let data = (&raw const (*skb).data).read_volatile() as usize;
        (data, (&raw const (*skb).data_end).read_volatile() as usize)
    };
    words_between(data + offset as usize, end)
}

/// Words at `at`, which a program reaches directly, if they are before `end`.
#[inline(always)]
fn words_between<const COUNT: usize>(at: usize, end: usize) -> Option<[u32; COUNT]> {
    if at + COUNT * 4 > end {
        cold_path();
        return None;
    }
    let mut words = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        // SAFETY: within the packet, as the verifier sees, too. The BPF machine reads words at any
        // address; for hosts that cannot, the kernel aligns IP headers (NET_IP_ALIGN).
        words[index] = unsafe { (at as *const u32).add(index).read_volatile() };
        index += 1;
    }
    Some(words)
}

/// Copies a value out of a packet; `None` if the packet ends before its last byte.
#[inline(always)]
pub(crate) fn load<T: Copy>(skb: *mut __sk_buff, offset: u32) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: a context of this hook; the helper fills the whole value, even if it fails.
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

/// Interface index of the packet's device.
#[inline(always)]
pub(crate) fn device(skb: *mut __sk_buff) -> u32 {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).ifindex).read_volatile() }
}

/// Bytes of the packet, without what the device stored beside it.
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
