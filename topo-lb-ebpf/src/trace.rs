//! Tells `topo-lb trace` what was decided about a new connection.
//!
//! While nobody traces, the map `trace` is empty, and a decision costs one look-up, which the kernel
//! inlines. The rest is in global functions, as tc's [`steps`](crate::steps): a program's own size and
//! stack stay as they are. Such a function takes words only.

use aya_ebpf::bindings::{__sk_buff, BPF_RB_NO_WAKEUP, bpf_sock_addr};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid,
};
use aya_ebpf::maps::ring_buf::RingBufEntry;
use aya_ebpf::programs::SockAddrContext;
#[cfg(feature = "log")]
use aya_ebpf::programs::TcContext;
use topo_lb_common::connection::FROM_CLIENT;
use topo_lb_common::trace::{Decision, Hook, Outcome, THREAD_LENGTH};

use crate::access::{ETHERNET, device};
use crate::atomic::add;
use crate::cgroup::{self, Mapped, Place, Plain4, Plain6};
use crate::connection::find_half_open;
use crate::family::Family;
use crate::four_tuple::FourTuple;
use crate::header::Read;
use crate::maps::{TRACE, TRACE_LOST};
use crate::outside::{client_device, is_outside};
use crate::resolve::Resolved;
use crate::steps::Steps;
use crate::transport::ports_of;
use crate::verdict::Verdict;

/// Tells what was decided for the context's socket. Call it before the context gets the endpoint.
#[inline(always)]
pub(crate) fn socket<P: TellSocket>(
    ctx: &SockAddrContext,
    hook: Hook,
    resolved: &Resolved<P::Family>,
    outcome: Outcome,
) {
    if is_on() {
        P::tell(ctx.sock_addr, Words::of(resolved, hook, outcome));
    }
}

/// Notes that nothing is decided for a packet.
#[inline(always)]
pub(crate) fn begin(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw mut (*skb).cb[1]).write_volatile(0) }
}

/// Notes in a packet's own state what was decided, for [`packet`]: the steps have no room on the stack
/// for another function. The endpoint is in the new entry.
#[inline(always)]
pub(crate) fn note<F: Family>(skb: *mut __sk_buff, resolved: &Resolved<F>, outcome: Outcome) {
    let hook = if is_outside(skb) { Hook::Outside } else { Hook::Guest };
    let Words { bytes, .. } = Words::of(resolved, hook, outcome);
    // SAFETY: fields of the hook's context.
    unsafe {
        (&raw mut (*skb).cb[1]).write_volatile(bytes);
        (&raw mut (*skb).cb[2]).write_volatile(resolved.service);
    }
}

/// Tells what was decided for a packet that may open a connection.
#[inline(always)]
pub(crate) fn packet<F: Steps>(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context. No hook of packets is zero.
    if is_on() && unsafe { (&raw const (*skb).cb[1]).read_volatile() } != 0 {
        F::tell(skb);
    }
}

#[inline(always)]
fn is_on() -> bool {
    cfg!(feature = "log") || TRACE.get(0).is_some()
}

/// A decision as words, in the order of the arguments of a global function.
pub(crate) struct Words {
    /// The endpoint's address.
    pub(crate) head: u64,
    pub(crate) tail: u64,
    /// The Service index, and the endpoint's port from bit 32 on.
    pub(crate) service: u64,
    /// Hook, outcome, tier and locality, one byte each.
    pub(crate) bytes: u32,
}

impl Words {
    #[inline(always)]
    fn of<F: Family>(resolved: &Resolved<F>, hook: Hook, outcome: Outcome) -> Self {
        let (address, port) = F::endpoint_parts(&resolved.endpoint);
        let locality = F::locality(&resolved.endpoint) as u8;
        let [head, tail] = F::halves(address);
        Self {
            head,
            tail,
            service: u64::from(resolved.service) | u64::from(port) << 32,
            bytes: u32::from_ne_bytes([hook as u8, outcome as u8, resolved.tier, locality]),
        }
    }
}

/// Who dialled what.
pub(crate) struct Dialled<F: Family> {
    pub(crate) frontend: (F::Address, u16),
    client: (F::Address, u16),
    pub(crate) protocol: u8,
    is_v6: bool,
    device: u32,
}

