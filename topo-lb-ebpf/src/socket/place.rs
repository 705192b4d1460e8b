//! What the context of a cgroup socket hook says: the address, in one of three places, port and protocol.

use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::address::service_protocol;

use crate::base::family::{Family, V4, V6};

/// Which field of a hook's context has the address, and its family.
pub(crate) trait Place {
    type Family: Family;

    fn address(ctx: &SockAddrContext) -> <Self::Family as Family>::Address;
    fn set_address(ctx: &SockAddrContext, address: <Self::Family as Family>::Address);
}

/// An IPv4 address.
pub(crate) enum Plain4 {}
/// An IPv6 address.
pub(crate) enum Plain6 {}
/// An IPv4 address inside an IPv6 one (`::ffff:a.b.c.d`).
pub(crate) enum Mapped {}

/// A field of a context. The verifier allows only accesses to one whole field.
macro_rules! field {
    ($ctx:expr, $($field:tt)+) => {
        (&raw mut (*$ctx.sock_addr).$($field)+)
    };
}
pub(crate) use field;

impl Place for Plain4 {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> u32 {
        // SAFETY: a field of the hook's context.
        unsafe { field!(ctx, user_ip4).read_volatile() }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: u32) {
        // SAFETY: a field of the hook's context.
        unsafe { field!(ctx, user_ip4).write_volatile(address) }
    }
}

impl Place for Mapped {
    type Family = V4;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> u32 {
        // SAFETY: a field of the hook's context.
        unsafe { field!(ctx, user_ip6[3]).read_volatile() }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: u32) {
        // SAFETY: a field of the hook's context; the words before it stay as they are.
        unsafe { field!(ctx, user_ip6[3]).write_volatile(address) }
    }
}

impl Place for Plain6 {
    type Family = V6;

    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> [u32; 4] {
        // SAFETY: fields of the hook's context.
        unsafe {
            [
                field!(ctx, user_ip6[0]).read_volatile(),
                field!(ctx, user_ip6[1]).read_volatile(),
                field!(ctx, user_ip6[2]).read_volatile(),
                field!(ctx, user_ip6[3]).read_volatile(),
            ]
        }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, [a, b, c, d]: [u32; 4]) {
        // SAFETY: fields of the hook's context.
        unsafe {
            field!(ctx, user_ip6[0]).write_volatile(a);
            field!(ctx, user_ip6[1]).write_volatile(b);
            field!(ctx, user_ip6[2]).write_volatile(c);
            field!(ctx, user_ip6[3]).write_volatile(d);
        }
    }
}

/// Whether an IPv6 hook's address is IPv4-mapped, as Java, Go and Node use for IPv4.
#[inline(always)]
pub(crate) fn is_mapped(ctx: &SockAddrContext) -> bool {
    // SAFETY: fields of the hook's context.
    let head = unsafe {
        [
            field!(ctx, user_ip6[0]).read_volatile(),
            field!(ctx, user_ip6[1]).read_volatile(),
            field!(ctx, user_ip6[2]).read_volatile(),
        ]
    };
    head == [0, 0, 0xffff_u32.to_be()]
}

/// The Service protocol of the context's socket.
#[inline(always)]
pub(crate) fn protocol(ctx: &SockAddrContext) -> Option<u8> {
    // SAFETY: a field of the hook's context.
    service_protocol(unsafe { field!(ctx, protocol).read_volatile() })
}

/// The context's port, in host order.
#[inline(always)]
pub(crate) fn port(ctx: &SockAddrContext) -> u16 {
    // SAFETY: a field of the hook's context: a word with the port in its lower half, in network
    // order.
    u16::from_be(unsafe { field!(ctx, user_port).read_volatile() } as u16)
}
