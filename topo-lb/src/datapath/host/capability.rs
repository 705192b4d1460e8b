//! Whether this process has the capabilities for the bpf(2) calls of the datapath.

/// A capability of capabilities(7), by its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capability {
    NetAdmin = 12,
    SysAdmin = 21,
    /// Linux 5.8; included in CAP_SYS_ADMIN before. Lets programs calculate with pointers.
    Perfmon = 38,
    /// Linux 5.8; included in CAP_SYS_ADMIN before.
    Bpf = 39,
}

/// The names of the missing capabilities. CAP_SYS_ADMIN includes all others.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_of(&status)
}

fn missing_of(status: &str) -> Vec<&'static str> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        // Unreadable: bpf(2) itself will refuse.
        .unwrap_or(u64::MAX);
    let has = |capability: Capability| effective & (1 << capability as u64) != 0;
    if has(Capability::SysAdmin) {
        return Vec::new();
    }
    [
        (Capability::Bpf, "CAP_BPF"),
        (Capability::NetAdmin, "CAP_NET_ADMIN"),
        (Capability::Perfmon, "CAP_PERFMON"),
    ]
    .into_iter()
    .filter_map(|(capability, name)| (!has(capability)).then_some(name))
    .collect()
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
    fn sys_admin_stands_for_all_others() {
        assert!(missing_of("CapEff:\t0000000000200000\n").is_empty());
        assert!(missing_of("CapEff:\t000000c000001000\n").is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let all = ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"];
        assert_eq!(missing_of("CapEff:\t0000000000000000\n"), all);
        assert_eq!(missing_of("CapEff:\t000000c000000000\n"), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_of("CapEff:\t0000008000001000\n"), ["CAP_PERFMON"]);
    }
}
