//! Unconnected UDP: one socket keeps one endpoint per frontend while that endpoint serves.

use core::ptr::NonNull;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie};
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::flow::Flow;

use crate::connection::revision;
use crate::family::{Family, FlowOf, FrontendOf};
use crate::resolve::{LookedUp, Resolution, Resolved, look_up, resolve};
use crate::words::{same, words};

/// The endpoint for a datagram of the context's socket to `frontend`.
#[inline(always)]
pub(crate) fn send<F: Family>(ctx: &SockAddrContext, frontend: FrontendOf<F>) -> Resolved<F> {
    let LookedUp { is_ours, routes, service } = look_up::<F>(&frontend);
    if !is_ours {
        return Resolved::without_endpoint(Resolution::Untouched);
    }
    let revision = revision();
    let cookie = cookie(ctx);
    let key = F::flow_key(cookie, frontend);
    let _ = routes;
    let resolved = if let Some(flow) = kept::<F>(&key, service, revision) {
        // SAFETY: a look-up's pointer.
        let Flow { endpoint, .. } = unsafe { words(flow.as_ptr()) };
        Resolved { verdict: Resolution::Redirect, endpoint, service }
    } else {
        // SAFETY: a context of this hook.
        let client = || unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
        let fresh = resolve::<F>(&frontend, client);
        if fresh.verdict == Resolution::Redirect {
            let Resolved { endpoint, service, .. } = fresh;
            let flow = Flow { endpoint, service, generation: revision };
            // A full map evicts an entry. If the write fails, the next datagram chooses again.
            let _ = F::flows().insert(&key, flow, BPF_ANY.into());
        }
        fresh
    };
    if resolved.verdict == Resolution::Redirect {
        expect_reply::<F>(cookie, &resolved.endpoint, frontend);
    }
    resolved
}

/// A flow, if its endpoint may still be used: the Service has not changed, or it still serves.
#[inline(always)]
fn kept<F: Family>(key: &F::FlowKey, service: u32, generation: u32) -> Option<NonNull<FlowOf<F>>> {
    let pointer = NonNull::new(F::flows().get_ptr(key)?.cast_mut())?;
    // SAFETY: a look-up's pointer. An entry that was just found is the last to be evicted, so the
    // kernel does not reuse it meanwhile.
    let flow = unsafe { words(pointer.as_ptr()) };
    if flow.service != service {
        return None;
    }
    if flow.generation != generation {
        F::members().get_ptr(F::member_key(service, F::endpoint_parts(&flow.endpoint)))?;
        // SAFETY: one aligned word; another CPU that sends for this socket writes the same.
        unsafe { (&raw mut (*pointer.as_ptr()).generation).write_volatile(generation) };
    }
    Some(pointer)
}

/// Stores that replies of `endpoint` come from `frontend`. If two frontends share an endpoint, its
/// replies come from the one that got the last datagram.
#[inline(always)]
fn expect_reply<F: Family>(cookie: u64, endpoint: &F::Endpoint, frontend: FrontendOf<F>) {
    let (address, port) = F::endpoint_parts(endpoint);
    let key = F::reply_key(cookie, address, port);
    // SAFETY: a look-up's pointer.
    let is_known = |known| same(&unsafe { words(known) }, &frontend);
    if !F::replies().get_ptr(&key).is_some_and(is_known) {
        let _ = F::replies().insert(key, frontend, BPF_ANY.into());
    }
}

/// The frontend of the context's socket, if a datagram from `address` and `port` is a reply.
#[inline(always)]
pub(crate) fn answered<F: Family>(
    ctx: &SockAddrContext,
    address: F::Address,
    port: u16,
) -> Option<NonNull<FrontendOf<F>>> {
    let key = F::reply_key(cookie(ctx), address, port);
    NonNull::new(F::replies().get_ptr(&key)?.cast_mut())
}

#[inline(always)]
fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: a context of this hook.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}
