//! Connections of tc: which endpoint a packet's connection has, from its first packet to its last.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::ptr::NonNull;

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use topo_lb_common::address::{SCTP, TCP};
use topo_lb_common::connection::{
    ANSWERED, CLIENT_FIN, ENDPOINT_FIN, ENDPOINT_GONE, FROM_CLIENT, HAIRPIN, REPLY, RESET, SILENCE,
    TICK, TO_CLIENT, is_closed, lifetime,
};

use crate::family::Family;
use crate::maps::REVISION;
use crate::packet::{ACK, FIN, RST, SYN, Transport};
use crate::reply_filter;
use crate::resolve::{Resolution, resolve};
use crate::rewrite::Says;
use crate::stamped::{self, Found};
use crate::track::{About, Held, Track, turned};

/// Source ports that are tried where the client's own is taken at the endpoint.
const PORT_ATTEMPTS: u32 = 8;

/// Every so often a datagram keeps the entry of the other way: 2 to the power of this, in
/// nanoseconds, is less than 9 s, and so less than any lifetime.
const REFRESH: u32 = 33;
/// About once a second: as [`REFRESH`], for a look at whether an endpoint is silent.
const LISTEN: u32 = 30;

/// What a packet from a client means for the connection that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointCheck {
    /// It goes where the connection goes.
    Goes,
    /// The connection is over, or another one begins: this one is to be forgotten.
    Other,
    /// Something has changed in some Service, or the endpoint is gone: to be looked into.
    Doubtful,
    /// The connection's endpoint is gone, and does not answer.
    GivenUp,
}

/// Number of the last change to what the maps say of Services.
#[inline(always)]
fn revision() -> u32 {
    // SAFETY: one aligned word of an array's element.
    REVISION.get_ptr(0).map_or(0, |revision| unsafe { revision.read_volatile() })
}

/// An entry by its key, for as long as the program runs.
#[inline(always)]
pub(crate) fn find<F: Track>(key: &F::Tuple) -> Option<NonNull<F::Connection>> {
    NonNull::new(F::connections().get_ptr_mut(key)?)
}

/// Whether an entry is younger than what its protocol and state allow.
#[inline(always)]
pub(crate) fn is_alive(held: Held, protocol: u8, now: u64) -> bool {
    // SAFETY: fields of a look-up's value. Another CPU may write them; each is read by itself.
    let (last_used, state) =
        unsafe { (held.last_used.read_volatile(), held.state.read_volatile()) };
    now.saturating_sub(last_used) < lifetime(protocol, state)
}

/// Whether an opening packet: only such a one may have an endpoint chosen for it.
#[inline(always)]
pub(crate) fn opens(protocol: u8, transport: &Transport) -> bool {
    protocol != TCP || transport.flags & (SYN | ACK | RST | FIN) == SYN
}

/// What a packet that came from a client and has an entry is to do, as far as the entry tells.
#[inline(always)]
pub(crate) fn check_endpoint<F: Track>(
    connection: NonNull<F::Connection>,
    protocol: u8,
    transport: &Transport,
    now: u64,
) -> EndpointCheck {
    let held = F::held(connection);
    // SAFETY: fields of a look-up's value, each by itself.
    let (kind, state, sequence) = unsafe {
        (held.kind.read_volatile(), held.state.read_volatile(), held.sequence.read_volatile())
    };
    let opens = opens(protocol, transport);
    if !is_alive(held, protocol, now) {
        return EndpointCheck::Other;
    }
    if kind & REPLY != 0 {
        return EndpointCheck::Goes;
    }
    // A SYN that is sent again has its number again; any other one begins another connection.
    if protocol == TCP && opens && (transport.sequence != sequence || is_closed(state)) {
        return EndpointCheck::Other;
    }
    // SAFETY: as above.
    let (revision_then, last_used) =
        unsafe { (held.revision.read_volatile(), held.last_used.read_volatile()) };
    let may_be_silent = kind & ENDPOINT_GONE != 0 && (last_used ^ now) >> LISTEN != 0;
    if may_be_silent || revision_then != revision() {
        return EndpointCheck::Doubtful;
    }
    EndpointCheck::Goes
}

