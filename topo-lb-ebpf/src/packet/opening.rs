//! Opens a connection of tc: chooses its endpoint and writes its two entries.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::ptr::NonNull;

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use topo_lb_common::address::SCTP;
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{
    DIRECT, FROM_CLIENT, HAIRPIN, MASQUERADE, REPLY, SNAT, TO_CLIENT, TURNS,
};
use topo_lb_common::device::seeded;
use topo_lb_common::snat::source_port;
use topo_lb_common::trace::Outcome;

use crate::base::clock::now;
use crate::base::family::{ConnectionOf, Family, FrontendOf, TupleOf};
use crate::base::maps::{RETURNS_DIRECTLY, SERVES_ALL_FRONTENDS};
use crate::decide::affinity::{self, Client};
use crate::decide::resolve::{
    Asks, Resolution, Resolved, Row, count_choice, decide, random, revision,
};
use crate::packet::budget::{self, Permit};
use crate::packet::connection::{find_half_open, holds, other_key};
use crate::packet::fast_path::FastPath;
use crate::packet::four_tuple::{EntryFields, FourTuple, NewEntry};
use crate::packet::note::note;
use crate::packet::outside::{asks, is_of_outside};
use crate::packet::port::{PORT_ATTEMPTS, Takes, may_take};
use crate::packet::reply_filter;

/// The result of choosing an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// An endpoint; the connection's first entry is written.
    Endpoint,
    /// The same; the endpoint is on another node, and the client is outside.
    Elsewhere,
    /// The frontend is not ours, or the Service cannot be translated.
    Untouched,
    /// No endpoint may be used.
    Refused,
    /// No endpoint may be used, and the client gets no answer.
    Denied,
    /// The device has too many connections.
    Limited,
    /// The table is full of open connections.
    Full,
    /// There was no room for an entry.
    Failed,
}

impl Chosen {
    /// What becomes of a connection to a frontend that is ours.
    #[inline(always)]
    const fn outcome(self) -> Outcome {
        match self {
            Self::Endpoint | Self::Elsewhere => Outcome::Routed,
            Self::Untouched => Outcome::Bypassed,
            Self::Refused => Outcome::Refused,
            Self::Denied | Self::Failed => Outcome::Dropped,
            Self::Limited => Outcome::Limited,
            Self::Full => Outcome::TableFull,
        }
    }
}

/// Chooses an endpoint for the connection that a packet opens, and writes the entry for the
/// client's packets. `key` is the packet's, and `says` its four-tuple. Notes it for a tracer.
#[inline(always)]
pub(crate) fn choose<F: Client>(
    skb: *mut __sk_buff,
    says: &FourTuple<F>,
    key: &TupleOf<F>,
    frontend: &FrontendOf<F>,
    sequence: u32,
    now: u64,
) -> Chosen {
    let revision = revision();
    let client = says.source;
    // The loopback of the node is not for its guests, nor for clients outside.
    if SERVES_ALL_FRONTENDS.load() != 0 && F::is_loopback(says.destination) {
        return Chosen::Untouched;
    }
    let resolved = decide_for::<F>(frontend, asks(skb), (client, says.source_port));
    count_choice(&resolved);
    let chosen = match resolved.verdict {
        Resolution::Untouched => return Chosen::Untouched,
        Resolution::Refuse => Chosen::Refused,
        Resolution::Drop => Chosen::Denied,
        Resolution::Redirect => {
            let new = NewEntry {
                now,
                service: resolved.service,
                revision,
                sequence,
                kind: 0,
                affinity: resolved.affinity,
                locality: F::locality(&resolved.endpoint) as u8,
            };
            open::<F>(says, key, &resolved.endpoint, new)
        }
    };
    note::<F>(skb, &resolved, chosen.outcome());
    chosen
}

