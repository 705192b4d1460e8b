//! The cgroup socket hooks: what each does, and its return values.

use core::ptr::NonNull;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_set_retval};
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::exclusion::Treatment;
use topo_lb_common::trace::{Hook, Outcome};

use crate::base::family::{Family, FrontendOf, V4};
use crate::base::maps::{
    HAS_SET_RETVAL, HOST_NETNS, OBSERVES, SERVES_ALL_FRONTENDS, TCP_PEER_IS_SERVICE,
};
use crate::base::words::words;
use crate::decide::affinity::keep;
use crate::decide::frontend_filter::may_be_frontend;
use crate::decide::records;
use crate::decide::resolve::{Resolution, Resolved, resolve};
use crate::socket::flow::Sent;
use crate::socket::place::{Place, field};
use crate::socket::storage::{bound4, peer_port};
use crate::socket::trace::{TellSocket, tell};
use crate::socket::{connected, exclusion, flow, place};

/// Return value: the call goes on.
pub(crate) const PROCEED: i32 = 1;
/// Return value: the call fails.
pub(crate) const FAIL: i32 = 0;
/// include/uapi/asm-generic/errno.h; the same on every architecture that has BPF, except MIPS and
/// PA-RISC, on which topo-lb does not run.
const ECONNREFUSED: i32 = 111;

/// `connect`: replaces a frontend with an endpoint.
#[inline(always)]
pub(crate) fn connect<P: TellSocket>(ctx: &SockAddrContext) -> i32 {
    let Some(protocol) = place::protocol(ctx) else {
        return PROCEED;
    };
    let (address, port) = (P::address(ctx), place::port(ctx));
    let Some(frontend) = frontend::<P>(ctx, address, port, protocol, true) else {
        return miss::<P>(ctx, protocol);
    };
    let resolved = resolve::<P::Family>(&frontend, |fresh| keep(netns(ctx), fresh));
    let Some(outcome) = outcome::<P>(ctx, address, &resolved) else {
        return miss::<P>(ctx, protocol);
    };
    tell::<P>(ctx, Hook::Connect, &resolved, outcome);
    if OBSERVES.load() != 0 {
        return miss::<P>(ctx, protocol);
    }
    match outcome {
        Outcome::Bypassed => miss::<P>(ctx, protocol),
        Outcome::Routed => {
            redirect::<P>(ctx, P::Family::endpoint_parts(&resolved.endpoint));
            if keeps_reverse(protocol) {
                connected::remember::<P::Family>(ctx, frontend, &resolved);
            }
            PROCEED
        }
        _ => refuse(),
    }
}

/// What becomes of a connection; `None` if the address is no frontend.
#[inline(always)]
fn outcome<P: Place>(
    ctx: &SockAddrContext,
    address: <P::Family as Family>::Address,
    resolved: &Resolved<P::Family>,
) -> Option<Outcome> {
    Some(match resolved.verdict {
        Resolution::Untouched => return None,
        Resolution::Refuse | Resolution::Drop => Outcome::Refused,
        Resolution::Redirect if can_reach::<P>(ctx, address, &resolved.endpoint) => Outcome::Routed,
        Resolution::Redirect => Outcome::Bypassed,
    })
}

/// The frontend that the calling process dials; `None` if address and port can be none, or the process is not
/// served. `steers`: a steered process gets the frontend for such processes.
#[inline(always)]
fn frontend<P: Place>(
    ctx: &SockAddrContext,
    address: <P::Family as Family>::Address,
    port: u16,
    protocol: u8,
    steers: bool,
) -> Option<FrontendOf<P::Family>> {
    if !may_be_frontend::<P::Family>(address, port) || is_unserved_loopback::<P>(ctx, address) {
        return None;
    }
    let frontend = P::Family::frontend(address, port, protocol);
    match exclusion::treatment() {
        Some(Treatment::Excluded) => None,
        Some(Treatment::Steered) if steers => Some(records::for_steered::<P::Family>(frontend)),
        Some(Treatment::Steered) | None => Some(frontend),
    }
}

/// Whether a loopback address has no node ports: that of a Pod's network namespace, and ::1.
#[inline(always)]
fn is_unserved_loopback<P: Place>(
    ctx: &SockAddrContext,
    address: <P::Family as Family>::Address,
) -> bool {
    SERVES_ALL_FRONTENDS.load() != 0
        && P::Family::is_loopback(address)
        && (!P::Family::SERVES_LOOPBACK
            || HOST_NETNS.load() == 0
            || netns(ctx) != HOST_NETNS.load())
}

/// Whether a socket that dials a loopback address can reach an endpoint: one that is bound to a
/// loopback address cannot send out of the host, and the kernel would fail the call with `EINVAL`
/// (`__mkroute_output`, net/ipv4/route.c).
#[inline(always)]
fn can_reach<P: Place>(
    ctx: &SockAddrContext,
    address: <P::Family as Family>::Address,
    endpoint: &<P::Family as Family>::Endpoint,
) -> bool {
    SERVES_ALL_FRONTENDS.load() == 0
        || !P::Family::is_loopback(address)
        || P::Family::locality(endpoint) == Locality::Node
        || !V4::is_loopback(bound4(ctx))
}

