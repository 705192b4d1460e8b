//! What late stages of `cargo xtask test` need, compiled beside the stages before them.
//!
//! Kubernetes and the fuzz target take minutes to compile, and most stages leave a core idle for much
//! of their time. A process of the lowest priority compiles both, one after the other. A stage that
//! needs a result waits for it: for Kubernetes by the lock of the cache, for the fuzz target by
//! Cargo's lock.

use std::env;
use std::process::{Child, Command};

use anyhow::{Context, Result};

use crate::control_plane;
use crate::process::{end, start};
use crate::progress::Screen;
use crate::stage::Stage;
use crate::workspace::Workspace;

/// The process that compiles; dropping this ends it. What it has finished by then is kept.
#[derive(Debug)]
pub(crate) struct Ahead(Option<Child>);

impl Ahead {
    /// Starts to compile what `rest`, the stages from this one on, need later. Comes after the
    /// stage of the eBPF object, which the fuzz target includes.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(crate) fn begin(workspace: &Workspace, screen: &Screen, rest: &[Stage]) -> Result<Self> {
        let work = worthwhile(rest, control_plane::is_there());
        if work.is_empty() {
            return Ok(Self(None));
        }
        let me = env::current_exe().context("cannot find the path of this program")?;
        let log = workspace.log("ahead");
        let mut command: Command = workspace.command("nice");
        command.args(["-n", "19"]).arg(me).arg("setup").args(work);
        let child = start(&mut command, &log)?;
        screen.note(&format!("compiling for later stages at low priority: {}", log.display()));
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

/// What to compile for stages that another stage comes before, as options of `cargo xtask setup`.
fn worthwhile(rest: &[Stage], control_plane_is_there: bool) -> Vec<&'static str> {
    let is_later = |stage| rest.iter().skip(1).any(|it| *it == stage);
    let mut work = Vec::new();
    if is_later(Stage::ControlPlane) && !control_plane_is_there {
        work.push("--control-plane");
    }
    if is_later(Stage::Fuzz) {
        work.push("--fuzz-target");
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_later_stage_needs_is_compiled() {
        let rest = [Stage::Lab, Stage::ControlPlane, Stage::Fuzz];
        assert_eq!(worthwhile(&rest, false), ["--control-plane", "--fuzz-target"]);
        assert_eq!(worthwhile(&rest, true), ["--fuzz-target"], "Kubernetes is there already");
        assert!(worthwhile(&rest[2..], false).is_empty(), "the stage itself compiles it");
        assert!(worthwhile(&rest[..1], false).is_empty(), "no stage needs it");
    }
}
