//! The stages of `cargo xtask test`, in their order.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::build_ebpf;
use crate::cluster_tools;
use crate::control_plane;
use crate::fuzz;
use crate::machine::Machine;
use crate::plan::Need;
use crate::process::{run_logged, run_visible, to_log};
use crate::progress::Screen;
use crate::suites;
use crate::virtual_machine::{self, Counting, Line, Scope};
use crate::workspace::{Workspace, cargo_home, find_cargo_program};

/// What is tested, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Stage {
    /// The layout of the source
    Format,
    /// The eBPF object compiles
    Object,
    /// Clippy for this machine's code, warnings as errors
    Clippy,
    /// Clippy for the kernel's code, warnings as errors
    ClippyEbpf,
    /// Licences, sources, bans and advisories of dependencies
    Deny,
    /// The documentation builds without warnings
    Docs,
    /// Tests of everything that needs no privileges
    Unit,
    /// The suites in the lab: the datapath with real sockets
    Lab,
    /// The datapath's suites on Debian's kernels, under QEMU
    Kernels,
    /// The Kubernetes source and the agent against a real API server
    ControlPlane,
    /// Any bytes as manifests, for half a minute
    Fuzz,
}

/// How long fetching the advisories may take: without a network, some machines wait for ever.
const ADVISORIES_LIMIT: Duration = Duration::from_secs(120);

/// Where the suites of the datapath run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// On this machine, as it runs.
    Host,
    /// In a virtual machine.
    Debian(Line),
}

/// How long tests may take: several times what they need on two cores. One that hangs should say so
/// in a log that somebody reads.
const TESTS_LIMIT: Duration = Duration::from_secs(20 * 60);

/// How a stage ends that does not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Everything was checked.
    Whole,
    /// Everything was checked, with a remark.
    Remarked(String),
    /// Something could not be checked: what, and why.
    Unchecked(String),
}

impl Stage {
    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Format => "formatting",
            Self::Object => "eBPF object",
            Self::Clippy => "Clippy",
            Self::ClippyEbpf => "Clippy for eBPF",
            Self::Deny => "dependencies",
            Self::Docs => "documentation",
            Self::Unit => "unit tests",
            Self::Lab => "lab",
            Self::Kernels => "kernels",
            Self::ControlPlane => "control plane",
            Self::Fuzz => "fuzzing",
        }
    }

    /// What it needs of the machine.
    pub(crate) fn needs(self) -> &'static [Need] {
        match self {
            Self::Format => &[Need::HostLints],
            Self::Object | Self::Docs | Self::Unit | Self::Fuzz => &[Need::Object],
            Self::Clippy => &[Need::Object, Need::HostLints],
            Self::ClippyEbpf => &[Need::Object, Need::ObjectLints],
            Self::Deny => &[Need::Deny],
            Self::Lab => &[Need::Object, Need::Kernel, Need::Lab, Need::Peers, Need::Root],
            Self::Kernels => &[Need::Object, Need::Lab, Need::Root, Need::VirtualMachine],
            Self::ControlPlane => &[
                Need::Object,
                Need::Kernel,
                Need::Lab,
                Need::Root,
                Need::ControlPlane,
                Need::ClusterTools,
            ],
        }
    }

    /// It compiles the agent, which carries the object inside.
    pub(crate) fn includes_object(self) -> bool {
        use Stage::{Clippy, ControlPlane, Docs, Fuzz, Kernels, Lab, Unit};
        matches!(self, Clippy | Docs | Unit | Lab | Kernels | ControlPlane | Fuzz)
    }

    /// Runs it; `named` are the kernels that somebody has named, `counting` is for what their
    /// verifiers count.
    ///
    /// # Errors
    /// It fails.
    pub(crate) fn run(
        self,
        workspace: &Workspace,
        screen: &Screen,
        machine: &Machine,
        named: &[Kernel],
        counting: Counting,
    ) -> Result<Passed> {
        match self {
            Self::Format => format(workspace, screen)?,
            Self::Object => build_ebpf::build(workspace, screen, machine)?,
            Self::Clippy => clippy(workspace, screen)?,
            Self::ClippyEbpf => build_ebpf::lint(workspace, screen, machine)?,
            Self::Deny => return deny(workspace, screen),
            Self::Docs => docs(workspace, screen)?,
            Self::Unit => unit(workspace, screen)?,
            Self::Lab => lab(workspace, screen)?,
            Self::Kernels => kernels(workspace, screen, named, counting)?,
            Self::ControlPlane => against_control_plane(workspace, screen)?,
            Self::Fuzz => fuzz::run(workspace, screen)?,
        }
        Ok(Passed::Whole)
    }
}

fn format(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let mut command = workspace.cargo("fmt");
    command.args(["--all", "--check"]);
    run_logged(screen, "cargo fmt --all --check", &mut command, &workspace.log("format"))?;
    // It is in no workspace but its own.
    let mut command = workspace.cargo("fmt");
    command.args(["--manifest-path", &format!("{}/Cargo.toml", fuzz::FOLDER), "--check"]);
    run_logged(screen, "cargo fmt: fuzz target", &mut command, &workspace.log("format-fuzz"))?;
    Ok(())
}

