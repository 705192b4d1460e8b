//! The stages of `cargo xtask test`, in order.

use fs_err as fs;
use std::collections::BTreeSet;
use std::env;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::alone;
use crate::architecture::Architecture;
use crate::build_ebpf;
use crate::cluster;
use crate::cluster_parts::Parts;
use crate::cluster_tools;
use crate::control_plane;
use crate::fuzz;
use crate::image;
use crate::kube_proxy;
use crate::lanes::{self, Suite};
use crate::last_release::{self, LastRelease};
use crate::machine::Machine;
use crate::needs::Need;
use crate::neighbours;
use crate::plan::object_tools;
use crate::process::{run_logged, run_visible, to_log};
use crate::progress::{self, Running};
use crate::prometheus;
use crate::release::promises::Dist;
use crate::shipped;
use crate::suites;
use crate::summary::Outcome;
use crate::virtual_machine::{self, Asked};
use crate::workspace::{Workspace, cargo_home, find_cargo_program};

/// The stages: cheap checks first, the longest one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Stage {
    /// The layout of the source
    Format,
    /// The eBPF object of the agent compiles
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
    /// topo-lb's DaemonSet on a real cluster: kubelets, containerd, kube-proxy
    Cluster,
    /// The Kubernetes source and the agent against a real API server
    ControlPlane,
    /// Any bytes as manifests, for half a minute
    Fuzz,
    /// The datapath's suites on Debian's kernels, under QEMU
    Kernels,
}

/// The limit for fetching the advisories: without a network, some machines retry for ever.
const ADVISORIES_LIMIT: Duration = Duration::from_secs(120);

/// The limit for the unit tests: several times what two cores need.
const TESTS_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The variable that multiplies the limits of the lab's tests.
const PATIENCE: &str = "TOPO_LB_PATIENCE";

/// How many times slower a machine may be whose cores run two suites and compile Kubernetes.
const SLOWER: &str = "3";

impl Stage {
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
            Self::Cluster => "cluster",
            Self::Fuzz => "fuzzing",
        }
    }

    pub(crate) fn needs(self) -> &'static [Need] {
        match self {
            Self::Format => &[Need::HostLints],
            Self::Object | Self::Docs | Self::Unit | Self::Fuzz => &[Need::Object],
            Self::Clippy => &[Need::Object, Need::HostLints],
            Self::ClippyEbpf => &[Need::Object, Need::ObjectLints],
            Self::Deny => &[Need::Deny],
            Self::Lab => &[
                Need::Object,
                Need::Kernel,
                Need::Lab,
                Need::Peers,
                Need::Neighbours,
                Need::Iptables,
                Need::Browser,
                Need::Root,
            ],
            Self::Kernels => &[
                Need::Object,
                Need::Lab,
                Need::Root,
                Need::VirtualMachine,
                Need::Arm64,
                Need::Arm64Compiler,
            ],
            Self::ControlPlane => &[
                Need::Object,
                Need::Kernel,
                Need::Lab,
                Need::Root,
                Need::ControlPlane,
                Need::ClusterTools,
                Need::Prometheus,
            ],
            Self::Cluster => &[
                Need::Object,
                Need::Kernel,
                Need::Lab,
                Need::Peers,
                Need::Root,
                Need::Cluster,
                Need::ClusterTools,
                Need::Prometheus,
                Need::Iptables,
            ],
        }
    }

    /// Whether the suites of both stages run beside each other: those of clusters mostly wait.
    pub(crate) fn is_beside(self, other: Self) -> bool {
        let may = |it| matches!(it, Self::Cluster | Self::ControlPlane | Self::Fuzz);
        may(self) && may(other)
    }

    /// Runs the stage.
    fn run(self, workspace: &Workspace, machine: &Machine, asked: Asked<'_>) -> Result<Outcome> {
        match self {
            Self::Format => format(workspace)?,
            Self::Object => build_ebpf::build(workspace, machine)?,
            Self::Clippy => clippy(workspace)?,
            Self::ClippyEbpf => build_ebpf::lint(workspace, machine)?,
            Self::Deny => return deny(workspace),
            Self::Docs => docs(workspace)?,
            Self::Unit => unit(workspace)?,
            Self::Kernels => return kernels(workspace, machine, asked),
            Self::Lab | Self::ControlPlane | Self::Cluster | Self::Fuzz => {
                return in_lanes(&[self], workspace, machine);
            }
        }
        Ok(Outcome::Passed(None))
    }

    /// Compiles the suites of a stage that runs in lanes. Returns them, and the outcome if they pass.
    fn suites(self, workspace: &Workspace, machine: &Machine) -> Result<(Vec<Suite>, Outcome)> {
        match self {
            Self::Lab => lab(workspace, machine),
            Self::Cluster => on_cluster(workspace, None),
            Self::ControlPlane => Ok((against_control_plane(workspace)?, Outcome::Passed(None))),
            Self::Fuzz => Ok((vec![fuzz::suite(workspace)?], Outcome::Passed(None))),
            _ => bail!("{} has no suites for lanes", self.title()),
        }
    }
}

