//! Session affinity: a client keeps its endpoint across the frontends of a Service port.

use aya_ebpf::bindings::BPF_ANY;
use topo_lb_common::affinity::AffinityKey;
use topo_lb_common::members::CHOSEN;

use crate::clock::now;
use crate::family::{Family, V4, V6};
use crate::words::words;

const NANOSECONDS: u64 = 1_000_000_000;

/// The endpoint that `client` used last, if that is less than `seconds` ago and the endpoint is
/// still chosen; otherwise `fresh`. Stores it as the client's endpoint.
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
        // the kernel does not reuse it meanwhile.
        let (last_used, endpoint) = F::affinity_parts(unsafe { words(entry) });
        if now.saturating_sub(last_used) < u64::from(seconds) * NANOSECONDS
            && is_chosen::<F>(service, &endpoint)
        {
            let _ = F::affinity().insert(key, F::affinity_entry(now, endpoint), BPF_ANY.into());
            return endpoint;
        }
    }
    // A full map evicts an entry. If memory is short, the next connection chooses again.
    let _ = F::affinity().insert(key, F::affinity_entry(now, fresh), BPF_ANY.into());
    fresh
}

/// Whether new connections of this node may use an endpoint.
#[inline(always)]
fn is_chosen<F: Family>(service: u32, endpoint: &F::Endpoint) -> bool {
    let key = F::member_key(service, F::endpoint_parts(endpoint));
    // SAFETY: one aligned word.
    F::members()
        .get_ptr(key)
        .is_some_and(|member| unsafe { (&raw const (*member).state).read_volatile() } & CHOSEN != 0)
}

/// The number of a packet's client for session affinity. Unlike a network namespace's cookie, which
/// counts from one, it has its highest bit set.
pub(crate) trait Client: Family {
    fn client(address: Self::Address) -> u64;
}

impl Client for V4 {
    #[inline(always)]
    fn client(address: u32) -> u64 {
        1 << 63 | address as u64
    }
}

impl Client for V6 {
    #[inline(always)]
    fn client(address: [u32; 4]) -> u64 {
        let [head, tail] = {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = Self::bytes(address);
            [
                u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
            ]
        };
        1 << 63 | head.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ tail
    }
}
