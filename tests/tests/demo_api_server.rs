//! The demo with a real API server gives the same results.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use topo_lb_tests::{prefix, requirements, residue};

fn demo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.arg("--agent").arg(requirements::agent()?).arg("--json").args(arguments);
    Ok(command)
}

/// The checks of a demo that must succeed.
fn checks(arguments: &[&str]) -> Result<Vec<Value>> {
    let mut command = demo(arguments)?;
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    nothing_is_left_of(pid)?;
    let mut report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    match report["checks"].take() {
        Value::Array(checks) => Ok(checks),
        other => anyhow::bail!("no checks: {other}"),
    }
}

fn nothing_is_left_of(pid: u32) -> Result<()> {
    let left = residue::find(|name| prefix::owner(name) == Some(pid))?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn it_makes_the_same_checks_and_every_one_is_ok() -> Result<()> {
    let what = |check: &Value| {
        ["name", "service", "from", "requests", "expected"].map(|field| check[field].clone())
    };
    let (plain, real) = (checks(&[])?, checks(&["--api-server"])?);
    let (plain_ones, real_ones): (Vec<_>, Vec<_>) =
        (plain.iter().map(what).collect(), real.iter().map(what).collect());
    ensure!(real_ones == plain_ones, "{real_ones:#?}, not {plain_ones:#?}");
    for check in &real {
        ensure!(check["ok"] == true && check["requests"] == 200, "{check}");
    }
    Ok(())
}

#[test]
fn ctrl_c_takes_the_control_plane_away_too() -> Result<()> {
    let mut command = demo(&["--api-server"])?;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stderr.take().context("a pipe")?).lines();
    while !said.next().context("the demo has ended early")??.contains("control plane") {}
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}: {rest:?}");
    // The servers were in cgroups of the lab, which are gone.
    nothing_is_left_of(child.id())
}

#[test]
fn without_the_programs_it_says_where_they_come_from() -> Result<()> {
    let output = demo(&["--api-server"])?.env_remove("KUBEBUILDER_ASSETS").output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.contains("KUBEBUILDER_ASSETS") && said.contains("cargo xtask"), "{said}");
    Ok(())
}
