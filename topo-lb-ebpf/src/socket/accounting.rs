//! Accounting: what TCP connections to Services move, counted when they end. Packets cost nothing.
//!
//! A callback at the begin of a connection asks for callbacks on changes of its state, only if the
//! socket has what it dialled in its storage. So all other sockets cost a few instructions. With `--count all` every
//! client's socket is asked for ([`ended`]).

use core::ffi::c_void;
use core::ptr::NonNull;

use aya_ebpf::bindings::{
    BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RTO_CB_FLAG, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_TCP_CLOSE, BPF_TCP_SYN_SENT,
};
use aya_ebpf::programs::SockOpsContext;
use topo_lb_common::backend::Locality;
use topo_lb_common::totals::{Failure, RTT_PLACES, Totals, rtt_place};

use crate::base::atomic::{add, compare_exchange};
use crate::base::family::{Family as _, V4, V6};
use crate::socket::dialled::Dialled;
use crate::socket::ejection;
use crate::socket::ended::{self, AF_INET, is_mapped};
use crate::socket::storage::{owner_of, storage};
use crate::socket::tcp_socket::TcpFigures;

/// A callback of a TCP socket.
#[inline(always)]
pub(crate) fn callback<N: Note>(ctx: &SockOpsContext) {
    match ctx.op() {
        // The second one too: another program may have set its own flags in place of ours.
        BPF_SOCK_OPS_TCP_CONNECT_CB | BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => begin(ctx),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE && ctx.arg(0) != BPF_TCP_CLOSE => {
            end::<N>(ctx);
        }
        _ => {}
    }
}

/// Marks sockets of Services with ejection, so that only these are looked up once they are connected:
/// the flag asks for callbacks at time-outs, which are few.
const MARK: u32 = BPF_SOCK_OPS_RTO_CB_FLAG;

/// Asks for callbacks on changes of the state of a socket that dialled a Service.
#[inline(always)]
fn begin(ctx: &SockOpsContext) {
    let flags = ctx.cb_flags();
    let is_established = ctx.op() == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
    // Another program may have set the flag before the socket was marked.
    let is_marked = flags & MARK != 0;
    if flags & BPF_SOCK_OPS_STATE_CB_FLAG != 0 && is_established != is_marked {
        return;
    }
    let Some(dialled) = socket(ctx).and_then(|socket| dialled(ctx, socket)) else {
        if ended::is_counted(ctx) {
            let _ = ctx.set_cb_flags((flags | BPF_SOCK_OPS_STATE_CB_FLAG | ended::MARK) as i32);
        }
        return;
    };
    let mark = if dialled.failures == 0 { 0 } else { MARK };
    // Without, the connection is not counted.
    let _ = ctx.set_cb_flags((flags | BPF_SOCK_OPS_STATE_CB_FLAG | mark) as i32);
    if is_established && dialled.failures != 0 {
        ejection::succeeded(&dialled);
    }
}

/// Counts a connection that ends.
#[inline(always)]
fn end<N: Note>(ctx: &SockOpsContext) {
    let Some(socket) = socket(ctx) else { return };
    // SAFETY: the context's socket.
    let Some(now) = (unsafe { TcpFigures::read(socket.as_ptr()) }) else { return };
    let Some(dialled) = dialled(ctx, socket) else {
        ended::tell(ctx, &now);
        return;
    };
    let Some(totals) = dialled.totals() else { return };
    count::<N>(&dialled, &now, totals);
    let totals = totals.as_ptr();
    // SAFETY: an entry of the map; all writers add.
    unsafe {
        if ctx.arg(0) == BPF_TCP_SYN_SENT {
            if let Some(failure) = Failure::of(now.error, now.retransmitted) {
                if dialled.failures != 0 {
                    ejection::failed(&dialled, failure);
                }
                add((&raw mut (*totals).failures).cast::<u64>().add(failure as usize), 1);
            }
            return;
        }
        // Another program has removed the mark.
        if dialled.failures != 0 {
            ejection::succeeded(&dialled);
        }
        if now.rtt_micros != 0 {
            add(&raw mut (*totals).rtt_micros, now.rtt_micros.into());
            // The verifier needs the limit; the place is below it.
            let place = rtt_place(now.rtt_micros) & (RTT_PLACES - 1);
            add((&raw mut (*totals).rtt).cast::<u64>().add(place), 1);
        }
    }
}

