//! Decisions for sockets.

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid,
};
use aya_ebpf::programs::SockAddrContext;
use topo_lb_common::trace::{Hook, Outcome, THREAD_LENGTH};

use crate::base::family::Family;
use crate::decide::decision::{Dialled, Words};
use crate::decide::resolve::Resolved;
use crate::decide::trace::{is_on, reserve, submit};
use crate::socket::place::{Mapped, Place, Plain4, Plain6, port, protocol};

/// Tells what was decided for the context's socket. Call it before the context gets the endpoint.
#[inline(always)]
pub(crate) fn tell<P: TellSocket>(
    ctx: &SockAddrContext,
    hook: Hook,
    resolved: &Resolved<P::Family>,
    outcome: Outcome,
) {
    if is_on() {
        P::tell(ctx.sock_addr, Words::of(resolved, hook, outcome));
    }
}

#[inline(always)]
fn of_socket<P: Place>(ctx: *mut bpf_sock_addr, words: &Words) -> u32 {
    let ctx = SockAddrContext::new(ctx);
    let dialled = Dialled::<P::Family> {
        frontend: (P::address(&ctx), port(&ctx)),
        client: (P::Family::NOWHERE, 0),
        protocol: protocol(&ctx).unwrap_or(0),
        is_v6: P::Family::IS_V6,
        device: 0,
    };
    #[cfg(feature = "log")]
    crate::decide::log::decided(&ctx, words, &dialled);
    let Some(mut entry) = reserve(words, &dialled) else { return 0 };
    let decision = entry.as_mut_ptr();
    // SAFETY: as in `reserve`. The hooks have these helpers since Linux 5.7 (834ebca83162, "bpf: Enable
    // retrival of pid/tgid/comm from bpf cgroup hooks", and 0f09abd105da).
    unsafe {
        (*decision).cgroup = bpf_get_current_cgroup_id();
        (*decision).process = (bpf_get_current_pid_tgid() >> 32) as u32;
        bpf_get_current_comm((&raw mut (*decision).thread).cast(), THREAD_LENGTH as u32);
    }
    submit(entry);
    0
}

/// Implements [`TellSocket`] by a global function for each place of an address.
macro_rules! tell {
    ($($place:ident: $global:ident,)*) => {
        $(
            impl TellSocket for $place {
                #[inline(always)]
                fn tell(ctx: *mut bpf_sock_addr, words: Words) {
                    $global(ctx, words.head, words.tail, words.service, words.bytes);
                }
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $global(
                ctx: *mut bpf_sock_addr,
                head: u64,
                tail: u64,
                service: u64,
                bytes: u32,
            ) -> u32 {
                of_socket::<$place>(ctx, &Words { head, tail, service, bytes })
            }
        )*
    };
}

/// The decisions for sockets.
pub(crate) trait TellSocket: Place {
    fn tell(ctx: *mut bpf_sock_addr, words: Words);
}

tell! {
    Plain4: tell_socket4,
    Mapped: tell_socket_mapped,
    Plain6: tell_socket6,
}
