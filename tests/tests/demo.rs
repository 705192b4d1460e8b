//! The demo, as the README shows it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use topo_lb_tests::{prefix, requirements, residue};

fn demo() -> Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.arg("--agent").arg(requirements::agent()?);
    Ok(command)
}

#[test]
fn every_check_is_ok_and_standard_output_is_json_alone() -> Result<()> {
    let output = demo()?.arg("--json").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    let checks = report["checks"].as_array().context("no checks")?;
    ensure!(checks.len() >= 20, "only {} checks", checks.len());
    for check in checks {
        ensure!(check["ok"] == true && check["requests"] == 200, "{check}");
    }
    for service in ["default/svc-ud1", "default/svc-ud1-without-topology", "default/svc-rack"] {
        ensure!(checks.iter().any(|check| check["service"] == service), "nothing of {service}");
    }
    Ok(())
}

#[test]
fn ctrl_c_in_the_middle_leaves_nothing_behind() -> Result<()> {
    let mut child = demo()?.arg("--json").stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let ours = |name: &str| prefix::owner(name) == Some(pid);
    let mut said = BufReader::new(child.stderr.take().context("a pipe")?).lines();
    // The agents are ready, and traffic flows.
    while !said.next().context("the demo has ended early")??.contains("tutorial") {}
    ensure!(!residue::find(ours)?.is_empty(), "the demo should be there");
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}: {rest:?}");
    let left = residue::find(ours)?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_missing_agent_is_one_sentence() -> Result<()> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_demo")).args(["--agent", "/no/such/agent"]).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.lines().count() == 1 && said.contains("/no/such/agent"), "{said}");
    Ok(())
}
