//! One run of e2e.test.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use super::cluster::Cluster;
use super::results::{Results, Verdict};
use super::{internet, junit, skipped};
use crate::process::{caught, display, output_of, to_log};
use crate::progress::{self, Running};
use crate::workspace::Workspace;

/// The file that e2e.test writes into its report folder.
const REPORT: &str = "junit_01.xml";

/// Runs the specs in focus, one after the other. `programs` has e2e.test and kubectl.
///
/// # Errors
/// The tests cannot run. A spec that fails is none: it is in the results.
pub(super) fn run(
    workspace: &Workspace,
    programs: &Path,
    cluster: &Cluster,
    focus: &Regex,
) -> Result<Results> {
    let kubernetes = version(workspace, programs, cluster)?;
    let list = skipped::list()?;
    let folder = workspace.target.join("e2e");
    fs::create_dir_all(&folder)?;
    let report = folder.join(REPORT);
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let mut command = workspace.command(programs.join("e2e.test"));
    command
        .current_dir(&folder)
        .args(["--provider=local", "--disable-log-dump", "--kubeconfig"])
        .arg(flattened(workspace, programs, cluster, &folder)?)
        .arg("--kubectl-path")
        .arg(programs.join("kubectl"))
        .arg("--report-dir")
        .arg(&folder)
        // The same order in every run.
        .args(["--ginkgo.noColor", "--ginkgo.seed=1", "--ginkgo.focus", focus.as_str()])
        .args(["--ginkgo.skip", &skipped::expression(&list)]);
    internet::stand_in_for(&mut command)?;

    let log = workspace.log(&format!("e2e-{}", cluster.proxy.name()));
    let title = format!("Kubernetes' tests with {}", cluster.proxy.name());
    progress::note(&format!("output of the tests: {}", log.display()));
    let running = Running::start(title);
    // Fails also if a spec has failed, which the report tells.
    let ended = to_log(&mut command, &log, None, |last_line| running.tick(last_line));
    running.end(ended.is_ok());
    if caught() != 0 {
        ended?;
    }
    ensure!(
        report.is_file(),
        "e2e.test could not begin, or has crashed; its output: {}",
        log.display()
    );
    let mut specs = junit::read(&fs::read_to_string(&report)?, focus)?;
    for spec in specs.iter_mut().filter(|it| it.result == Verdict::Skipped) {
        spec.why = skipped::reason(&list, &spec.name).to_owned();
    }
    Ok(Results::new(kubernetes, cluster.proxy, specs))
}

/// Writes a kubeconfig that has its certificates in itself: e2e.test finds no files by relative paths.
fn flattened(
    workspace: &Workspace,
    programs: &Path,
    cluster: &Cluster,
    folder: &Path,
) -> Result<PathBuf> {
    let mut view = workspace.command(programs.join("kubectl"));
    view.arg("--kubeconfig").arg(cluster.kubeconfig()).args([
        "config",
        "view",
        "--raw",
        "--flatten",
    ]);
    let text = output_of(&mut view).with_context(|| format!("`{}` failed", display(&view)))?;
    let path = folder.join("kubeconfig");
    fs::write(&path, text)?;
    Ok(path)
}

/// The version of the nodes' kubelets, such as `1.20.2`. The API server of an earlier build says none.
fn version(workspace: &Workspace, programs: &Path, cluster: &Cluster) -> Result<String> {
    let mut ask = workspace.command(programs.join("kubectl"));
    let path = "--output=jsonpath={.items[0].status.nodeInfo.kubeletVersion}";
    ask.arg("--kubeconfig").arg(cluster.kubeconfig()).args(["get", "nodes", path]);
    let version = output_of(&mut ask).context("the cluster's API server lists no nodes")?;
    Ok(version.trim_start_matches('v').to_owned())
}