/// Chooses an endpoint for a packet of a client, by its address and port. Clients outside get it by a hash if the row is
/// a table, so that all nodes choose alike; and where packets may be sent on, as they are chosen for twice.
#[inline(always)]
pub(crate) fn decide_for<F: Client>(
    frontend: &FrontendOf<F>,
    asks: Asks,
    (client, port): (F::Address, u16),
) -> Resolved<F> {
    let number = |row: Row| {
        let returns_directly = RETURNS_DIRECTLY.load() != 0 && row.is_outside;
        if asks == Asks::Inside || !row.is_table && !returns_directly {
            return random();
        }
        let [first, second] = F::halves(client);
        let port = if row.keeps_clients { 0 } else { port };
        let to = u64::from(frontend.port) << 16 | u64::from(frontend.protocol);
        let to = u64::from(F::folded(F::words(frontend.address))) << 32 | to;
        let from = seeded(second, first) ^ u64::from(port);
        // Another seed: what has come here by a hash is spread again.
        (seeded(asks as u64, seeded(to, from)) >> 32) as u32
    };
    decide::<F>(frontend, asks, number, |fresh| affinity::look(client, frontend.protocol, fresh))
}

/// Writes the entry for the client's packets of a connection to an endpoint.
#[inline(always)]
fn open<F: Client>(
    says: &FourTuple<F>,
    key: &TupleOf<F>,
    chosen: &F::Endpoint,
    new: NewEntry,
) -> Chosen {
    let is_outside = is_of_outside::<F>(key);
    let (endpoint, port) = F::endpoint_parts(chosen);
    // SCTP's CRC32c covers the ports, and a program cannot update it.
    if key.protocol == SCTP && port != says.destination_port {
        return Chosen::Untouched;
    }
    match budget::may_open::<F>(key, new.now) {
        Permit::Granted => {}
        Permit::Limited => return Chosen::Limited,
        Permit::Full => return Chosen::Full,
    }
    // The kernel forwards a packet to its own sender with another source, out of any device.
    let is_hairpin = !is_outside && endpoint == says.source;
    let to = FourTuple::<F> {
        source: if is_hairpin { says.destination } else { says.source },
        destination: endpoint,
        source_port: says.source_port,
        destination_port: port,
    };
    let kind = if is_hairpin {
        HAIRPIN
    } else if is_outside && F::locality(chosen) != Locality::Node {
        MASQUERADE
    } else {
        0
    };
    let Some(draft) = F::draft() else {
        return Chosen::Failed;
    };
    // SAFETY: this CPU's element, which no other code uses meanwhile.
    let draft = unsafe {
        draft.write(to.entry(*key, NewEntry { kind, ..new }));
        draft.as_ref()
    };
    match F::half_open().insert(key, draft, BPF_ANY.into()) {
        Ok(()) if kind & MASQUERADE != 0 => Chosen::Elsewhere,
        Ok(()) => Chosen::Endpoint,
        Err(_) => Chosen::Failed,
    }
}

/// The result of an attempt to write the entry for replies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It is written.
    Yes,
    /// The source port is taken at the endpoint; another one may be free.
    Taken,
    /// All source ports that were tried are taken; the connection is forgotten.
    NoPort,
    /// The connection is forgotten.
    Failed,
}

