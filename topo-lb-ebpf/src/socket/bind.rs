//! `post_bind`: a process of the host cannot bind a node port, which would never get a connection.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::{bpf_get_netns_cookie, bpf_probe_read_kernel};
use aya_ebpf::programs::SockContext;
use topo_lb_common::address::service_protocol;

use crate::base::family::{Family, V4, V6};
use crate::base::maps::{HOST_NETNS, SERVES_ALL_FRONTENDS, V6ONLY_BIT};
use crate::decide::frontend_filter::has_bit;
use crate::socket::cgroup::{FAIL, PROCEED};

/// A field of the bound socket. The verifier allows only accesses to one whole field.
macro_rules! field {
    ($ctx:expr, $($field:tt)+) => {
        // SAFETY: a field of the hook's context.
        unsafe { (&raw const (*$ctx.sock).$($field)+).read_volatile() }
    };
}

/// The head of an IPv4-mapped address (`::ffff:a.b.c.d`).
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// After `bind` of an IPv4 socket: fails it with `EPERM` at a node port.
#[inline(always)]
pub(crate) fn guard4(ctx: &SockContext) -> i32 {
    let Some((port, protocol)) = guarded(ctx) else { return PROCEED };
    verdict(is_node_port4(field!(ctx, src_ip4), port, protocol))
}

/// The same of an IPv6 socket. One that is bound to all addresses also takes IPv4, without `IPV6_V6ONLY`.
#[inline(always)]
pub(crate) fn guard6(ctx: &SockContext) -> i32 {
    let Some((port, protocol)) = guarded(ctx) else { return PROCEED };
    let address = [
        field!(ctx, src_ip6[0]),
        field!(ctx, src_ip6[1]),
        field!(ctx, src_ip6[2]),
        field!(ctx, src_ip6[3]),
    ];
    let [a, b, c, last] = address;
    let is_any = address == [0; 4];
    verdict(if [a, b, c] == MAPPED {
        is_node_port4(last, port, protocol)
    } else {
        is_node_port6(address, is_any, port, protocol)
            || is_any && is_node_port4(0, port, protocol) && !is_v6_only(ctx)
    })
}

/// Whether an IPv6 socket takes no IPv4. No field of the context says so.
#[inline(always)]
fn is_v6_only(ctx: &SockContext) -> bool {
    let bit = V6ONLY_BIT.load();
    if bit == 0 {
        return false;
    }
    // SAFETY: what a program of this hook has as its context is the kernel's `struct sock`
    // (`__cgroup_bpf_run_filter_sk`, kernel/bpf/cgroup.c); the helper checks the address.
    let byte = unsafe { bpf_probe_read_kernel(ctx.as_ptr().cast::<u8>().add(bit as usize / 8)) };
    byte.is_ok_and(|byte| byte >> (bit % 8) & 1 != 0)
}

/// The port (host order) and the Service protocol of a socket of the host itself.
#[inline(always)]
fn guarded(ctx: &SockContext) -> Option<(u16, u8)> {
    // SAFETY: a context of this hook.
    let is_host = || HOST_NETNS.load() == unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
    if SERVES_ALL_FRONTENDS.load() == 0 || HOST_NETNS.load() == 0 || !is_host() {
        return None;
    }
    // In host order (`struct bpf_sock`, include/uapi/linux/bpf.h).
    Some((field!(ctx, src_port) as u16, service_protocol(field!(ctx, protocol))?))
}

/// Whether a node port is served at an address, or at some address if it is all addresses.
#[inline(always)]
fn is_node_port4(address: u32, port: u16, protocol: u8) -> bool {
    is_node_port::<V4>(port, protocol)
        && (address == 0 || V4::is_loopback(address) || is_frontend::<V4>(address, port, protocol))
}

/// The same for IPv6. At ::1 no node port is served.
#[inline(always)]
fn is_node_port6(address: [u32; 4], is_any: bool, port: u16, protocol: u8) -> bool {
    is_node_port::<V6>(port, protocol)
        && (is_any || !V6::is_loopback(address) && is_frontend::<V6>(address, port, protocol))
}

/// Whether some Service has this node port: each has a frontend at the loopback address, and nothing
/// else has.
#[inline(always)]
fn is_node_port<F: Family>(port: u16, protocol: u8) -> bool {
    is_frontend::<F>(F::LOOPBACK, port, protocol)
}

#[inline(always)]
fn is_frontend<F: Family>(address: F::Address, port: u16, protocol: u8) -> bool {
    has_bit::<F>(address, port)
        && F::services().get_ptr(F::frontend(address, port, protocol)).is_some()
}

#[inline(always)]
const fn verdict(is_node_port: bool) -> i32 {
    if is_node_port { FAIL } else { PROCEED }
}
