//! One run of e2e.test: one process lists the specs, and several run them at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use regex::Regex;

use super::cluster::Cluster;
use super::ginkgo::Ginkgo;
use super::reasons::{self, Reason};
use super::results::{Results, Spec, Verdict};
use super::{internet, junit, lanes};
use crate::process::{Background, caught, display, output_of};
use crate::progress::{self, Running};
use crate::workspace::Workspace;

/// The file that e2e.test writes into its report folder.
const REPORT: &str = "junit_01.xml";

/// Runs the specs in focus. `programs` has e2e.test and kubectl.
///
/// # Errors
/// The tests cannot run. A spec that fails is no error: it is in the results.
pub(super) fn run(
    workspace: &Workspace,
    programs: &Path,
    cluster: &Cluster,
    focus: &Regex,
) -> Result<Results> {
    let kubernetes = version(workspace, programs, cluster)?;
    let folder = workspace.target.join("e2e");
    fs::create_dir_all(&folder)?;
    let suite = Suite {
        workspace,
        programs,
        kubeconfig: flattened(workspace, programs, cluster, &folder)?,
        folder,
        ginkgo: Ginkgo::of(&kubernetes)?,
        skipped: reasons::skipped()?,
        internet: internet::serve()?,
    };
    let listed = suite.list(focus)?;
    let names = listed.iter().filter(|it| it.result == Verdict::Passed).map(|it| it.name.clone());
    let mut left: BTreeSet<String> = names.collect();
    ensure!(!left.is_empty(), "no spec whose name matches {focus} can run here");
    let mut lanes = Vec::new();
    let names = left.iter().map(String::as_str);
    for (number, names) in lanes::expressions(focus, names).iter().enumerate() {
        let name = format!("lane-{number}");
        let (mut command, report) = suite.command(&name, names)?;
        let log = workspace.log(&format!("e2e-{}-{name}", cluster.proxy.name()));
        lanes.push((Background::start(&mut command, &log)?, report, log));
    }
    let logs = lanes.iter().map(|(_, _, log)| log.display().to_string());
    progress::note(&format!("output of the tests: {}", logs.collect::<Vec<_>>().join(" ")));

    let running = Running::start(format!("Kubernetes' tests with {}", cluster.proxy.name()));
    let mut specs: BTreeMap<String, Spec> =
        listed.into_iter().map(|it| (it.name.clone(), suite.not_run(it))).collect();
    let outcome = lanes.into_iter().try_for_each(|(process, report, log)| {
        let ended = process.finish(None, |last_line| running.tick(last_line));
        ensure!(caught() == 0, "interrupted");
        ensure!(
            report.is_file(),
            "e2e.test could not begin, or has crashed; its output: {}",
            log.display()
        );
        let mut ran = junit::read(&fs::read_to_string(&report)?, focus)?;
        // A spec that finds that it cannot run here has taken time to find out.
        ran.retain(|it| it.result != Verdict::Skipped || it.seconds > 0.0);
        // It fails also if a spec has failed, which the report tells.
        if !ran.iter().any(|it| it.result == Verdict::Failed) {
            ended?;
        }
        for spec in ran {
            left.remove(&spec.name);
            if spec.result != Verdict::Skipped {
                specs.insert(spec.name.clone(), spec);
            }
        }
        Ok(())
    });
    running.end(outcome.is_ok());
    outcome?;
    ensure!(left.is_empty(), "e2e.test has not run what it listed: {left:?}");
    Ok(Results::new(kubernetes, cluster.proxy, specs.into_values().collect()))
}

/// How e2e.test is started.
struct Suite<'a> {
    workspace: &'a Workspace,
    programs: &'a Path,
    kubeconfig: PathBuf,
    /// The folder of its reports.
    folder: PathBuf,
    ginkgo: Ginkgo,
    skipped: Vec<Reason>,
    /// What stands in for the internet.
    internet: SocketAddr,
}

impl Suite<'_> {
    /// The command that runs the specs whose names match, and the path of its report.
    fn command(&self, name: &str, focus: &str) -> Result<(Command, PathBuf)> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder)?;
        let report = folder.join(REPORT);
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let mut command = self.workspace.command(self.programs.join("e2e.test"));
        command
            .current_dir(&folder)
            .args(["--provider=local", "--disable-log-dump", "--kubeconfig"])
            .arg(&self.kubeconfig)
            .arg("--kubectl-path")
            .arg(self.programs.join("kubectl"))
            .arg("--report-dir")
            .arg(&folder)
            // The same order in every run.
            .args([self.ginkgo.no_color(), "--ginkgo.seed=1", "--ginkgo.focus", focus])
            .args(["--ginkgo.skip", &reasons::expression(&self.skipped)]);
        internet::stand_in_for(&mut command, self.internet);
        Ok((command, report))
    }

    /// The specs in focus: passed are those that can run.
    fn list(&self, focus: &Regex) -> Result<Vec<Spec>> {
        let (mut command, report) = self.command("list", focus.as_str())?;
        command.arg(self.ginkgo.dry_run());
        output_of(&mut command).with_context(|| format!("`{}` failed", display(&command)))?;
        junit::read(&fs::read_to_string(&report)?, focus)
    }

    /// A spec that has no result yet.
    fn not_run(&self, spec: Spec) -> Spec {
        let why = reasons::of_skipped(&self.skipped, &spec.name).to_owned();
        Spec { result: Verdict::Skipped, why, ..spec }
    }
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

/// The version of the nodes' kubelets, such as `1.20.2`. An API server that an earlier xtask compiled
/// does not tell its version.
fn version(workspace: &Workspace, programs: &Path, cluster: &Cluster) -> Result<String> {
    let mut ask = workspace.command(programs.join("kubectl"));
    let path = "--output=jsonpath={.items[0].status.nodeInfo.kubeletVersion}";
    ask.arg("--kubeconfig").arg(cluster.kubeconfig()).args(["get", "nodes", path]);
    let version = output_of(&mut ask).context("the cluster's API server lists no nodes")?;
    Ok(version.trim_start_matches('v').to_owned())
}
