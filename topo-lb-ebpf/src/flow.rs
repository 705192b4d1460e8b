//! Unconnected UDP: one socket keeps one endpoint per frontend while that endpoint serves.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie};
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::selection::BYPASS;

use crate::family::{Family, FlowParts};
use crate::resolve::{Target, Verdict, resolve};
use crate::stamped::{self, Snapshot, same, words};

/// Where the context's socket sends a datagram that is addressed to `frontend`.
#[inline(always)]
pub(crate) fn send<F: Family>(ctx: &SockAddrContext, frontend: F::Frontend) -> Verdict<F> {
    let snapshot = stamped::service::<F, _>(&frontend, |fields| {
        // SAFETY: the fields are of a whole value.
        unsafe {
            (fields.service.read_volatile(), (&raw const (*fields.selection).flags).read_volatile())
        }
    });
    let (generation, service) = match snapshot {
        Snapshot::Absent => return Verdict::Untouched,
        Snapshot::Torn => return Verdict::Refuse,
        Snapshot::Whole(_, (_, flags)) if flags & BYPASS != 0 => return Verdict::Untouched,
        Snapshot::Whole(generation, (service, _)) => (generation, service),
    };
    let cookie = cookie(ctx);
    let key = F::flow_key(cookie, frontend);
    let kept = kept::<F>(&key, service, generation);
    let target = match kept {
        Some(endpoint) => Target { endpoint, service, generation },
        // SAFETY: a context of this hook.
        None => match resolve::<F>(&frontend, || unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }) {
            Verdict::To(target) => {
                store::<F>(&key, target.endpoint, target.service, target.generation);
                target
            }
            other => return other,
        },
    };
    expect_reply::<F>(cookie, &target.endpoint, frontend);
    Verdict::To(target)
}

/// The endpoint of a flow, if it may still be used: nothing of the Service changed since, or the
/// endpoint still serves.
#[inline(always)]
fn kept<F: Family>(key: &F::FlowKey, service: u32, generation: u32) -> Option<F::Endpoint> {
    let flow = F::flows().get_ptr(key)?;
    // SAFETY: a look-up's pointer. An entry that was just found is the last to be evicted, so it
    // is not given to another key under our hands.
    let flow = F::flow_parts(unsafe { words(flow) });
    if flow.service != service {
        return None;
    }
    if flow.generation != generation {
        F::members().get_ptr(F::member_key(service, &flow.endpoint))?;
        store::<F>(key, flow.endpoint, service, generation);
    }
    Some(flow.endpoint)
}

#[inline(always)]
fn store<F: Family>(key: &F::FlowKey, endpoint: F::Endpoint, service: u32, generation: u32) {
    let flow = F::flow(FlowParts { endpoint, service, generation });
    // A full map evicts; what is left to fail is memory, and then the next datagram chooses anew.
    let _ = F::flows().insert(key, flow, BPF_ANY.into());
}

/// Sees to it that an answer of `endpoint` comes from `frontend`. Two frontends may share an
/// endpoint: the one that was sent to last is the one that is answered.
#[inline(always)]
fn expect_reply<F: Family>(cookie: u64, endpoint: &F::Endpoint, frontend: F::Frontend) {
    let (address, port) = F::endpoint_parts(endpoint);
    let key = F::reply_key(cookie, address, port);
    // SAFETY: a look-up's pointer.
    let known = F::replies().get_ptr(&key).map(|known| unsafe { words(known) });
    if !known.is_some_and(|known| same(&known, &frontend)) {
        let _ = F::replies().insert(key, frontend, BPF_ANY.into());
    }
}

/// The frontend that the context's socket sent to, if a datagram from `address` and `port` answers
/// it.
#[inline(always)]
pub(crate) fn answered<F: Family>(
    ctx: &SockAddrContext,
    address: F::Address,
    port: u16,
) -> Option<F::Frontend> {
    let key = F::reply_key(cookie(ctx), address, port);
    // SAFETY: a look-up's pointer.
    F::replies().get_ptr(&key).map(|frontend| unsafe { words(frontend) })
}

#[inline(always)]
fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: a context of this hook.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}