/// Runs a stage, or several whose suites run [beside each other](Stage::is_beside).
///
/// # Errors
/// A check or a test fails.
pub(crate) fn run(
    stages: &[Stage],
    workspace: &Workspace,
    machine: &Machine,
    asked: Asked<'_>,
) -> Result<Outcome> {
    match stages {
        [stage] => stage.run(workspace, machine, asked),
        _ => in_lanes(stages, workspace, machine),
    }
}

/// How many suites run at once: one more than there are cores, because they wait a third of their time.
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| (cores.get() + 1).clamp(2, 4))
}

/// Compiles the suites of these stages, and runs them in lanes.
fn in_lanes(stages: &[Stage], workspace: &Workspace, machine: &Machine) -> Result<Outcome> {
    let (mut suites, mut outcome) = (Vec::new(), Outcome::Passed(None));
    for stage in stages {
        let (more, its) = stage.suites(workspace, machine)?;
        suites.extend(more);
        if its != Outcome::Passed(None) {
            outcome = its;
        }
    }
    run_in_lanes(suites, outcome)
}

/// Installs a release on a real cluster, from its files alone.
///
/// # Errors
/// A suite does not compile, or fails.
pub(crate) fn install_release(workspace: &Workspace, dist: &Dist) -> Result<Outcome> {
    let (suites, outcome) = on_cluster(workspace, Some(dist))?;
    run_in_lanes(suites, outcome)
}

/// What `release --check` needs, with what it compiles programs by.
pub(crate) fn release_needs() -> BTreeSet<Need> {
    let more = [Need::Auditable, Need::Arm64Compiler];
    Stage::Cluster.needs().iter().copied().chain(more).collect()
}

/// Gets what `release --check` takes out of the user's caches, so that it works without a network.
///
/// # Errors
/// Something cannot be downloaded or compiled, or [must not be](crate::alone::may_get).
pub(crate) fn get_for_release(workspace: &Workspace) -> Result<()> {
    let mut fetch = workspace.cargo("fetch");
    fetch.arg("--locked");
    let fetched = to_log(&mut fetch, &workspace.log("fetch"), None, |_| ());
    if fetched.is_err() {
        alone::may_get("crates of Cargo.lock")?;
    }
    fetched?;
    Parts::get(workspace)?;
    prometheus::programs(workspace)?;
    LastRelease::find(workspace).map_or(Ok(()), |release| release.image(workspace).map(drop))
}

fn run_in_lanes(mut suites: Vec<Suite>, outcome: Outcome) -> Result<Outcome> {
    suites::longest_first(&mut suites, |suite| &suite.name);
    let lanes = lanes();
    progress::note(&format!("{lanes} suites at a time"));
    let unchecked = lanes::run(suites, lanes)?;
    Ok(match (unchecked, outcome) {
        (None, outcome) => outcome,
        (Some(what), Outcome::Unchecked(other) | Outcome::NothingToCheck(other)) => {
            Outcome::Unchecked(format!("{what}; {other}"))
        }
        (Some(what), _) => Outcome::Unchecked(what),
    })
}

