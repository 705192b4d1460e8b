//! The eBPF programs: they translate connections to Services, and replies of their endpoints.
//!
//! Only the entry points are here, one for each hook, with its name. Imports point down: `socket` and `packet` do not
//! know each other, both use `decide`, and all use `base`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, stmt_expr_attributes)]

mod base;
mod decide;
mod packet;
mod socket;

use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr, classifier, sock_ops, xdp};
use aya_ebpf::programs::{SockAddrContext, SockContext, SockOpsContext, TcContext, XdpContext};

use crate::base::family::{V4, V6};
use crate::packet::hooks;
use crate::packet::outside::Clients;
use crate::packet::xdp::receive;
use crate::socket::accounting::{Alone, Beside};
use crate::socket::place::{Mapped, Plain4, Plain6, is_mapped};
use crate::socket::walk::WalkContext;
use crate::socket::{accounting, bind, cgroup, walk};

/// `connect` of an IPv4 socket.
#[cgroup_sock_addr(connect4)]
fn connect4(ctx: SockAddrContext) -> i32 {
    cgroup::connect::<Plain4>(&ctx)
}

/// `connect` of an IPv6 socket.
#[cgroup_sock_addr(connect6)]
fn connect6(ctx: SockAddrContext) -> i32 {
    if is_mapped(&ctx) { cgroup::connect::<Mapped>(&ctx) } else { cgroup::connect::<Plain6>(&ctx) }
}

/// `sendto` and `sendmsg` with an address, IPv4 UDP; also of an IPv6 socket with an IPv4-mapped
/// address: the kernel sends that by IPv4 before it reaches the hook sendmsg6 (`udpv6_sendmsg`,
/// net/ipv6/udp.c).
#[cgroup_sock_addr(sendmsg4)]
fn sendmsg4(ctx: SockAddrContext) -> i32 {
    cgroup::sendmsg::<Plain4>(&ctx)
}

/// `sendto` and `sendmsg` with an address, IPv6 UDP.
#[cgroup_sock_addr(sendmsg6)]
fn sendmsg6(ctx: SockAddrContext) -> i32 {
    cgroup::sendmsg::<Plain6>(&ctx)
}

/// The source address that `recvfrom` and `recvmsg` report, IPv4 UDP.
#[cgroup_sock_addr(recvmsg4)]
fn recvmsg4(ctx: SockAddrContext) -> i32 {
    cgroup::recvmsg::<Plain4>(&ctx)
}

/// The source address that `recvfrom` and `recvmsg` report, IPv6 UDP.
#[cgroup_sock_addr(recvmsg6)]
fn recvmsg6(ctx: SockAddrContext) -> i32 {
    if is_mapped(&ctx) { cgroup::recvmsg::<Mapped>(&ctx) } else { cgroup::recvmsg::<Plain6>(&ctx) }
}

/// The peer that `getpeername` reports, IPv4.
#[cgroup_sock_addr(getpeername4)]
fn getpeername4(ctx: SockAddrContext) -> i32 {
    cgroup::getpeername::<Plain4>(&ctx)
}

/// The peer that `getpeername` reports, IPv6.
#[cgroup_sock_addr(getpeername6)]
fn getpeername6(ctx: SockAddrContext) -> i32 {
    if is_mapped(&ctx) {
        cgroup::getpeername::<Mapped>(&ctx)
    } else {
        cgroup::getpeername::<Plain6>(&ctx)
    }
}

/// A TCP socket begins to connect, is connected, or changes its state. The result has no effect.
#[sock_ops]
fn accounting(ctx: SockOpsContext) -> u32 {
    accounting::callback::<Alone>(&ctx);
    1
}

/// The same, beside the walk.
#[sock_ops]
fn accounting_beside(ctx: SockOpsContext) -> u32 {
    accounting::callback::<Beside>(&ctx);
    1
}

/// A socket with an element of `connected4`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
fn walk4(ctx: *const WalkContext) -> i32 {
    walk::visit::<V4>(ctx);
    0
}

/// A socket with an element of `connected6`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
fn walk6(ctx: *const WalkContext) -> i32 {
    walk::visit::<V6>(ctx);
    0
}

/// An IPv4 socket was bound.
#[cgroup_sock(post_bind4)]
fn post_bind4(ctx: SockContext) -> i32 {
    bind::guard4(&ctx)
}

/// An IPv6 socket was bound.
#[cgroup_sock(post_bind6)]
fn post_bind6(ctx: SockContext) -> i32 {
    bind::guard6(&ctx)
}

/// A device of `--tc-devices` has received a packet of a client without a socket on this node.
#[classifier]
fn topo_lb_ingress(ctx: TcContext) -> i32 {
    hooks::ingress(ctx.skb.skb, Clients::Guests)
}

/// A device of `--tc-devices` is about to send a packet to a client without a socket on this node.
#[classifier]
fn topo_lb_egress(ctx: TcContext) -> i32 {
    hooks::egress(ctx.skb.skb, Clients::Guests)
}

/// A device with an address of this node has received a packet.
#[classifier]
fn topo_lb_external_ingress(ctx: TcContext) -> i32 {
    hooks::ingress(ctx.skb.skb, Clients::Outside)
}

/// A device with an address of this node is about to send a packet.
#[classifier]
fn topo_lb_external_egress(ctx: TcContext) -> i32 {
    hooks::egress(ctx.skb.skb, Clients::Outside)
}

/// The driver of a device with an address of this node has received a frame.
#[xdp]
fn topo_lb_xdp(ctx: XdpContext) -> u32 {
    receive(ctx.ctx)
}

/// The same for frames in several buffers, which the kernel takes from Linux 5.18 on (f45d5b6ce2e8, "bpf: introduce
/// BPF_F_XDP_HAS_FRAGS flag").
#[xdp(frags)]
fn topo_lb_xdp_frags(ctx: XdpContext) -> u32 {
    receive(ctx.ctx)
}
