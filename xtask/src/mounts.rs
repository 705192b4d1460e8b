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
/// `CGROUP_SUPER_MAGIC`: a hierarchy of version 1.
const CGROUP_FS: FsWord = 0x0027_e0eb;
/// `TMPFS_MAGIC`: the folder of several hierarchies of version 1.
const TMPFS: FsWord = 0x0102_1994;

impl Mounts {
    /// Inspects this machine.
    pub(crate) fn find() -> Self {
        let kind = |place: &str| statfs(place).ok().map(|found| found.f_type);
        let elsewhere = || {
            let mut findmnt = Command::new("findmnt");
            let found = findmnt.args(["--noheadings", "--first-only", "--output", "TARGET"]);
            Some(PathBuf::from(output_of(found.args(["--types", "cgroup2"]))?.trim_end()))
        };
        Self { bpffs: kind(BPFFS) == Some(BPF_FS), cgroup2: cgroup2(kind(CGROUPS), elsewhere) }
    }
}

/// `kind` is the file system of [`CGROUPS`], `elsewhere` finds a mount of version 2 at any place.
fn cgroup2(kind: Option<FsWord>, elsewhere: impl FnOnce() -> Option<PathBuf>) -> Cgroup2 {
    if kind == Some(CGROUP2_FS) {
        return Cgroup2::At(CGROUPS.into());
    }
    match (elsewhere(), kind) {
        (Some(place), _) => Cgroup2::At(place),
        (None, Some(CGROUP_FS | TMPFS)) => Cgroup2::Version1,
        (None, _) => Cgroup2::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_told_by_its_own_file_systems() {
        const SYSFS: FsWord = 0x6265_6572;
        const EXT4: FsWord = 0xef53;
        let alone = |kind| cgroup2(kind, || None);
        assert_eq!(alone(Some(CGROUP2_FS)), Cgroup2::At(CGROUPS.into()));
        for version1 in [CGROUP_FS, TMPFS] {
            assert_eq!(alone(Some(version1)), Cgroup2::Version1);
            let hybrid = PathBuf::from("/sys/fs/cgroup/unified");
            let found = cgroup2(Some(version1), || Some(hybrid.clone()));
            assert_eq!(found, Cgroup2::At(hybrid));
        }
        for other in [Some(SYSFS), Some(EXT4), None] {
            assert_eq!(alone(other), Cgroup2::Free);
        }
    }
}
