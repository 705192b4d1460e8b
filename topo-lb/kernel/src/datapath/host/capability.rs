//! Whether this process has the capabilities for the bpf(2) calls of the datapath.

use rustix::thread::{CapabilitySet, capabilities};

/// The names of the missing capabilities. CAP_SYS_ADMIN includes all others.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    // Without an answer here, bpf(2) itself will refuse.
    capabilities(None).map(|sets| missing_of(sets.effective)).unwrap_or_default()
}

fn missing_of(effective: CapabilitySet) -> Vec<&'static str> {
    // Before Linux 5.8, CAP_SYS_ADMIN included CAP_BPF and CAP_PERFMON. The latter lets programs
    // calculate with pointers.
    let needed = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    let has = |one| effective.contains(CapabilitySet::SYS_ADMIN) || effective.contains(one);
    needed.into_iter().filter(|(one, _)| !has(*one)).map(|(_, name)| name).collect()
}

/// Whether this process is in a user namespace of its own, where the kernel loads no programs.
#[must_use]
pub fn in_user_namespace() -> bool {
    // The first user namespace maps all identifiers to themselves; user_namespaces(7).
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| !map.split_ascii_whitespace().eq(["0", "0", "4294967295"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_sys_admin_stands_for_all_others() {
        let all = ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"];
        let bpf_and_perfmon = CapabilitySet::BPF | CapabilitySet::PERFMON;
        for (effective, missing) in [
            (CapabilitySet::SYS_ADMIN, &all[..0]),
            (bpf_and_perfmon | CapabilitySet::NET_ADMIN, &[]),
            (CapabilitySet::empty(), &all),
            (bpf_and_perfmon, &all[1..2]),
            (CapabilitySet::BPF | CapabilitySet::NET_ADMIN, &all[2..]),
        ] {
            assert_eq!(missing_of(effective), missing, "{effective:?}");
        }
    }
}
