//! Session affinity: a client keeps its endpoint across the frontends of a Service port.

use aya_ebpf::bindings::BPF_ANY;
use topo_lb_common::affinity::AffinityKey;
use topo_lb_common::members::CHOSEN;

use crate::clock::now;
use crate::family::Family;
use crate::stamped::words;

const NANOSECONDS: u64 = 1_000_000_000;

/// The endpoint that `client` used last, if that is less than `seconds` ago and the endpoint is
/// still chosen; else `fresh`. Either way it is the client's endpoint from now on.
#[inline(always)]
pub(crate) fn keep<F: Family>(
    client: u64,
    service: u32,
    seconds: u32,
    fresh: F::Endpoint,
) -> F::Endpoint {
    let key = AffinityKey { netns_cookie: client, service, reserved: 0 };
    let now = now();
    if let Some(entry) = F::affinity().get_ptr(key) {
        // SAFETY: a look-up's pointer. An entry that was just found is the last to be evicted, so
        // it is not given to another key under our hands.
        let (last_used, endpoint) = F::affinity_parts(unsafe { words(entry) });
        if now.saturating_sub(last_used) < u64::from(seconds) * NANOSECONDS
            && is_chosen::<F>(service, &endpoint)
        {
            let _ = F::affinity().insert(key, F::affinity_entry(now, endpoint), BPF_ANY.into());
            return endpoint;
        }
    }
    // A full map evicts; what is left to fail is memory, and then the next connection chooses
    // anew.
    let _ = F::affinity().insert(key, F::affinity_entry(now, fresh), BPF_ANY.into());
    fresh
}

/// Whether an endpoint is in the set that this node may use now.
#[inline(always)]
fn is_chosen<F: Family>(service: u32, endpoint: &F::Endpoint) -> bool {
    let key = F::member_key(service, endpoint);
    // SAFETY: one aligned word.
    F::members()
        .get_ptr(&key)
        .is_some_and(|member| unsafe { (&raw const (*member).state).read_volatile() } & CHOSEN != 0)
}
