//! Session affinity: a client keeps its endpoint across the frontends of a Service port.

use aya_ebpf::bindings::BPF_ANY;
use topo_lb_common::address::TCP;
use topo_lb_common::affinity::{AffinityKey, client6, of_datagrams};
use topo_lb_common::connection::Connection;
use topo_lb_common::members::CHOSEN;

use crate::base::clock::now;
use crate::base::family::{ConnectionOf, Family, TupleOf, V4, V6};
use crate::base::maps::Recent;
use crate::base::words::words;
use crate::decide::resolve::Fresh;

const NANOSECONDS: u64 = 1_000_000_000;

/// The endpoint that the network namespace `client` used last, if that is not too long ago and the endpoint
/// is still chosen; otherwise the fresh one. Stores it as the client's endpoint.
#[inline(always)]
pub(crate) fn keep<F: Family>(client: u64, fresh: Fresh<F>) -> F::Endpoint {
    let key = AffinityKey { netns_cookie: client, service: fresh.service, reserved: 0 };
    let now = now();
    // An entry that was just found is the last to be evicted, so the kernel does not reuse it meanwhile.
    let endpoint = stored::<F>(F::affinity(), key, fresh.seconds, now).unwrap_or(fresh.endpoint);
    // A full map evicts an entry. If memory is short, the next connection chooses again.
    let _ = F::affinity().insert(key, F::affinity_entry(now, endpoint), BPF_ANY.into());
    endpoint
}

/// The same for a client without a socket on this node, by its address. Stores nothing: a packet's source
/// may be false.
#[inline(always)]
pub(crate) fn look<F: Client>(client: F::Address, protocol: u8, fresh: Fresh<F>) -> F::Endpoint {
    let netns_cookie = number::<F>(client, protocol, fresh.affinity);
    let key = AffinityKey { netns_cookie, service: fresh.service, reserved: 0 };
    stored::<F>(F::clients(), key, fresh.seconds, now()).unwrap_or(fresh.endpoint)
}

/// Stores the endpoint of an established connection, or of an answered datagram, as its client's. `key` is that
/// of the client's entry `connection`.
#[inline(always)]
pub(crate) fn remember<F: Client>(key: &TupleOf<F>, connection: &ConnectionOf<F>) {
    if connection.affinity == 0 {
        return;
    }
    let netns_cookie = number::<F>(F::words(key.source), key.protocol, connection.affinity);
    let key = AffinityKey { netns_cookie, service: connection.service, reserved: 0 };
    let Connection { destination, destination_port, locality, .. } = *connection;
    let endpoint = F::endpoint(destination, destination_port, locality);
    let _ = F::clients().insert(key, F::affinity_entry(now(), endpoint), BPF_ANY.into());
}

/// A client's entry, if it is not older than `seconds` and its endpoint is still chosen.
#[inline(always)]
fn stored<F: Family>(
    map: &Recent<AffinityKey, F::Affinity>,
    key: AffinityKey,
    seconds: u32,
    now: u64,
) -> Option<F::Endpoint> {
    let entry = map.get_ptr(key)?;
    // SAFETY: a look-up's pointer.
    let (last_used, endpoint) = F::affinity_parts(unsafe { words(entry) });
    let is_kept = now.saturating_sub(last_used) < u64::from(seconds) * NANOSECONDS
        && is_chosen::<F>(key.service, &endpoint);
    is_kept.then_some(endpoint)
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

/// The number of a packet's client for session affinity. `affinity`: as [`Connection::affinity`], in the
/// highest bits, for the frontends that the client has dialled.
#[inline(always)]
fn number<F: Client>(address: F::Address, protocol: u8, affinity: u8) -> u64 {
    let client = F::client(address);
    let client = if protocol == TCP { client } else { of_datagrams(client) };
    u64::from(affinity) << 62 | client
}

/// What tells clients without a socket on this node apart.
pub(crate) trait Client: Family {
    /// Less than 2^62.
    fn client(address: Self::Address) -> u64;
}

impl Client for V4 {
    #[inline(always)]
    fn client(address: u32) -> u64 {
        address.into()
    }
}

impl Client for V6 {
    #[inline(always)]
    fn client(address: [u32; 4]) -> u64 {
        let [network, host] = Self::halves(address);
        client6(network, host)
    }
}
