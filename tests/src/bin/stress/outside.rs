//! Packets of clients outside, as fast as one CPU can run the program of uplinks
//! (`BPF_PROG_TEST_RUN`), each checked against the history of its Service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_cmd;
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::direction::{Direction, Role};
use topo_lb_kernel::datapath::host::syscall;
use topo_lb_kernel::datapath::link::DIRECTORY;
use topo_lb_kernel::device::{Pattern, chosen};
use topo_lb_tests::address::{Endpoint, Family, SERVICES, cluster_ip};
use topo_lb_tests::frame::{says, udp};
use topo_lb_tests::packets::NEXT;
use topo_lb_tests::report::Report;

use crate::hammer::{PORT, check, run_on};
use crate::history::{History, Outcome};

/// The device that stands for an uplink.
const UPLINK: &str = "uplink";
/// The verdict of a packet that goes back: the refusal. `TC_ACT_REDIRECT`, include/uapi/linux/pkt_cls.h.
const REDIRECT: i32 = 7;
/// Room for what a refusal is longer than its packet.
const ROOM: usize = 256;

/// Attaches the programs of uplinks, and returns the one for packets of clients.
pub(crate) fn attach(datapath: &mut Datapath, pin_dir: &Path) -> Result<OwnedFd> {
    let pattern: Pattern = UPLINK.parse()?;
    let device = chosen(&[pattern])?.pop().context("there is no device `uplink`")?;
    let name = format!("{}_{}", Role::External.program(Direction::Ingress), device.index);
    ensure!(datapath.attach_devices(&[(Role::External, device)], true), "not attached");
    let link = syscall::open_link(&pin_dir.join(DIRECTORY).join(name))?;
    let (_, info) = link.context("the link is not pinned")?;
    Ok(syscall::program_by_id(info.program)?)
}

/// Sends first packets on one CPU until `stop` is set.
pub(crate) fn send(
    cpu: usize,
    program: &OwnedFd,
    histories: &[[History; SERVICES as usize]; 2],
    stop: &AtomicBool,
) -> Result<Report> {
    run_on(cpu)?;
    let mut report = Report::default();
    let mut turn = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        turn = turn.wrapping_add(1);
        let service = (turn % u32::from(SERVICES)) as u8;
        let family = Family::BOTH[(turn / u32::from(SERVICES)) as usize % 2];
        let to = SocketAddr::new(cluster_ip(service, family), PORT);
        let mut packet = udp(client(cpu, turn, family), to, b"?");
        // The kernel runs the program as of the loopback device, and a frame with another address than the
        // device's is for another host.
        packet[..6].fill(0);
        let history = &histories[family as usize][usize::from(service)];
        check(history, service, &mut report, "from outside", to.ip(), || {
            run(program, &packet, to).unwrap_or(Outcome::Failed(0))
        });
    }
    Ok(report)
}

/// A client that has not sent for long: none has a connection, nor too many refusals. IPv6 clients count by /64.
fn client(cpu: usize, turn: u32, family: Family) -> SocketAddr {
    let host = (cpu as u32 & 0xff) << 16 | turn & 0xffff;
    let ip: IpAddr = match family {
        Family::V4 => Ipv4Addr::from_bits(11 << 24 | host).into(),
        Family::V6 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(host) << 64 | 9).into(),
    };
    SocketAddr::new(ip, 1_024 + (turn >> 16) as u16)
}

/// Runs the program, and says where the packet goes.
fn run(program: &OwnedFd, packet: &[u8], to: SocketAddr) -> Result<Outcome> {
    let mut out = vec![0; packet.len() + ROOM];
    let (_, after) = syscall::bpf(bpf_cmd::BPF_PROG_TEST_RUN, |attribute| {
        attribute.test.prog_fd = program.as_fd().as_raw_fd() as u32;
        attribute.test.data_in = packet.as_ptr() as u64;
        attribute.test.data_size_in = packet.len() as u32;
        attribute.test.data_out = out.as_mut_ptr() as u64;
        attribute.test.data_size_out = out.len() as u32;
    })?;
    // SAFETY: the kernel wrote this variant.
    let (verdict, length) = unsafe { (after.test.retval.cast_signed(), after.test.data_size_out) };
    if verdict == REDIRECT {
        return Ok(Outcome::Refused);
    }
    ensure!(verdict == NEXT, "dropped");
    let (_, goes) = says(&out[..length as usize])?;
    Ok(match Endpoint::at(goes.ip()) {
        _ if goes == to => Outcome::Untouched,
        Some(endpoint) => Outcome::Landed(endpoint),
        None => Outcome::Failed(0),
    })
}
