//! The targets that `cargo xtask test` compiles for this machine.
//!
//! Cargo chooses the features of a library by the packages that a call selects. All calls here
//! select the same packages, and differ only in targets, so each library is compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::debian::entries;
use crate::process::run_logged;
use crate::workspace::{Profile, Workspace};

/// Suites that need a control plane or Prometheus; plain `cargo test` excludes them by `test = false`.
pub(crate) const CONTROL_PLANE: [&str; 9] = [
    "control_plane",
    "api",
    "changes",
    "commands_api_server",
    "demo_api_server",
    "telling",
    "autonomy",
    "deploy",
    "prometheus",
];

/// The suites that need the parts of a real cluster, kube-proxy among them; plain `cargo test` excludes them, too.
pub(crate) const CLUSTER: [&str; 3] = ["cluster", "migration", BENCH];

/// Among them, the one that takes kube-proxy 1.20.
pub(crate) const BENCH: &str = "bench_kube_proxy";

/// The suites that take longest. They start first: the last to start would run alone at the end.
const LONG: [&str; 13] = [
    "outside",
    "view",
    "restarts",
    "cluster",
    "autonomy",
    "demo_api_server",
    "api",
    "changes",
    "bench",
    "tc_floods",
    "foreign",
    "admin",
    "datagram",
];

/// `cargo SUBCOMMAND` for every package except the eBPF programs.
pub(crate) fn cargo(workspace: &Workspace, subcommand: &str) -> Command {
    let mut command = workspace.cargo(subcommand);
    command.args(["--workspace", "--exclude", "topo-lb-ebpf"]);
    command
}

/// Like [`cargo`], only for these suites.
pub(crate) fn cargo_for(
    workspace: &Workspace,
    subcommand: &str,
    suites: impl IntoIterator<Item: AsRef<str>>,
) -> Command {
    let mut command = cargo(workspace, subcommand);
    for suite in suites {
        command.args(["--test", suite.as_ref()]);
    }
    command
}

/// The suites that need no privileges.
pub(crate) fn without_privileges(workspace: &Workspace) -> Result<Vec<String>> {
    named(&workspace.root.join("topo-lb/tests"))
}

/// The suites that need the lab.
pub(crate) fn in_lab(workspace: &Workspace) -> Result<Vec<String>> {
    named(&workspace.root.join("tests/tests"))
}

/// Sorts suites for lanes: the longest first.
pub(crate) fn longest_first<T>(suites: &mut [T], name: impl Fn(&T) -> &str) {
    let place = |suite: &T| LONG.iter().position(|it| *it == name(suite)).unwrap_or(LONG.len());
    suites.sort_by_key(place);
}

/// Compiles the agent that suites start, and returns its path.
pub(crate) fn agent(workspace: &Workspace) -> Result<PathBuf> {
    program(workspace, "agent", "topo-lb")
}

/// The variable that names the agent whose programs log.
pub(crate) const LOG_AGENT: &str = "TOPO_LB_LOG_AGENT";

/// Compiles the agent with the object whose programs log, and returns its path.
pub(crate) fn agent_that_logs(workspace: &Workspace) -> Result<PathBuf> {
    let mut build = cargo_for(workspace, "build", [CONTROL_PLANE[0]]);
    build.args(["--bin", "topo-lb", "--features", "topo-lb/log"]);
    // The program has a folder of its own; all that is compiled for it is beside what other builds need, too.
    let folder = workspace.target.join("log");
    build.args(["--config", &format!("build.build-dir={:?}", workspace.target)]);
    build.env("CARGO_TARGET_DIR", &folder).env("TOPO_LB_EBPF_OBJECT", workspace.log_object());
    let log = workspace.log("build-topo-lb-log");
    run_logged("compiling the agent that logs", &mut build, &log)?;
    Ok(folder.join("debug/topo-lb"))
}

/// Compiles a program with the features that the suites have, and returns its path.
pub(crate) fn program(workspace: &Workspace, title: &str, name: &str) -> Result<PathBuf> {
    // Without a test, Cargo would omit features that only tests request.
    let mut build = cargo_for(workspace, "build", [CONTROL_PLANE[0]]);
    build.args(["--bin", name]);
    let log = workspace.log(&format!("build-{name}"));
    run_logged(format!("compiling the {title}"), &mut build, &log)?;
    Ok(workspace.program(Profile::Dev, name))
}

/// Compiles the lab's suites and the agent. Returns the agent's path.
pub(crate) fn compile_lab(workspace: &Workspace) -> Result<PathBuf> {
    let agent = agent(workspace)?;
    let mut build = cargo_for(workspace, "test", in_lab(workspace)?);
    build.arg("--no-run");
    run_logged("compiling the lab", &mut build, &workspace.log("build-lab"))?;
    Ok(agent)
}

/// The suites of a folder (files, or folders with a `main.rs`) that need no part of Kubernetes.
fn named(folder: &Path) -> Result<Vec<String>> {
    let is_suite = |path: &PathBuf| {
        path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").is_file()
    };
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> =
        entries(folder)?.into_iter().filter(is_suite).filter_map(name).collect();
    names.retain(|name| ![&CONTROL_PLANE[..], &CLUSTER].concat().contains(&name.as_str()));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_is_in_one_list() {
        let workspace = Workspace::find().unwrap();
        let unprivileged = without_privileges(&workspace).unwrap();
        assert_eq!(
            unprivileged,
            [
                "engine",
                "explain_golden",
                "lint_command",
                "migrate_command",
                "plan_command",
                "top_command"
            ]
        );
        let lab = in_lab(&workspace).unwrap();
        assert!(["connect", "tc_packets"].iter().all(|name| lab.contains(&(*name).to_owned())));
        for name in CONTROL_PLANE.into_iter().chain(CLUSTER) {
            assert!(!lab.contains(&name.to_owned()) && !unprivileged.contains(&name.to_owned()));
            let places = ["topo-lb/tests", "tests/tests"].map(|it| workspace.root.join(it));
            let is_there = |place: &PathBuf| {
                place.join(format!("{name}.rs")).is_file() || place.join(name).is_dir()
            };
            assert!(places.iter().any(is_there), "{name}");
        }
    }
}
