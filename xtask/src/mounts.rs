//! The two kernel file systems that topo-lb needs: bpffs for pins, cgroup2 for hooks.

use std::path::{Path, PathBuf};

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

impl Mounts {
    /// Parses `/proc/self/mountinfo` (proc_pid_mountinfo(5)): field 5 is the mount point; the file
    /// system type follows the single dash. Of two mounts at one place, the later one is on top.
    pub(crate) fn of_mountinfo(text: &str) -> Self {
        let mounts: Vec<(&Path, &str)> = text.lines().filter_map(mount).collect();
        let on_top = |place: &str| {
            mounts.iter().rev().find(|(point, _)| *point == Path::new(place)).map(|(_, kind)| *kind)
        };
        let cgroup2 = match on_top(CGROUPS) {
            Some("cgroup2") => Cgroup2::At(CGROUPS.into()),
            below => match mounts.iter().find(|(_, kind)| *kind == "cgroup2") {
                Some((point, _)) => Cgroup2::At(point.to_path_buf()),
                None if below.is_none() => Cgroup2::Free,
                None => Cgroup2::Version1,
            },
        };
        Self { bpffs: on_top(BPFFS) == Some("bpf"), cgroup2 }
    }
}

fn mount(line: &str) -> Option<(&Path, &str)> {
    let (before, after) = line.split_once(" - ")?;
    Some((Path::new(before.split(' ').nth(4)?), after.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYS: &str = "23 27 0:22 / /sys rw,relatime - sysfs sysfs rw\n";

    #[test]
    fn nothing_is_mounted_on_a_machine_that_has_just_booted() {
        let mounts = Mounts::of_mountinfo(SYS);
        assert_eq!(mounts, Mounts { bpffs: false, cgroup2: Cgroup2::Free });
    }

    #[test]
    fn systemd_mounts_both() {
        let text = format!(
            "{SYS}30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
             31 23 0:27 / /sys/fs/bpf rw,nosuid shared:5 - bpf bpf rw,mode=700\n"
        );
        let cgroup2 = Cgroup2::At("/sys/fs/cgroup".into());
        assert_eq!(Mounts::of_mountinfo(&text), Mounts { bpffs: true, cgroup2 });
    }

    #[test]
    fn a_hybrid_host_has_cgroup2_elsewhere() {
        let text = format!(
            "{SYS}31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        );
        let found = Mounts::of_mountinfo(&text).cgroup2;
        assert_eq!(found, Cgroup2::At("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn version_1_alone_is_told_from_an_empty_place() {
        let text = format!("{SYS}31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n");
        assert_eq!(Mounts::of_mountinfo(&text).cgroup2, Cgroup2::Version1);
    }

    #[test]
    fn the_later_of_two_mounts_at_one_place_counts() {
        let text = format!(
            "{SYS}31 23 0:28 / /sys/fs/bpf rw - bpf bpf rw\n32 31 0:29 / /sys/fs/bpf rw - tmpfs x rw\n"
        );
        assert!(!Mounts::of_mountinfo(&text).bpffs);
    }
}
