//! The socket of a hook's context, and its storage.

use core::ffi::c_void;
use core::ptr::{self, NonNull};

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::btf_maps::SkStorage;
use aya_ebpf::helpers::generated::{bpf_sk_storage_get, bpf_skc_to_mptcp_sock};
use aya_ebpf::programs::SockAddrContext;

use crate::base::maps::HAS_MPTCP_SOCK;

/// The context's socket.
#[inline(always)]
pub(crate) fn socket(ctx: &SockAddrContext) -> *mut bpf_sock {
    // SAFETY: the context always holds its socket.
    unsafe { (&raw const (*ctx.sock_addr).__bindgen_anon_1.sk).read_volatile() }
}

/// The application's socket. With MPTCP, `connect` gets a subflow, and `getpeername` this socket.
#[inline(always)]
pub(crate) fn owner(ctx: &SockAddrContext) -> *mut c_void {
    owner_of(socket(ctx).cast())
}

/// The application's socket of a context's socket.
#[inline(always)]
pub(crate) fn owner_of(socket: *mut c_void) -> *mut c_void {
    if HAS_MPTCP_SOCK.load() != 0 {
        // SAFETY: the context's socket.
        let mptcp = unsafe { bpf_skc_to_mptcp_sock(socket) };
        if !mptcp.is_null() {
            return mptcp.cast();
        }
    }
    socket
}

/// The port that the context's socket is connected to, in host order; `None` if not connected.
#[inline(always)]
pub(crate) fn peer_port(ctx: &SockAddrContext) -> Option<u16> {
    // SAFETY: the context's socket. Kernels before 5.18 show the port as a word whose first half
    // is the same.
    let port = unsafe { (&raw const (*socket(ctx)).dst_port).read_volatile() };
    if port == 0 { None } else { Some(u16::from_be(port)) }
}

/// The IPv4 address that the context's socket is bound to, in network order; zero if it is not bound.
#[inline(always)]
pub(crate) fn bound4(ctx: &SockAddrContext) -> u32 {
    // SAFETY: the context's socket.
    unsafe { (&raw const (*socket(ctx)).src_ip4).read_volatile() }
}

/// A socket's storage in a map. A new one is all zero.
///
/// # Safety
/// `owner` is a socket.
#[inline(always)]
pub(crate) unsafe fn storage<V>(
    map: &SkStorage<V>,
    owner: *mut c_void,
    flags: u64,
) -> Option<NonNull<V>> {
    let map = ptr::from_ref(map).cast_mut().cast();
    // SAFETY: as the caller says; the result is null or points to a complete value.
    NonNull::new(unsafe { bpf_sk_storage_get(map, owner, ptr::null_mut(), flags) }.cast())
}