fn format(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo("fmt");
    command.args(["--all", "--check"]);
    run_logged("cargo fmt --all --check", &mut command, &workspace.log("format"))?;
    // The fuzz target is a separate workspace.
    let mut command = workspace.cargo("fmt");
    command.args(["--manifest-path", &format!("{}/Cargo.toml", fuzz::FOLDER), "--check"]);
    run_logged("cargo fmt: fuzz target", &mut command, &workspace.log("format-fuzz"))?;
    // The fuzz target's lock file names this workspace's dependencies, too. The stage that runs
    // the target comes last: a lock file without a new dependency would be found late.
    let mut command = workspace.cargo("update");
    command.args(["--manifest-path", &format!("{}/Cargo.toml", fuzz::FOLDER)]);
    command.args(["--workspace", "--locked"]);
    run_logged("lock file of the fuzz target", &mut command, &workspace.log("lock-fuzz"))?;
    Ok(())
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let mut command = suites::cargo(workspace, "clippy");
    // The feature only adds code, so this checks all of it.
    command.args(["--all-targets", "--features", "topo-lb/log", "--", "-D", "warnings"]);
    run_logged("cargo clippy", &mut command, &workspace.log("clippy"))?;
    // `--all-targets` omits targets that are not tested by default.
    let named = [suites::CONTROL_PLANE, suites::CLUSTER];
    let mut command = suites::cargo_for(workspace, "clippy", named);
    command.args(["--", "-D", "warnings"]);
    let title = "cargo clippy for the control plane's suites";
    run_logged(title, &mut command, &workspace.log("clippy-control-plane"))?;
    Ok(())
}

fn docs(workspace: &Workspace) -> Result<()> {
    let mut command = suites::cargo(workspace, "doc");
    command.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings");
    run_logged("cargo doc", &mut command, &workspace.log("docs"))?;
    Ok(())
}

fn unit(workspace: &Workspace) -> Result<()> {
    let test = || {
        let mut command = suites::cargo_for(workspace, "test", suites::UNPRIVILEGED);
        command.args(["--lib", "--bins", "--no-fail-fast"]);
        command
    };
    let log = workspace.log("build-unit-tests");
    run_logged("compiling unit tests", test().arg("--no-run"), &log)?;
    // Half of them wait for a server, a watch or a clock.
    let threads = std::thread::available_parallelism().map_or(2, NonZero::get) * 2;
    let mut test = test();
    test.args(["--", &format!("--test-threads={threads}")]);
    run_visible(&mut test, TESTS_LIMIT)
}

fn lab(workspace: &Workspace, machine: &Machine) -> Result<(Vec<Suite>, Outcome)> {
    build_ebpf::with_log(workspace, machine)?;
    let agent = suites::agent(workspace)?;
    let binaries = suites::compile(workspace, "compiling the lab", &suites::LAB)?;
    let release = LastRelease::find(workspace);
    let earlier = release.as_ref().map(|it| it.agent(workspace)).transpose()?;
    let logs = suites::agent_that_logs(workspace)?;
    let neighbours = neighbours::files(workspace)?;
    let mut all = Vec::new();
    for (binary, path) in &binaries {
        let mut names = suites::of_binary(workspace, binary)?;
        names.retain(|name| !suites::IN_GUESTS.contains(&name.as_str()));
        all.extend(of_the_lab(workspace, path, names, &agent, |command| {
            command.env(suites::LOG_AGENT, &logs).env(neighbours::VARIABLE, &neighbours);
            command.envs(earlier.iter().map(|path| (last_release::AGENT, path)));
        }));
    }
    Ok((all, last_release::outcome(release.as_ref())))
}

/// Suites of one binary that run in the lab, without Cargo: it would look for changes each time.
///
/// `set` sets their further environment. The tests of a suite run one at
/// a time: each has its own cluster, and measures times.
pub(crate) fn of_the_lab(
    workspace: &Workspace,
    binary: &Path,
    names: Vec<String>,
    agent: &Path,
    set: impl Fn(&mut Command),
) -> Vec<Suite> {
    let suite = |name: String| {
        let mut command = workspace.command(binary);
        // As Cargo does it.
        command.current_dir(workspace.root.join("tests"));
        command.args(["--test-threads=1", &suites::filter(&name)]);
        command.env("TOPO_LB_AGENT", agent).env("TOPO_LB_EBPF_OBJECT", workspace.object());
        if env::var_os(PATIENCE).is_none() {
            command.env(PATIENCE, SLOWER);
        }
        set(&mut command);
        let log = workspace.log(&format!("suite-{}", name.replace("::", "-")));
        Suite { name, command, log }
    };
    names.into_iter().map(suite).collect()
}

/// Some tests on every kernel, or all tests on the named ones.
fn kernels(workspace: &Workspace, machine: &Machine, asked: Asked<'_>) -> Result<Outcome> {
    let (compiler, _) = object_tools(machine).context("no compiler for other targets")?;
    if asked.takes_arm64_agent() {
        shipped::build(workspace, &[Architecture::Arm64])?;
    }
    virtual_machine::run(workspace, compiler, asked)
}

