//! A limit on the memory of a process, including kernel memory for its maps.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::cgroup::{self, Cgroup, Hierarchy};
use crate::prefix::Prefix;

/// The folder for cgroups with a limit, and the file name of the limit. On a hybrid host the memory
/// controller is in the hierarchy of version 1.
///
/// # Errors
/// The host has no memory controller.
fn controller() -> Result<(PathBuf, &'static str)> {
    let memory = |it: &Hierarchy| it.controllers.split(',').any(|name| name == "memory");
    if let Some(Hierarchy { path, .. }) = cgroup::version1()?.into_iter().find(memory) {
        return Ok((path, "memory.limit_in_bytes"));
    }
    let root = cgroup::root()?;
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
    ensure!(
        controllers.split_whitespace().any(|name| name == "memory"),
        "the memory controller is in no cgroup hierarchy: boot without cgroup_disable=memory"
    );
    fs::write(root.join("cgroup.subtree_control"), "+memory")?;
    Ok((root, "memory.max"))
}

/// A cgroup with a limit that its processes share. Dropping it kills them, and removes it.
#[derive(Debug)]
pub struct Limit(Cgroup);

impl Limit {
    /// Makes a cgroup with a limit of so many bytes.
    pub fn make(prefix: &Prefix, bytes: u64) -> Result<Self> {
        let (root, file) = controller()?;
        let cgroup = Cgroup::make(&root, &prefix.name("memory"))?;
        fs::write(cgroup.path().join(file), bytes.to_string())?;
        Ok(Self(cgroup))
    }

    /// Makes `command` run under the limit.
    pub fn apply(&self, command: &mut Command) -> Result<()> {
        use std::io::Write as _;
        let mut door = self.0.door()?;
        // SAFETY: between fork and exec this makes only one system call, on a file opened before;
        // it neither allocates nor locks.
        unsafe { command.pre_exec(move || door.write_all(b"0")) };
        Ok(())
    }
}
