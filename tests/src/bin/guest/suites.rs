//! Runs a suite.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use crate::plan::Suite;
use crate::say;

/// Runs a suite, and returns whether it passed.
pub(crate) fn run(
    suite: &Suite,
    environment: &BTreeMap<String, String>,
    has_mptcp: bool,
) -> Result<bool> {
    let name = &suite.name;
    say(&format!("begin {name}"));
    let begun = Instant::now();
    let mut command = Command::new(&suite.program);
    command.args(&suite.arguments).envs(environment);
    if let Some(part) = suite.mptcp.as_ref().filter(|_| !has_mptcp) {
        command.args(["--skip", part]);
        let why = "this kernel was built without it (CONFIG_MPTCP)";
        say(&format!("skipped {name}: what has `{part}` in its name: {why}"));
    }
    let child =
        command.spawn().with_context(|| format!("cannot run {}", suite.program.display()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
    let status = wait_for(pid)?;
    let seconds = begun.elapsed().as_secs();
    let passed = status.exit_status() == Some(0);
    let verdict = if passed { "passed" } else { "failed" };
    say(&format!("{verdict} {name} {seconds}"));
    Ok(passed)
}

/// Waits for a process, and reaps all others: the first process is the parent of orphans.
fn wait_for(pid: Pid) -> Result<WaitStatus> {
    loop {
        if let Some((ended, status)) = wait(WaitOptions::empty()).context("cannot wait")?
            && ended == pid
        {
            return Ok(status);
        }
    }
}
