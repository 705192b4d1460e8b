//! From a frontend to an endpoint: the one decision, whoever asks.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use topo_lb_common::backend::Locality;
use topo_lb_common::range::Range;
use topo_lb_common::selection::{Choice, INLINE};

use crate::affinity;
use crate::family::Family;
use crate::maps::{COUNTERS, RANGE};
use crate::stamped::{self, Snapshot, words};

/// An endpoint for a new connection.
pub(crate) struct Target<F: Family> {
    pub(crate) endpoint: F::Endpoint,
    /// Index of the Service port.
    pub(crate) service: u32,
    /// The Service's when the endpoint was chosen.
    pub(crate) generation: u32,
}

/// What becomes of a new connection.
pub(crate) enum Verdict<F: Family> {
    /// Not ours.
    Untouched,
    /// No endpoint may be used.
    Refuse,
    /// It goes there.
    To(Target<F>),
}

/// Whether a frontend can be at `address` at all: without it there is nothing to look up.
#[inline(always)]
pub(crate) fn in_range<F: Family>(address: F::Address) -> bool {
    let Some(range) = RANGE.get_ptr(0) else {
        return false;
    };
    // SAFETY: an array's element; each half is one aligned word.
    let range: Range = unsafe { words(range) };
    F::in_range(range, address)
}

/// The endpoint that a stamped value gave, or where it is.
enum Pick<F: Family> {
    Bypass,
    Refuse,
    Endpoint(F::Endpoint),
    Slot(u32),
}

/// Chooses an endpoint for a new connection to `frontend`, and counts it. `client` tells who
/// connects; it is asked only for Services with session affinity.
#[inline(always)]
pub(crate) fn resolve<F: Family>(
    frontend: &F::Frontend,
    client: impl FnOnce() -> u64,
) -> Verdict<F> {
    // SAFETY: the helper has no preconditions.
    let random = || unsafe { bpf_get_prandom_u32() };
    let snapshot = stamped::service::<F, _>(frontend, |fields| {
        // SAFETY: the fields are of a whole value; the index is below INLINE.
        unsafe {
            let pick = match words(fields.selection).choose(random(), random) {
                Choice::Bypass => Pick::<F>::Bypass,
                Choice::Refuse => Pick::Refuse,
                Choice::Inline(index) => {
                    let index = index as usize & (INLINE - 1);
                    Pick::Endpoint(words(fields.endpoints.add(index)))
                }
                Choice::Slot(slot) => Pick::Slot(slot),
            };
            (pick, fields.service.read_volatile(), fields.affinity_seconds.read_volatile())
        }
    });
    let (generation, pick, service, affinity_seconds) = match snapshot {
        Snapshot::Absent => return Verdict::Untouched,
        Snapshot::Torn => return Verdict::Refuse,
        Snapshot::Whole(generation, (pick, service, seconds)) => {
            (generation, pick, service, seconds)
        }
    };
    let fresh = match pick {
        Pick::Bypass => return Verdict::Untouched,
        Pick::Endpoint(endpoint) => Some(endpoint),
        // SAFETY: the agent fills a slot before a value names it, and reuses it only when no
        // program that saw that value still runs.
        Pick::Slot(slot) => F::slots().get_ptr(slot).map(|slot| unsafe { words(slot) }),
        Pick::Refuse => None,
    };
    let Some(fresh) = fresh else {
        count(service, None);
        return Verdict::Refuse;
    };
    let endpoint = if affinity_seconds == 0 {
        fresh
    } else {
        affinity::keep::<F>(client(), service, affinity_seconds, fresh)
    };
    count(service, Some(F::locality(&endpoint)));
    Verdict::To(Target { endpoint, service, generation })
}

/// Counts a connection by where it went; `None`: refused.
#[inline(always)]
fn count(service: u32, locality: Option<Locality>) {
    let Some(counters) = COUNTERS.get_ptr_mut(service) else {
        return;
    };
    // SAFETY: this CPU's element; programs of these hooks do not interrupt each other on a CPU
    // except between tasks, where a lost increment is the worst.
    unsafe {
        match locality {
            Some(locality) => *(*counters).at(locality) += 1,
            None => (*counters).refused += 1,
        }
    }
}
