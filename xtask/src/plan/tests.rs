//! Plans for many kinds of machines.

use std::collections::BTreeSet;

use clap::ValueEnum as _;

use super::object::LINKER_VERSION;
use super::*;
use crate::mounts::{CGROUPS, Cgroup2, Mounts};
use crate::needs::{DEBIAN_LLVM, packages};
use crate::toolchain::{Linker, Toolchain};

/// No package provides them: they are downloaded.
const DOWNLOADED: [&str; 4] =
    ["emulator and kernels", "emulator and kernel for arm64", "Prometheus", "neighbours"];

/// Root on Debian 12 with gcc and rustup's stable Rust, nothing else.
fn bare() -> Machine {
    let lacks = ITEMS.iter().map(|item| item.name).filter(|name| !DOWNLOADED.contains(name));
    Machine {
        invocation: "cargo xtask test".to_owned(),
        root: true,
        debian12: true,
        packages: BTreeSet::new(),
        lacks: lacks.collect(),
        rustup: true,
        lacks_components: Vec::new(),
        nightlies: Vec::new(),
        system: None,
        linker: None,
        deny: false,
        auditable: false,
        mdbook: false,
        mounts: Mounts { bpffs: false, cgroup2: Cgroup2::Free },
    }
}

/// The same machine after everything was installed.
fn complete() -> Machine {
    Machine {
        packages: packages().map(str::to_owned).collect(),
        lacks: BTreeSet::new(),
        system: Some(toolchain("/usr/bin", None)),
        linker: Some(linker()),
        deny: true,
        auditable: true,
        mdbook: true,
        mounts: Mounts { bpffs: true, cgroup2: Cgroup2::At(CGROUPS.into()) },
        ..bare()
    }
}

fn toolchain(bin: &str, rustup_name: Option<&str>) -> Toolchain {
    Toolchain {
        bin: bin.into(),
        rustup_name: rustup_name.map(str::to_owned),
        release: (1, 96),
        llvm: DEBIAN_LLVM,
        sources: true,
        clippy: true,
    }
}

fn nightly() -> Toolchain {
    toolchain("/home/me/.rustup/toolchains/nightly/bin", Some("nightly"))
}

fn linker() -> Linker {
    let path = "/home/me/.cargo/bin/bpf-linker".into();
    Linker { path, version: LINKER_VERSION.to_owned(), llvm: Some(DEBIAN_LLVM) }
}

fn all() -> BTreeSet<Need> {
    Need::value_variants().iter().copied().collect()
}

fn for_object(machine: &Machine) -> Plan {
    plan(machine, &BTreeSet::from([Need::Object, Need::ObjectLints]))
}

fn commands(plan: &Plan) -> Vec<String> {
    assert_eq!(plan.missing, []);
    plan.steps.iter().map(Step::display).collect()
}

#[test]
fn a_bare_machine_gets_everything_in_an_order_that_works() {
    let commands = commands(&plan(&bare(), &all()));
    let starts = [
        "apt-get update",
        "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends",
        "LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --version 0.13.0",
        "CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny",
        "mount -t bpf bpf /sys/fs/bpf",
        "mount -t cgroup2 none /sys/fs/cgroup",
        "CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-auditable",
        "CARGO_PROFILE_DEV_DEBUG=0 cargo install mdbook",
    ];
    assert_eq!(commands.len(), starts.len(), "{commands:#?}");
    for (command, start) in commands.iter().zip(starts) {
        assert!(command.starts_with(start), "{command}");
    }
    assert!(packages().all(|name| commands[1].contains(name)), "{}", commands[1]);
}

#[test]
fn only_what_is_needed_and_absent_is_installed() {
    assert_eq!(plan(&complete(), &all()), Plan::default());
    assert_eq!(plan(&bare(), &BTreeSet::new()), Plan::default());
    assert_eq!(for_object(&Machine { root: false, ..complete() }), Plan::default());
    let kernel = plan(&bare(), &BTreeSet::from([Need::Kernel]));
    assert!(commands(&kernel).iter().all(|command| command.starts_with("mount")));
    let object = commands(&plan(&bare(), &BTreeSet::from([Need::Object])));
    assert!(!object.iter().any(|command| command.contains("iproute2")), "{object:#?}");

    let mut machine = bare();
    machine.packages.extend(["zlib1g-dev".to_owned(), "rustc-web".to_owned()]);
    let install = commands(&for_object(&machine)).remove(1);
    assert!(!install.contains("zlib1g-dev") && !install.contains("rustc-web"), "{install}");
    assert!(install.contains("cargo-web") && install.contains("libzstd-dev"), "{install}");
}

#[test]
fn packages_that_are_installed_but_too_old_are_asked_for_again() {
    let mut machine = complete();
    machine.system = Some(Toolchain { release: (1, 85), ..toolchain("/usr/bin", None) });
    let install = commands(&for_object(&machine)).remove(1);
    assert!(install.ends_with("rustc-web cargo-web rust-web-src rust-web-clippy"), "{install}");
}

