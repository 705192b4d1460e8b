//! From a frontend to an endpoint: the decision that all hooks share.

use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_get_smp_processor_id};
use topo_lb_common::address::{Frontend, OUTSIDE, PEERS};
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{KEEPS, KEEPS_OUTSIDE};
use topo_lb_common::record::{DROPS, FAILURES_SHIFT, NO_TIER};
use topo_lb_common::selection::{Choice, HASHED, LEASED, SPILL_ONE, Selection};
use topo_lb_common::trace::NO_SERVICE;

use crate::base::atomic::add;
use crate::base::clock::now;
use crate::base::family::{Family, FrontendOf, RecordFields};
use crate::base::maps::{COUNTERS, LEASE, REVISION, SERVES_ALL_FRONTENDS, SERVICE_PORTS};
use crate::base::words::words;
use crate::decide::frontend_filter::has_outside;
use crate::decide::records::{self, Found};

/// What to do with a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The address is no frontend of ours.
    Untouched,
    /// No endpoint may be used.
    Refuse,
    /// No endpoint may be used, and the client gets no answer.
    Drop,
    /// Send it to the endpoint.
    Redirect,
}

/// Who asks for an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// A client of this node.
    Inside,
    /// A client outside of this node.
    Outside,
    /// The same, and another node has sent its packet on: it gets an endpoint of this node, which [has one](has_own).
    Hopped,
}

impl Asks {
    /// What is added to the protocol of frontends that are for these clients alone.
    #[inline(always)]
    const fn bit(self) -> u8 {
        match self {
            Self::Inside => 0,
            Self::Outside => OUTSIDE,
            Self::Hopped => PEERS,
        }
    }
}

/// The decision on a new connection. Unless redirected, the endpoint is zero: the verifier checks
/// unused values, too, and requires them to be initialised.
pub(crate) struct Resolved<F: Family> {
    pub(crate) verdict: Resolution,
    pub(crate) endpoint: F::Endpoint,
    /// Index of the Service port, or [`NO_SERVICE`].
    pub(crate) service: u32,
    /// The tier in force, as in the record.
    pub(crate) tier: u8,
    /// How many failures in a row the agent hears of, as in the record.
    pub(crate) failures: u8,
    /// Whether the endpoint may serve only while a lease lasts, so that the next datagram asks again.
    pub(crate) is_leased: bool,
    /// As [`Connection::affinity`](topo_lb_common::connection::Connection::affinity).
    pub(crate) affinity: u8,
}

/// An endpoint that was chosen for a client of a Service with session affinity.
pub(crate) struct Fresh<F: Family> {
    pub(crate) endpoint: F::Endpoint,
    /// Index of the Service port.
    pub(crate) service: u32,
    /// How long a client keeps its endpoint.
    pub(crate) seconds: u32,
    /// As [`Resolved::affinity`].
    pub(crate) affinity: u8,
}

impl<F: Family> Resolved<F> {
    /// Without a record.
    #[inline(always)]
    pub(crate) fn unknown(verdict: Resolution) -> Self {
        let (endpoint, service, tier) = (F::Endpoint::default(), NO_SERVICE, NO_TIER);
        Self { verdict, endpoint, service, tier, failures: 0, is_leased: false, affinity: 0 }
    }
}

/// Chooses an endpoint for a new connection of a client of this node to `frontend`, and counts it. `keep` returns the
/// endpoint that the client keeps, or the fresh one that it gets; it is called only for Services with session affinity.
#[inline(always)]
pub(crate) fn resolve<F: Family>(
    frontend: &FrontendOf<F>,
    keep: impl FnOnce(Fresh<F>) -> F::Endpoint,
) -> Resolved<F> {
    let resolved = decide::<F>(frontend, Asks::Inside, |_| random(), keep);
    count_choice(&resolved);
    resolved
}

/// Counts a new connection to a frontend.
#[inline(always)]
pub(crate) fn count_choice<F: Family>(resolved: &Resolved<F>) {
    match resolved.verdict {
        Resolution::Untouched => {}
        Resolution::Redirect => count(resolved.service, Some(F::locality(&resolved.endpoint))),
        Resolution::Refuse | Resolution::Drop => count(resolved.service, None),
    }
}

