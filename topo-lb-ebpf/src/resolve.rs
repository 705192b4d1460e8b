//! From a frontend to an endpoint: the decision that all hooks share.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use topo_lb_common::backend::Locality;
use topo_lb_common::range::Range;
use topo_lb_common::selection::{Choice, INLINE};

use crate::affinity;
use crate::family::{Family, Fields, FrontendOf};
use crate::maps::{COUNTERS, RANGE};
use crate::stamped::{self, Found, Snapshot, words};

/// What to do with a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The address is no frontend of ours.
    Untouched,
    /// No endpoint may be used.
    Refuse,
    /// Send it to the endpoint.
    Redirect,
}

/// The decision on a new connection. Unless redirected, the other fields are zero, as in
/// [`Snapshot`].
pub(crate) struct Resolved<F: Family> {
    pub(crate) verdict: Resolution,
    pub(crate) endpoint: F::Endpoint,
    /// Index of the Service port.
    pub(crate) service: u32,
    /// The Service's generation when the endpoint was chosen.
    pub(crate) generation: u32,
}

impl<F: Family> Resolved<F> {
    #[inline(always)]
    pub(crate) fn without_endpoint(verdict: Resolution) -> Self {
        Self { verdict, endpoint: F::Endpoint::default(), service: 0, generation: 0 }
    }
}

/// Whether a frontend can have this address. If not, no look-up is needed.
#[inline(always)]
pub(crate) fn in_range<F: Family>(address: F::Address) -> bool {
    let Some(range) = RANGE.get_ptr(0) else {
        return false;
    };
    // SAFETY: an array's element; each half is one aligned word.
    let range: Range = unsafe { words(range) };
    F::in_range(range, address)
}

/// Where the endpoint of a stamped value is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Refuse,
    Inline,
    Slot,
}

/// The part of a stamped value that is needed to choose.
struct Pick<F: Family> {
    place: Place,
    slot: u32,
    /// Valid only with [`Place::Inline`].
    endpoint: F::Endpoint,
    service: u32,
    affinity_seconds: u32,
}

impl<F: Family> Default for Pick<F> {
    #[inline(always)]
    fn default() -> Self {
        let endpoint = F::Endpoint::default();
        Self { place: Place::Refuse, slot: 0, endpoint, service: 0, affinity_seconds: 0 }
    }
}

/// Chooses an endpoint for a new connection to `frontend`, and counts it. `client` returns the
/// client's number; it is called only for Services with session affinity.
#[inline(always)]
pub(crate) fn resolve<F: Family>(
    frontend: &FrontendOf<F>,
    client: impl FnOnce() -> u64,
) -> Resolved<F> {
    let Snapshot { found, generation, value: pick } = stamped::service(frontend, pick::<F>);
    let Pick { place, slot, mut endpoint, service, affinity_seconds } = pick;
    match found {
        Found::Absent => return Resolved::without_endpoint(Resolution::Untouched),
        Found::Torn => return Resolved::without_endpoint(Resolution::Refuse),
        Found::Complete => {}
    }
    let refused = match place {
        Place::Refuse => true,
        Place::Inline => false,
        Place::Slot => match F::slots().get_ptr(slot) {
            Some(slot) => {
                // SAFETY: the agent fills a slot before a value refers to it, and reuses it only
                // when no program that saw that value still runs.
                endpoint = unsafe { words(slot) };
                false
            }
            None => true,
        },
    };
    if refused {
        count(service, None);
        return Resolved::without_endpoint(Resolution::Refuse);
    }
    if affinity_seconds != 0 {
        endpoint = affinity::keep::<F>(client(), service, affinity_seconds, endpoint);
    }
    count(service, Some(F::locality(&endpoint)));
    Resolved { verdict: Resolution::Redirect, endpoint, service, generation }
}

/// Chooses from a value that may be torn.
#[inline(always)]
fn pick<F: Family>(fields: &Fields<F>) -> Pick<F> {
    // SAFETY: the helper has no preconditions.
    let random = || unsafe { bpf_get_prandom_u32() };
    // SAFETY: the fields of a complete value; the index is below INLINE.
    unsafe {
        let (place, index) = match words(fields.selection).choose(random) {
            Choice::Refuse => (Place::Refuse, 0),
            Choice::Inline(index) => (Place::Inline, index),
            Choice::Slot(slot) => (Place::Slot, slot),
        };
        Pick {
            place,
            slot: index,
            endpoint: words(fields.endpoints.add(index as usize & (INLINE - 1))),
            service: fields.service.read_volatile(),
            affinity_seconds: fields.affinity_seconds.read_volatile(),
        }
    }
}

/// Counts a connection by locality; `None`: refused.
#[inline(always)]
fn count(service: u32, locality: Option<Locality>) {
    let Some(counters) = COUNTERS.get_ptr_mut(service) else {
        return;
    };
    // SAFETY: this CPU's element; programs of these hooks interrupt each other on a CPU only
    // between tasks, and at worst an increment is lost.
    unsafe {
        match locality {
            Some(locality) => *(*counters).at(locality) += 1,
            None => (*counters).refused += 1,
        }
    }
}

/// A Service's value, without a choice.
#[derive(Clone, Copy, Default)]
pub(crate) struct LookedUp {
    /// Whether the frontend is ours.
    pub(crate) is_ours: bool,
    /// Whether it has an endpoint.
    pub(crate) routes: bool,
    pub(crate) service: u32,
}

/// Looks a Service up without choosing, and without counting.
#[inline(always)]
pub(crate) fn look_up<F: Family>(frontend: &FrontendOf<F>) -> LookedUp {
    let snapshot = stamped::service::<F, LookedUp>(frontend, |fields| {
        // SAFETY: the fields of a complete value.
        unsafe {
            LookedUp {
                is_ours: true,
                routes: (&raw const (*fields.selection).count).read_volatile() != 0,
                service: fields.service.read_volatile(),
            }
        }
    });
    if snapshot.found == Found::Complete { snapshot.value } else { LookedUp::default() }
}
