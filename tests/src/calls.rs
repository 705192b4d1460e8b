//! The calls of bpf(2) that a process makes, as strace tells them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::process::{Running, spawn_logged};
use crate::requirements;
use crate::wait::{PATIENCE, until_is};

/// A strace that follows a process with all of its threads.
#[derive(Debug)]
pub struct Calls {
    strace: Running,
    trace: PathBuf,
}

impl Calls {
    /// Follows a process from now on. `folder`: for what strace writes.
    ///
    /// # Errors
    /// strace is not there, or may not follow the process.
    pub fn follow(process: u32, folder: &Path) -> Result<Self> {
        requirements::command("strace", "strace")?;
        let [trace, said] = ["trace", "said"].map(|what| folder.join(format!("strace.{what}")));
        let mut command = Command::new("strace");
        command.args(["--follow-forks", "--trace=bpf", "--attach", &process.to_string()]);
        command.arg("--output").arg(&trace);
        let strace = spawn_logged(&mut command, &said)?;
        until_is(
            "strace",
            PATIENCE,
            || Ok(fs::read_to_string(&said)?),
            |it| it.contains("attached"),
        )?;
        Ok(Self { strace, trace })
    }

    /// How often the process has called each command since then.
    ///
    /// # Errors
    /// strace does not end, or has written nothing.
    pub fn end(mut self) -> Result<BTreeMap<String, u32>> {
        self.strace.stop(PATIENCE)?;
        let mut calls = BTreeMap::new();
        for line in fs::read_to_string(&self.trace)?.lines() {
            if let Some((_, call)) = line.split_once(" bpf(")
                && let Some((command, _)) = call.split_once(',')
            {
                *calls.entry(command.to_owned()).or_default() += 1;
            }
        }
        Ok(calls)
    }
}
