//! Programs that use the lab: demo, soak, bench.

use std::process::Command;

use anyhow::Result;

use crate::process::run_logged;
use crate::workspace::{Profile, Workspace, restore_environment};

/// Compiles the agent with this profile, and the program with those that it starts. Returns the
/// program's command, with the agent's path in its environment.
pub(crate) fn build(
    workspace: &Workspace,
    agent: Profile,
    program: &str,
    starts: &[&str],
) -> Result<Command> {
    // One call for both compiles shared libraries once.
    let package = ["--package", "topo-lb", "--bin", "topo-lb"];
    let mut command = compile(workspace, agent, program, starts, &package)?;
    command.env("TOPO_LB_AGENT", workspace.program(agent, "topo-lb"));
    Ok(command)
}

/// Compiles the program, optimized, without an agent.
pub(crate) fn alone(workspace: &Workspace, program: &str) -> Result<Command> {
    compile(workspace, Profile::Release, program, &[], &[])
}

fn compile(
    workspace: &Workspace,
    profile: Profile,
    program: &str,
    starts: &[&str],
    others: &[&str],
) -> Result<Command> {
    let mut build = workspace.cargo("build");
    build.args(["--profile", profile.name(), "--package", "topo-lb-tests", "--bin", program]);
    build.args(others).args(starts.iter().flat_map(|name| ["--bin", *name]));
    let title = if others.is_empty() { program.to_owned() } else { format!("agent and {program}") };
    run_logged(title, &mut build, &workspace.log(&format!("build-{program}")))?;
    let mut command = Command::new(workspace.program(profile, program));
    restore_environment(&mut command, &workspace.target);
    Ok(command)
}
