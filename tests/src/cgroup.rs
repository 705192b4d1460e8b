//! Cgroups of version 2: where a node's programs are attached, and its processes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fs_err::{self as fs, File};
use rustix::process::{Pid, Signal, kill_process};
use topo_lb_kernel::datapath::host::mount::cgroup2_root;

use crate::permit::permit;
use crate::wait::patient;

/// The mount point of the machine's cgroup2 hierarchy.
pub fn root() -> Result<PathBuf> {
    cgroup2_root().context(
        "no cgroup2 file system is mounted, and the lab's nodes are cgroups; \
         mount it with: mount -t cgroup2 none /sys/fs/cgroup",
    )
}

/// A hierarchy of cgroups of version 1.
#[derive(Debug)]
pub struct Hierarchy {
    /// Its mount point.
    pub path: PathBuf,
    /// Its controllers, with commas, or `name=` and a name.
    pub controllers: String,
}

/// The mounted hierarchies of version 1; none where everything is in version 2.
pub fn version1() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let hierarchy = |line: &str| {
        let (before, after) = line.split_once(" - cgroup ")?;
        // The controllers are among the file system options at the end of the line.
        let controllers = after.rsplit(' ').next()?.to_owned();
        Some(Hierarchy { path: before.split(' ').nth(4)?.into(), controllers })
    };
    Ok(mounts.lines().filter_map(hierarchy).collect())
}

/// A cgroup made by this process. Dropping it removes it with its processes and the cgroups below.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes the cgroup `name` below `parent`.
    pub fn make(parent: &Path, name: &str) -> Result<Self> {
        let _permit = permit();
        let path = parent.join(name);
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file `cgroup.procs`: a process that writes `0` there joins the cgroup.
    pub fn door(&self) -> Result<File> {
        let path = self.path.join("cgroup.procs");
        File::options()
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// The processor time of the cgroup's processes, ended ones included (`usage_usec` of cpu.stat,
    /// which every cgroup has without a controller since Linux 4.20).
    pub fn processor_time(&self) -> Result<Duration> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path)?;
        let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        let microseconds = microseconds.and_then(|text| text.trim().parse().ok());
        let microseconds =
            microseconds.with_context(|| format!("{} has no time", path.display()))?;
        Ok(Duration::from_micros(microseconds))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("{error:#}");
        }
    }
}

/// Kills every process in the cgroup at `path` and below, and removes it if it exists.
pub fn remove(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    let start = Instant::now();
    loop {
        for pid in processes(path) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        // EBUSY until the last process is gone, soon after its SIGKILL.
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if start.elapsed() > patient(Duration::from_secs(5)) => {
                return Err(error.into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
            Ok(()) => return Ok(()),
        }
    }
}

/// The processes in a cgroup, without those in cgroups below.
#[must_use]
pub fn processes(path: &Path) -> Vec<Pid> {
    fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok().and_then(Pid::from_raw))
        .collect()
}
