//! Runs of the demo: its checks, and what Ctrl-C leaves.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{prefix, requirements, residue};

/// The command of a demo that prints JSON.
pub fn demo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(requirements::binary("demo")?);
    command.arg("--agent").arg(requirements::agent()?).arg("--json").args(arguments);
    Ok(command)
}

/// The checks of a demo. All must be ok, the agents must have counted what the pods moved, standard output
/// must be JSON alone, and nothing may be left.
pub fn checks(arguments: &[&str]) -> Result<Vec<Value>> {
    let child = demo(arguments)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    nothing_is_left_of(pid)?;
    let mut report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    let bytes = &report["bytes"];
    ensure!(bytes["counted"] == bytes["moved"], "{bytes}");
    for side in ["kept", "crossed"] {
        ensure!(bytes["counted"][side].as_u64() > Some(100_000), "{side}: {bytes}");
    }
    let Value::Array(checks) = report["checks"].take() else { bail!("no checks: {report}") };
    for check in &checks {
        ensure!(check["ok"] == true && check["requests"] == 200, "{check}");
    }
    Ok(checks)
}

/// Interrupts a demo when its standard error contains `word`; nothing may be left.
pub fn interrupt_at(word: &str, arguments: &[&str]) -> Result<()> {
    let mut child = demo(arguments)?.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let mut said = BufReader::new(child.stderr.take().context("a pipe")?).lines();
    while !said.next().context("the demo has ended early")??.contains(word) {}
    let made = residue::find(|name| prefix::owner(name) == Some(pid))?;
    ensure!(!made.is_empty(), "the demo should be there");
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}: {rest:?}");
    // Processes of the demo were in cgroups of the lab, which are gone.
    nothing_is_left_of(pid)
}

fn nothing_is_left_of(pid: u32) -> Result<()> {
    let left = residue::find(|name| prefix::owner(name) == Some(pid))?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
