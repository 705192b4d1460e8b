//! Entries of the connection table: their lifetime, and what to do with a packet of theirs.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::hint::cold_path;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};

use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, DIRECT, ENDPOINT_GONE, MET, REPLY, RESET, SHORTEST_LIFETIME, SILENCE, TICK,
    is_closed, lifetime, may_be_in_time_wait,
};

use crate::base::family::{ConnectionOf, Family, FrontendOf, TupleOf};
use crate::base::transport::{ACK, FIN, RST, SYN, Transport};
use crate::base::words::are_same;
use crate::decide::resolve::{look_up, revision};
use crate::packet::budget;
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::outside::is_of_outside;

/// How often a packet to an endpoint that is gone checks whether that endpoint still answers: every
/// 2^30 ns (1.1 s).
const LISTEN: u32 = 30;

/// What to do with a packet from a client, according to its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointCheck {
    /// Send it to the connection's endpoint.
    Goes,
    /// Forget this connection: it is over, or the packet opens another one.
    Other,
    /// Check the endpoint: some Service has changed, or the endpoint is gone.
    Doubtful,
    /// Give up: the connection's endpoint is gone and does not answer.
    GivenUp,
}

/// The entry of an established connection by its key. The pointer is valid until the program ends.
#[inline(always)]
pub(crate) fn find_established<F: Family>(key: &TupleOf<F>) -> Option<NonNull<ConnectionOf<F>>> {
    NonNull::new(F::connections().get_ptr_mut(key)?)
}

/// The entry of a connection that is not established yet; as [`find_established`].
#[inline(always)]
pub(crate) fn find_half_open<F: Family>(key: &TupleOf<F>) -> Option<NonNull<ConnectionOf<F>>> {
    NonNull::new(F::half_open().get_ptr_mut(key)?)
}

/// The entry of a packet's connection; as [`find_established`]. With a SYN it is half-open, as a rule.
#[inline(always)]
pub(crate) fn find_of<F: Family>(
    key: &TupleOf<F>,
    transport: &Transport,
) -> Option<NonNull<ConnectionOf<F>>> {
    if transport.flags & SYN == 0 {
        find::<F>(key)
    } else {
        find_half_open::<F>(key).or_else(|| find_established::<F>(key))
    }
}

/// The entry of any connection; as [`find_established`].
#[inline(always)]
pub(crate) fn find<F: Family>(key: &TupleOf<F>) -> Option<NonNull<ConnectionOf<F>>> {
    find_established::<F>(key).or_else(|| find_half_open::<F>(key))
}

/// Whether an entry still has this key. A program may remove an entry, and the kernel gives its memory to
/// another connection while a program uses it: so a program checks this after reading the entry,
/// and before it acts on what it has read.
#[inline(always)]
pub(crate) fn holds<F: Family>(connection: NonNull<ConnectionOf<F>>, key: &TupleOf<F>) -> bool {
    compiler_fence(Ordering::Acquire);
    // SAFETY: a look-up's pointer; the key has no padding.
    unsafe { are_same(&raw const (*connection.as_ptr()).key, key) }
}

/// Whether an entry is younger than its [`lifetime`].
#[inline(always)]
pub(crate) fn is_alive(fields: EntryFields, protocol: u8, now: u64) -> bool {
    // SAFETY: fields of a look-up's value. Another CPU may write them, so each is read separately.
    let (last_used, state) =
        unsafe { (fields.last_used.read_volatile(), fields.state.read_volatile()) };
    // Negative if another CPU has just written a later time.
    let age = now.wrapping_sub(last_used).cast_signed();
    if age < SHORTEST_LIFETIME.cast_signed() {
        return true;
    }
    cold_path();
    age < lifetime(protocol, state).cast_signed()
}

/// Whether a packet may open a connection: any datagram, and a SYN without other flags.
#[inline(always)]
pub(crate) fn opens(protocol: u8, transport: &Transport) -> bool {
    protocol != TCP || transport.flags & (SYN | ACK | RST | FIN) == SYN
}

