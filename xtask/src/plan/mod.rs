//! Deciding what is missing, apart from installing it: a plan is data.
//!
//! [`need`] says what commands need, [`step`] what can be done about it. [`draft`] collects what a machine
//! lacks, and orders it; what that is, is decided in the other modules, one for each kind of thing.

mod cargo_tools;
mod control_plane;
mod draft;
mod kernel;
mod kube_proxy;
mod need;
mod object;
mod packages;
mod programs;
#[cfg(test)]
mod sample;
mod step;
mod virtual_machine;

use std::collections::BTreeSet;

use draft::Draft;

use crate::machine::Machine;

pub(crate) use need::Need;
pub(crate) use object::object_tools;
pub(crate) use packages::PACKAGES;
pub(crate) use step::{Missing, Step};

/// What would make the machine ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What can be done from here, in this order.
    pub(crate) steps: Vec<Step>,
    /// What a person has to do; nothing is done before.
    pub(crate) missing: Vec<Missing>,
}

/// Decides what is to be done on this machine.
pub(crate) fn plan(machine: &Machine, needs: &BTreeSet<Need>) -> Plan {
    let mut draft = Draft::new(machine);
    for need in needs {
        match need {
            Need::Object => draft.object(),
            Need::ObjectLints => draft.object_lints(),
            Need::HostLints => draft.host_lints(),
            Need::Deny => draft.deny(),
            Need::Kernel => draft.kernel(),
            Need::Lab => draft.lab(),
            Need::Peers => draft.peers(),
            Need::KubeProxy => draft.kube_proxy(),
            Need::Root => draft.root(),
            Need::ControlPlane => draft.control_plane(),
            Need::ClusterTools => draft.cluster_tools(),
            Need::Image => draft.image(),
            Need::VirtualMachine => draft.virtual_machine(),
        }
    }
    draft.finish()
}

#[cfg(test)]
mod tests {
    use super::sample::{all, bare, commands, complete, linker, nightly};
    use super::*;
    use crate::toolchain::Linker;

    #[test]
    fn a_bare_machine_gets_everything_in_an_order_that_works() {
        let commands = commands(&plan(&bare(), &all()));
        let starts = [
            "apt-get update",
            "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends",
            "LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --version 0.13.0",
            "cargo install cargo-deny",
            "mount -t bpf bpf /sys/fs/bpf",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ];
        assert_eq!(commands.len(), starts.len(), "{commands:#?}");
        for (command, start) in commands.iter().zip(starts) {
            assert!(command.starts_with(start), "{command}");
        }
        assert!(PACKAGES.iter().all(|&name| commands[1].contains(name)), "{}", commands[1]);
    }

    #[test]
    fn a_complete_machine_gets_nothing() {
        assert_eq!(plan(&complete(), &all()), Plan::default());
    }

    #[test]
    fn only_what_is_needed_is_installed() {
        assert_eq!(plan(&bare(), &BTreeSet::new()), Plan::default());
        let kernel = plan(&bare(), &BTreeSet::from([Need::Kernel]));
        assert!(commands(&kernel).iter().all(|command| command.starts_with("mount")));
        let object = commands(&plan(&bare(), &BTreeSet::from([Need::Object])));
        assert!(!object.iter().any(|command| command.contains("iproute2")), "{object:#?}");
    }

    #[test]
    fn without_root_what_needs_it_is_named_with_its_command() {
        let machine = Machine { root: false, ..bare() };
        let missing = plan(&machine, &all()).missing;
        let commands: Vec<&str> = missing.iter().map(|it| it.command.as_str()).collect();
        let expected = [
            "sudo mount -t bpf bpf /sys/fs/bpf",
            "sudo mount -t cgroup2 none /sys/fs/cgroup",
            "sudo env PATH=\"$PATH\" HOME=\"$HOME\" cargo xtask test",
            "sudo apt-get update && sudo apt-get install --yes --no-install-recommends rustc-web",
        ];
        assert_eq!(commands.len(), expected.len(), "{commands:#?}");
        for (command, expected) in commands.iter().zip(expected) {
            assert!(command.starts_with(expected), "{command}");
        }
    }

    #[test]
    fn another_system_with_its_own_tools_needs_nothing() {
        let machine = Machine {
            debian12: false,
            packages: BTreeSet::new(),
            linker: Some(Linker { version: "0.14.0".to_owned(), llvm: None, ..linker() }),
            nightlies: vec![nightly()],
            system: None,
            ..complete()
        };
        assert_eq!(plan(&machine, &all()), Plan::default());
    }
}
