//! Machines that plans are tried on.

use std::collections::BTreeSet;

use super::object::LINKER_VERSION;
use super::packages::DEBIAN_LLVM;
use super::{Need, PACKAGES, Plan, Step, plan};
use crate::machine::Machine;
use crate::mounts::{CGROUPS, Cgroup2, Mounts};
use crate::toolchain::{Linker, Toolchain};

/// Debian 12 with gcc and rustup's stable Rust, and nothing else; root.
pub(super) fn bare() -> Machine {
    Machine {
        invocation: "cargo xtask test".to_owned(),
        root: true,
        debian12: true,
        packages: BTreeSet::new(),
        rustup: true,
        rustfmt: true,
        clippy: true,
        nightlies: Vec::new(),
        system: None,
        linker: None,
        deny: false,
        ip: false,
        bpftool: false,
        nft: false,
        iptables: false,
        control_plane: false,
        kube_proxy: false,
        cluster_tools: false,
        pip: false,
        buildah: false,
        debian_sources: false,
        virtual_machine: true,
        xz: false,
        mounts: Mounts { bpffs: false, cgroup2: Cgroup2::Free },
    }
}

/// The same after everything has been installed.
pub(super) fn complete() -> Machine {
    Machine {
        packages: PACKAGES.iter().map(|&name| name.to_owned()).collect(),
        system: Some(toolchain("/usr/bin", None)),
        linker: Some(linker()),
        deny: true,
        ip: true,
        bpftool: true,
        nft: true,
        iptables: true,
        debian_sources: true,
        cluster_tools: true,
        buildah: true,
        xz: true,
        mounts: Mounts { bpffs: true, cgroup2: Cgroup2::At(CGROUPS.into()) },
        ..bare()
    }
}

pub(super) fn toolchain(bin: &str, rustup_name: Option<&str>) -> Toolchain {
    Toolchain {
        bin: bin.into(),
        rustup_name: rustup_name.map(str::to_owned),
        release: (1, 96),
        llvm: DEBIAN_LLVM,
        sources: true,
        clippy: true,
    }
}

pub(super) fn nightly() -> Toolchain {
    toolchain("/home/me/.rustup/toolchains/nightly/bin", Some("nightly"))
}

pub(super) fn linker() -> Linker {
    Linker {
        path: "/home/me/.cargo/bin/bpf-linker".into(),
        version: LINKER_VERSION.to_owned(),
        llvm: Some(DEBIAN_LLVM),
    }
}

pub(super) fn all() -> BTreeSet<Need> {
    use Need::{
        ClusterTools, ControlPlane, Deny, HostLints, Image, Kernel, KubeProxy, Lab, Object,
        ObjectLints, Peers, Root, VirtualMachine,
    };
    let tools = [Object, ObjectLints, HostLints, Deny, Kernel, Lab, Peers, KubeProxy, Root];
    let others = [ControlPlane, ClusterTools, Image, VirtualMachine];
    tools.into_iter().chain(others).collect()
}

pub(super) fn for_object(machine: &Machine) -> Plan {
    plan(machine, &BTreeSet::from([Need::Object, Need::ObjectLints]))
}

pub(super) fn commands(plan: &Plan) -> Vec<String> {
    assert_eq!(plan.missing, []);
    plan.steps.iter().map(Step::display).collect()
}