/// Decides about a client's packet by the entry alone.
#[inline(always)]
pub(crate) fn check_endpoint<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    transport: &Transport,
    now: u64,
) -> EndpointCheck {
    let fields = EntryFields::of(connection);
    // SAFETY: fields of a look-up's value, each read separately.
    let (kind, state) = unsafe { (fields.kind.read_volatile(), fields.state.read_volatile()) };
    let opens = opens(protocol, transport);
    if !is_alive(fields, protocol, now) {
        return EndpointCheck::Other;
    }
    if kind & REPLY != 0 {
        let is_other = protocol == TCP && transport.flags & SYN != 0 && is_closed(state);
        return if is_other { EndpointCheck::Other } else { EndpointCheck::Goes };
    }
    // While a connection is open, its endpoint decides about a SYN (RFC 5961 §4).
    if protocol == TCP && opens && (is_closed(state) || state & MET != 0) {
        return EndpointCheck::Other;
    }
    // SAFETY: as above.
    let (revision_then, last_used) =
        unsafe { (fields.revision.read_volatile(), fields.last_used.read_volatile()) };
    let may_be_silent = kind & ENDPOINT_GONE != 0 && (last_used ^ now) >> LISTEN != 0;
    if may_be_silent || revision_then != revision() {
        return EndpointCheck::Doubtful;
    }
    EndpointCheck::Goes
}

/// Checks the endpoint for a [`Doubtful`](EndpointCheck::Doubtful) packet with the Service's values
/// in the maps. `opens`: the packet may open a connection; `asks`: the endpoint must answer it.
#[inline(always)]
pub(crate) fn reconsider<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    key: &TupleOf<F>,
    frontend: &FrontendOf<F>,
    opens: bool,
    asks: bool,
    now: u64,
) -> EndpointCheck {
    let fields = EntryFields::of(connection);
    let protocol = key.protocol;
    let current = revision();
    // SAFETY: as in `check_endpoint`.
    let (revision, kind, state) = unsafe {
        (fields.revision.read_volatile(), fields.kind.read_volatile(), fields.state.read_volatile())
    };
    let mut is_gone = kind & ENDPOINT_GONE != 0;
    if kind & DIRECT != 0 {
        // No Service has this endpoint.
        // SAFETY: as in `check_endpoint`.
        unsafe { fields.revision.write_volatile(current) };
    } else if revision != current {
        // SAFETY: as in `check_endpoint`.
        let service = unsafe { fields.service.read_volatile() };
        let serves = {
            let to = FourTuple::<F>::of_entry(connection);
            let key = F::member_key(service, (to.destination, to.destination_port));
            F::members().get_ptr(&key).is_some()
        };
        if !holds::<F>(connection, key) {
            return EndpointCheck::Other;
        }
        // Datagrams, and a SYN without an answer, may be sent to another endpoint.
        if opens && (protocol != TCP || state & ANSWERED == 0) {
            let now = look_up::<F>(frontend, is_of_outside::<F>(key));
            if !now.is_ours || now.service != service || !serves {
                return EndpointCheck::Other;
            }
        } else if protocol == TCP {
            is_gone = !serves;
            let kind = kind & !ENDPOINT_GONE;
            // SAFETY: as in `check_endpoint`; another CPU with this connection writes the same.
            unsafe { fields.kind.write_volatile(if serves { kind } else { kind | ENDPOINT_GONE }) };
        }
        // SAFETY: as above.
        unsafe { fields.revision.write_volatile(current) };
    }
    if is_gone && asks && is_silent::<F>(connection, key, now) {
        EndpointCheck::GivenUp
    } else {
        EndpointCheck::Goes
    }
}

