//! Remembers machines that passed. The same kernel, emulator, programs and arguments pass again: a run of
//! everything does not boot such a machine a second time, and says so.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fs_err as fs;

use super::boot::Machine;
use crate::archive::digest;
use crate::workspace::Workspace;

/// All that decides how a machine ends, and the place of its last verdict: a file with the digests, and
/// the machine's output below them.
#[derive(Debug)]
pub(super) struct Verdict {
    inputs: String,
    path: PathBuf,
}

impl Verdict {
    /// # Errors
    /// A file of the machine cannot be read.
    pub(super) fn of(workspace: &Workspace, machine: &Machine<'_>) -> Result<Self> {
        let name = format!("passed-{}", machine.variant.name);
        let path = workspace.target.join("virtual-machine").join(name);
        let command = machine.command(workspace);
        let mut inputs = Vec::new();
        for file in [machine.emulator.program(), machine.image, &machine.initramfs] {
            inputs.push(digest(file)?);
        }
        inputs.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
        Ok(Self { inputs: inputs.join(" "), path })
    }

    /// The output of the machine that passed with these inputs, if it was the last one.
    pub(super) fn passed(&self) -> Option<String> {
        let text = fs::read_to_string(&self.path).ok()?;
        let (inputs, output) = text.split_once('\n')?;
        (inputs == self.inputs).then(|| output.to_owned())
    }

    /// Remembers that the machine passed with this output.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn keep(&self, output: &str) -> Result<()> {
        let text = format!("{}\n{output}", self.inputs);
        fs::write(&self.path, text).context("a verdict cannot be kept")
    }

    /// Forgets the last verdict: with the same inputs the machine has failed.
    pub(super) fn forget(&self) {
        // Mostly there is none.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_inputs_pass_again() {
        let folder = tempfile::tempdir().unwrap();
        let of = |inputs: &str| {
            let path = folder.path().join("passed");
            Verdict { inputs: inputs.to_owned(), path }
        };
        let before = of("digest -smp 1");
        assert_eq!(before.passed(), None);
        before.keep("@guest end\nall\n").unwrap();
        assert_eq!(before.passed().as_deref(), Some("@guest end\nall\n"));
        assert_eq!(of("digest -smp 2").passed(), None);
        assert_eq!(of("digest").passed(), None);
        before.forget();
        assert_eq!(before.passed(), None, "one failure counts more than a success before it");
    }
}
