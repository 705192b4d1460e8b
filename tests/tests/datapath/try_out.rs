//! `topo-lb try`, as the README begins with it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use topo_lb_tests::wait::{PATIENCE, until};
use topo_lb_tests::{cgroup, requirements};

fn command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(requirements::agent()?);
    // The settings of another agent must not reach the agents of `try`.
    command.arg("try").args(arguments).env("TOPO_LB_PIN_DIR", "/no/bpffs");
    Ok(command)
}

/// The cgroup of a command.
fn cgroup_of(pid: u32) -> Result<PathBuf> {
    Ok(cgroup::root()?.join(format!("topo-lb-try-{pid}")))
}

/// Starts it, and waits until its agents translate connections.
fn begun() -> Result<(Child, Vec<PathBuf>)> {
    let mut child = command(&[])?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut line = String::new();
    while !line.contains("no policy") {
        line.clear();
        ensure!(said.read_line(&mut line)? > 0, "it has ended early");
    }
    // What it still says has room in the pipe.
    child.stdout = Some(said.into_inner());
    let pid = child.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children: Vec<_> =
        children.split_whitespace().map(|pid| Path::new("/proc").join(pid)).collect();
    ensure!(children.len() == 2 && cgroup_of(pid)?.is_dir(), "it should be there: {children:?}");
    Ok((child, children))
}

fn are_gone(processes: &[PathBuf]) -> Result<()> {
    until("the end of the agents", PATIENCE, || {
        let left: Vec<_> = processes.iter().filter(|process| process.exists()).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .map(drop)
}

#[test]
fn every_connection_goes_where_it_should_and_standard_output_is_json_alone() -> Result<()> {
    let child = command(&["-o", "json"])?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    let checks = report["checks"].as_array().context("no checks")?;
    ensure!(report["ok"] == true && checks.len() == 8, "{report}");
    let stays = &checks[2];
    ensure!(stays["from"] == "zone-a" && stays["answers"]["zone-a"] == 100, "{stays}");
    ensure!(!cgroup_of(pid)?.exists(), "its cgroup is left");
    Ok(())
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing_behind() -> Result<()> {
    let (mut child, agents) = begun()?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}");
    ensure!(!cgroup_of(child.id())?.exists(), "its cgroup is left");
    are_gone(&agents)
}

#[test]
fn what_a_killed_one_left_goes_with_the_next() -> Result<()> {
    let (mut child, agents) = begun()?;
    child.kill()?;
    child.wait()?;
    are_gone(&agents)?;
    ensure!(cgroup_of(child.id())?.is_dir(), "the kernel removes no cgroup");
    let output = command(&[])?.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(!cgroup_of(child.id())?.exists(), "its cgroup is left");
    Ok(())
}