/// What becomes of a packet whose endpoint is doubtful, by what the maps say of its Service now.
/// `asks`: the endpoint has to answer it.
#[inline(always)]
pub(crate) fn reconsider<F: Track>(
    connection: NonNull<F::Connection>,
    frontend: &F::Frontend,
    protocol: u8,
    opens: bool,
    asks: bool,
    now: u64,
) -> EndpointCheck {
    let held = F::held(connection);
    let current = revision();
    // SAFETY: as in `check_endpoint`.
    let (revision, kind) = unsafe { (held.revision.read_volatile(), held.kind.read_volatile()) };
    let mut is_gone = kind & ENDPOINT_GONE != 0;
    if revision != current {
        // SAFETY: as in `check_endpoint`.
        let service = unsafe { held.service.read_volatile() };
        let serves = {
            // SAFETY: a look-up's pointer.
            let to = unsafe { F::says(connection.as_ptr()) };
            let key = F::member_of(service, to.destination, to.destination_port);
            F::members().get_ptr(&key).is_some()
        };
        // What may move without harm moves: datagrams, and a SYN that nobody has answered.
        if opens {
            let now = peek::<F>(frontend);
            if !now.is_ours || now.service != service || !serves {
                return EndpointCheck::Other;
            }
        } else if protocol == TCP {
            is_gone = !serves;
            let kind = kind & !ENDPOINT_GONE;
            // SAFETY: as in `check_endpoint`; another CPU that handles this connection writes the same.
            unsafe { held.kind.write_volatile(if serves { kind } else { kind | ENDPOINT_GONE }) };
        }
        // SAFETY: as above.
        unsafe { held.revision.write_volatile(current) };
    }
    if is_gone && asks && is_silent::<F>(connection, protocol, now) {
        EndpointCheck::GivenUp
    } else {
        EndpointCheck::Goes
    }
}

/// Whether the endpoint of a connection has left a client's packet unanswered for too long. `now` is
/// when a packet comes that has to be answered, too.
#[inline(always)]
fn is_silent<F: Track>(connection: NonNull<F::Connection>, protocol: u8, now: u64) -> bool {
    let key = other_key::<F>(connection, protocol);
    let Some(reply) = find::<F>(&key) else {
        return true;
    };
    let held = F::held(connection);
    // SAFETY: fields of look-ups' values, each by itself.
    let (answered, asked) =
        unsafe { (F::held(reply).last_used.read_volatile(), held.asked.read_volatile()) };
    if u64::from(asked) <= answered >> TICK {
        // SAFETY: as above; another CPU writes the same, or nearly so.
        unsafe { held.asked.write_volatile((now >> TICK) as u32) };
        return false;
    }
    (now >> TICK).saturating_sub(asked.into()) > SILENCE >> TICK
}

/// The key of the entry for the other way.
#[inline(always)]
fn other_key<F: Track>(connection: NonNull<F::Connection>, protocol: u8) -> F::Tuple {
    // SAFETY: a look-up's pointer.
    let (says, kind) =
        unsafe { (F::says(connection.as_ptr()), F::held(connection).kind.read_volatile()) };
    let way = if kind & (REPLY | HAIRPIN) == 0 { TO_CLIENT } else { FROM_CLIENT };
    F::tuple(&turned(&says), protocol, way)
}