/// Whether the endpoint of a connection has not answered a client's packet for [`SILENCE`]. A
/// packet that must be answered arrives at `now`.
#[inline(always)]
fn is_silent<F: Family>(connection: NonNull<ConnectionOf<F>>, key: &TupleOf<F>, now: u64) -> bool {
    let Some(reply) = find::<F>(&other_key::<F>(connection, key)) else {
        return true;
    };
    let fields = EntryFields::of(connection);
    // SAFETY: fields of look-ups' values, each read separately.
    let (answered, asked) =
        unsafe { (EntryFields::of(reply).last_used.read_volatile(), fields.asked.read_volatile()) };
    if u64::from(asked) <= answered >> TICK {
        // SAFETY: as above; another CPU writes the same or a value close to it.
        unsafe { fields.asked.write_volatile((now >> TICK) as u32) };
        return false;
    }
    (now >> TICK).saturating_sub(asked.into()) > SILENCE >> TICK
}

/// The key of the entry for the other direction. `key` is that of `connection`.
#[inline(always)]
pub(crate) fn other_key<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    key: &TupleOf<F>,
) -> TupleOf<F> {
    // SAFETY: a look-up's pointer.
    unsafe { connection.as_ref() }.other_key(key)
}

/// Whose a packet to a client is, according to the entry for replies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The connection's.
    Its,
    /// Another one's: the connection is over.
    Over,
    /// Another one's, with which the endpoint has answered the connection's SYN ([`crate::packet::collision`]).
    Foreign,
}

/// Whether a reply may belong to a connection. A SYN does not belong to a closed one: the client
/// then has another connection, directly to the endpoint. Nothing belongs to one that is not answered, but for
/// the answer: that is noted before.
#[inline(always)]
pub(crate) fn reply<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    flags: u8,
    now: u64,
) -> Reply {
    let fields = EntryFields::of(connection);
    // SAFETY: a field of a look-up's value.
    let state = unsafe { fields.state.read_volatile() };
    if !is_alive(fields, protocol, now) {
        Reply::Over
    } else if protocol != TCP {
        Reply::Its
    } else if flags & SYN != 0 && is_closed(state) {
        Reply::Over
    } else if state & (ANSWERED | RESET) == 0 {
        cold_path();
        Reply::Foreign
    } else {
        Reply::Its
    }
}

/// Removes both entries of a connection. `key` is that of `connection`.
#[inline(always)]
pub(crate) fn forget<F: Family>(key: &TupleOf<F>, connection: NonNull<ConnectionOf<F>>) {
    let other = other_key::<F>(connection, key);
    // SAFETY: a field of a look-up's value.
    let state = unsafe { EntryFields::of(connection).state.read_volatile() };
    if !holds::<F>(connection, key) {
        return;
    }
    let device = budget::of_entry::<F>(connection, key);
    if F::half_open().remove(key).is_ok() {
        budget::left_half_open::<F>();
    }
    // Of two CPUs that forget it, one counts it.
    if F::connections().remove(key).is_ok() && !is_closed(state) {
        budget::closed::<F>(device, key.protocol);
    }
    // The key may be that of another connection's entry by now.
    if let Some(found) = find::<F>(&other)
        && FourTuple::<F>::of_entry(found).is_reply_to(key)
    {
        remove::<F>(&other);
    }
}

/// Forgets a connection that is over for the packet with this key, as [`forget`]. If the endpoint may have its source port
/// in TIME-WAIT, only the client's entry goes: that for replies keeps the port taken, and stays in the queue of the closed.
#[inline(always)]
pub(crate) fn forget_client<F: Family>(key: &TupleOf<F>, connection: NonNull<ConnectionOf<F>>) {
    let fields = EntryFields::of(connection);
    // SAFETY: fields of a look-up's value, each read separately.
    let (kind, state) = unsafe { (fields.kind.read_volatile(), fields.state.read_volatile()) };
    let keeps_port = kind & REPLY == 0 && may_be_in_time_wait(kind, state);
    if !keeps_port || !holds::<F>(connection, key) || F::connections().remove(key).is_err() {
        forget::<F>(key, connection);
    }
}

/// Removes an entry for replies.
#[inline(always)]
pub(crate) fn remove<F: Family>(key: &TupleOf<F>) {
    let _ = F::connections().remove(key);
    let _ = F::half_open().remove(key);
}
