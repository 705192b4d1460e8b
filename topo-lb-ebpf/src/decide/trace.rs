//! Tells `topo-lb trace` what was decided about a new connection, by a ring buffer.
//!
//! While nobody traces, the map `trace` is empty, and a decision costs one look-up, which the kernel
//! inlines. The rest is in global functions, as tc's steps: a program's own size and
//! stack stay as they are. Such a function takes words only.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::maps::ring_buf::RingBufEntry;
use topo_lb_common::trace::Decision;

use crate::base::atomic::add;
use crate::base::family::Family;
use crate::base::maps::{TRACE, TRACE_LOST};
use crate::decide::decision::{Dialled, Words};

/// Whether somebody traces.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    cfg!(feature = "log") || TRACE.get(0).is_some()
}

/// Room for a decision, with the time and what the caller knows in it. Without room, counts.
#[inline(always)]
pub(crate) fn reserve<F: Family>(
    words: &Words,
    dialled: &Dialled<F>,
) -> Option<RingBufEntry<Decision>> {
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
pub(crate) fn submit(entry: RingBufEntry<Decision>) {
    entry.submit(BPF_RB_NO_WAKEUP.into());
}
