//! What the kernel itself says that `connect` costs with topo-lb: the run time of the program at
//! the hook connect4, as `bpftool prog show` reports it with `kernel.bpf_stats_enabled=1`.
//!
//! `cargo run --release -p topo-lb --example connect_cost [-- SERVICES]`, as root. Programs and
//! maps are private to it, and attached to a cgroup of its own: an agent that runs is not touched.
//! All addresses are in 127.0.0.0/8: nothing leaves the machine.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aya::programs::cgroup_sock_addr::CgroupSockAddrAttachType;
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramInfo};
use aya::sys::{Stats, enable_stats};
use topo_lb::datapath::mount::cgroup2_root;
use topo_lb::datapath::object::{Hook, TcpPeer};
use topo_lb::datapath::probe::{kernel_release, pin_empty};
use topo_lb::datapath::trial::{Trial, TrialCgroup};
use topo_lb::plan::Capacity;
use topo_lb_common::address::{Frontend4, TCP};
use topo_lb_common::backend::Backend4;
use topo_lb_common::range::Range;
use topo_lb_common::selection::Selection;
use topo_lb_common::service::Service4;

/// Connections in a batch; a case's figure is the median of its batches' means.
const BATCH: u32 = 1_000;
const BATCHES: usize = 31;
/// Port of the Services, where nobody listens: each connection is refused by the host itself.
const PORT: u16 = 9;
const ENDPOINTS: u8 = 4;

fn main() -> Result<()> {
    let services = match std::env::args().nth(1) {
        Some(count) => count.parse().context("the argument is the number of Services")?,
        None => 10_000,
    };
    ensure!((1..=50_000).contains(&services), "1 to 50000 Services");
    let root = cgroup2_root().context("no cgroup v2 is mounted")?;
    let cgroup = TrialCgroup::make(&root)?;
    let _inside = Inside::enter(&cgroup, &root)?;
    let _stats = enable_stats(Stats::RunTime)?;

    println!("Linux {}, {services} Services of {ENDPOINTS} endpoints", kernel_release());
    println!("{:<42} {:>7} {:>7}", "connect4, ns", "without", "with");
    println!("{:<42} {:>15}", "", "reverse state");
    let nothing = empty(&cgroup)?;
    row("an empty program", nothing, nothing);

    let mut bare = prepare(TcpPeer::Endpoint, services)?;
    let mut whole = prepare(TcpPeer::Service, services)?;
    let mut cases = |name: &str, target: &dyn Fn(u32) -> (Ipv4Addr, u16)| -> Result<()> {
        let cost = |trial: &mut Trial| -> Result<f64> {
            trial.attach(cgroup.path())?;
            let cost = median(|| Ok(trial.info(Hook::Connect4)?), target);
            trial.detach()?;
            cost
        };
        row(name, cost(&mut bare)?, cost(&mut whole)?);
        Ok(())
    };
    let other = |random| frontend(random % services);
    cases("a Service, the same each time", &|_| (frontend(services / 2), PORT))?;
    cases("a Service, another each time", &|random| (other(random), PORT))?;
    cases("no Service, but in their range", &|random| (other(random), PORT + 1))?;
    cases("no Service, outside their range", &|_| (Ipv4Addr::LOCALHOST, PORT))?;
    Ok(())
}

fn row(name: &str, without: f64, with: f64) {
    println!("{name:<42} {without:>7.0} {with:>7.0}");
}

/// Address of a Service.
fn frontend(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 96, 0, 0)) + service)
}

/// Loads the programs with a number of Services.
fn prepare(tcp_peer: TcpPeer, services: u32) -> Result<Trial> {
    let mut trial = Trial::load(&Capacity::default(), tcp_peer)?;
    let mut range = Range::EMPTY;
    for index in 0..services {
        let address = frontend(index).octets();
        let mut service = Service4 {
            generation: 1,
            service: index,
            frontend: Frontend4 { address, port: PORT, protocol: TCP, reserved: 0 },
            selection: Selection { count: ENDPOINTS.into(), ..Selection::default() },
            generation_tail: 1,
            ..Service4::default()
        };
        for (last, endpoint) in (1..=ENDPOINTS).zip(&mut service.endpoints) {
            *endpoint = Backend4 { address: [127, 0, 0, last], port: PORT, ..Backend4::default() };
        }
        trial.write4(&service)?;
        range = range.with4(address);
    }
    trial.write_range(range)?;
    Ok(trial)
}

/// What any program costs: one that lets every call go on.
fn empty(cgroup: &TrialCgroup) -> Result<f64> {
    let pin = PathBuf::from(format!("/sys/fs/bpf/connect-cost-{}", std::process::id()));
    pin_empty(Hook::Connect4, &pin).with_context(|| format!("cannot pin {}", pin.display()))?;
    let program = CgroupSockAddr::from_pin(&pin, CgroupSockAddrAttachType::Connect4);
    fs::remove_file(&pin)?;
    let mut program = program?;
    program.attach(fs::File::open(cgroup.path())?, CgroupAttachMode::Single)?;
    median(|| Ok(program.info()?), |_| (Ipv4Addr::LOCALHOST, PORT))
}

/// Runs batches of connections and gives the median of their mean run time in nanoseconds.
fn median(
    mut info: impl FnMut() -> Result<ProgramInfo>,
    target: impl Fn(u32) -> (Ipv4Addr, u16),
) -> Result<f64> {
    // Full-period over 32 bits: every Service comes, in an order that no cache can guess.
    let mut random = 1_u32;
    let mut means = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let before = info()?;
        for _ in 0..BATCH {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (address, port) = target(random >> 8);
            let result = TcpStream::connect(SocketAddrV4::new(address, port));
            ensure!(result.is_err(), "somebody listens on {address}:{port}");
        }
        let after = info()?;
        let runs = after.run_count() - before.run_count();
        ensure!(runs >= u64::from(BATCH), "the hook fired {runs} times in {BATCH} connections");
        let time = after.run_time() - before.run_time();
        means.push(time.as_nanos() as f64 / runs as f64);
    }
    means.sort_by(f64::total_cmp);
    Ok(means[means.len() / 2])
}

/// This process inside a cgroup, until dropped.
struct Inside {
    before: PathBuf,
}

impl Inside {
    fn enter(cgroup: &TrialCgroup, root: &Path) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let before = root.join(own.context("this process is in no cgroup v2")?);
        cgroup.processes()?.write_all(b"0")?;
        Ok(Self { before })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), "0");
    }
}
