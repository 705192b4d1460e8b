//! A listener for many ports. A client that dials one port after the other pays for it (it looks for its own
//! port in another place each time): where it dials many node ports, the plain way has as many ports.

use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData, SockMap};
use aya_obj::generated::bpf_attach_type::BPF_SK_LOOKUP;
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_SOCKMAP;
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP;
use fs_err::File;
use topo_lb::datapath::host::memlock;
use topo_lb::datapath::host::syscall;
use topo_lb_tests::foreign::instruction;

use crate::exchange::PORT;

/// The ports.
pub(crate) const MANY_PORTS: Range<u16> = 20_000..30_000;

/// Gives connections to these ports to `listener`, in this process's network namespace, until dropped. A
/// program of the kernel's look-up of listeners does it, also for the listener's own port: so it costs
/// connections to all ports the same, and established ones nothing.
#[derive(Debug)]
pub(crate) struct ManyPorts(#[expect(dead_code, reason = "open is all it has to be")] OwnedFd);

impl ManyPorts {
    pub(crate) fn give_to(listener: &TcpListener) -> Result<Self> {
        memlock::lift_limit();
        let map = aya_obj::Map::new_from_params(BPF_MAP_TYPE_SOCKMAP as u32, 4, 4, 1, 0);
        let map = MapData::create(map, "listener", None)?;
        let code = code(map.fd().as_fd().as_raw_fd());
        let mut map = SockMap::try_from(Map::SockMap(map))?;
        map.set(0, listener, 0)?;
        let hook = BPF_SK_LOOKUP;
        let program = syscall::load(BPF_PROG_TYPE_SK_LOOKUP, "many_ports", &code, hook as u32);
        let program = program.context("the kernel refuses a program for many ports")?;
        let netns = File::open("/proc/self/ns/net")?;
        Ok(Self(syscall::link_cgroup(program.as_fd(), netns.as_fd(), hook, 0)?))
    }
}

/// The program: the port is a field of `struct bpf_sk_lookup` (include/uapi/linux/bpf.h), in host order.
fn code(map: RawFd) -> [[u8; 8]; 21] {
    const LOCAL_PORT: i16 = 60;
    let (look_up, release, assign) = (1, 86, 124);
    let (first, end) = (MANY_PORTS.start.into(), MANY_PORTS.end.into());
    [
        instruction(0xbf, 6, 1, 0, 0),           // r6 = ctx
        instruction(0x61, 2, 1, LOCAL_PORT, 0),  // w2 = ctx->local_port
        instruction(0x15, 2, 0, 2, PORT.into()), // if r2 == PORT goto assign
        instruction(0xa5, 2, 0, 15, first),      // if r2 < first goto pass
        instruction(0x35, 2, 0, 14, end),        // if r2 >= end goto pass
        instruction(0x62, 10, 0, -4, 0),         // assign: *(u32 *)(r10 - 4) = 0
        instruction(0xbf, 2, 10, 0, 0),          // r2 = r10
        instruction(0x07, 2, 0, 0, -4),          // r2 -= 4
        instruction(0x18, 1, 1, 0, map),         // r1 = map
        instruction(0, 0, 0, 0, 0),
        instruction(0x85, 0, 0, 0, look_up), // r0 = the listener
        instruction(0x15, 0, 0, 7, 0),       // if r0 == 0 goto pass
        instruction(0xbf, 7, 0, 0, 0),       // r7 = r0
        instruction(0xbf, 1, 6, 0, 0),       // r1 = ctx
        instruction(0xbf, 2, 7, 0, 0),       // r2 = the listener
        instruction(0xb7, 3, 0, 0, 0),       // r3 = no flags
        instruction(0x85, 0, 0, 0, assign), // call; if it fails, the kernel looks for a listener itself
        instruction(0xbf, 1, 7, 0, 0),      // r1 = the listener
        instruction(0x85, 0, 0, 0, release), // call
        instruction(0xb7, 0, 0, 0, 1),      // pass: r0 = SK_PASS
        instruction(0x95, 0, 0, 0, 0),      // exit
    ]
}
