//! Programs that play in the lab: the demo, the soak, the bench. They and the agent are compiled as
//! users run them.

use std::process::Command;

use anyhow::Result;

use crate::process::run_logged;
use crate::progress::Screen;
use crate::workspace::{Profile, Workspace, restore_environment};

/// Compiles the agent by this profile, the program and those that it starts; the program's command,
/// which knows the agent.
///
/// # Errors
/// They do not compile.
pub(crate) fn build(
    workspace: &Workspace,
    screen: &Screen,
    agent: Profile,
    program: &str,
    starts: &[&str],
) -> Result<Command> {
    let mut build = workspace.cargo("build");
    build.args(["--profile", agent.name(), "--package", "topo-lb", "--bin", "topo-lb"]);
    run_logged(screen, "agent", &mut build, &workspace.log("build-agent"))?;
    let mut command = alone(workspace, screen, program, starts)?;
    command.env("TOPO_LB_AGENT", workspace.program(agent, "topo-lb"));
    Ok(command)
}

/// The same without an agent.
///
/// # Errors
/// They do not compile.
pub(crate) fn alone(
    workspace: &Workspace,
    screen: &Screen,
    program: &str,
    starts: &[&str],
) -> Result<Command> {
    let mut build = workspace.cargo("build");
    build.args(["--release", "--package", "topo-lb-tests", "--bin", program]);
    for name in starts {
        build.args(["--bin", name]);
    }
    run_logged(screen, program, &mut build, &workspace.log(&format!("build-{program}")))?;

    let mut command = Command::new(workspace.program(Profile::Release, program));
    restore_environment(&mut command, &workspace.target);
    Ok(command)
}
