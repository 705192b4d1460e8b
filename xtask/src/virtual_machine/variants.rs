//! The ways to boot a kernel: a machine of its own for each.
//!
//! What has only another kernel's name boots as Debian builds it, and every run boots it. The others are *variants*: each is
//! run only by its name, or with all others as [`VARIANTS`], and runs the suites that are short.

use super::Line;

/// A machine to boot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(super) line: Line,
    /// Added to the kernel's command line.
    pub(super) flags: &'static str,
    /// QEMU's `-smp`.
    pub(super) cores: u8,
    /// QEMU's `-m`, in GiB. 3 are enough for the initramfs, packed and unpacked, and for an agent's maps.
    pub(super) memory: u8,
    pub(super) cgroups: Cgroups,
    /// Folders over which the first process mounts an empty file system.
    pub(super) hidden: &'static [&'static str],
    /// Files, and what the first process writes there.
    pub(super) writes: &'static [(&'static str, &'static str)],
    /// What `topo-lb check` says of this machine besides `ok`, by the names of its findings; `None`: not asked.
    pub(super) limited: Option<&'static str>,
    /// The suites; empty: those of [`suites`](super::suites).
    pub(super) suites: &'static [&'static str],
}

/// How the machine's cgroups are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroups {
    /// Version 2 alone.
    Two,
    /// Version 2 at `/sys/fs/cgroup/unified`, beside controllers of version 1.
    Beside,
    /// Version 2 alone, and all that runs is in a cgroup namespace whose root is far below the machine's, as in a node of kind.
    Nested,
}

/// The name for all variants.
pub(crate) const VARIANTS: &str = "variants";

/// As Debian builds it, on two processors.
const PLAIN: Variant = Variant {
    name: "",
    line: Line::V6_12,
    flags: "",
    cores: 2,
    memory: 3,
    cgroups: Cgroups::Two,
    hidden: &[],
    writes: &[],
    limited: None,
    suites: &[],
};

/// The suites of a variant.
const FAST: &[&str] = &["boots", "connect", "datagram", "tc_traffic"];

/// Those where tasks and grace periods may take turns otherwise. The verifier accepts the programs of an agent of `boots`.
const SCHEDULED: &[&str] = &["boots", "records", "connect", "datagram", "tc_traffic"];

/// A variant of 6.12, of which `topo-lb check` says no more than `ok`.
const VARIANT: Variant = Variant { limited: Some(""), suites: FAST, ..PLAIN };

/// What a kernel before 5.11 lacks.
const OF_5_10: Option<&str> = Some("refusal, MPTCP peers, walk, clock");

/// All, in the order of the table of counts; variants last.
pub(crate) const ALL: &[Variant] = &[
    Variant { name: "5.10", line: Line::V5_10, ..PLAIN },
    Variant { name: "6.1", line: Line::V6_1, ..PLAIN },
    // Preempts tasks also inside programs, on one processor: a program then sees what others write while it waits, and a
    // grace period must not count on other processors.
    Variant { name: "6.12", flags: "preempt=full", cores: 1, ..PLAIN },
    Variant { name: "arm64", line: Line::Arm64, ..PLAIN },
    Variant {
        name: "backports",
        line: Line::Backports,
        flags: STORAGE,
        suites: SCHEDULED,
        ..VARIANT
    },
    Variant { name: "sid", line: Line::Sid, flags: STORAGE, suites: SCHEDULED, ..VARIANT },
    // A stand-in: the verifier of this kernel still has its BTF.
    Variant {
        name: "no-btf",
        hidden: &["/sys/kernel/btf"],
        limited: Some("BTF, accounting, walk, guards"),
        ..VARIANT
    },
    Variant { name: "no-ipv6", flags: "ipv6.disable=1", ..VARIANT },
    Variant { name: "lockdown", flags: "lockdown=integrity", ..VARIANT },
    Variant {
        name: "confidentiality",
        flags: "lockdown=confidentiality",
        limited: Some("guards"),
        ..VARIANT
    },
    Variant { name: "jit-harden", writes: HARDENED, ..VARIANT },
    Variant {
        name: "jit-harden-5.10",
        line: Line::V5_10,
        writes: HARDENED,
        limited: OF_5_10,
        ..VARIANT
    },
    Variant { name: "cgroup-v1", cgroups: Cgroups::Beside, ..VARIANT },
    Variant {
        name: "cgroup-v1-5.10",
        line: Line::V5_10,
        cgroups: Cgroups::Beside,
        limited: OF_5_10,
        ..VARIANT
    },
    // From the first class of net_cls on, every new socket counts as one of the root of version 2.
    Variant {
        name: "net-cls-5.10",
        line: Line::V5_10,
        cgroups: Cgroups::Beside,
        writes: &[("/sys/fs/cgroup/net_cls,net_prio/class/net_cls.classid", "1048577")],
        limited: OF_5_10,
        ..VARIANT
    },
    Variant { name: "cgroup-namespace", cgroups: Cgroups::Nested, ..VARIANT },
    Variant { name: "real-time", line: Line::RealTime, suites: SCHEDULED, ..VARIANT },
    Variant {
        name: "nohz-full",
        flags: "nohz_full=1 isolcpus=1 rcu_nocbs=1",
        suites: SCHEDULED,
        ..VARIANT
    },
    Variant { name: "64-cpus", cores: 64, memory: 8, suites: &["boots", "connect"], ..VARIANT },
    Variant { name: "overlays-5.10", line: Line::V5_10, ..NETWORKS },
    Variant { name: "overlays-6.1", line: Line::V6_1, ..NETWORKS },
    Variant { name: "overlays-6.12", ..NETWORKS },
];

/// Tunnels and IPsec, on kernels on which they are not part of what every run boots.
const NETWORKS: Variant = Variant { suites: &["overlays"], ..PLAIN };

/// Since 7.0 the storage of sockets is of `kmalloc_nolock` (mm/slub.c), which without `cmpxchg16b`, as in our
/// emulator, takes memory of checked caches alone.
const STORAGE: &str = "slab_debug=F,kmalloc-*";

/// Constants in programs are hidden from their writers, also from root.
const HARDENED: &[(&str, &str)] = &[("/proc/sys/net/core/bpf_jit_harden", "2")];

impl Variant {
    /// Whether it is run only by its name.
    pub(crate) const fn is_variant(&self) -> bool {
        !self.suites.is_empty()
    }

    /// The variants.
    pub(crate) fn variants() -> impl Iterator<Item = &'static Self> {
        ALL.iter().filter(|it| it.is_variant())
    }

    /// What every run boots.
    pub(super) fn plain() -> impl Iterator<Item = &'static Self> {
        ALL.iter().filter(|it| !it.is_variant())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_of_the_table_of_counts_is_booted_plainly_under_its_name() {
        let plain: Vec<_> = Variant::plain().map(|it| (it.name, it.line)).collect();
        assert_eq!(plain, Line::ALL.map(|line| (line.name(), line)));
        let names: BTreeSet<_> = ALL.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
