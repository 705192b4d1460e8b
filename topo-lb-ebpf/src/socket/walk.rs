//! The walk: counts what open TCP connections have moved so far, in each socket that has what it
//! dialled. The kernel runs it when somebody reads the iterator (`iter/bpf_sk_storage_map`).
//!
//! It does not lock sockets. So it counts only what can no longer change: the end of the connection
//! counts the rest.

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::base::family::{ConnectedOf, Family};
use crate::socket::accounting::{Beside, count};
use crate::socket::dialled::Dialled;
use crate::socket::tcp_socket::TcpFigures;

/// `struct bpf_iter__bpf_sk_storage_map` (net/core/bpf_sk_storage.c).
#[repr(C)]
pub(crate) struct WalkContext {
    meta: *mut c_void,
    map: *mut c_void,
    /// Null after the last socket.
    sk: *mut c_void,
    /// The socket's storage.
    value: *mut c_void,
}

/// One socket of the walk.
#[inline(always)]
pub(crate) fn visit<F: Family>(ctx: *const WalkContext) {
    // SAFETY: fields of the context.
    let (sk, value) = unsafe {
        ((&raw const (*ctx).sk).read_volatile(), (&raw const (*ctx).value).read_volatile())
    };
    let (Some(socket), Some(value)) = (NonNull::new(sk), NonNull::new(value)) else { return };
    // SAFETY: the context's socket.
    let Some(now) = (unsafe { TcpFigures::settled(socket.as_ptr()) }) else { return };
    let dialled = Dialled::of::<F>(value.cast::<ConnectedOf<F>>());
    if let Some(totals) = dialled.totals() {
        count::<Beside>(&dialled, &now, totals);
    }
}