/// The cookie of the socket's network namespace.
#[inline(always)]
fn netns(ctx: &SockAddrContext) -> u64 {
    // SAFETY: a context of this hook.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

/// Removes what the socket dialled before: it now connects to an address that is no frontend.
#[inline(always)]
fn miss<P: Place>(ctx: &SockAddrContext, protocol: u8) -> i32 {
    if keeps_reverse(protocol) {
        connected::forget::<P::Family>(ctx);
    }
    PROCEED
}

/// `sendto` and `sendmsg` with an address: replaces a frontend with an endpoint. Nobody is steered here: an
/// exchange of datagrams with one endpoint would go on with another one, and replies of several endpoints to one
/// socket could not be told apart.
#[inline(always)]
pub(crate) fn sendmsg<P: TellSocket>(ctx: &SockAddrContext) -> i32 {
    let (address, port) = (P::address(ctx), place::port(ctx));
    if place::protocol(ctx) != Some(UDP) {
        return PROCEED;
    }
    let Some(frontend) = frontend::<P>(ctx, address, port, UDP, false) else { return PROCEED };
    if let Some(peer) = connected::peer_of::<P::Family>(ctx, &frontend) {
        // SAFETY: a field of the socket's storage.
        let peer = unsafe { words(peer.as_ptr()) };
        redirect::<P>(ctx, P::Family::endpoint_parts(&peer));
        return PROCEED;
    }
    let resolved = match flow::send::<P::Family>(ctx, &frontend) {
        Sent::Before(endpoint) => {
            if can_reach::<P>(ctx, address, &endpoint) {
                redirect::<P>(ctx, P::Family::endpoint_parts(&endpoint));
            }
            return PROCEED;
        }
        Sent::Observed => return PROCEED,
        Sent::Resolved(resolved) => resolved,
    };
    let Some(outcome) = outcome::<P>(ctx, address, &resolved) else {
        return PROCEED;
    };
    tell::<P>(ctx, Hook::Send, &resolved, outcome);
    match outcome {
        _ if OBSERVES.load() != 0 => PROCEED,
        Outcome::Bypassed => PROCEED,
        Outcome::Routed => {
            redirect::<P>(ctx, P::Family::endpoint_parts(&resolved.endpoint));
            PROCEED
        }
        _ => refuse(),
    }
}

/// `recvfrom` and `recvmsg`: replaces the endpoint that replied with the frontend. The kernel
/// allows this hook only to proceed. Only sockets of UDP and UDP-Lite have it, and no UDP-Lite
/// socket has a storage of ours.
#[inline(always)]
pub(crate) fn recvmsg<P: Place>(ctx: &SockAddrContext) -> i32 {
    let (address, port) = (P::address(ctx), place::port(ctx));
    // A disconnected socket keeps what it dialled, so that counts only for a connected one. Only an
    // unconnected socket gets replies of several endpoints.
    let frontend = if peer_port(ctx).is_some() {
        connected::dialled::<P::Family>(ctx, address, port)
    } else {
        flow::answered::<P::Family>(ctx, address, port)
    };
    if let Some(frontend) = frontend {
        restore::<P>(ctx, frontend);
    }
    PROCEED
}

/// `getpeername`: the peer is the dialled frontend. The kernel allows this hook only to proceed.
#[inline(always)]
pub(crate) fn getpeername<P: Place>(ctx: &SockAddrContext) -> i32 {
    if place::protocol(ctx).is_some_and(keeps_reverse)
        && let Some(frontend) =
            connected::dialled::<P::Family>(ctx, P::address(ctx), place::port(ctx))
    {
        restore::<P>(ctx, frontend);
    }
    PROCEED
}

/// Writes the dialled frontend into the context.
#[inline(always)]
fn restore<P: Place>(ctx: &SockAddrContext, frontend: NonNull<FrontendOf<P::Family>>) {
    // SAFETY: a field of the socket's storage.
    let frontend = unsafe { words(frontend.as_ptr()) };
    redirect::<P>(ctx, (P::Family::words(frontend.address), frontend.port));
}

/// Whether connected sockets of a protocol store what they dialled.
#[inline(always)]
fn keeps_reverse(protocol: u8) -> bool {
    protocol != TCP || TCP_PEER_IS_SERVICE.load() != 0
}

/// Writes an address and a port (host order) into the context.
#[inline(always)]
fn redirect<P: Place>(
    ctx: &SockAddrContext,
    (address, port): (<P::Family as Family>::Address, u16),
) {
    P::set_address(ctx, address);
    // SAFETY: a field of the hook's context; it takes whole words only.
    unsafe { field!(ctx, user_port).write_volatile(u32::from(port.to_be())) }
}

/// Fails the call: with `ECONNREFUSED` if the kernel has `bpf_set_retval`, otherwise with `EPERM`.
#[inline(always)]
fn refuse() -> i32 {
    if HAS_SET_RETVAL.load() != 0 {
        // SAFETY: the helper has no preconditions.
        unsafe { bpf_set_retval(-ECONNREFUSED) };
    }
    FAIL
}

const _: () = assert!(size_of::<bpf_sock_addr>() == 72);