/// A random number for a choice.
#[inline(always)]
pub(crate) fn random() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_prandom_u32() }
}

/// What a number for a choice has to depend on.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The row is a table for a consistent choice.
    pub(crate) is_table: bool,
    /// The row is only for clients outside of this node, or for what other nodes send on.
    pub(crate) is_outside: bool,
    /// The Service has session affinity.
    pub(crate) keeps_clients: bool,
}

/// The record for those who ask.
#[inline(always)]
fn find<F: Family>(frontend: &FrontendOf<F>, asks: Asks) -> Found<F> {
    let bit = asks.bit();
    records::find::<F>(frontend, if bit == OUTSIDE && !has_outside() { 0 } else { bit })
}

/// Whether this node has an endpoint for what other nodes send on.
#[inline(always)]
pub(crate) fn has_own<F: Family>(frontend: &FrontendOf<F>) -> bool {
    let own = Frontend { protocol: frontend.protocol | PEERS, ..*frontend };
    records::peek::<F>(&own)
        // Twice: as `records::is_there`.
        .or_else(|| records::peek::<F>(&own))
        // SAFETY: a field of a record.
        .is_some_and(|record| unsafe { *RecordFields::<F>::of(record).count } != 0)
}

/// Chooses an endpoint for a new connection as [`resolve`], by a number of `number`, and does not count it.
#[inline(always)]
pub(crate) fn decide<F: Family>(
    frontend: &FrontendOf<F>,
    asks: Asks,
    number: impl FnOnce(Row) -> u32,
    keep: impl FnOnce(Fresh<F>) -> F::Endpoint,
) -> Resolved<F> {
    let record = match find::<F>(frontend, asks) {
        Found::Absent => return Resolved::unknown(Resolution::Untouched),
        Found::Torn => return Resolved::unknown(Resolution::Refuse),
        Found::Record(record) => record,
    };
    let fields = RecordFields::<F>::of(record);
    // SAFETY: fields of a record.
    let (service, tier, affinity_seconds) =
        unsafe { (*fields.service, *fields.tier, *fields.affinity_seconds) };
    let Some(mut endpoint) = choose(&fields, number) else {
        let drops = drops::<F>(&fields);
        let verdict = if drops { Resolution::Drop } else { Resolution::Refuse };
        return Resolved { service, tier, ..Resolved::unknown(verdict) };
    };
    let mut affinity = 0;
    if affinity_seconds != 0 {
        // Where clients outside get other endpoints than all others, they keep none of the others'.
        let is_own = asks != Asks::Inside && is_for(&fields, OUTSIDE | PEERS);
        affinity = if is_own { KEEPS_OUTSIDE } else { KEEPS };
        endpoint = keep(Fresh { endpoint, service, seconds: affinity_seconds, affinity });
    }
    // SAFETY: a field of a record.
    let failures = unsafe { *fields.localities >> FAILURES_SHIFT } as u8;
    let is_leased = is_leased(&fields);
    let verdict = Resolution::Redirect;
    Resolved { verdict, endpoint, service, tier, failures, is_leased, affinity }
}

/// Whether the endpoints of a record's chosen tier have a lease.
#[inline(always)]
fn is_leased<F: Family>(fields: &RecordFields<F>) -> bool {
    // SAFETY: a field of a record.
    unsafe { *fields.spill == LEASED }
}

/// The share of the wider tier in a record with a lease: nothing while the lease lasts, then all.
#[inline(always)]
fn leased_spill() -> u16 {
    // SAFETY: one aligned word of an array's element.
    let end = LEASE.get_ptr(0).map_or(0, |end| unsafe { end.read_volatile() });
    if now() < end { 0 } else { SPILL_ONE }
}

/// Whether a record is only for clients with one of these bits in the protocol of their frontends.
#[inline(always)]
fn is_for<F: Family>(fields: &RecordFields<F>, clients: u8) -> bool {
    // SAFETY: a field of a record, with the protocol after it in the same word.
    let [_, _, protocol, _] = unsafe { *fields.port.cast::<[u8; 4]>() };
    protocol & clients != 0
}

