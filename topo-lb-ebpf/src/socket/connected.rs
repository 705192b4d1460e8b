//! Connected sockets: what they dialled, in the socket's own storage.

use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE;
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::address::STEERED;
use topo_lb_common::connected::{Connected, Seen};

use crate::base::family::{ConnectedOf, Family, FrontendOf};
use crate::base::words::words;
use crate::decide::resolve::Resolved;
use crate::socket::storage::{owner, peer_port, socket, storage};

/// Stores that the context's socket dialled `frontend`, which was resolved. If memory is short, the
/// connection is made anyway: the application sees the endpoint as its peer, and nothing is counted.
#[inline(always)]
pub(crate) fn remember<F: Family>(
    ctx: &SockAddrContext,
    frontend: FrontendOf<F>,
    resolved: &Resolved<F>,
) {
    // SAFETY: the storage is the socket's, and connecting it is serialised by the socket's lock.
    unsafe {
        if let Some(connected) =
            storage(F::connected(), owner(ctx), BPF_SK_STORAGE_GET_F_CREATE.into())
        {
            let Resolved { endpoint, service, tier, failures, .. } = *resolved;
            let (reserved, seen) = ([0; 2], Seen::default());
            let dialled = Connected { frontend, endpoint, service, tier, failures, reserved, seen };
            connected.write(dialled);
        }
    }
}

/// Removes what the context's socket dialled, because it now connects to an address that is no
/// frontend. An MPTCP connection keeps it: each further subflow connects to the endpoint itself.
#[inline(always)]
pub(crate) fn forget<F: Family>(ctx: &SockAddrContext) {
    let socket = socket(ctx);
    // SAFETY: the context's socket. The look-up comes first because it is cheaper than deleting
    // nothing, which takes and drops a reference.
    unsafe {
        if storage(F::connected(), socket.cast(), 0).is_some() {
            let _ = F::connected().delete(socket.cast());
        }
    }
}

/// The frontend that the context's socket dialled, if it was translated to `address` and `port`.
#[inline(always)]
pub(crate) fn dialled<F: Family>(
    ctx: &SockAddrContext,
    address: F::Address,
    port: u16,
) -> Option<NonNull<FrontendOf<F>>> {
    let (frontend, endpoint) = parts::<F>(stored::<F>(ctx)?);
    // SAFETY: a field of the socket's storage.
    let endpoint = unsafe { words(endpoint.as_ptr()) };
    (F::endpoint_parts(&endpoint) == (address, port)).then_some(frontend)
}

/// The endpoint of the context's socket, if it is connected to `frontend`. A connected socket
/// receives only that endpoint's datagrams, so what it sends to the frontend by address goes there,
/// too, also if it was steered there.
#[inline(always)]
pub(crate) fn peer_of<F: Family>(
    ctx: &SockAddrContext,
    frontend: &FrontendOf<F>,
) -> Option<NonNull<F::Endpoint>> {
    let port = peer_port(ctx)?;
    // SAFETY: the context's socket.
    let connected_to = (unsafe { F::peer(socket(ctx).cast_const()) }, port);
    let (dialled, endpoint) = parts::<F>(stored::<F>(ctx)?);
    // SAFETY: fields of the socket's storage.
    let (dialled, peer) = unsafe { (words(dialled.as_ptr()), words(endpoint.as_ptr())) };
    let is_dialled = F::words(dialled.address) == F::words(frontend.address)
        && dialled.port == frontend.port
        && (dialled.protocol ^ frontend.protocol) & !STEERED == 0;
    // A socket that was disconnected or connected elsewhere keeps what it dialled before.
    (is_dialled && F::endpoint_parts(&peer) == connected_to).then_some(endpoint)
}

/// The two fields of a socket's storage, in place.
#[inline(always)]
fn parts<F: Family>(
    connected: NonNull<ConnectedOf<F>>,
) -> (NonNull<FrontendOf<F>>, NonNull<F::Endpoint>) {
    let connected = connected.as_ptr();
    // SAFETY: a pointer to a complete value has fields that are not null.
    unsafe {
        (
            NonNull::new_unchecked(&raw mut (*connected).frontend),
            NonNull::new_unchecked(&raw mut (*connected).endpoint),
        )
    }
}

#[inline(always)]
fn stored<F: Family>(ctx: &SockAddrContext) -> Option<NonNull<ConnectedOf<F>>> {
    // SAFETY: the context's socket.
    unsafe { storage(F::connected(), socket(ctx).cast(), 0) }
}
