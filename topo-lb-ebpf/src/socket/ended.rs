//! TCP connections that topo-lb does not translate, for `--count all`: at their end the agent hears of each by a
//! ring buffer. The agent finds out where they went.

use core::ptr;

use aya_ebpf::bindings::{
    BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_SOCK_OPS_RETRANS_CB_FLAG,
    BPF_TCP_SYN_SENT,
};
use aya_ebpf::helpers::generated::bpf_ringbuf_query;
use aya_ebpf::programs::SockOpsContext;
use topo_lb_common::ended::{ESTABLISHED, Ended, RING_BYTES};
use topo_lb_common::totals::Failure;

use crate::base::atomic::add;
use crate::base::maps::{COUNTS_ALL, ENDED, ENDED_LOST};
use crate::socket::tcp_socket::TcpFigures;

/// Marks the sockets whose end is told: another program may ask for changes of the state of any socket, those that
/// were accepted too. The flag asks for callbacks at retransmissions, which are few.
pub(super) const MARK: u32 = BPF_SOCK_OPS_RETRANS_CB_FLAG;

/// include/linux/socket.h
pub(super) const AF_INET: u32 = 2;
/// The first two words of an IPv4-mapped IPv6 address, and the third in network order.
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// Whether the end of a connection that dialled no Service of ours is told: not within this host.
#[inline(always)]
pub(super) fn is_counted(ctx: &SockOpsContext) -> bool {
    COUNTS_ALL.load() != 0 && !is_loopback(remote(ctx))
}

/// Tells of a connection that ends, if its socket is marked. One that was closed before anything failed counts for
/// nothing.
#[inline(always)]
pub(super) fn tell(ctx: &SockOpsContext, now: &TcpFigures) {
    if COUNTS_ALL.load() == 0 || ctx.cb_flags() & MARK == 0 {
        return;
    }
    let failure = if ctx.arg(0) == BPF_TCP_SYN_SENT {
        let Some(failure) = Failure::of(now.error, now.retransmitted) else { return };
        failure as u8
    } else {
        ESTABLISHED
    };
    // SAFETY: this CPU's element, to which all writers add; the entry is this program's until it is submitted.
    unsafe {
        let Some(mut entry) = ENDED.reserve_untyped::<Ended>(0) else {
            if let Some(lost) = ENDED_LOST.get_ptr_mut(0) {
                add(lost, 1);
            }
            return;
        };
        let ended = entry.as_mut_ptr();
        (&raw mut (*ended).client).cast::<[u32; 4]>().write(local(ctx));
        (&raw mut (*ended).dialled).cast::<[u32; 4]>().write(remote(ctx));
        (*ended).sent = now.sent;
        (*ended).received = now.received;
        (*ended).retransmitted = now.retransmitted;
        (*ended).rtt_micros = now.rtt_micros;
        (*ended).client_port = local_port(ctx);
        (*ended).dialled_port = remote_port(ctx);
        (*ended).failure = failure;
        (*ended).reserved = [0; 3];
        entry.submit(wake_up());
    }
}

/// The agent looks once a second. Before the ring buffer is full, it is woken.
#[inline(always)]
fn wake_up() -> u64 {
    let ring = ptr::from_ref(&ENDED).cast_mut().cast();
    // SAFETY: a ring buffer.
    let waiting = unsafe { bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA.into()) };
    let flag =
        if waiting > u64::from(RING_BYTES) / 2 { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    flag.into()
}

/// Whether the context's socket is connected to an IPv4-mapped address.
#[inline(always)]
pub(super) fn is_mapped(ctx: &SockOpsContext) -> bool {
    // SAFETY: fields of the context.
    let head = unsafe {
        let word = |index: usize| (&raw const (*ctx.ops).remote_ip6[index]).read_volatile();
        [word(0), word(1), word(2)]
    };
    head == MAPPED
}

#[inline(always)]
fn is_loopback([first, second, third, last]: [u32; 4]) -> bool {
    let is_mapped = [first, second, third] == MAPPED;
    (is_mapped && last.to_ne_bytes()[0] == 127)
        || (first | second | third == 0 && last == 1_u32.to_be())
}

/// The address of the context's family.
#[inline(always)]
fn of_family(ctx: &SockOpsContext, four: u32, six: [u32; 4]) -> [u32; 4] {
    let [first, second, third] = MAPPED;
    if ctx.family() == AF_INET { [first, second, third, four] } else { six }
}

/// What the context's socket is connected to.
#[inline(always)]
fn remote(ctx: &SockOpsContext) -> [u32; 4] {
    // Each word is read: the verifier takes no pointer that depends on the family. SAFETY: fields of the context.
    let (four, six) = unsafe {
        let word = |index: usize| (&raw const (*ctx.ops).remote_ip6[index]).read_volatile();
        let four = (&raw const (*ctx.ops).remote_ip4).read_volatile();
        (four, [word(0), word(1), word(2), word(3)])
    };
    of_family(ctx, four, six)
}

/// What the context's socket is bound to.
#[inline(always)]
fn local(ctx: &SockOpsContext) -> [u32; 4] {
    // Each word is read: the verifier takes no pointer that depends on the family. SAFETY: fields of the context.
    let (four, six) = unsafe {
        let word = |index: usize| (&raw const (*ctx.ops).local_ip6[index]).read_volatile();
        let four = (&raw const (*ctx.ops).local_ip4).read_volatile();
        (four, [word(0), word(1), word(2), word(3)])
    };
    of_family(ctx, four, six)
}

/// Host order, as the context has it.
#[inline(always)]
fn local_port(ctx: &SockOpsContext) -> u16 {
    // SAFETY: a field of the context.
    unsafe { (&raw const (*ctx.ops).local_port).read_volatile() as u16 }
}

/// The context has the port in network order, as the last two bytes of the word (`sock_ops_convert_ctx_access`,
/// net/core/filter.c).
#[inline(always)]
fn remote_port(ctx: &SockOpsContext) -> u16 {
    // SAFETY: a field of the context.
    u32::from_be(unsafe { (&raw const (*ctx.ops).remote_port).read_volatile() }) as u16
}
