//! Programs that play in the lab: the demo, the soak, the bench. They and the agent are compiled as
//! users run them.

use std::process::Command;

use anyhow::Result;

use crate::process::run_logged;
use crate::progress::Screen;
use crate::workspace::{Profile, Workspace, restore_environment};

/// Compiles the agent, the program and those that it starts; the program's command, which knows the
/// agent.
///
/// # Errors
/// They do not compile.
pub(crate) fn build(
    workspace: &Workspace,
    screen: &Screen,
    program: &str,
    starts: &[&str],
) -> Result<Command> {
    let mut build = workspace.cargo("build");
    build.args(["--release", "--package", "topo-lb", "--package", "topo-lb-tests"]);
    for name in ["topo-lb", program].iter().chain(starts) {
        build.args(["--bin", name]);
    }
    let log = workspace.log(&format!("build-{program}"));
    run_logged(screen, &format!("agent and {program}"), &mut build, &log)?;

    let mut command = Command::new(workspace.program(Profile::Release, program));
    restore_environment(&mut command, &workspace.target);
    command.env("TOPO_LB_AGENT", workspace.program(Profile::Release, "topo-lb"));
    Ok(command)
}
