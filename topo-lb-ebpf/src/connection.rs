//! Entries of the connection table: their lifetime, and what to do with a packet of theirs.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::ptr::NonNull;

use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, CLIENT_FIN, ENDPOINT_FIN, ENDPOINT_GONE, FROM_CLIENT, HAIRPIN, REPLY, RESET, SILENCE,
    TICK, TO_CLIENT, is_closed, lifetime,
};

use crate::family::{ConnectionOf, Family, FrontendOf, TupleOf};
use crate::four_tuple::{EntryFields, FourTuple};
use crate::maps::REVISION;
use crate::resolve::look_up;
use crate::transport::{ACK, FIN, RST, SYN, Transport};

/// How often a datagram also refreshes the entry of the other direction: every 2^33 ns (8.6 s),
/// which is less than any lifetime.
const REFRESH: u32 = 33;
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

/// Number of the last change of the Services in the maps.
#[inline(always)]
pub(crate) fn revision() -> u32 {
    // SAFETY: one aligned word of an array's element.
    REVISION.get_ptr(0).map_or(0, |revision| unsafe { revision.read_volatile() })
}

/// An entry by its key. The pointer is valid until the program ends.
#[inline(always)]
pub(crate) fn find<F: Family>(key: &TupleOf<F>) -> Option<NonNull<ConnectionOf<F>>> {
    NonNull::new(F::connections().get_ptr_mut(key)?)
}

/// Whether an entry is younger than its [`lifetime`].
#[inline(always)]
pub(crate) fn is_alive(fields: EntryFields, protocol: u8, now: u64) -> bool {
    // SAFETY: fields of a look-up's value. Another CPU may write them, so each is read separately.
    let (last_used, state) =
        unsafe { (fields.last_used.read_volatile(), fields.state.read_volatile()) };
    now.saturating_sub(last_used) < lifetime(protocol, state)
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
    let (kind, state, sequence) = unsafe {
        (fields.kind.read_volatile(), fields.state.read_volatile(), fields.sequence.read_volatile())
    };
    let opens = opens(protocol, transport);
    if !is_alive(fields, protocol, now) {
        return EndpointCheck::Other;
    }
    if kind & REPLY != 0 {
        return EndpointCheck::Goes;
    }
    // A retransmitted SYN has the same number; any other SYN opens another connection.
    if protocol == TCP && opens && (transport.sequence != sequence || is_closed(state)) {
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
    frontend: &FrontendOf<F>,
    protocol: u8,
    opens: bool,
    asks: bool,
    now: u64,
) -> EndpointCheck {
    let fields = EntryFields::of(connection);
    let current = revision();
    // SAFETY: as in `check_endpoint`.
    let (revision, kind) =
        unsafe { (fields.revision.read_volatile(), fields.kind.read_volatile()) };
    let mut is_gone = kind & ENDPOINT_GONE != 0;
    if revision != current {
        // SAFETY: as in `check_endpoint`.
        let service = unsafe { fields.service.read_volatile() };
        let serves = {
            let to = FourTuple::<F>::of_entry(connection);
            let key = F::member_key(service, (to.destination, to.destination_port));
            F::members().get_ptr(&key).is_some()
        };
        // Datagrams, and a SYN without an answer, may be sent to another endpoint.
        if opens {
            let now = look_up::<F>(frontend);
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
    if is_gone && asks && is_silent::<F>(connection, protocol, now) {
        EndpointCheck::GivenUp
    } else {
        EndpointCheck::Goes
    }
}

/// Whether the endpoint of a connection has not answered a client's packet for [`SILENCE`]. A
/// packet that must be answered arrives at `now`.
#[inline(always)]
fn is_silent<F: Family>(connection: NonNull<ConnectionOf<F>>, protocol: u8, now: u64) -> bool {
    let key = other_key::<F>(connection, protocol);
    let Some(reply) = find::<F>(&key) else {
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

/// The key of the entry for the other direction.
#[inline(always)]
fn other_key<F: Family>(connection: NonNull<ConnectionOf<F>>, protocol: u8) -> TupleOf<F> {
    let says = FourTuple::<F>::of_entry(connection);
    // SAFETY: a field of a look-up's value.
    let kind = unsafe { EntryFields::of(connection).kind.read_volatile() };
    let way = if kind & (REPLY | HAIRPIN) == 0 { TO_CLIENT } else { FROM_CLIENT };
    says.reversed().key(protocol, way)
}

/// Records a packet of the connection: its time, and the state after its flags.
#[inline(always)]
pub(crate) fn note<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    flags: u8,
    now: u64,
) {
    let fields = EntryFields::of(connection);
    // SAFETY: fields of a look-up's value. If another CPU overwrites a state at the same moment,
    // the next packet with such a flag sets it again, or the entry expires.
    let (before, state, kind) = unsafe {
        let before = fields.last_used.read_volatile();
        // Several CPUs may have packets of one direction, and each write takes the entry's cache
        // line from the others: so there is at most one write per tick.
        if (before ^ now) >> TICK != 0 {
            fields.last_used.write_volatile(now);
        }
        (before, fields.state.read_volatile(), fields.kind.read_volatile())
    };
    // Datagrams of one direction also refresh the other direction's entry. TCP has
    // acknowledgements, and the time of its replies shows whether the endpoint is silent.
    let refreshes = protocol != TCP && (before ^ now) >> REFRESH != 0;
    let is_reply = kind & REPLY != 0;
    let mut next = state;
    if is_reply {
        next |= ANSWERED;
    }
    if protocol == TCP && flags & (FIN | RST) != 0 {
        if flags & RST != 0 {
            next |= RESET;
        } else {
            next |= if is_reply { ENDPOINT_FIN } else { CLIENT_FIN };
        }
    }
    if next != state || refreshes {
        // SAFETY: as above.
        unsafe { fields.state.write_volatile(next) };
        if let Some(other) = find::<F>(&other_key::<F>(connection, protocol)) {
            let other = EntryFields::of(other);
            // SAFETY: as above.
            unsafe {
                other.state.write_volatile(other.state.read_volatile() | next);
                if refreshes {
                    other.last_used.write_volatile(now);
                }
            }
        }
    }
}

/// Whether a reply may belong to a connection. A SYN does not belong to a closed one: the client
/// then has another connection, directly to the endpoint.
#[inline(always)]
pub(crate) fn is_reply<F: Family>(
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
    flags: u8,
    now: u64,
) -> bool {
    let fields = EntryFields::of(connection);
    // SAFETY: a field of a look-up's value.
    let state = unsafe { fields.state.read_volatile() };
    is_alive(fields, protocol, now) && (protocol != TCP || flags & SYN == 0 || !is_closed(state))
}

/// Removes both entries of a connection. `key` is that of `connection`.
#[inline(always)]
pub(crate) fn forget<F: Family>(
    key: &TupleOf<F>,
    connection: NonNull<ConnectionOf<F>>,
    protocol: u8,
) {
    let other = other_key::<F>(connection, protocol);
    let _ = F::connections().remove(key);
    let _ = F::connections().remove(&other);
}