/// Room for a decision, with the time and what the caller knows in it. Without room, counts.
#[inline(always)]
fn reserve<F: Family>(words: &Words, dialled: &Dialled<F>) -> Option<RingBufEntry<Decision>> {
    let Some(mut entry) = TRACE.get(0)?.reserve_untyped::<Decision>(0) else {
        if let Some(lost) = TRACE_LOST.get_ptr_mut(0) {
            // SAFETY: this CPU's element, to which all writers add atomically.
            unsafe { add(lost, 1) };
        }
        return None;
    };
    let [hook, outcome, tier, locality] = words.bytes.to_ne_bytes();
    let [frontend, client] = [dialled.frontend.0, dialled.client.0].map(F::halves);
    let decision = entry.as_mut_ptr();
    // SAFETY: the entry is this program's until it is submitted; an address is two words, at a multiple
    // of eight bytes. The helper has no preconditions.
    unsafe {
        (&raw mut (*decision).time).write(bpf_ktime_get_ns());
        (&raw mut (*decision).frontend).cast::<[u64; 2]>().write(frontend);
        (&raw mut (*decision).endpoint).cast::<[u64; 2]>().write([words.head, words.tail]);
        (&raw mut (*decision).client).cast::<[u64; 2]>().write(client);
        (*decision).cgroup = 0;
        (*decision).process = 0;
        (&raw mut (*decision).thread).cast::<[u64; 2]>().write([0; 2]);
        (*decision).service = words.service as u32;
        (*decision).device = dialled.device;
        (*decision).frontend_port = dialled.frontend.1;
        (*decision).endpoint_port = (words.service >> 32) as u16;
        (*decision).client_port = dialled.client.1;
        (*decision).protocol = dialled.protocol;
        (*decision).is_v6 = dialled.is_v6.into();
        (*decision).hook = hook;
        (*decision).outcome = outcome;
        (*decision).tier = tier;
        (*decision).locality = locality;
    }
    Some(entry)
}

/// The tracer looks by itself: a decision wakes nobody.
#[inline(always)]
fn submit(entry: RingBufEntry<Decision>) {
    entry.submit(BPF_RB_NO_WAKEUP.into());
}

#[inline(always)]
fn of_socket<P: Place>(ctx: *mut bpf_sock_addr, words: &Words) -> u32 {
    let ctx = SockAddrContext::new(ctx);
    let dialled = Dialled::<P::Family> {
        frontend: (P::address(&ctx), cgroup::port(&ctx)),
        client: (P::Family::NOWHERE, 0),
        protocol: cgroup::protocol(&ctx).unwrap_or(0),
        is_v6: P::Family::IS_V6,
        device: 0,
    };
    #[cfg(feature = "log")]
    crate::log::decided(&ctx, words, &dialled);
    let Some(mut entry) = reserve(words, &dialled) else { return 0 };
    let decision = entry.as_mut_ptr();
    // SAFETY: as in `reserve`. The hooks have these helpers since Linux 5.7 (834ebca83162, "bpf: Enable
    // retrival of pid/tgid/comm from bpf cgroup hooks", and 0f09abd105da).
    unsafe {
        (*decision).cgroup = bpf_get_current_cgroup_id();
        (*decision).process = (bpf_get_current_pid_tgid() >> 32) as u32;
        bpf_get_current_comm((&raw mut (*decision).thread).cast(), THREAD_LENGTH as u32);
    }
    submit(entry);
    0
}

/// The decision for a packet, as noted.
#[inline(always)]
pub(crate) fn of_packet<F: Read>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let says = FourTuple::<F>::of_packet(&header, ports_of(skb, &header).unwrap_or(0));
    // SAFETY: fields of the hook's context.
    let (bytes, service) = unsafe {
        let bytes = (&raw const (*skb).cb[1]).read_volatile();
        (bytes, (&raw const (*skb).cb[2]).read_volatile())
    };
    let mut words = Words { head: 0, tail: 0, service: service.into(), bytes };
    let key = says.key(header.protocol, FROM_CLIENT, client_device(skb));
    if let Some(entry) = find_half_open::<F>(&key) {
        let to = FourTuple::<F>::of_entry(entry);
        [words.head, words.tail] = F::halves(to.destination);
        words.service |= u64::from(to.destination_port) << 32;
    }
    let dialled = Dialled::<F> {
        frontend: (says.destination, says.destination_port),
        client: (says.source, says.source_port),
        protocol: header.protocol,
        is_v6: F::IS_V6,
        device: device(skb),
    };
    #[cfg(feature = "log")]
    crate::log::decided(&TcContext::new(skb), &words, &dialled);
    if let Some(entry) = reserve(&words, &dialled) {
        submit(entry);
    }
    Verdict::Next
}

/// Implements [`TellSocket`] by a global function for each place of an address.
macro_rules! tell {
    ($($place:ident: $global:ident,)*) => {
        $(
            impl TellSocket for $place {
                #[inline(always)]
                fn tell(ctx: *mut bpf_sock_addr, words: Words) {
                    $global(ctx, words.head, words.tail, words.service, words.bytes);
                }
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $global(
                ctx: *mut bpf_sock_addr,
                head: u64,
                tail: u64,
                service: u64,
                bytes: u32,
            ) -> u32 {
                of_socket::<$place>(ctx, &Words { head, tail, service, bytes })
            }
        )*
    };
}

/// The decisions for sockets.
pub(crate) trait TellSocket: Place {
    fn tell(ctx: *mut bpf_sock_addr, words: Words);
}

tell! {
    Plain4: tell_socket4,
    Mapped: tell_socket_mapped,
    Plain6: tell_socket6,
}
