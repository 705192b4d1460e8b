//! Run times of programs as the kernel measures them: `kernel.bpf_stats_enabled`.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::cgroup_sock_addr::{CgroupSockAddrAttachType, CgroupSockAddrLink};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, qdisc_add_clsact};
use aya::programs::{
    CgroupAttachMode, CgroupSockAddr, ProgramError, ProgramInfo, SchedClassifier, TcAttachType,
    loaded_programs,
};
use aya::sys::{Stats, enable_stats};
use aya_obj::generated::bpf_attach_type;
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_PROG_TYPE_SCHED_CLS};
use fs_err as fs;
use topo_lb_kernel::datapath::host::syscall::{load_empty, pin};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::permit::permit;
use topo_lb_tests::requirements::kernel;

/// Makes the kernel measure the run time of every program, until dropped.
#[derive(Debug)]
pub(crate) struct Watch(#[expect(dead_code, reason = "open is all it has to be")] OwnedFd);

impl Watch {
    pub(crate) fn begin() -> Result<Self> {
        enable_stats(Stats::RunTime).map(Self).context("the kernel takes no run times (Linux 5.8)")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Program(u32);

/// Number and total time of a program's runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

impl Program {
    /// The program of a pinned link.
    pub(crate) fn behind(link: &Path) -> Result<Self> {
        let pinned = PinnedLink::from_pin(link)
            .with_context(|| format!("no link is pinned at {}", link.display()))?;
        Ok(Self(FdLink::from(pinned).info().context("a link has facts")?.program_id()))
    }

    /// The programs of tc's pinned links in this direction: one per device.
    pub(crate) fn of_devices(pins: &Path, direction: &str) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(pins.join("links"))?.flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.contains(direction)) {
                all.push(Self::behind(&entry.path())?);
            }
        }
        all.sort_by_key(|program| program.0);
        all.dedup_by_key(|program| program.0);
        ensure!(!all.is_empty(), "no {direction} program is on any device");
        Ok(all)
    }

    pub(crate) fn runs(self) -> Result<Runs> {
        Ok(Runs::of(&self.info()?))
    }

    fn info(self) -> Result<ProgramInfo> {
        loaded_programs()
            .flatten()
            .find(|info| info.id() == self.0)
            .with_context(|| format!("program {} is gone", self.0))
    }
}

impl Runs {
    pub(crate) fn of(info: &ProgramInfo) -> Self {
        Self { count: info.run_count(), time: info.run_time() }
    }

    /// The mean nanoseconds of the runs since `before`, and their number.
    pub(crate) fn since(self, before: Self) -> (f64, u64) {
        let count = self.count.saturating_sub(before.count);
        let time = self.time.saturating_sub(before.time);
        (time.as_nanos() as f64 / count.max(1) as f64, count)
    }
}

/// The shortest program that a hook accepts; attached until dropped.
#[derive(Debug)]
pub(crate) struct Empty {
    pub(crate) program: Program,
    _link: CgroupSockAddrLink,
}

impl Empty {
    pub(crate) fn attach(cgroup: &Path, hook: CgroupSockAddrAttachType) -> Result<Self> {
        let loaded = load_empty(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, bpf_attach_type::from(hook) as u32);
        let mut program = through_pin(loaded, |pin| CgroupSockAddr::from_pin(pin, hook))?;
        let cgroup = fs::File::open(cgroup)?;
        let link = program.attach(cgroup, CgroupAttachMode::Single)?;
        let link = program.take_link(link)?;
        Ok(Self { program: Program(program.info()?.id()), _link: link })
    }
}

/// Runs `work` while the shortest tc program is attached to a device, ingress and egress.
pub(crate) fn with_empty_on<T>(
    node: &NetNs,
    device: &str,
    work: impl FnOnce(&[Program]) -> Result<T>,
) -> Result<T> {
    let mut empty = [TcAttachType::Ingress, TcAttachType::Egress]
        .into_iter()
        .map(|way| Ok((way, empty_classifier()?)))
        .collect::<Result<Vec<_>>>()?;
    let links = node.run(|| {
        prepare(device)?;
        empty
            .iter_mut()
            .map(|(way, program)| attach_tc(program, device, *way))
            .collect::<Result<Vec<_>>>()
    })?;
    let programs = empty.iter().map(|(_, program)| Ok(Program(program.info()?.id())));
    let result = programs.collect::<Result<Vec<_>>>().and_then(|programs| work(&programs));
    node.run(|| {
        drop(links);
        Ok(())
    })?;
    result
}

/// Prepares a device of this thread's network namespace for [`attach_tc`].
pub(crate) fn prepare(device: &str) -> Result<()> {
    // aya uses tcx where the kernel has it; tcx needs no queueing discipline.
    if kernel() < (6, 6) {
        qdisc_add_clsact(device).with_context(|| format!("{device} takes no clsact"))?;
    }
    Ok(())
}

/// Attaches a tc program to a device of this thread's network namespace.
pub(crate) fn attach_tc(
    program: &mut SchedClassifier,
    device: &str,
    way: TcAttachType,
) -> Result<SchedClassifierLink> {
    let link = program.attach(device, way).and_then(|link| program.take_link(link));
    link.with_context(|| format!("no program can be attached to {device}"))
}

/// The shortest tc program, not attached.
pub(crate) fn empty_classifier() -> Result<SchedClassifier> {
    through_pin(load_empty(BPF_PROG_TYPE_SCHED_CLS, 0), |pin| SchedClassifier::from_pin(pin))
}

/// aya takes a program that it has not loaded only from a pin; the pin is removed right after.
pub(crate) fn through_pin<T>(
    loaded: io::Result<OwnedFd>,
    take: impl FnOnce(&Path) -> Result<T, ProgramError>,
) -> Result<T> {
    let path = PathBuf::from(format!("/sys/fs/bpf/topo-lb-bench-{}", std::process::id()));
    let _permit = permit();
    let loaded = loaded.context("the kernel refuses an empty program")?;
    pin(loaded.as_fd(), &path).with_context(|| format!("cannot pin {}", path.display()))?;
    let program = take(&path);
    fs::remove_file(&path)?;
    Ok(program?)
}