/// Notes that a packet of the connection passes, and what it says of the connection's state.
#[inline(always)]
pub(crate) fn note<F: Track>(
    connection: NonNull<F::Connection>,
    protocol: u8,
    flags: u8,
    now: u64,
) {
    let held = F::held(connection);
    // SAFETY: fields of a look-up's value. A state that another CPU overwrites at the same moment
    // is set again by the next packet that bears on it, or runs out by its lifetime.
    let (before, state, kind) = unsafe {
        let before = held.last_used.read_volatile();
        // Packets of one way may come on several CPUs: a write takes the entry's cache line away
        // from the others.
        if (before ^ now) >> TICK != 0 {
            held.last_used.write_volatile(now);
        }
        (before, held.state.read_volatile(), held.kind.read_volatile())
    };
    // Datagrams of one way keep the other way's entry, too. TCP has acknowledgements, and its
    // answers tell whether the endpoint is silent.
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
        unsafe { held.state.write_volatile(next) };
        if let Some(other) = find::<F>(&other_key::<F>(connection, protocol)) {
            let other = F::held(other);
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

/// Whether an answer may belong to a connection: a SYN does not come out of one that is over, but
/// of another one that the client has to the endpoint itself.
#[inline(always)]
pub(crate) fn answers<F: Track>(
    connection: NonNull<F::Connection>,
    protocol: u8,
    flags: u8,
    now: u64,
) -> bool {
    let held = F::held(connection);
    // SAFETY: a field of a look-up's value.
    let state = unsafe { held.state.read_volatile() };
    is_alive(held, protocol, now) && (protocol != TCP || flags & SYN == 0 || !is_closed(state))
}

/// Forgets a connection, both ways. `key` is that of `connection`.
#[inline(always)]
pub(crate) fn forget<F: Track>(key: &F::Tuple, connection: NonNull<F::Connection>, protocol: u8) {
    let other = other_key::<F>(connection, protocol);
    let _ = F::connections().remove(key);
    let _ = F::connections().remove(&other);
}

/// What choosing an endpoint gave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The connection's first entry is there.
    Endpoint,
    /// The Service is not ours, or not of this kind.
    Untouched,
    /// No endpoint may be used.
    Refused,
    /// There is no room for it.
    Failed,
}

/// Chooses an endpoint for the connection that a packet opens, and remembers where its packets
/// go. `says` is what the packet says.
#[inline(always)]
pub(crate) fn choose<F: Track>(
    says: &Says<F>,
    frontend: &F::Frontend,
    protocol: u8,
    sequence: u32,
    now: u64,
) -> Chosen {
    let revision = revision();
    let client = says.source;
    let resolved = resolve::<F>(frontend, || F::client(client));
    match resolved.verdict {
        Resolution::Untouched => return Chosen::Untouched,
        Resolution::Refuse => return Chosen::Refused,
        Resolution::Redirect => {}
    }
    let (endpoint, port) = F::endpoint_parts(&resolved.endpoint);
    // SCTP's checksum covers the ports in a way that nothing here can follow.
    if protocol == SCTP && port != says.destination_port {
        return Chosen::Untouched;
    }
    let is_hairpin = endpoint == says.source;
    let to = Says {
        source: if is_hairpin { says.destination } else { says.source },
        destination: endpoint,
        source_port: says.source_port,
        destination_port: port,
    };
    let kind = if is_hairpin { HAIRPIN } else { 0 };
    let about = About { now, service: resolved.service, revision, sequence, kind };
    let Some(draft) = F::draft() else {
        return Chosen::Failed;
    };
    // SAFETY: this CPU's element; whoever is here has it alone.
    let draft = unsafe {
        draft.write(F::entry(&to, about));
        draft.as_ref()
    };
    let key = F::tuple(says, protocol, FROM_CLIENT);
    match F::connections().insert(&key, draft, BPF_ANY.into()) {
        Ok(()) => Chosen::Endpoint,
        Err(_) => Chosen::Failed,
    }
}

/// Remembers what becomes of the answers of a connection for which an endpoint was chosen just
/// now. Where the client's port is taken at the endpoint, it gets another one. Whether there is
/// room; if not, the connection is forgotten.
#[inline(always)]
pub(crate) fn expect_answers<F: Track>(says: &Says<F>, protocol: u8) -> bool {
    let key = F::tuple(says, protocol, FROM_CLIENT);
    let Some(found) = find::<F>(&key) else {
        return false;
    };
    let held = F::held(found);
    // SAFETY: a look-up's pointer.
    let (mut to, about) = unsafe {
        let about = About {
            now: held.last_used.read_volatile(),
            service: held.service.read_volatile(),
            revision: held.revision.read_volatile(),
            sequence: held.sequence.read_volatile(),
            kind: held.kind.read_volatile(),
        };
        (F::says(found.as_ptr()), about)
    };
    let way = if about.kind & HAIRPIN != 0 { FROM_CLIENT } else { TO_CLIENT };
    let answer = F::entry(&turned(says), About { kind: about.kind | REPLY, ..about });
    for _ in 0..PORT_ATTEMPTS {
        let reply = F::tuple(&turned(&to), protocol, way);
        if F::connections().insert(&reply, &answer, BPF_NOEXIST.into()).is_ok()
            || may_replace::<F>(&reply, says, protocol, about.now)
                && F::connections().insert(&reply, &answer, BPF_ANY.into()).is_ok()
        {
            // SAFETY: a field of a look-up's value, which no packet goes by yet.
            unsafe { held.source_port.write_volatile(to.source_port) };
            if way == TO_CLIENT {
                reply_filter::expect::<F>(to.destination, to.destination_port);
            }
            return true;
        }
        if protocol == SCTP {
            break;
        }
        // Another connection of this client has the same port at the same endpoint, by way of
        // another Service. The endpoint could not tell them apart.
        // SAFETY: the helper has no preconditions.
        to.source_port = 32_768 | unsafe { bpf_get_prandom_u32() } as u16 & 0x7fff;
    }
    let _ = F::connections().remove(&key);
    false
}

/// Whether the entry under an answer's key is this connection's own, or of one that is over.
#[inline(always)]
fn may_replace<F: Track>(key: &F::Tuple, says: &Says<F>, protocol: u8, now: u64) -> bool {
    let Some(found) = find::<F>(key) else {
        return true;
    };
    let held = F::held(found);
    // SAFETY: a look-up's pointer.
    let (to, state) = unsafe { (F::says(found.as_ptr()), held.state.read_volatile()) };
    let is_own = to.source == says.destination
        && to.destination == says.source
        && to.source_port == says.destination_port
        && to.destination_port == says.source_port;
    is_own || !is_alive(held, protocol, now) || protocol == TCP && is_closed(state)
}

/// What is known of a Service without choosing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Peeked {
    /// It is there.
    pub(crate) is_ours: bool,
    /// It has an endpoint.
    pub(crate) routes: bool,
    pub(crate) service: u32,
}

/// Looks a Service up without choosing, and without counting.
#[inline(always)]
pub(crate) fn peek<F: Family>(frontend: &F::Frontend) -> Peeked {
    let snapshot = stamped::service::<F, Peeked>(frontend, |fields| {
        // SAFETY: the fields are of a whole value.
        unsafe {
            Peeked {
                is_ours: true,
                routes: (&raw const (*fields.selection).count).read_volatile() != 0,
                service: fields.service.read_volatile(),
            }
        }
    });
    if snapshot.found == Found::Whole { snapshot.value } else { Peeked::default() }
}
