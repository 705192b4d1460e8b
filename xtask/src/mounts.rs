//! The two kernel file systems that topo-lb needs: bpffs for pins, cgroup2 for hooks.

use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FsWord, statfs};

use crate::process::output_of;

pub(crate) const BPFFS: &str = "/sys/fs/bpf";

/// The cgroup2 hierarchy of a host with only version 2.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounts {
    /// Whether a bpf file system is mounted at [`BPFFS`].
    pub(crate) bpffs: bool,
    pub(crate) cgroup2: Cgroup2,
}

/// The state of a host's cgroup2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cgroup2 {
    /// Mounted: at [`CGROUPS`], or elsewhere on a host that also has version 1 ("hybrid").
    At(PathBuf),
    /// Not mounted, and nothing else is mounted at [`CGROUPS`].
    Free,
    /// Not mounted, and [`CGROUPS`] holds hierarchies of version 1.
    Version1,
}

/// `BPF_FS_MAGIC`, include/uapi/linux/magic.h.
const BPF_FS: FsWord = 0xcafe_4a11;
/// `CGROUP2_SUPER_MAGIC`.
const CGROUP2_FS: FsWord = 0x6367_7270;
/// `SYSFS_MAGIC`: the file system that has the folder [`CGROUPS`].
const SYSFS: FsWord = 0x6265_6572;

impl Mounts {
    /// Inspects this machine.
    pub(crate) fn find() -> Self {
        let is = |place: &str, kind| statfs(place).is_ok_and(|found| found.f_type == kind);
        let elsewhere = || {
            let mut findmnt = Command::new("findmnt");
            let found = findmnt.args(["--noheadings", "--first-only", "--output", "TARGET"]);
            Some(PathBuf::from(output_of(found.args(["--types", "cgroup2"]))?.trim_end()))
        };
        let cgroup2 = if is(CGROUPS, CGROUP2_FS) {
            Cgroup2::At(CGROUPS.into())
        } else if let Some(place) = elsewhere() {
            Cgroup2::At(place)
        } else if is(CGROUPS, SYSFS) {
            Cgroup2::Free
        } else {
            Cgroup2::Version1
        };
        Self { bpffs: is(BPFFS, BPF_FS), cgroup2 }
    }
}