/// Whether a record without endpoints drops connections.
#[inline(always)]
fn drops<F: Family>(fields: &RecordFields<F>) -> bool {
    // SAFETY: a field of a record.
    SERVES_ALL_FRONTENDS.load() != 0 && unsafe { *fields.wider } == DROPS
}

/// Chooses an endpoint; `None` refuses.
#[inline(always)]
pub(crate) fn choose<F: Family>(
    fields: &RecordFields<F>,
    number: impl FnOnce(Row) -> u32,
) -> Option<F::Endpoint> {
    let spill = match is_leased(fields) {
        true => leased_spill(),
        // SAFETY: a field of a record.
        false => unsafe { *fields.spill },
    };
    // SAFETY: fields of a record.
    let selection = unsafe {
        let (slot_base, count) = (*fields.slot_base, *fields.count);
        Selection { slot_base, count, wider: *fields.wider, spill }
    };
    let row = || {
        // SAFETY: a field of a record.
        let keeps_clients = unsafe { *fields.affinity_seconds } != 0;
        let is_outside = is_for(fields, OUTSIDE | PEERS);
        Row { is_table: spill == HASHED, is_outside, keeps_clients }
    };
    // In line, or it takes a frame of the stack for itself.
    let number = #[inline(always)]
    || number(row());
    match selection.choose(number) {
        Choice::Refuse => None,
        Choice::Inline(place) => {
            // The verifier needs the limit; the place is below it.
            let place = place & ((F::INLINE as u32).next_power_of_two() - 1);
            // SAFETY: fields of a record; the limited place is within it (`topo_lb_common::record`).
            let (address, port, localities) = unsafe {
                let address = words(fields.addresses.add(place as usize));
                (address, *fields.ports.add(place as usize), *fields.localities)
            };
            let locality = (u32::from(localities) >> (2 * place)) as u8 & 3;
            Some(F::endpoint(address, port, locality))
        }
        // SAFETY: the agent fills a slot before a record refers to it, and reuses it only when no
        // program that saw that record still runs.
        Choice::Slot(slot) => Some(unsafe { words(F::slots().get_ptr(slot)?) }),
    }
}

/// Counts a connection by locality; `None`: refused.
#[inline(always)]
pub(crate) fn count(service: u32, locality: Option<Locality>) {
    let row = SERVICE_PORTS.load();
    if service >= row {
        return;
    }
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(counters) = COUNTERS.get_ptr_mut(cpu * row + service) else {
        return;
    };
    // SAFETY: an array's element; its words are aligned, and all writers add atomically.
    unsafe {
        add(
            match locality {
                Some(locality) => (*counters).at(locality),
                None => &raw mut (*counters).refused,
            },
            1,
        );
    }
}

/// What a record says about its Service, without a choice.
#[derive(Clone, Copy, Default)]
pub(crate) struct LookedUp {
    /// Whether the frontend is ours.
    pub(crate) is_ours: bool,
    /// Whether it has an endpoint.
    pub(crate) routes: bool,
    /// Whether, without an endpoint, the client gets no answer.
    pub(crate) drops: bool,
    pub(crate) service: u32,
    /// Whether its endpoints have a lease, so that each datagram asks again.
    pub(crate) is_leased: bool,
}

/// Looks a Service up without choosing, and without counting. `is_outside`: the client is outside of this node.
#[inline(always)]
pub(crate) fn look_up<F: Family>(frontend: &FrontendOf<F>, is_outside: bool) -> LookedUp {
    let asks = if is_outside { Asks::Outside } else { Asks::Inside };
    let Found::Record(record) = find::<F>(frontend, asks) else {
        return LookedUp::default();
    };
    let fields = RecordFields::<F>::of(record);
    // SAFETY: fields of a record.
    let (routes, service) = unsafe { (*fields.count != 0, *fields.service) };
    let drops = !routes && drops::<F>(&fields);
    LookedUp { is_ours: true, routes, drops, service, is_leased: is_leased(&fields) }
}

/// Number of the last change of the Services in the maps.
#[inline(always)]
pub(crate) fn revision() -> u32 {
    // SAFETY: one aligned word of an array's element.
    REVISION.get_ptr(0).map_or(0, |revision| unsafe { revision.read_volatile() })
}
