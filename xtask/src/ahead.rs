//! What a late stage of `cargo xtask test` needs, made beside the stages before it.
//!
//! Compiling Kubernetes takes minutes, and most stages leave a core idle for much of their time. So it
//! starts with the first stage, as a process of the lowest priority. The stage that needs the result
//! waits for it by the lock of the cache.

use std::env;
use std::process::{Child, Command};

use anyhow::{Context, Result};

use crate::control_plane;
use crate::process::{end, start};
use crate::progress::Screen;
use crate::stage::Stage;
use crate::workspace::Workspace;

/// What is being made; dropping it ends the work. What was done by then is kept.
#[derive(Debug)]
pub(crate) struct Ahead(Option<Child>);

impl Ahead {
    /// Starts what these stages need later and is not there yet.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn begin(workspace: &Workspace, screen: &Screen, stages: &[Stage]) -> Result<Self> {
        if !is_worthwhile(stages, control_plane::is_there()) {
            return Ok(Self(None));
        }
        let me = env::current_exe().context("cannot find the path of this program")?;
        let log = workspace.log("control-plane-ahead");
        let mut command: Command = workspace.command("nice");
        command.args(["-n", "19"]).arg(me).args(["setup", "--control-plane"]);
        let child = start(&mut command, &log)?;
        screen.note(&format!("the control plane is made meanwhile; its output: {}", log.display()));
        Ok(Self(Some(child)))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            end(child);
        }
    }
}

/// Whether a stage needs it, and another one comes before that leaves time for it.
fn is_worthwhile(stages: &[Stage], is_there: bool) -> bool {
    let before = stages.iter().take_while(|stage| **stage != Stage::ControlPlane);
    let leaves_time = before.filter(|stage| **stage > Stage::Object).count() > 0;
    stages.contains(&Stage::ControlPlane) && leaves_time && !is_there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_only_for_a_stage_that_comes_later() {
        let late = [Stage::Format, Stage::Object, Stage::Lab, Stage::ControlPlane];
        assert!(is_worthwhile(&late, false));
        assert!(!is_worthwhile(&late, true), "it is there already");
        assert!(!is_worthwhile(&late[..3], false), "nobody needs it");
        assert!(!is_worthwhile(&[Stage::Object, Stage::ControlPlane], false), "it comes next");
    }
}
