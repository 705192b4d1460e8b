//! Decisions for packets.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::__sk_buff;
#[cfg(feature = "log")]
use aya_ebpf::programs::TcContext;
use topo_lb_common::connection::FROM_CLIENT;

use crate::base::access::{ETHERNET, device};
use crate::base::header::Read;
use crate::base::maps::RETURNS_DIRECTLY;
use crate::base::transport::ports_of;
use crate::decide::decision::{Dialled, Words};
use crate::decide::trace::{reserve, submit};
use crate::packet::connection::find_half_open;
use crate::packet::four_tuple::FourTuple;
use crate::packet::outside::client_device;
use crate::packet::verdict::Verdict;

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
    if RETURNS_DIRECTLY.load() != 0
        && let Some(hop) = F::hops().get_ptr(&key)
    {
        // SAFETY: a look-up's value, of which these fields do not change.
        let (address, port) = unsafe { ((*hop).address, (*hop).port) };
        [words.head, words.tail] = F::halves(F::words(address));
        words.service |= u64::from(port) << 32;
    }
    #[cfg(feature = "log")]
    crate::decide::log::decided(&TcContext::new(skb), &words, &dialled);
    if let Some(entry) = reserve(&words, &dialled) {
        submit(entry);
    }
    Verdict::Next
}
