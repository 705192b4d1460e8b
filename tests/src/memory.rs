//! A limit on the memory of a process, the kernel's memory for its maps included.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cgroup::{self, Cgroup};
use crate::prefix::Prefix;

/// Where cgroups with a limit are made, and what the file of the limit is called: the hierarchy of
/// the memory controller, of version 1 on a hybrid host.
///
/// # Errors
/// The host has no memory controller.
fn controller() -> Result<(PathBuf, &'static str)> {
    if let Some(path) = version1()? {
        return Ok((path, "memory.limit_in_bytes"));
    }
    let root = cgroup::root()?;
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
    ensure!(
        controllers.split_whitespace().any(|name| name == "memory"),
        "the memory controller is in no cgroup hierarchy: boot without cgroup_disable=memory"
    );
    fs::write(root.join("cgroup.subtree_control"), "+memory")
        .context("cannot hand the memory controller to cgroups below the root")?;
    Ok((root, "memory.max"))
}

/// Where the memory controller of version 1 is mounted, if it is.
///
/// # Errors
/// The mounts cannot be read.
pub fn version1() -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    Ok(mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - cgroup ")?;
        // The controllers are among the options of the file system, at the end.
        let options = after.rsplit(' ').next()?;
        options.split(',').any(|option| option == "memory").then_some(())?;
        before.split(' ').nth(4).map(PathBuf::from)
    }))
}

/// A cgroup whose processes share a limit. Dropping it ends them, and removes it.
#[derive(Debug)]
pub struct Limit(Cgroup);

impl Limit {
    /// Makes one of so many bytes.
    ///
    /// # Errors
    /// The host has no memory controller, or the kernel refuses.
    pub fn make(prefix: &Prefix, bytes: u64) -> Result<Self> {
        let (root, file) = controller()?;
        let cgroup = Cgroup::make(&root, &prefix.name("memory"))?;
        fs::write(cgroup.path().join(file), bytes.to_string()).context("cannot set a limit")?;
        Ok(Self(cgroup))
    }

    /// Makes `command` run under it.
    ///
    /// # Errors
    /// The cgroup cannot be opened.
    pub fn apply(&self, command: &mut Command) -> Result<()> {
        use std::io::Write as _;
        let mut door = self.0.door()?;
        // SAFETY: between fork and exec only one system call is made, on a file that was opened
        // before: nothing allocates or locks.
        unsafe { command.pre_exec(move || door.write_all(b"0")) };
        Ok(())
    }
}
