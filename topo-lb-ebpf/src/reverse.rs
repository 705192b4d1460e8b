//! Connected sockets: what was dialled, kept in the socket's own storage.

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::programs::SockAddrContext;

use crate::family::Family;
use crate::stamped::{same, words};

/// Remembers that the context's socket dialled `frontend` and goes to `endpoint`. Without memory
/// for it the connection is made all the same; the application then sees the endpoint as its peer.
#[inline(always)]
pub(crate) fn remember<F: Family>(
    ctx: &SockAddrContext,
    frontend: F::Frontend,
    endpoint: F::Endpoint,
) {
    // SAFETY: the context's socket; the storage is the socket's, and connecting it is serialised
    // by the socket's lock.
    unsafe {
        let connected = F::connected().get_or_insert_ptr_mut(ctx, None);
        if !connected.is_null() {
            connected.write(F::connection(frontend, endpoint));
        }
    }
}

/// Forgets what the context's socket dialled: it connects to what is no frontend.
#[inline(always)]
pub(crate) fn forget<F: Family>(ctx: &SockAddrContext) {
    // SAFETY: the context's socket. The look-up comes first because it is cheaper than deleting
    // nothing, which takes and gives a reference.
    unsafe {
        if !F::connected().get_ptr_mut(ctx).is_null() {
            let _ = F::connected().delete(socket(ctx));
        }
    }
}

/// What the context's socket dialled, if it is connected to `address` and `port` by it.
#[inline(always)]
pub(crate) fn dialled<F: Family>(
    ctx: &SockAddrContext,
    address: F::Address,
    port: u16,
) -> Option<F::Frontend> {
    let (frontend, endpoint) = stored::<F>(ctx)?;
    (F::endpoint_parts(&endpoint) == (address, port)).then_some(frontend)
}

/// The endpoint of the context's socket, if it is connected to `frontend`: only that endpoint's
/// datagrams reach a connected socket, so what it sends to the frontend by address goes there too.
#[inline(always)]
pub(crate) fn peer_of<F: Family>(
    ctx: &SockAddrContext,
    frontend: &F::Frontend,
) -> Option<F::Endpoint> {
    let sk = socket(ctx);
    // SAFETY: the context's socket. Kernels before 5.18 show the port as a word whose first half
    // is the same.
    let (port, address) =
        unsafe { ((&raw const (*sk).dst_port).read_volatile(), F::peer(sk.cast_const())) };
    if port == 0 {
        return None;
    }
    let (dialled, endpoint) = stored::<F>(ctx)?;
    // A socket that was disconnected, or is connected elsewhere, keeps what it dialled before.
    let is_peer = F::endpoint_parts(&endpoint) == (address, u16::from_be(port));
    (is_peer && same(&dialled, frontend)).then_some(endpoint)
}

#[inline(always)]
fn stored<F: Family>(ctx: &SockAddrContext) -> Option<(F::Frontend, F::Endpoint)> {
    // SAFETY: the context's socket; the pointer is null or to a whole value.
    unsafe {
        let connected = F::connected().get_ptr_mut(ctx);
        (!connected.is_null()).then(|| F::connection_parts(words(connected.cast_const())))
    }
}

#[inline(always)]
fn socket(ctx: &SockAddrContext) -> *mut bpf_sock {
    // SAFETY: the context always holds its socket.
    unsafe { (&raw const (*ctx.sock_addr).__bindgen_anon_1.sk).read_volatile() }
}