/// Compiles one binary of tests, and returns its path.
fn compiled(workspace: &Workspace, binary: &str) -> Result<PathBuf> {
    let binaries = suites::compile(workspace, "compiling its suites", &[binary])?;
    binaries.into_values().next().context("no suites")
}

/// The suites that plain `cargo test` omits.
fn against_control_plane(workspace: &Workspace) -> Result<Vec<Suite>> {
    let programs = control_plane::programs(workspace)?;
    let tools = cluster_tools::programs(workspace)?;
    let prometheus = prometheus::programs(workspace)?;
    let agent = suites::agent(workspace)?;
    let binary = compiled(workspace, suites::CONTROL_PLANE)?;
    let names = suites::of_binary(workspace, suites::CONTROL_PLANE)?;
    Ok(of_the_lab(workspace, &binary, names, &agent, |command| {
        command.env(control_plane::VARIABLE, &programs).envs(tools.iter().cloned());
        command.env(prometheus::VARIABLE, &prometheus);
    }))
}

/// The suites on a real cluster, and with its kube-proxy: from the checkout, or from a release alone.
fn on_cluster(workspace: &Workspace, dist: Option<&Dist>) -> Result<(Vec<Suite>, Outcome)> {
    let parts = Parts::get(workspace)?;
    let agent = suites::agent(workspace)?;
    let image = match dist {
        Some(dist) => dist.image(),
        None => image::for_cluster(workspace, &agent)?,
    };
    let release = LastRelease::find(workspace);
    let earlier = release.as_ref().map(|it| it.image(workspace)).transpose()?;
    let prometheus = prometheus::programs(workspace)?;
    let binary = compiled(workspace, suites::CLUSTER)?;
    let not_compared = kube_proxy::not_compared(&parts.kube_proxy())?;
    let mut names = suites::of_binary(workspace, suites::CLUSTER)?;
    names.retain(|name| not_compared.is_none() || name != suites::BENCH);
    let suites = of_the_lab(workspace, &binary, names, &agent, |command| {
        parts.name_in(command);
        command.env(cluster::IMAGE, &image);
        command.env(prometheus::VARIABLE, &prometheus);
        if let Some(dist) = dist {
            command.env("TOPO_LB_DEPLOY", &dist.deploy).env("TOPO_LB_CHART", dist.chart());
        }
        command.envs(earlier.iter().map(|path| (last_release::IMAGE, path)));
    });
    Ok((suites, not_compared.unwrap_or_else(|| last_release::outcome(release.as_ref()))))
}

fn deny(workspace: &Workspace) -> Result<Outcome> {
    let deny = || {
        let path = find_cargo_program("cargo-deny").context("no cargo-deny")?;
        let mut command = workspace.command(path);
        // cargo-deny asks Cargo for the dependencies.
        command.env("CARGO", workspace.cargo_path());
        Ok::<_, anyhow::Error>(command)
    };
    let mut check = deny()?;
    check.args(["check", "bans", "licenses", "sources"]);
    run_logged("bans, licences, sources", &mut check, &workspace.log("deny"))?;

    let running = Running::start("advisory database");
    let mut fetch = deny()?;
    fetch.args(["fetch", "db"]);
    let log = workspace.log("advisory-database");
    let fetched = to_log(&mut fetch, &log, Some(ADVISORIES_LIMIT), |line| running.tick(line));
    running.end(fetched.is_ok());
    let passed = match (&fetched, has_advisory_database()) {
        (Ok(()), _) => Outcome::Passed(None),
        (Err(_), true) => {
            let text =
                "checked with an old copy of the advisories: their database cannot be fetched";
            Outcome::Passed(Some(text.to_owned()))
        }
        (Err(_), false) => {
            let text = "advisories were NOT checked: their database cannot be fetched";
            progress::warn(&format!("{text}; see {}", log.display()));
            return Ok(Outcome::Unchecked(text.to_owned()));
        }
    };
    let mut check = deny()?;
    check.args(["check", "--disable-fetch", "advisories"]);
    run_logged("advisories", &mut check, &workspace.log("advisories"))?;
    Ok(passed)
}

/// cargo-deny keeps the database in Cargo's folder, with a hash in its name.
fn has_advisory_database() -> bool {
    let entries = cargo_home().and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    entries.is_some_and(|mut entries| {
        entries.any(|it| it.is_ok_and(|it| it.path().join(".git").exists()))
    })
}
