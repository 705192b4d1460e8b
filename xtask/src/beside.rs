//! Compiling in the background of `cargo xtask test`, in processor time that the stages do not use.
//!
//! Kubernetes, the fuzz target, the suites for arm64 and the object that logs take minutes to compile, while
//! the suites in the lab mostly wait. A second xtask with the lowest priority compiles them. A stage that
//! needs a result waits for it: for Kubernetes through the lock of the cache, for the others through Cargo's.
//!
//! No suite runs in the background: at this priority it would fail when another stage uses all CPUs.

use std::env;

use anyhow::{Context as _, Result};

use crate::control_plane;
use crate::kubernetes;
use crate::process::{Background, display};
use crate::progress::note;
use crate::stage::Stage;
use crate::workspace::Workspace;

/// The process. Dropping this ends it, but keeps what it has compiled.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    compiling: Option<Background>,
}

impl Beside {
    /// Starts to compile what `rest`, the stages from this one on, can use.
    pub(crate) fn begin(&mut self, workspace: &Workspace, rest: &[Stage]) -> Result<()> {
        let work = worthwhile(rest, kubernetes::is_there(), control_plane::is_there());
        // The fuzz target and the suites include the eBPF object.
        let has_object = rest.first().is_some_and(|stage| *stage > Stage::Object);
        if self.compiling.is_none() && has_object && !work.is_empty() {
            self.compiling = Some(start(workspace, &work)?);
        }
        Ok(())
    }
}

/// Starts a second xtask that gets only idle processor time.
fn start(workspace: &Workspace, work: &[&str]) -> Result<Background> {
    let me = env::current_exe().context("cannot find the path of this program")?;
    let mut command = workspace.command("chrt");
    command.args(["-i", "0"]).arg(me).arg("setup").args(work);
    let log = workspace.log("ahead");
    let background = Background::start(&mut command, &log)?;
    note(&format!("beside the next stages: {}", display(&command)));
    note(&format!("    its output: {}", log.display()));
    Ok(background)
}

/// What to compile for later stages, as options of `cargo xtask setup`.
fn worthwhile(
    rest: &[Stage],
    cluster_is_there: bool,
    control_plane_is_there: bool,
) -> Vec<&'static str> {
    let mut work = Vec::new();
    if is_later(rest, Stage::Lab) {
        work.push("--log-object");
    }
    if is_later(rest, Stage::Cluster) && !cluster_is_there {
        // Its programs are the control plane's, too.
        work.push("--cluster");
    } else if is_later(rest, Stage::ControlPlane) && !control_plane_is_there {
        work.push("--control-plane");
    }
    if is_later(rest, Stage::Fuzz) {
        work.push("--fuzz-target");
    }
    if is_later(rest, Stage::Kernels) {
        work.push("--arm64-suites");
    }
    work
}

fn is_later(rest: &[Stage], stage: Stage) -> bool {
    rest.iter().skip(1).any(|it| *it == stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_later_stage_needs_is_compiled() {
        let rest = [Stage::Clippy, Stage::Lab];
        assert_eq!(worthwhile(&rest, true, true), ["--log-object"]);
        let rest = [Stage::Lab, Stage::ControlPlane, Stage::Fuzz];
        assert_eq!(worthwhile(&rest, false, false), ["--control-plane", "--fuzz-target"]);
        assert_eq!(
            worthwhile(&rest, false, true),
            ["--fuzz-target"],
            "Kubernetes is there already"
        );
        assert!(worthwhile(&rest[2..], false, false).is_empty(), "the stage itself compiles it");
        assert!(worthwhile(&rest[..1], false, false).is_empty(), "no stage needs it");
        let rest = [Stage::Lab, Stage::Cluster, Stage::ControlPlane];
        assert_eq!(worthwhile(&rest, false, false), ["--cluster"], "it has the control plane");
        assert_eq!(worthwhile(&rest, true, false), ["--control-plane"]);
        let rest = [Stage::Clippy, Stage::Fuzz, Stage::Kernels];
        assert_eq!(worthwhile(&rest, true, true), ["--fuzz-target", "--arm64-suites"]);
    }
}
