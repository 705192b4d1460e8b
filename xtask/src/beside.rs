//! Work in the background of `cargo xtask test`, in processor time that the stages do not use.
//!
//! Kubernetes and the fuzz target take minutes to compile, and Debian's kernels take minutes to run
//! the suites, while the stages in the lab mostly wait. A second xtask with the lowest priority
//! does each of the two. A stage that needs a result waits for it: for Kubernetes through the lock
//! of the cache, for the fuzz target through Cargo's lock, for the kernels in [`Beside::kernels`].

use fs_err as fs;
use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::control_plane;
use crate::process::{Background, display};
use crate::progress::{Running, line, note};
use crate::stage::Stage;
use crate::suites;
use crate::workspace::Workspace;

/// The processes. Dropping this ends them, but keeps what they have compiled.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    compiling: Option<Background>,
    kernels: Option<Background>,
}

impl Beside {
    /// Starts the background work that `rest`, the stages from this one on, can use.
    /// `kernel_options` are the options of `cargo xtask test` about kernels.
    pub(crate) fn begin(
        &mut self,
        workspace: &Workspace,
        rest: &[Stage],
        kernel_options: &[String],
    ) -> Result<()> {
        let Some(&stage) = rest.first() else { return Ok(()) };
        let work = worthwhile(rest, control_plane::is_there());
        // The fuzz target includes the eBPF object.
        if self.compiling.is_none() && stage > Stage::Object && !work.is_empty() {
            let arguments = [&["setup"], &work[..]].concat();
            self.compiling = Some(start(workspace, "ahead", &arguments)?);
        }
        if self.kernels.is_none() && stage >= Stage::Lab && is_later(rest, Stage::Kernels) {
            // At full speed, before the second xtask makes the same call to Cargo.
            suites::compile_lab(workspace)?;
            let options = kernel_options.iter().map(String::as_str);
            let arguments: Vec<_> =
                ["test", "--only", "kernels"].into_iter().chain(options).collect();
            self.kernels = Some(start(workspace, "kernels", &arguments)?);
        }
        Ok(())
    }

    /// Whether the kernels use processor time now.
    pub(crate) fn has_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    /// Waits until the kernels have run the suites, and prints their output. `None` if not started.
    pub(crate) fn kernels(&mut self, workspace: &Workspace) -> Option<Result<()>> {
        let kernels = self.kernels.take()?;
        let running = Running::start("Debian's kernels, which were started with the lab");
        let result = kernels.finish(None, |line| running.tick(line));
        running.end(result.is_ok());
        // Without the headlines and the summary.
        let said = fs::read_to_string(log(workspace, "kernels")).unwrap_or_default();
        said.lines().filter(|said| said.starts_with([' ', '!'])).for_each(line);
        Some(result)
    }
}

/// Starts a second xtask that gets only idle processor time.
fn start(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<Background> {
    let me = env::current_exe().context("cannot find the path of this program")?;
    let mut command = workspace.command("chrt");
    command.args(["-i", "0"]).arg(me).args(arguments);
    let log = log(workspace, name);
    let background = Background::start(&mut command, &log)?;
    note(&format!("beside the next stages: {}", display(&command)));
    note(&format!("    its output: {}", log.display()));
    Ok(background)
}

fn log(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.log(&format!("beside-{name}"))
}

/// What to compile for later stages, as options of `cargo xtask setup`.
fn worthwhile(rest: &[Stage], control_plane_is_there: bool) -> Vec<&'static str> {
    let mut work = Vec::new();
    if is_later(rest, Stage::ControlPlane) && !control_plane_is_there {
        work.push("--control-plane");
    }
    if is_later(rest, Stage::Fuzz) {
        work.push("--fuzz-target");
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
        let rest = [Stage::Lab, Stage::ControlPlane, Stage::Fuzz];
        assert_eq!(worthwhile(&rest, false), ["--control-plane", "--fuzz-target"]);
        assert_eq!(worthwhile(&rest, true), ["--fuzz-target"], "Kubernetes is there already");
        assert!(worthwhile(&rest[2..], false).is_empty(), "the stage itself compiles it");
        assert!(worthwhile(&rest[..1], false).is_empty(), "no stage needs it");
    }
}
