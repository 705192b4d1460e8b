//! A node's uplink as a network card: frames come without an skb, at any rate, and one thread of the kernel takes
//! them (`/sys/class/net/DEVICE/threaded`, Linux 5.12), whose CPU time is all that the node spends for them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use topo_lb_tests::card::{answer_all, index};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::generator::Generator;
use topo_lb_tests::netns::{NetNs, ethtool};
use topo_lb_tests::process::printed;
use topo_lb_tests::wait::{PATIENCE, patient};

/// The device of every node.
pub(crate) const DEVICE: &str = "eth0";
/// `ETHTOOL_SGRO`, include/uapi/linux/ethtool.h.
const SET_GRO: u32 = 0x2c;
/// Frames of one order to the generator: each begins with new pages.
const AT_ONCE: u32 = 1 << 13;
/// How long a thread that has nothing to do is watched.
const STILL: Duration = Duration::from_millis(2);

/// The uplink of a node, until it is dropped. At its other end is whom all datagrams are for ([`answer_all`]).
#[derive(Debug)]
pub(crate) struct Uplink<'a> {
    pub(crate) node: &'a NetNs,
    pub(crate) address: [u8; 6],
    fabric: &'a NetNs,
    far_end: String,
    thread: Pid,
    _answers: OwnedFd,
}

/// What frames made a node do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Frames that its thread has taken.
    pub(crate) taken: u64,
    /// Frames that it has sent. Those that the other end had no room for may count twice (seen with
    /// `bpf_redirect_neigh` on Linux 6.18).
    pub(crate) sent: u64,
    pub(crate) cpu: Duration,
}

impl Work {
    fn since(self, before: Self) -> Self {
        Self {
            taken: self.taken - before.taken,
            sent: self.sent - before.sent,
            cpu: self.cpu - before.cpu,
        }
    }

    /// Nanoseconds of CPU time a frame.
    pub(crate) fn each(self) -> f64 {
        self.cpu.as_nanos() as f64 / self.taken as f64
    }
}

impl<'a> Uplink<'a> {
    pub(crate) fn new(cluster: &'a Cluster, node: &str, number: u8, cpus: &Cpus) -> Result<Self> {
        let (node, fabric) = (cluster.node_netns(node)?, cluster.fabric());
        let far_end = format!("node{number}");
        let answers = answer_all(fabric, &far_end)?;
        run_on(cpus.others, Some(threaded(fabric, &far_end)?))?;
        // Without GRO or a program, the driver would hand frames to the kernel's queue of all devices.
        node.run(|| ethtool(DEVICE, &mut [SET_GRO, 1]))?;
        let thread = threaded(node, DEVICE)?;
        run_on(cpus.nodes, Some(thread))?;
        let address = [2, 0x54, 0x4c, 1, number, 0];
        Ok(Self { node, address, fabric, far_end, thread, _answers: answers })
    }

    /// A generator of frames for this node.
    pub(crate) fn generator(&self, frame: &[u8], flows: u16) -> Result<Generator> {
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&self.address);
        Generator::new(&frame, flows, index(self.fabric, &self.far_end)?)
    }

    /// Sends frames until the node has taken so many, and waits until it has nothing more to do. Its ring has room
    /// for few: on a busy machine most are lost there.
    pub(crate) fn take(&self, generator: &Generator, frames: u64) -> Result<Work> {
        let (before, end) = (self.work()?, Instant::now() + patient(PATIENCE));
        let mut last = before;
        while last.taken < before.taken + frames {
            ensure!(Instant::now() < end, "the node takes few frames: {:?}", last.since(before));
            generator.send(self.fabric, AT_ONCE)?;
            last = self.work()?;
        }
        loop {
            sleep(STILL);
            let now = self.work()?;
            if now.taken == last.taken {
                return Ok(now.since(before));
            }
            last = now;
        }
    }

    /// All work so far.
    fn work(&self) -> Result<Work> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.thread))?;
        let time = text.split(' ').next().context("no CPU time")?.parse()?;
        let text = self.node.run(|| Ok(fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line =
            text.lines().find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'));
        let counters = line.context("no uplink")?.split_whitespace();
        let counters: Vec<u64> = counters.map(str::parse).collect::<Result<_, _>>()?;
        // Packets that were received, that were sent, and that were dropped as they were sent.
        let &[_, taken, _, _, _, _, _, _, _, sent, _, dropped, ..] = &counters[..] else {
            anyhow::bail!("unknown counters: {text}");
        };
        Ok(Work { taken, sent: sent + dropped, cpu: Duration::from_nanos(time) })
    }
}

impl Drop for Uplink<'_> {
    fn drop(&mut self) {
        let back = |netns, device| set_threaded(netns, device, false);
        let result = back(self.node, DEVICE)
            .and_then(|()| back(self.fabric, &self.far_end))
            .and_then(|()| self.node.run(|| ethtool(DEVICE, &mut [SET_GRO, 0])));
        if let Err(error) = result {
            eprintln!("{error:#}");
        }
    }
}

/// Which CPUs do what.
#[derive(Debug)]
pub(crate) struct Cpus {
    /// The one of the nodes' threads, and that of all others.
    nodes: usize,
    others: usize,
    before: CpuSet,
}

impl Cpus {
    /// Keeps this thread, and threads that it starts, from the CPU of the nodes' threads, until dropped.
    pub(crate) fn divide() -> Result<Self> {
        let before = sched_getaffinity(None).context("cannot read the CPUs")?;
        let mut all = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu));
        let others = all.next().context("no CPU")?;
        let nodes = all.next_back().unwrap_or(others);
        run_on(others, None)?;
        Ok(Self { nodes, others, before })
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

fn run_on(cpu: usize, thread: Option<Pid>) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(thread, &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Gives a device a thread of its own, which other work of the machine delays little.
fn threaded(netns: &NetNs, device: &str) -> Result<Pid> {
    let before = threads(device)?;
    set_threaded(netns, device, true)?;
    let new: Vec<i32> = threads(device)?.difference(&before).copied().collect();
    ensure!(new.len() == 1, "{device} has {} new threads", new.len());
    let thread = Pid::from_raw(new[0]).context("no thread")?;
    setpriority_process(Some(thread), -20).context("cannot put a thread first")?;
    Ok(thread)
}

fn set_threaded(netns: &NetNs, device: &str, is_threaded: bool) -> Result<()> {
    let name = netns.path().file_name().context("no namespace")?;
    let order = format!("echo {} > /sys/class/net/{device}/threaded", u8::from(is_threaded));
    // It mounts the namespace's own /sys.
    let mut command = Command::new("ip");
    command.args(["netns", "exec"]).arg(name).args(["sh", "-c", &order]);
    printed(&mut command).map(drop)
}

/// The kernel's threads of devices of this name.
fn threads(device: &str) -> Result<BTreeSet<i32>> {
    let name = format!("napi/{device}-");
    let is_one = |process: &i32| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|it| it.starts_with(&name))
    };
    let processes = fs::read_dir("/proc")?.flatten();
    Ok(processes.filter_map(|it| it.file_name().to_str()?.parse().ok()).filter(is_one).collect())
}