#[test]
fn without_root_what_needs_it_is_named_with_its_command() {
    let missing = plan(&Machine { root: false, ..bare() }, &all()).missing;
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

#[test]
fn what_is_absent_comes_from_debian_or_is_named() {
    for item in ITEMS {
        let (needs, lacks) = (BTreeSet::from([item.need]), BTreeSet::from([item.name]));
        let debian = plan(&Machine { lacks, ..complete() }, &needs);
        match item.package {
            Some(package) => assert!(commands(&debian)[1].ends_with(package), "{debian:?}"),
            None => assert_eq!(debian.missing.len(), 1, "{debian:?}"),
        }
        let lacks = BTreeSet::from([item.name]);
        let elsewhere = plan(&Machine { lacks, debian12: false, ..complete() }, &needs);
        let [missing] = elsewhere.missing.try_into().unwrap();
        match item.hint {
            Some((what, command)) => {
                assert_eq!([&*missing.what, &*missing.command], [what, command])
            }
            None => assert!(missing.what.contains(&format!("`{}`", item.name)), "{missing:?}"),
        }
        assert_eq!(elsewhere.steps, []);
    }
}

#[test]
fn absent_components_come_from_rustup_or_are_named() {
    let needs = BTreeSet::from([Need::HostLints]);
    let mut machine = Machine { lacks_components: vec!["rustfmt", "clippy"], ..complete() };
    assert_eq!(commands(&plan(&machine, &needs)), ["rustup component add rustfmt clippy"]);

    machine.rustup = false;
    let found = plan(&machine, &needs);
    assert_eq!(found.steps, []);
    assert!(found.missing[0].what.contains("rustfmt and clippy"), "{found:?}");
}

#[test]
fn cgroups_of_version_1_are_not_hidden_by_a_mount() {
    let mut machine = complete();
    machine.mounts.cgroup2 = Cgroup2::Version1;
    let found = plan(&machine, &BTreeSet::from([Need::Kernel]));
    assert_eq!(found.steps, []);
    assert!(found.missing[0].command.contains("/sys/fs/cgroup/unified"), "{found:?}");

    machine.mounts.cgroup2 = Cgroup2::At("/sys/fs/cgroup/unified".into());
    assert_eq!(plan(&machine, &all()), Plan::default());
}

#[test]
fn a_linker_of_another_version_or_llvm_is_replaced() {
    let older = Linker { version: "0.9.0".to_owned(), llvm: Some(20), ..linker() };
    let newer_llvm = Linker { llvm: Some(23), ..linker() };
    for linker in [older, newer_llvm] {
        let machine = Machine { linker: Some(linker), ..complete() };
        let [command] = commands(&for_object(&machine)).try_into().unwrap();
        assert!(command.contains("cargo install bpf-linker"), "{command}");
        assert!(command.ends_with("--force"), "{command}");
    }
}

#[test]
fn a_nightly_with_sources_is_preferred_when_the_linker_fits() {
    let mut machine = Machine { nightlies: vec![nightly()], ..complete() };
    assert_eq!(object_tools(&machine).unwrap().0, &nightly());

    machine.nightlies[0].llvm = DEBIAN_LLVM + 1;
    assert_eq!(object_tools(&machine).unwrap().0.bin.to_str(), Some("/usr/bin"));

    machine.nightlies[0] = Toolchain { sources: false, ..nightly() };
    assert_eq!(object_tools(&machine).unwrap().0.bin.to_str(), Some("/usr/bin"));

    let bare = commands(&for_object(&Machine { nightlies: vec![nightly()], ..bare() }));
    assert!(!bare.iter().any(|command| command.contains("rustc-web")), "{bare:#?}");
    assert!(bare.iter().any(|command| command.contains("bpf-linker")), "{bare:#?}");

    let nightlies = vec![Toolchain { clippy: false, ..nightly() }];
    let lints = commands(&for_object(&Machine { nightlies, ..complete() }));
    assert_eq!(lints, ["rustup component add clippy --toolchain nightly"]);
}

#[test]
fn another_system_is_told_which_compiler_and_linker_to_install() {
    let machine = Machine { debian12: false, ..bare() };
    let found = for_object(&machine);
    assert_eq!(found.steps, []);
    let [missing] = found.missing.try_into().unwrap();
    assert_eq!(missing.command, "rustup toolchain install nightly --component rust-src");

    let machine = Machine { nightlies: vec![nightly()], ..machine };
    let [missing] = for_object(&machine).missing.try_into().unwrap();
    assert!(missing.what.contains("LLVM 22"), "{}", missing.what);
    assert!(missing.command.ends_with("--features llvm-22 --locked"), "{}", missing.command);
}