/// Writes the entry for the replies of a connection after choosing its endpoint. `key` is that of
/// the client's packets. If the client's port is taken at the endpoint, each further `attempt`, less than
/// [`PORT_ATTEMPTS`], tries another source port.
#[inline(always)]
pub(crate) fn expect_replies<F: FastPath>(
    skb: *mut __sk_buff,
    key: &TupleOf<F>,
    attempt: u32,
) -> Expected {
    let (Some(found), Some(draft)) = (find_half_open::<F>(key), F::draft()) else {
        return Expected::Failed;
    };
    let fields = EntryFields::of(found);
    // SAFETY: fields of a look-up's value.
    let new = unsafe {
        NewEntry {
            now: fields.last_used.read_volatile(),
            service: fields.service.read_volatile(),
            revision: fields.revision.read_volatile(),
            sequence: fields.sequence.read_volatile(),
            kind: fields.kind.read_volatile(),
            affinity: 0,
            locality: 0,
        }
    };
    let mut to = FourTuple::<F>::of_entry(found);
    if !holds::<F>(found, key) {
        return Expected::Failed;
    }
    let is_snat = new.kind & SNAT != 0;
    if attempt != 0 {
        // The client has another connection from this port to this endpoint, through another
        // Service or directly; or another client has this source. The endpoint could not distinguish them.
        // SAFETY: the helper has no preconditions.
        let random = unsafe { bpf_get_prandom_u32() };
        to.source_port = source_port(random);
    }
    let way = if new.kind & TURNS != 0 { FROM_CLIENT } else { TO_CLIENT };
    let mut reply = to.reversed().key(key.protocol, way, key.device);
    if may_take::<F>(skb, &mut reply, key, Takes::of(attempt), is_snat, new.now)
        && insert_reply::<F>(&reply, key, new, draft)
    {
        // SAFETY: a field of a look-up's value, which no packet uses yet.
        unsafe { fields.source_port.write_volatile(to.source_port) };
        if new.kind & HAIRPIN == 0 {
            reply_filter::expect::<F>(to.destination, to.destination_port);
        }
        if new.kind & DIRECT != 0 {
            reply_filter::expect_direct::<F>(to.destination, to.destination_port);
        }
        return Expected::Yes;
    }
    if key.protocol != SCTP && attempt + 1 < PORT_ATTEMPTS {
        return Expected::Taken;
    }
    give_up::<F>(key);
    Expected::NoPort
}

/// Removes the client's entry of a connection that cannot be opened.
#[inline(always)]
pub(crate) fn give_up<F: Family>(key: &TupleOf<F>) {
    if F::half_open().remove(key).is_ok() {
        budget::left_half_open::<F>();
    }
}

/// Writes the entry for replies. Returns whether there was room, and no other one with this key.
#[inline(always)]
fn insert_reply<F: Family>(
    reply: &TupleOf<F>,
    key: &TupleOf<F>,
    new: NewEntry,
    draft: NonNull<ConnectionOf<F>>,
) -> bool {
    // SAFETY: this CPU's element, which no other code uses meanwhile.
    let entry = unsafe {
        let says = FourTuple::<F>::of_key(key);
        draft.write(says.reversed().entry(*reply, NewEntry { kind: new.kind | REPLY, ..new }));
        draft.as_ref()
    };
    F::half_open().insert(reply, entry, BPF_NOEXIST.into()).is_ok()
}

/// Moves both entries of a connection to the established ones. `key` is that of the client's
/// packets. Without room there or in its client's quota, or while an agent replaces the tables, the connection
/// stays half-open.
#[inline(always)]
pub(crate) fn establish<F: Client>(key: &TupleOf<F>) {
    if !budget::may_establish::<F>(key, now()) {
        return;
    }
    let Some(client) = find_half_open::<F>(key) else {
        return;
    };
    let other = other_key::<F>(client, key);
    let Some(reply) = find_half_open::<F>(&other) else {
        return;
    };
    if !holds::<F>(client, key) {
        return;
    }
    // SAFETY: look-ups' values. A packet on another CPU that changes them meanwhile may be missed:
    // the next one changes them again.
    let (client, reply) = unsafe { (client.as_ref(), reply.as_ref()) };
    affinity::remember::<F>(key, client);
    // The copies are there before the entries are removed: each packet finds one or the other.
    if F::connections().insert(&other, reply, BPF_ANY.into()).is_ok()
        && F::connections().insert(key, client, BPF_ANY.into()).is_ok()
    {
        let _ = F::half_open().remove(key);
        let _ = F::half_open().remove(&other);
        budget::established::<F>(key);
    } else {
        let _ = F::connections().remove(&other);
    }
}
