//! Probes of other agents ([`topo_lb_common::hop`]): frames that are to be like those of clients outside, so they are for
//! no socket.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use topo_lb_common::address::UDP;
use topo_lb_common::hop::{PROBE_BYTES, PROBE_HOPS, PROBE_MAGIC, PROBE_PORT, Probe};

use crate::base::access::{ETHERNET, device, length, load};
use crate::base::header::Read;
use crate::base::maps::{PROBES, RETURNS_DIRECTLY};
use crate::base::transport::ports;
use crate::packet::fast_path::{FastPath, PacketSummary};
use crate::packet::outside::is_for_another_host;
use crate::packet::verdict::Verdict;

/// Whether a packet may be a probe. To be asked before whether an end is a frontend.
#[inline(always)]
pub(crate) fn may_be<F: Read>(packet: &PacketSummary<F>) -> bool {
    RETURNS_DIRECTLY.load() != 0
        && packet.ports == ports(PROBE_PORT, PROBE_PORT)
        && packet.protocol == UDP
}

/// Gives a probe, which nobody has forwarded, to the agent, and drops it. [`Verdict::Translate`]: it is none. No host has
/// the address of one of a probe's ends.
#[inline(always)]
pub(crate) fn hear<F: FastPath>(skb: *mut __sk_buff) -> Verdict {
    let is_of_client = F::summary(skb)
        .is_some_and(|it| it.source == F::PROBE_CLIENT || it.destination == F::PROBE_CLIENT);
    let payload = ETHERNET + F::BYTES + 8;
    let bytes = payload + PROBE_BYTES as u32;
    let is_probe = is_of_client
        && length(skb) == bytes
        && load(skb, ETHERNET + if F::IS_V6 { 7 } else { 8 }) == Some(PROBE_HOPS)
        && load(skb, payload) == Some(u64::from_ne_bytes(PROBE_MAGIC));
    if !is_probe || is_for_another_host(skb) {
        return Verdict::Translate;
    }
    if let Some(mut entry) = PROBES.reserve_untyped::<Probe>(0) {
        let probe = entry.as_mut_ptr();
        // SAFETY: the entry's fields, and as many bytes of the frame as it has room for.
        let loaded = unsafe {
            (&raw mut (*probe).device).write(device(skb));
            (&raw mut (*probe).length).write(bytes as u16);
            bpf_skb_load_bytes(skb.cast(), 0, (&raw mut (*probe).frame).cast(), bytes)
        };
        if loaded == 0 { entry.submit(0) } else { entry.discard(0) }
    }
    Verdict::Drop
}
