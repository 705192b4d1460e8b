//! Checks the two file systems of the datapath: bpffs for pins, cgroup2 for hooks.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, statfs};
use rustix::io::Errno;
use thiserror::Error;
use topo_lb_core::flag::{CGROUP_ROOT, PIN_DIR};

/// `BPF_FS_MAGIC`, include/uapi/linux/magic.h.
const BPF_FS: FsWord = 0xcafe_4a11;
/// `CGROUP2_SUPER_MAGIC`.
const CGROUP2: FsWord = 0x6367_7270;

/// Why a directory of the datapath cannot be used.
#[derive(Debug, Error)]
pub enum MountError {
    /// The pin directory is, or would be, on another file system.
    #[error(
        "the pin directory {} is not on a BPF file system: mount one with `mount -t bpf bpf \
         /sys/fs/bpf`, or give another {PIN_DIR}", .0.display()
    )]
    NotBpffs(PathBuf),
    /// The cgroup root is on another file system.
    #[error("{} is not a cgroup v2 directory: {}", path.display(), advice(path, found.as_deref()))]
    NotCgroup2 {
        /// The given path.
        path: PathBuf,
        /// The mount point of cgroup v2, if any.
        found: Option<PathBuf>,
    },
    /// The directory cannot be read.
    #[error("{} cannot be looked at: {}", .0.display(), .1)]
    Unreadable(PathBuf, #[source] io::Error),
}

/// Where deploy/ mounts the node's cgroups in the agent's container.
const IN_A_POD: &str = "/run/topo-lb/cgroup";

fn advice(path: &Path, found: Option<&Path>) -> String {
    match found {
        Some(found) if path == Path::new(IN_A_POD) && found == path.join("unified") => {
            "the node has cgroup v2 beside v1, so install with `--set \
             cgroupRoot=/sys/fs/cgroup/unified` or the component cgroup-unified"
                .to_owned()
        }
        Some(found) => {
            format!("cgroup v2 is mounted at {0}, so use `{CGROUP_ROOT} {0}`", found.display())
        }
        None => "mount it with `mount -t cgroup2 none /sys/fs/cgroup`, or boot with \
                 `systemd.unified_cgroup_hierarchy=1`"
            .to_owned(),
    }
}

/// Checks that `path`, or its nearest existing ancestor, is on a BPF file system.
///
/// # Errors
/// It is not, or it cannot be read.
pub fn check_bpffs(path: &Path) -> Result<(), MountError> {
    for ancestor in path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        match statfs(ancestor).map(|status| status.f_type) {
            Ok(BPF_FS) => return Ok(()),
            Ok(_) => break,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(MountError::Unreadable(ancestor.to_owned(), error.into())),
        }
    }
    Err(MountError::NotBpffs(path.to_owned()))
}

/// Checks that `path` is a directory of a cgroup v2 hierarchy.
///
/// # Errors
/// It is not, or it cannot be read.
pub fn check_cgroup2(path: &Path) -> Result<(), MountError> {
    match statfs(path).map(|status| status.f_type) {
        Ok(CGROUP2) => Ok(()),
        Ok(_) => Err(MountError::NotCgroup2 { path: path.to_owned(), found: cgroup2_root() }),
        Err(error) => Err(MountError::Unreadable(path.to_owned(), error.into())),
    }
}

/// The first mount of a whole cgroup v2 hierarchy in this process: `/sys/fs/cgroup` on most hosts,
/// `/sys/fs/cgroup/unified` beside cgroup v1.
#[must_use]
pub fn cgroup2_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    whole_cgroup2(&mounts).map(PathBuf::from)
}

/// The mount point of the first cgroup2 mount of a whole hierarchy.
fn whole_cgroup2(mountinfo: &str) -> Option<&str> {
    let mut all = mounts(mountinfo);
    all.find_map(|(root, point, source)| {
        (root == "/" && source.starts_with("cgroup2 ")).then_some(point)
    })
}

/// Each mount of `/proc/pid/mountinfo`, proc(5): what of its file system, where, and its type, source and
/// options.
pub(super) fn mounts(mountinfo: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        Some((fields.next()?, fields.next()?, source))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu
";

    #[test]
    fn a_hybrid_host_has_cgroup2_beside_cgroup1() {
        assert_eq!(whole_cgroup2(HYBRID), Some("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn a_part_of_the_hierarchy_is_not_its_root() {
        let part = "31 30 0:27 /kubepods /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        assert_eq!(whole_cgroup2(part), None);
        assert_eq!(whole_cgroup2("nonsense\n\n"), None);
    }

    #[test]
    fn the_advice_is_for_the_place_of_the_agent() {
        let beside = |root: &str| advice(Path::new(root), Some(&Path::new(root).join("unified")));
        assert_eq!(
            beside("/sys/fs/cgroup"),
            "cgroup v2 is mounted at /sys/fs/cgroup/unified, so use \
             `--cgroup-root /sys/fs/cgroup/unified`"
        );
        assert_eq!(
            beside("/run/topo-lb/cgroup"),
            "the node has cgroup v2 beside v1, so install with \
             `--set cgroupRoot=/sys/fs/cgroup/unified` or the component cgroup-unified"
        );
    }

    #[test]
    fn another_file_system_is_named_with_what_to_do() {
        let error = check_bpffs(Path::new("/proc/nowhere/topo-lb")).unwrap_err();
        assert!(error.to_string().contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
        let error = check_cgroup2(Path::new("/proc")).unwrap_err();
        assert!(error.to_string().starts_with("/proc is not a cgroup v2 directory: "), "{error}");
    }
}
