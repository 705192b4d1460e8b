//! Two connections of one client port to one endpoint: one goes through a frontend, the other directly to the
//! endpoint. The endpoint could not tell them apart, so the second one gets another source port there, as
//! connection tracking does.
//!
//! * **The one through the frontend is first.** A SYN or a datagram to an endpoint that may have connections
//!   is looked up. If its answers would be turned, the direct connection is opened like one to a frontend,
//!   as [`DIRECT`].
//! * **The direct one is first.** The programs do not follow it. Its endpoint answers the SYN through the
//!   frontend by an acknowledgement of the connection that it knows (RFC 5961 §4), or by one of TIME-WAIT. That
//!   segment passes untouched ([`MET`]): from the frontend's address, the client would answer it by a RST,
//!   which ends the direct connection. The client's next SYN gets another source port. Datagrams have
//!   no such answer: the direct flow's next datagram makes it the second one.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::{__sk_buff, BPF_ANY};
use topo_lb_common::address::{SCTP, UDP};
use topo_lb_common::connection::{DIRECT, FROM_CLIENT, MET, REPLY, TO_CLIENT};
use topo_lb_common::packets::Outcome;
use topo_lb_common::trace::NO_SERVICE;

use crate::base::access::ETHERNET;
use crate::base::clock::now;
use crate::base::transport::{split_ports, transport};
use crate::decide::resolve::revision;
use crate::packet::budget::{self, Permit};
use crate::packet::connection::{find, find_half_open, holds, is_alive, opens, other_key};
use crate::packet::fast_path::{FastPath, PacketSummary};
use crate::packet::four_tuple::{EntryFields, FourTuple, NewEntry};
use crate::packet::fragment;
use crate::packet::outcomes::{Hook, limited, next, table_full};
use crate::packet::outside::{client_device, is_translated};
use crate::packet::reply_filter::{is_no_endpoint, is_none_direct};
use crate::packet::tc::Translate;
use crate::packet::verdict::{Filtered, Verdict};

/// What a packet with this summary may be, which is not to a frontend.
#[inline(always)]
pub(crate) fn filter<F: FastPath>(skb: *mut __sk_buff, packet: &PacketSummary<F>) -> Filtered {
    let (destination, (_, port)) = (packet.destination, split_ports(packet.ports));
    if !is_none_direct::<F>(destination, port) {
        // Perhaps of a known one.
        Filtered::Service
    } else if (packet.protocol == UDP || F::is_syn(skb)) && !is_no_endpoint::<F>(destination, port)
    {
        Filtered::Direct
    } else {
        Filtered::Other(Outcome::Untouched)
    }
}

/// Opens a direct connection whose answers a connection through a frontend would turn: then
/// [`Verdict::ExpectReplies`], with another source port. Leaves any other packet untouched.
#[inline(always)]
pub(crate) fn open<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    let protocol = header.protocol;
    let is_first = transport.is_sound && protocol != SCTP && opens(protocol, &transport);
    if is_first && !is_translated(skb) {
        let now = now();
        let device = client_device(skb);
        let answer = says.reversed().key(protocol, TO_CLIENT, device);
        if let Some(found) = find::<F>(&answer)
            // SAFETY: a field of a look-up's value.
            && unsafe { EntryFields::of(found).kind.read_volatile() } & REPLY != 0
            && is_alive(EntryFields::of(found), protocol, now)
            && let Some(draft) = F::draft()
        {
            let key = says.key(protocol, FROM_CLIENT, device);
            match budget::may_open::<F>(&key, now) {
                Permit::Granted => {}
                Permit::Limited => return limited(hook),
                Permit::Full => return table_full(hook),
            }
            let (sequence, revision) = (transport.sequence, revision());
            let new = NewEntry {
                now,
                service: NO_SERVICE,
                revision,
                sequence,
                kind: DIRECT,
                affinity: 0,
                locality: 0,
            };
            // SAFETY: this CPU's element, which no other code uses meanwhile.
            let entry = unsafe {
                draft.write(says.entry(key, new));
                draft.as_ref()
            };
            if F::half_open().insert(&key, entry, BPF_ANY.into()).is_ok() {
                return Verdict::ExpectReplies;
            }
        }
    }
    fragment::leave(&header, hook)
}

/// Leaves a segment of an endpoint untouched, which is of another connection than the half-open one with its
/// four-tuple. Has the client's next SYN take another source port.
#[inline(always)]
pub(crate) fn meet<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = FourTuple::<F>::of_packet(&header, transport.ports);
    let key = says.key(header.protocol, TO_CLIENT, client_device(skb));
    if let Some(reply) = find_half_open::<F>(&key) {
        let other = other_key::<F>(reply, &key);
        if holds::<F>(reply, &key)
            && let Some(client) = find_half_open::<F>(&other)
        {
            let state = EntryFields::of(client).state;
            // SAFETY: a field of a look-up's value. If another CPU writes an answer at the same moment, the
            // next packet with a flag sets it again.
            unsafe { state.write_volatile(state.read_volatile() | MET) };
        }
    }
    next(Hook::Egress, Outcome::Untouched)
}
