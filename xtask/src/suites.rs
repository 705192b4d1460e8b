//! The targets that `cargo xtask test` compiles for this machine.
//!
//! Cargo chooses the features of a library by the packages that a call selects. All calls here
//! select the same packages, and differ only in targets, so each library is compiled once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::debian::entries;
use crate::fuzz;
use crate::process::run_logged;
use crate::workspace::{Profile, Workspace};

/// The tests that need no privileges: binaries in `topo-lb/tests`.
pub(crate) const UNPRIVILEGED: [&str; 2] = ["command", "engine"];

/// The lab's binaries. Each module of one is a suite. Virtual machines run those of [`DATAPATH`], too.
pub(crate) const LAB: [&str; 2] = ["lab", DATAPATH];

/// See [`LAB`].
pub(crate) const DATAPATH: &str = "datapath";

/// The suites of [`DATAPATH`] that take the cards of virtual machines, and set their clocks. Their tests are ignored
/// elsewhere.
pub(crate) const IN_GUESTS: [&str; 2] = ["virtio", "clock"];

/// The suites that need a control plane or Prometheus; plain `cargo test` excludes them by `test = false`.
pub(crate) const CONTROL_PLANE: &str = "control_plane";

/// The suites that need the parts of a real cluster, kube-proxy among them; plain `cargo test` excludes them, too.
pub(crate) const CLUSTER: &str = "cluster";

/// Among them, the one that takes kube-proxy 1.20.
pub(crate) const BENCH: &str = "bench_kube_proxy";

/// The folder whose modules are suites of their own: together they take as long as a third of all others.
const SPLIT: &str = "outside";

/// The suites that take longest. They start first: the last to start would run alone at the end.
const LONG: [&str; 17] = [
    fuzz::SUITE,
    "neighbours",
    "outside::sources",
    "outside::xdp",
    "outside::uplinks",
    "view",
    "restarts",
    "daemon_set",
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

/// Like [`cargo`], only for these binaries of tests.
pub(crate) fn cargo_for(
    workspace: &Workspace,
    subcommand: &str,
    binaries: impl IntoIterator<Item: AsRef<str>>,
) -> Command {
    let mut command = cargo(workspace, subcommand);
    for binary in binaries {
        command.args(["--test", binary.as_ref()]);
    }
    command
}

/// The suites in a binary: the modules beside its `main.rs`, by name, and those with tests in [`SPLIT`].
pub(crate) fn of_binary(workspace: &Workspace, binary: &str) -> Result<Vec<String>> {
    let name = |path: &PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let folder = workspace.root.join("tests/tests").join(binary);
    let mut names: Vec<String> = entries(&folder)?.iter().filter_map(name).collect();
    names.retain(|name| name != "main");
    if let Some(place) = names.iter().position(|name| name == SPLIT) {
        names.swap_remove(place);
        for module in entries(&folder.join(SPLIT))? {
            if fs::read_to_string(&module)?.contains("#[test]") {
                names.extend(name(&module).map(|name| format!("{SPLIT}::{name}")));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// What libtest takes for all tests of a suite.
pub(crate) fn filter(suite: &str) -> String {
    format!("{suite}::")
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
    let mut build = cargo_for(workspace, "build", [CONTROL_PLANE]);
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
    let mut build = cargo_for(workspace, "build", [CONTROL_PLANE]);
    build.args(["--bin", name]);
    let log = workspace.log(&format!("build-{name}"));
    run_logged(format!("compiling the {title}"), &mut build, &log)?;
    Ok(workspace.program(Profile::Dev, name))
}

/// Compiles binaries of tests. Returns the path of each by its name.
///
/// # Errors
/// They do not compile, or Cargo does not name one.
pub(crate) fn compile(
    workspace: &Workspace,
    title: &str,
    binaries: &[&str],
) -> Result<BTreeMap<String, PathBuf>> {
    let mut build = cargo_for(workspace, "test", binaries);
    // Cargo prints the path of each program on standard output, and everything else in the log.
    build.args(["--no-run", "--message-format", MESSAGES]);
    let log = workspace.log(&format!("build-{}", binaries.join("-")));
    run_logged(title, &mut build, &log)?;
    executables(&fs::read_to_string(&log)?, binaries)
}

/// What Cargo prints for [`executables`].
pub(crate) const MESSAGES: &str = "json-render-diagnostics";

/// The binaries of tests in Cargo's messages (doc.rust-lang.org/cargo/reference/external-tools.html#json-messages).
///
/// # Errors
/// One is not there.
pub(crate) fn executables(messages: &str, binaries: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let target = &message["target"];
        let name = target["name"].as_str().filter(|name| binaries.contains(name));
        if let (Some(name), Some(path)) = (name, message["executable"].as_str())
            && target["kind"][0] == "test"
        {
            all.insert(name.to_owned(), PathBuf::from(path));
        }
    }
    for binary in binaries {
        ensure!(all.contains_key(*binary), "Cargo has not built {binary}");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The binaries of a package's tests.
    fn binaries(workspace: &Workspace, folder: &str) -> BTreeSet<String> {
        let is_binary = |path: &PathBuf| {
            path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").is_file()
        };
        let entries = entries(&workspace.root.join(folder)).unwrap().into_iter().filter(is_binary);
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn cargo_says_where_a_binary_of_tests_is() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"pod"},"executable":"/t/pod"}"#,
            "\n   Compiling topo-lb\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"datapath"},"executable":"/t/datapath-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let found = executables(messages, &[DATAPATH]).unwrap();
        assert_eq!(found[DATAPATH], PathBuf::from("/t/datapath-1"));
        let error = executables(messages, &[DATAPATH, "lab"]).unwrap_err().to_string();
        assert_eq!(error, "Cargo has not built lab");
    }

    #[test]
    fn every_binary_is_in_one_stage() {
        let workspace = Workspace::find().unwrap();
        assert_eq!(binaries(&workspace, "topo-lb/tests"), UNPRIVILEGED.map(str::to_owned).into());
        let in_lab = [&LAB[..], &[CONTROL_PLANE, CLUSTER]].concat();
        let wanted: BTreeSet<String> = in_lab.into_iter().map(str::to_owned).collect();
        assert_eq!(binaries(&workspace, "tests/tests"), wanted);
        assert!(of_binary(&workspace, CLUSTER).unwrap().contains(&BENCH.to_owned()));
    }

    #[test]
    fn a_filter_takes_one_suite_of_its_binary_and_logs_have_names_of_their_own() {
        let workspace = Workspace::find().unwrap();
        let mut all = BTreeSet::new();
        for binary in LAB.into_iter().chain([CONTROL_PLANE, CLUSTER]) {
            let suites = of_binary(&workspace, binary).unwrap();
            let folder = workspace.root.join("tests/tests").join(binary);
            for suite in &suites {
                assert!(all.insert(suite.clone()), "two suites are named {suite}");
                // libtest runs every test whose path contains the filter.
                let others = suites.iter().filter(|it| *it != suite);
                let inner =
                    others.clone().filter_map(|it| entries(&folder.join(it)).ok()).flatten();
                let inner = inner.filter_map(|it| Some(it.file_stem()?.to_str()?.to_owned()));
                for name in others.cloned().chain(inner) {
                    assert!(
                        !name.ends_with(suite.as_str()),
                        "{binary}: {suite}:: takes {name}::, too"
                    );
                }
            }
        }
        for suite in LONG.into_iter().filter(|name| *name != fuzz::SUITE) {
            assert!(all.contains(suite), "there is no suite {suite}");
        }
    }
}
