//! Opens a connection of tc: chooses its endpoint and writes its two entries.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use topo_lb_common::address::{SCTP, TCP};
use topo_lb_common::connection::{FROM_CLIENT, HAIRPIN, REPLY, TO_CLIENT, is_closed};

use crate::affinity::Client;
use crate::connection::{find, is_alive, revision};
use crate::family::{Family, FrontendOf, TupleOf};
use crate::fast_path::FastPath;
use crate::four_tuple::{EntryFields, FourTuple, NewEntry};
use crate::reply_filter;
use crate::resolve::{Resolution, resolve};

/// Source ports to try if the client's own is taken at the endpoint.
const PORT_ATTEMPTS: u32 = 8;

/// The result of choosing an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// An endpoint; the connection's first entry is written.
    Endpoint,
    /// The frontend is not ours, or the Service cannot be translated.
    Untouched,
    /// No endpoint may be used.
    Refused,
    /// There was no room for an entry.
    Failed,
}

/// Chooses an endpoint for the connection that a packet opens, and writes the entry for the
/// client's packets. `says` is the packet's four-tuple.
#[inline(always)]
pub(crate) fn choose<F: Client>(
    says: &FourTuple<F>,
    frontend: &FrontendOf<F>,
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
    // SCTP's CRC32c covers the ports, and a program cannot update it.
    if protocol == SCTP && port != says.destination_port {
        return Chosen::Untouched;
    }
    let is_hairpin = endpoint == says.source;
    let to = FourTuple::<F> {
        source: if is_hairpin { says.destination } else { says.source },
        destination: endpoint,
        source_port: says.source_port,
        destination_port: port,
    };
    let kind = if is_hairpin { HAIRPIN } else { 0 };
    let new = NewEntry { now, service: resolved.service, revision, sequence, kind };
    let Some(draft) = F::draft() else {
        return Chosen::Failed;
    };
    // SAFETY: this CPU's element, which no other code uses meanwhile.
    let draft = unsafe {
        draft.write(to.entry(new));
        draft.as_ref()
    };
    let key = says.key(protocol, FROM_CLIENT);
    match F::connections().insert(&key, draft, BPF_ANY.into()) {
        Ok(()) => Chosen::Endpoint,
        Err(_) => Chosen::Failed,
    }
}

/// Writes the entry for the replies of a connection after choosing its endpoint. If the client's
/// port is taken at the endpoint, the connection gets another source port. Returns whether there
/// was room; if not, forgets the connection.
#[inline(always)]
pub(crate) fn expect_replies<F: FastPath>(says: &FourTuple<F>, protocol: u8) -> bool {
    let key = says.key(protocol, FROM_CLIENT);
    let Some(found) = find::<F>(&key) else {
        return false;
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
        }
    };
    let mut to = FourTuple::<F>::of_entry(found);
    let way = if new.kind & HAIRPIN != 0 { FROM_CLIENT } else { TO_CLIENT };
    let entry = says.reversed().entry(NewEntry { kind: new.kind | REPLY, ..new });
    for _ in 0..PORT_ATTEMPTS {
        let reply = to.reversed().key(protocol, way);
        if F::connections().insert(&reply, &entry, BPF_NOEXIST.into()).is_ok()
            || may_replace::<F>(&reply, says, protocol, new.now)
                && F::connections().insert(&reply, &entry, BPF_ANY.into()).is_ok()
        {
            // SAFETY: a field of a look-up's value, which no packet uses yet.
            unsafe { fields.source_port.write_volatile(to.source_port) };
            if way == TO_CLIENT {
                reply_filter::expect::<F>(to.destination, to.destination_port);
            }
            return true;
        }
        if protocol == SCTP {
            break;
        }
        // The client has another connection from this port to this endpoint, through another
        // Service. The endpoint could not distinguish them.
        // SAFETY: the helper has no preconditions.
        to.source_port = 32_768 | unsafe { bpf_get_prandom_u32() } as u16 & 0x7fff;
    }
    let _ = F::connections().remove(&key);
    false
}

/// Whether the entry under a reply's key belongs to this connection, or to one that is over.
#[inline(always)]
fn may_replace<F: Family>(key: &TupleOf<F>, says: &FourTuple<F>, protocol: u8, now: u64) -> bool {
    let Some(found) = find::<F>(key) else {
        return true;
    };
    let fields = EntryFields::of(found);
    let to = FourTuple::<F>::of_entry(found);
    // SAFETY: a field of a look-up's value.
    let state = unsafe { fields.state.read_volatile() };
    let is_own = to.source == says.destination
        && to.destination == says.source
        && to.source_port == says.destination_port
        && to.destination_port == says.source_port;
    is_own || !is_alive(fields, protocol, now) || protocol == TCP && is_closed(state)
}
