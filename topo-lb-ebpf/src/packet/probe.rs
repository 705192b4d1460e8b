//! Probes of other agents ([`topo_lb_common::hop`]): frames that are to be like those of clients outside, so they are for
//! no socket.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use topo_lb_common::address::UDP;
use topo_lb_common::hop::{PROBE_BYTES, PROBE_PORT, Probe};
use topo_lb_common::packets::Outcome;

use crate::base::access::{ETHERNET, device, length};
use crate::base::header::Read;
use crate::base::maps::{PROBES, RETURNS_DIRECTLY};
use crate::base::transport::ports;
use crate::packet::fast_path::PacketSummary;
use crate::packet::outcomes::{Hook, next};
use crate::packet::outside::is_for_another_host;
use crate::packet::verdict::Verdict;

/// Whether a packet to no frontend may be a probe.
#[inline(always)]
pub(crate) fn may_be<F: Read>(packet: &PacketSummary<F>) -> bool {
    RETURNS_DIRECTLY.load() != 0
        && packet.ports == ports(PROBE_PORT, PROBE_PORT)
        && packet.protocol == UDP
}

/// Gives a frame with the length of a probe to the agent, and drops it.
#[inline(always)]
pub(crate) fn hear<F: Read>(skb: *mut __sk_buff) -> Verdict {
    let bytes = ETHERNET + F::BYTES + 8 + PROBE_BYTES as u32;
    if length(skb) != bytes || is_for_another_host(skb) {
        return next(Hook::Ingress, Outcome::Untouched);
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