fn clippy(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let mut command = suites::cargo(workspace, "clippy");
    command.args(["--all-targets", "--", "-D", "warnings"]);
    run_logged(screen, "cargo clippy", &mut command, &workspace.log("clippy"))?;
    // `--all-targets` leaves out what is not tested by default.
    let mut command = suites::cargo_for(workspace, "clippy", suites::against_control_plane());
    command.args(["--", "-D", "warnings"]);
    let title = "cargo clippy for the control plane's suites";
    run_logged(screen, title, &mut command, &workspace.log("clippy-control-plane"))?;
    Ok(())
}

fn docs(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let mut command = suites::cargo(workspace, "doc");
    command.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings");
    run_logged(screen, "cargo doc", &mut command, &workspace.log("docs"))?;
    Ok(())
}

fn unit(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let names = suites::without_privileges(workspace)?;
    let test = || {
        let mut command = suites::cargo_for(workspace, "test", &names);
        command.args(["--lib", "--bins", "--no-fail-fast"]);
        command
    };
    let log = workspace.log("build-unit-tests");
    run_logged(screen, "compiling unit tests", test().arg("--no-run"), &log)?;
    run_visible(&mut test(), TESTS_LIMIT)
}

fn lab(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let agent = suites::agent(workspace, screen)?;
    let names = suites::in_lab(workspace)?;
    let test = || {
        let mut command = suites::cargo_for(workspace, "test", &names);
        command.arg("--no-fail-fast");
        command
    };
    let log = workspace.log("build-lab");
    run_logged(screen, "compiling the lab", test().arg("--no-run"), &log)?;
    // One test at a time: each has a cluster of its own, and measures times.
    run_visible(test().args(["--", "--test-threads=1"]).env("TOPO_LB_AGENT", &agent), TESTS_LIMIT)
}

/// A short version on every kernel, or the whole on those that were named.
fn kernels(
    workspace: &Workspace,
    screen: &Screen,
    named: &[Kernel],
    counting: Counting,
) -> Result<()> {
    let lines: Vec<Line> = named
        .iter()
        .filter_map(|kernel| match kernel {
            Kernel::Debian(line) => Some(*line),
            Kernel::Host => None,
        })
        .collect();
    if lines.is_empty() {
        virtual_machine::run(workspace, screen, &Line::ALL, Scope::Short, counting)
    } else {
        virtual_machine::run(workspace, screen, &lines, Scope::Whole, counting)
    }
}

/// The suites that plain `cargo test` leaves out.
fn against_control_plane(workspace: &Workspace, screen: &Screen) -> Result<()> {
    let programs = control_plane::programs(workspace, screen)?;
    let tools = cluster_tools::programs(workspace, screen)?;
    let agent = suites::agent(workspace, screen)?;
    let test = || {
        let mut command = suites::cargo_for(workspace, "test", suites::against_control_plane());
        command.arg("--no-fail-fast");
        command
    };
    let log = workspace.log("build-control-plane");
    run_logged(screen, "compiling its suites", test().arg("--no-run"), &log)?;
    let mut run = test();
    run.args(["--", "--test-threads=1"])
        .env("TOPO_LB_AGENT", &agent)
        .env(control_plane::VARIABLE, programs)
        .envs(tools);
    run_visible(&mut run, TESTS_LIMIT)
}

fn deny(workspace: &Workspace, screen: &Screen) -> Result<Passed> {
    let deny = || {
        let path = find_cargo_program("cargo-deny").context("no cargo-deny")?;
        let mut command = workspace.command(path);
        // It asks Cargo for the graph.
        command.env("CARGO", workspace.cargo_path());
        Ok::<_, anyhow::Error>(command)
    };
    let mut check = deny()?;
    check.args(["check", "bans", "licenses", "sources"]);
    run_logged(screen, "bans, licences, sources", &mut check, &workspace.log("deny"))?;

    let mut running = screen.start("advisory database");
    let mut fetch = deny()?;
    fetch.args(["fetch", "db"]);
    let log = workspace.log("advisory-database");
    let fetched = to_log(&mut fetch, &log, Some(ADVISORIES_LIMIT), |line| running.tick(line));
    let passed = match (&fetched, has_advisory_database()) {
        (Ok(()), _) => {
            running.done();
            Passed::Whole
        }
        (Err(_), true) => {
            running.failed();
            let text = "advisories as of the last fetch: the database cannot be reached now";
            Passed::Remarked(text.to_owned())
        }
        (Err(_), false) => {
            running.failed();
            let text = "advisories were NOT checked: their database cannot be fetched";
            screen.warn(&format!("{text}; see {}", log.display()));
            return Ok(Passed::Unchecked(text.to_owned()));
        }
    };
    let mut check = deny()?;
    check.args(["check", "--disable-fetch", "advisories"]);
    run_logged(screen, "advisories", &mut check, &workspace.log("advisories"))?;
    Ok(passed)
}

/// cargo-deny keeps it in a folder of Cargo's, below a name with a hash.
fn has_advisory_database() -> bool {
    let entries = cargo_home().and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    entries.is_some_and(|mut entries| {
        entries.any(|it| it.is_ok_and(|it| it.path().join(".git").exists()))
    })
}
