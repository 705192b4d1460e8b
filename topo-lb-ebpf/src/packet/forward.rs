//! Forwards a packet after a program has changed it.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_redirect;
use topo_lb_common::connection::{HAIRPIN, MASQUERADE, SNAT};

use crate::base::access::{device, load, store};
use crate::base::maps::SERVES_ALL_FRONTENDS;
use crate::packet::outcomes::{Hook, dropped};
use crate::packet::outside::{masquerade, set_translated};
use crate::packet::rewrite::Write;
use crate::packet::snat::send_on;
use crate::packet::verdict::Verdict;

/// Passes a packet on, or sends it back if its client is its endpoint. A packet from outside to another
/// node, or a reply to it, goes on at once or gets a mark. `kind`: the connection's.
#[inline(always)]
pub(crate) fn forward<F: Write>(skb: *mut __sk_buff, kind: u8, hook: Hook) -> Verdict {
    if SERVES_ALL_FRONTENDS.load() != 0 && hook == Hook::Ingress {
        if kind & SNAT != 0 {
            return send_on::<F>(skb).unwrap_or_else(|| dropped(hook));
        }
        set_translated(skb);
        if kind & MASQUERADE != 0 {
            masquerade(skb);
        }
    }
    if kind & HAIRPIN == 0 {
        return Verdict::Next;
    }
    send_back(skb).unwrap_or_else(|| dropped(hook))
}

/// Sends a packet back out of its device. `None`: it cannot be written, and is unchanged.
#[inline(always)]
pub(crate) fn send_back(skb: *mut __sk_buff) -> Option<Verdict> {
    let [a, b, c, d, e, f] = load::<[u16; 6]>(skb, 0)?;
    if !store(skb, 0, &[d, e, f, a, b, c]) {
        return None;
    }
    // SAFETY: a context of this hook. Without flags the helper always succeeds.
    unsafe { bpf_redirect(device(skb), 0) };
    Some(Verdict::Redirect)
}
