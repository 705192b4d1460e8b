//! Programs of others in the kernel: XDP, and those that systemd attaches to cgroups. Those of tc are in the suite `tc_beside`.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use aya_obj::generated::bpf_attach_type::{self, BPF_CGROUP_INET_EGRESS, BPF_CGROUP_INET4_BIND};
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_CGROUP_SKB, BPF_PROG_TYPE_CGROUP_SOCK_ADDR};
use fs_err::File;
use topo_lb_kernel::datapath::host::syscall;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::foreign::instruction;
use topo_lb_tests::process::enter;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{ALL4, WEB4, visit};
use topo_lb_tests::traffic::{Failure, Via};

use super::firewall::blocks;

/// `xdp-filter` of xdp-tools at the uplink, by libxdp: it drops what is for one port, and lets tc do the rest.
fn xdp_filter(xdp: &'static str) -> Result<()> {
    visit(|town| {
        town.agents[0].set("--xdp", xdp);
        // Its way of asking which programs there are is the agent's own for others.
        town.agents[0].set("--tolerate-programs", "xdp*");
        town.has(
            |town| {
                let begin = "xdp-filter load -m skb eth0; xdp-filter port -m dst -p tcp 7777";
                town.begin(begin, "xdp-filter unload eth0")
            },
            blocks,
        )
    })?;
    ensure!(!Path::new("/sys/fs/bpf/xdp").exists(), "libxdp's folder is left on this machine");
    Ok(())
}

#[test]
fn xdp_filter_beside_tc() -> Result<()> {
    xdp_filter("off")
}

/// The device has a place for one program: topo-lb leaves it to the one that is there.
#[test]
fn xdp_filter_beside_xdp() -> Result<()> {
    xdp_filter("any")
}

/// topo-lb's program is there first: a later one does not get the place, and its tool says so.
#[test]
fn xdp_filter_after_xdp() -> Result<()> {
    visit(|town| {
        town.agents[0].set("--xdp", "any");
        town.start_agents()?;
        town.serves()?;
        let said =
            town.rooms[0].run("xdp-filter load -m native eth0 2>&1 && echo loaded || true")?;
        ensure!(!said.contains("loaded") && said.contains("busy"), "{said}");
        town.serves()?;
        town.rolls_out()
    })
}

/// A denied port.
const DENIED: u16 = 7_777;

/// What systemd attaches to a unit's cgroup for `IPAddressDeny=` (at egress) and `SocketBindDeny=`: an address that no packet
/// may go to, and a port that no socket may have. systemd itself needs to be the machine's first process; these programs are
/// of the same kinds, at the same hooks.
struct Denials {
    _links: [OwnedFd; 2],
}

impl Denials {
    fn attach(unit: &Cgroup, address: Ipv4Addr) -> Result<Self> {
        let address = i32::from_ne_bytes(address.octets());
        let egress = [
            instruction(0x61, 2, 1, 76, 0),      // w2 = ctx->data
            instruction(0x61, 3, 1, 80, 0),      // w3 = ctx->data_end
            instruction(0xb7, 0, 0, 0, 1),       // r0 = 1
            instruction(0xbf, 4, 2, 0, 0),       // r4 = r2
            instruction(0x07, 4, 0, 0, 20),      // r4 += 20
            instruction(0x2d, 4, 3, 4, 0),       // if r4 > r3 goto exit
            instruction(0x61, 4, 2, 16, 0),      // w4 = the destination of IPv4
            instruction(0xb4, 5, 0, 0, address), // w5 = address
            instruction(0x5d, 4, 5, 1, 0),       // if r4 != r5 goto exit
            instruction(0xb7, 0, 0, 0, 0),       // r0 = 0
            instruction(0x95, 0, 0, 0, 0),       // exit
        ];
        let bind = [
            instruction(0xb7, 0, 0, 0, 1),  // r0 = 1
            instruction(0x61, 2, 1, 24, 0), // w2 = ctx->user_port
            instruction(0x55, 2, 0, 1, i32::from(DENIED.to_be())),
            instruction(0xb7, 0, 0, 0, 0), // r0 = 0
            instruction(0x95, 0, 0, 0, 0), // exit
        ];
        let cgroup = File::open(unit.path())?;
        let link = |kind, code: &[[u8; 8]], hook: bpf_attach_type| -> Result<OwnedFd> {
            let program = syscall::load(kind, "sd_deny", code, hook as u32)?;
            Ok(syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), hook, 0)?)
        };
        let _links = [
            link(BPF_PROG_TYPE_CGROUP_SKB, &egress, BPF_CGROUP_INET_EGRESS)?,
            link(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, &bind, BPF_CGROUP_INET4_BIND)?,
        ];
        Ok(Self { _links })
    }
}

/// A unit's limits hold for what its Services lead to: the programs see a pod's address.
#[test]
fn cgroup_programs_of_the_kinds_of_systemd() -> Result<()> {
    visit(|town| {
        let pod = town.cluster.node("west")?.cgroup_path().join("client");
        let unit = Cgroup::make(&pod, "unit")?;
        let mut inside = town.cluster.client_in("client", &unit)?;
        town.has(
            |town| Denials::attach(&unit, town.objects.address("far")?),
            |town| {
                inside.wait_for(
                    Via::Http,
                    SocketAddr::new(WEB4.parse()?, 80),
                    &["near"],
                    FOLLOWS,
                )?;
                // A datagram: its sender is told at once.
                let all = SocketAddr::new(ALL4.parse()?, 80);
                let tally = inside.call(Via::UdpConnected, all, 1)?;
                let is_denied = |it: &(Failure, u32)| it.0.errno == libc::EPERM;
                ensure!(tally.failures.iter().any(is_denied), "{tally}");
                for (port, is_denied) in [(DENIED, true), (DENIED + 1, false)] {
                    let mut server = Command::new(requirements::pod()?);
                    server.args([
                        "serve",
                        "--name",
                        "unit",
                        "--listen",
                        &format!("0.0.0.0:{port}"),
                    ]);
                    enter(&mut server, town.pod("client")?.netns(), Some(&unit))?;
                    // It serves until its input ends, which is at once.
                    let output = server.stdin(Stdio::null()).output()?;
                    let said = String::from_utf8(output.stderr)?;
                    ensure!(
                        said.contains("Operation not permitted") == is_denied,
                        "{port}: {said}"
                    );
                }
                Ok(())
            },
        )
    })
}
