//! The limit on the memory of this process, to which the kernel counts the maps that it makes since
//! Linux 5.11 (`bpf_map_save_memcg`, kernel/bpf/syscall.c).

use std::fs;
use std::path::{Path, PathBuf};

use super::mount::mounts;

/// cgroup v1 has a number of this size where there is no limit (`PAGE_COUNTER_MAX`,
/// include/linux/page_counter.h).
const NONE: u64 = 1 << 62;

/// The smallest limit of this process's cgroup and of those above it that are visible, in bytes; `None`
/// without one. In a container that is the container's.
#[must_use]
pub fn of_this_process() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let limits = files(&own, &mountinfo).into_iter();
    limits.filter_map(|file| bytes(&fs::read_to_string(file).ok()?)).min()
}

/// The files with limits: cgroups(7) describes `own`, `/proc/pid/cgroup`.
fn files(own: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (root, point, source) in mounts(mountinfo) {
        let has_memory = |controllers: &str| controllers.split(',').any(|one| one == "memory");
        let is_two = source.starts_with("cgroup2 ");
        let is_one =
            source.starts_with("cgroup ") && source.rsplit(' ').next().is_some_and(has_memory);
        let path = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            (is_two && controllers.is_empty() || is_one && has_memory(controllers)).then_some(path)
        });
        // A mount of something else than what is above this process has no path to it.
        let Some(Ok(below)) = path.map(|path| Path::new(path).strip_prefix(root)) else { continue };
        let file = if is_two { "memory.max" } else { "memory.limit_in_bytes" };
        let folder = Path::new(point).join(below);
        let folders = folder.ancestors().take_while(|it| it.starts_with(point));
        files.extend(folders.map(|it| it.join(file)));
    }
    files
}

/// A limit; `None` for no limit, which is `max` in cgroup v2.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(own: &str, mountinfo: &str) -> Vec<String> {
        files(own, mountinfo).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn a_container_sees_its_own_limit_and_not_that_of_the_hosts_hierarchy_which_it_also_mounts() {
        let mountinfo = "\
501 500 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
502 500 0:28 /../../../.. /run/topo-lb/cgroup rw,nosuid master:9 - cgroup2 cgroup2 rw
";
        assert_eq!(names("0::/\n", mountinfo), ["/sys/fs/cgroup/memory.max"]);
    }

    #[test]
    fn without_a_cgroup_namespace_the_limits_above_count_too() {
        let mountinfo = "31 30 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let wanted = [
            "/sys/fs/cgroup/system.slice/topo-lb.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(names("0::/system.slice/topo-lb.service\n", mountinfo), wanted);
        // A mount of this cgroup alone, as of a container in the host's cgroup namespace.
        let bound = mountinfo.replace(" / ", " /system.slice/topo-lb.service ");
        let own = "0::/system.slice/topo-lb.service\n";
        assert_eq!(names(own, &bound), ["/sys/fs/cgroup/memory.max"]);
    }

    #[test]
    fn version_1_has_the_memory_in_a_hierarchy_of_its_own() {
        let mountinfo = "\
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let own = "4:memory:/agents\n2:cpu,cpuacct:/other\n0::/\n";
        let wanted = [
            "/sys/fs/cgroup/memory/agents/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/unified/memory.max",
        ];
        assert_eq!(names(own, mountinfo), wanted);
        assert_eq!(names("", ""), [""; 0]);
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(bytes("268435456\n"), Some(268_435_456));
        assert_eq!(bytes("max\n"), None);
        assert_eq!(bytes("9223372036854771712\n"), None);
    }
}
