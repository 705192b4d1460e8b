//! Unconnected UDP: one socket keeps one endpoint per frontend while that endpoint serves.
//!
//! The kernel holds the socket's lock around these hooks, so nothing else writes the socket's flows.

use core::ptr::NonNull;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE;
use aya_ebpf::helpers::bpf_get_netns_cookie;
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::flow::{FLOWS, Flow};

use crate::base::family::{Family, FlowsOf, FrontendOf};
use crate::base::maps::OBSERVES;
use crate::base::words::{are_same, words};
use crate::decide::affinity::keep;
use crate::decide::resolve::{Resolution, Resolved, look_up, resolve, revision};
use crate::socket::storage::{socket, storage};

/// A flow of a family.
type FlowOf<F> = Flow<FrontendOf<F>, <F as Family>::Endpoint>;

/// What to do with a datagram.
pub(crate) enum Sent<F: Family> {
    /// It follows others to this endpoint.
    Before(F::Endpoint),
    /// It follows others that were counted, and another proxy decides.
    Observed,
    /// It was decided now.
    Resolved(Resolved<F>),
}

/// What to do with a datagram of the context's socket to `frontend`.
#[inline(always)]
pub(crate) fn send<F: Family>(ctx: &SockAddrContext, frontend: &FrontendOf<F>) -> Sent<F> {
    // The agent writes a change before it raises the revision. Read before the maps, the revision
    // is at worst too old for what they say, and the next datagram checks again.
    let revision = revision();
    let sends_to = |flow: *mut FlowOf<F>| {
        // SAFETY: a flow of the socket's storage.
        unsafe { are_same(&raw const (*flow).frontend, frontend) }
    };
    if let Some(flows) = stored::<F>(ctx, 0)
        && let Some(flow) = youngest::<F>(flows, sends_to)
    {
        if OBSERVES.load() != 0 && is_observed::<F>(flow) {
            touch::<F>(flows, flow);
            return Sent::Observed;
        }
        if serves::<F>(flow, frontend, revision) {
            touch::<F>(flows, flow);
            // SAFETY: a flow of the socket's storage.
            return Sent::Before(unsafe { words(&raw const (*flow.as_ptr()).endpoint) });
        }
    }
    // SAFETY: a context of this hook.
    let client = || unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
    let resolved = resolve::<F>(frontend, |fresh| keep(client(), fresh));
    // While observing, the next datagram of this flow is not counted again. A revision that is not in
    // force makes programs that translate choose: no Service has an endpoint of zero.
    // So it is with a lease, which may end without a new revision.
    let (endpoint, revision) = match OBSERVES.load() {
        0 if resolved.is_leased => (resolved.endpoint, !revision),
        0 => (resolved.endpoint, revision),
        _ => (F::Endpoint::default(), !revision),
    };
    // If memory is short, the datagram is sent anyway. Its reply then has the endpoint's address.
    if resolved.verdict == Resolution::Redirect
        && let Some(flows) = stored::<F>(ctx, BPF_SK_STORAGE_GET_F_CREATE.into())
    {
        let flow = oldest::<F>(flows);
        let frontend = *frontend;
        // SAFETY: flows of the socket's storage.
        unsafe {
            let turn = (*flows.as_ptr()).turn.wrapping_add(1);
            (*flows.as_ptr()).turn = turn;
            flow.write(Flow { endpoint, frontend, revision, turn });
        }
    }
    Sent::Resolved(resolved)
}

/// The frontend that the context's socket sent to, if a datagram from `address` and `port` is a
/// reply. If two frontends share an endpoint, its replies come from the one that got the last
/// datagram.
#[inline(always)]
pub(crate) fn answered<F: Family>(
    ctx: &SockAddrContext,
    address: F::Address,
    port: u16,
) -> Option<NonNull<FrontendOf<F>>> {
    let is_of = |flow: *mut FlowOf<F>| {
        // SAFETY: a flow of the socket's storage.
        F::endpoint_parts(&unsafe { words(&raw const (*flow).endpoint) }) == (address, port)
    };
    let flow = youngest::<F>(stored::<F>(ctx, 0)?, is_of)?;
    // SAFETY: a field of such a flow.
    NonNull::new(unsafe { &raw mut (*flow.as_ptr()).frontend })
}

/// Whether a flow was only counted, while programs observed.
#[inline(always)]
fn is_observed<F: Family>(flow: NonNull<FlowOf<F>>) -> bool {
    // SAFETY: a flow of the socket's storage.
    F::endpoint_parts(&unsafe { words(&raw const (*flow.as_ptr()).endpoint) }).1 == 0
}

/// Whether a flow's endpoint may still be used: no Service has changed, or it still serves.
#[inline(always)]
fn serves<F: Family>(flow: NonNull<FlowOf<F>>, frontend: &FrontendOf<F>, revision: u32) -> bool {
    let flow = flow.as_ptr();
    // SAFETY: fields of a flow of the socket's storage.
    unsafe {
        if (*flow).revision != revision {
            let now = look_up::<F>(frontend, false);
            let endpoint = words(&raw const (*flow).endpoint);
            let key = F::member_key(now.service, F::endpoint_parts(&endpoint));
            if !now.is_ours || now.is_leased || F::members().get_ptr(key).is_none() {
                return false;
            }
            (*flow).revision = revision;
        }
    }
    true
}

/// Makes a flow the youngest. A socket that goes on with one flow writes nothing.
#[inline(always)]
fn touch<F: Family>(flows: NonNull<FlowsOf<F>>, flow: NonNull<FlowOf<F>>) {
    let (flows, flow) = (flows.as_ptr(), flow.as_ptr());
    // SAFETY: the socket's storage, and a flow of it.
    unsafe {
        if (*flow).turn != (*flows).turn {
            (*flows).turn = (*flows).turn.wrapping_add(1);
            (*flow).turn = (*flows).turn;
        }
    }
}

/// The flow used last of those that `is_it` accepts.
#[inline(always)]
fn youngest<F: Family>(
    flows: NonNull<FlowsOf<F>>,
    is_it: impl Fn(*mut FlowOf<F>) -> bool,
) -> Option<NonNull<FlowOf<F>>> {
    let mut found = None;
    let mut least = u32::MAX;
    for index in 0..FLOWS {
        let (flow, age) = flow::<F>(flows, index);
        if is_it(flow) && age <= least {
            (found, least) = (NonNull::new(flow), age);
        }
    }
    found
}

/// The flow that is unused for longest, or was never used.
#[inline(always)]
fn oldest<F: Family>(flows: NonNull<FlowsOf<F>>) -> *mut FlowOf<F> {
    let (mut found, mut most) = flow::<F>(flows, 0);
    for index in 1..FLOWS {
        let (flow, age) = flow::<F>(flows, index);
        if age > most {
            (found, most) = (flow, age);
        }
    }
    found
}

/// A flow by its index, and how many turns ago it was used.
#[inline(always)]
fn flow<F: Family>(flows: NonNull<FlowsOf<F>>, index: usize) -> (*mut FlowOf<F>, u32) {
    let flows = flows.as_ptr();
    // SAFETY: the socket's storage; the index is below FLOWS.
    unsafe {
        let flow = (&raw mut (*flows).flows).cast::<FlowOf<F>>().add(index);
        (flow, (*flows).turn.wrapping_sub((*flow).turn))
    }
}

#[inline(always)]
fn stored<F: Family>(ctx: &SockAddrContext, flags: u64) -> Option<NonNull<FlowsOf<F>>> {
    // SAFETY: the context's socket.
    unsafe { storage(F::flows(), socket(ctx).cast(), flags) }
}