/// How what is counted already is noted.
pub(crate) trait Note {
    /// Raises a word of [`Seen`](topo_lb_common::connected::Seen) to `now`. Returns by how much.
    ///
    /// # Safety
    /// `seen` is in the storage of the socket.
    unsafe fn raise(seen: *mut u64, now: u64) -> u64;
}

/// Only the end of a connection counts.
pub(crate) enum Alone {}

impl Note for Alone {
    #[inline(always)]
    unsafe fn raise(seen: *mut u64, now: u64) -> u64 {
        // SAFETY: the caller's.
        let before = unsafe { seen.read_volatile() };
        if now <= before {
            return 0;
        }
        // SAFETY: the caller's.
        unsafe { seen.write_volatile(now) };
        now - before
    }
}

/// The walk may count the same connection at the same time.
pub(crate) enum Beside {}

/// More attempts than there can be others at once: one walk, and the end.
const ATTEMPTS: u32 = 4;

impl Note for Beside {
    #[inline(always)]
    unsafe fn raise(seen: *mut u64, now: u64) -> u64 {
        // SAFETY: the caller's.
        let mut before = unsafe { seen.read_volatile() };
        for _ in 0..ATTEMPTS {
            if now <= before {
                return 0;
            }
            // SAFETY: the caller's.
            let found = unsafe { compare_exchange(seen, before, now) };
            if found == before {
                return now - before;
            }
            before = found;
        }
        0
    }
}

/// Adds what is not counted yet.
#[inline(always)]
pub(crate) fn count<N: Note>(dialled: &Dialled, now: &TcpFigures, totals: NonNull<Totals>) {
    let (totals, seen) = (totals.as_ptr(), dialled.seen);
    // SAFETY: an entry of the map, to which all writers add, and the socket's own storage.
    unsafe {
        let raised = |to, seen, now| {
            let more = if dialled.is_shared { now } else { N::raise(seen, now) };
            if more != 0 {
                add(to, more);
            }
            more
        };
        let sent = raised(&raw mut (*totals).sent, &raw mut (*seen).sent, now.sent);
        let received = raised(&raw mut (*totals).received, &raw mut (*seen).received, now.received);
        let segments = now.retransmitted.into();
        raised(&raw mut (*totals).retransmitted, &raw mut (*seen).retransmitted, segments);
        if sent | received != 0
            && Locality::from_byte(dialled.key.locality) > Locality::Zone
            && let Some(moved) = dialled.far_endpoint()
        {
            let moved = moved.as_ptr();
            add(&raw mut (*moved).sent, sent);
            add(&raw mut (*moved).received, received);
        }
    }
}

/// What the callback's socket dialled. An IPv6 socket that is connected to an IPv4-mapped address
/// dialled an IPv4 frontend; what it dialled before in the other family does not count.
#[inline(always)]
fn dialled(ctx: &SockOpsContext, socket: NonNull<c_void>) -> Option<Dialled> {
    let owner = owner_of(socket.as_ptr());
    // SAFETY: the context's socket.
    let dialled = unsafe {
        if ctx.family() == AF_INET || is_mapped(ctx) {
            storage(V4::connected(), owner, 0).map(Dialled::of::<V4>)
        } else {
            storage(V6::connected(), owner, 0).map(Dialled::of::<V6>)
        }
    };
    dialled.map(|dialled| {
        let is_shared = owner != socket.as_ptr();
        // A further subflow may fail although the endpoint serves.
        let failures = if is_shared { 0 } else { dialled.failures };
        Dialled { is_shared, failures, ..dialled }
    })
}

/// The socket of a callback.
#[inline(always)]
fn socket(ctx: &SockOpsContext) -> Option<NonNull<c_void>> {
    // SAFETY: a field of the context.
    NonNull::new(unsafe { (&raw const (*ctx.ops).__bindgen_anon_2.sk).read_volatile() }.cast())
}
