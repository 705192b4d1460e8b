//! What is over leaves first: closed connections, answered datagrams, and openings that nobody answers.
//!
//! Each function is a step of its own, with a stack of its own.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::ptr::NonNull;

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{ANSWERED, REPLY, is_closed, is_settled};
use topo_lb_common::openings::{EACH, bucket};

use crate::base::access::ETHERNET;
use crate::base::family::{ConnectionOf, TupleOf};
use crate::base::maps::SEED;
use crate::base::transport::ports_of;
use crate::base::words::{are_same, words};
use crate::decide::affinity;
use crate::packet::budget;
use crate::packet::connection::{find_established, find_half_open, forget, holds, other_key};
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::outcomes::Hook;
use crate::packet::outside::{client_device, is_of_outside};
use crate::packet::tc::{Translate, client_key};
use crate::packet::verdict::Verdict;

/// Keys of each queue that one opening takes at most.
const ATTEMPTS: u32 = 4;

/// Lets the connection of a packet that has just ended it, or is the first answer to a datagram, leave the
/// table later on: first in, first out. Its client has its place in the quota back at once.
#[inline(always)]
pub(crate) fn leave<F: Translate>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let Some(ports) = ports_of(skb, &header) else { return Verdict::Translate };
    let says = FourTuple::<F>::of_packet(&header, ports);
    let mut key = says.key(header.protocol, hook as u8, client_device(skb));
    let established = find_established::<F>(&key);
    let Some(found) = established.or_else(|| find_half_open::<F>(&key)) else {
        return Verdict::Translate;
    };
    // SAFETY: a look-up's value.
    let is_reply = unsafe { EntryFields::of(found).kind.read_volatile() } & REPLY != 0;
    let other = other_key::<F>(found, &key);
    if !holds::<F>(found, &key) {
        return Verdict::Translate;
    }
    if established.is_some() {
        budget::closed::<F>(budget::of_entry::<F>(found, &key), key.protocol);
    }
    // The queue of the closed has replies' keys, the other one clients'.
    if is_reply != established.is_some() {
        key = other;
    }
    if established.is_some() {
        if F::closed().push(&key, 0).is_err() {
            if let Ok(Some(oldest)) = F::closed().pop()
                // The same ports have ended another connection before: its key does not end this one.
                // SAFETY: two values of this function; keys have no padding.
                && !unsafe { are_same(&raw const oldest, &key) }
            {
                forget_if::<F>(&oldest, find_established::<F>(&oldest), is_closed);
            }
            let _ = F::closed().push(&key, 0);
        }
        return Verdict::Translate;
    }
    // A SYN that was answered by a RST shows nothing about who has sent it.
    if key.protocol != TCP
        && let Some(client) = find_half_open::<F>(&key)
    {
        // SAFETY: a look-up's value, of which these fields do not change.
        affinity::remember::<F>(&key, unsafe { client.as_ref() });
    }
    if F::settled().push(&key, 0).is_err() {
        forget_settled::<F>(&key);
        let _ = F::settled().push(&key, 0);
    }
    Verdict::Translate
}

/// Forgets the half-open connection that has been done for the longest time, if the first key of its queue is of
/// one, and not `spared`, which is of another one by now. Returns whether it was.
#[inline(always)]
fn forget_settled<F: Translate>(spared: &TupleOf<F>) -> bool {
    let Ok(Some(oldest)) = F::settled().pop() else { return false };
    // SAFETY: two values of a function; keys have no padding.
    if unsafe { are_same(&raw const oldest, spared) } {
        return false;
    }
    let protocol = oldest.protocol;
    let entry = find_half_open::<F>(&oldest);
    forget_if::<F>(&oldest, entry, |state| is_settled(protocol, state))
}

/// Counts a connection that a packet has just opened. If the table has no room for it, another one is forgotten: one
/// that is done, or else the oldest one of its client at its frontend, unless that is a datagram with an answer. An
/// answered SYN is not spared: whoever floods with SYNs gets answers, and does not complete a handshake.
/// [`Verdict::Forget`]: neither was there, so the oldest one of all is to be forgotten.
#[inline(always)]
pub(crate) fn replace_oldest<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let Some(ports) = ports_of(skb, &header) else { return Verdict::Next };
    let says = FourTuple::<F>::of_packet(&header, ports);
    let key = client_key(skb, &says, header.protocol);
    let mut lacks_room = budget::opened::<F>();
    for _ in 0..ATTEMPTS {
        if !lacks_room {
            break;
        }
        lacks_room = !forget_settled::<F>(&key);
    }
    let client = if is_of_outside::<F>(&key) {
        let [word, _] = F::halves(says.source);
        word
    } else {
        key.device.into()
    };
    let (address, port) = (F::folded(says.destination), says.destination_port);
    let Some(openings) =
        F::openings().get_ptr_mut(bucket(SEED.load(), client, address, port, header.protocol))
    else {
        return Verdict::Next;
    };
    // SAFETY: an array's element; the place is within it, and other CPUs' writes do no harm.
    unsafe {
        let next = (&raw mut (*openings).next).read_volatile();
        (&raw mut (*openings).next).write_volatile(next.wrapping_add(1));
        let keys = (&raw mut (*openings).keys).cast::<TupleOf<F>>();
        let place = keys.add((next & (EACH - 1)) as usize);
        if lacks_room && !are_same(place, &key) {
            let oldest = words(place);
            let entry = find_half_open::<F>(&oldest);
            let is_tcp = oldest.protocol == TCP;
            lacks_room = !forget_if::<F>(&oldest, entry, |state| is_tcp || state & ANSWERED == 0);
        }
        place.write(key);
    }
    if lacks_room { Verdict::Forget } else { Verdict::Next }
}

/// Has the connection that a packet has just opened wait in the queue of openings. `lacks_room`: the oldest one there is
/// forgotten for it. If the queue is full, keys of what has left the table give it their place. An opening that is at
/// the front then is the newest one again; that needs no room, as the queue holds twice as many as the table.
#[inline(always)]
pub(crate) fn wait<F: Translate>(skb: *mut __sk_buff, lacks_room: bool) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let Some(ports) = ports_of(skb, &header) else { return Verdict::Next };
    let key = client_key(skb, &FourTuple::<F>::of_packet(&header, ports), header.protocol);
    let mut lacks_room = lacks_room;
    for attempt in 1..=ATTEMPTS {
        if !lacks_room && F::opened().push(&key, 0).is_ok() {
            return Verdict::Next;
        }
        let Ok(Some(oldest)) = F::opened().pop() else { break };
        if let Some(entry) = find_half_open::<F>(&oldest)
            // SAFETY: two values of this function; keys have no padding.
            && !unsafe { are_same(&raw const oldest, &key) }
        {
            if lacks_room || attempt == ATTEMPTS {
                forget::<F>(&oldest, entry);
                lacks_room = false;
            } else {
                let _ = F::opened().push(&oldest, 0);
            }
        }
    }
    let _ = F::opened().push(&key, 0);
    Verdict::Next
}

/// Forgets a connection by either of its entries, if there is one in such a state. Returns whether there was.
#[inline(always)]
fn forget_if<F: Translate>(
    key: &TupleOf<F>,
    entry: Option<NonNull<ConnectionOf<F>>>,
    is_over: impl FnOnce(u8) -> bool,
) -> bool {
    if let Some(entry) = entry
        // SAFETY: a field of a look-up's value.
        && is_over(unsafe { EntryFields::of(entry).state.read_volatile() })
    {
        forget::<F>(key, entry);
        return true;
    }
    false
}
