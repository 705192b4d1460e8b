//! Programs that use the lab: demo, soak, bench; compiled like the agent with users' profiles.

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
    let package = ["--package", "topo-lb", "--bin", "topo-lb"];
    let mut command = if agent == Profile::Release {
        // One call for both compiles shared libraries once.
        compile(workspace, program, starts, &package)?
    } else {
        let mut build = workspace.cargo("build");
        build.args(["--profile", agent.name()]).args(package);
        run_logged("agent", &mut build, &workspace.log("build-agent"))?;
        alone(workspace, program, starts)?
    };
    command.env("TOPO_LB_AGENT", workspace.program(agent, "topo-lb"));
    Ok(command)
}

/// The same without an agent.
pub(crate) fn alone(workspace: &Workspace, program: &str, starts: &[&str]) -> Result<Command> {
    compile(workspace, program, starts, &[])
}

fn compile(
    workspace: &Workspace,
    program: &str,
    starts: &[&str],
    others: &[&str],
) -> Result<Command> {
    let mut build = workspace.cargo("build");
    build.args(["--release", "--package", "topo-lb-tests", "--bin", program]).args(others);
    build.args(starts.iter().flat_map(|name| ["--bin", *name]));
    let title = if others.is_empty() { program.to_owned() } else { format!("agent and {program}") };
    run_logged(title, &mut build, &workspace.log(&format!("build-{program}")))?;
    let mut command = Command::new(workspace.program(Profile::Release, program));
    restore_environment(&mut command, &workspace.target);
    Ok(command)
}
