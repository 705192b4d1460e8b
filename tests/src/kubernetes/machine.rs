//! A node as a machine: the lab's node, with mounts of its own and cgroups in every hierarchy.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use fs_err::{self as fs, File};
use rustix::system::sethostname;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::cgroup::{self, Cgroup};
use crate::cluster::Cluster;
use crate::folder::Folder;
use crate::node::Node;
use crate::process::{Running, enter, printed, spawn_logged};

use super::mounts;

/// The machine of a node. Dropping it removes what it adds to the node.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) node: &'a Node,
    folder: Folder,
    mounts: File,
    /// Its programs, in version 2: there, a cgroup with controllers has no processes of its own.
    programs: Cgroup,
    /// Its cgroups in the hierarchies of version 1.
    version1: Vec<Cgroup>,
    /// The path of these cgroups below the mount points.
    root: String,
}

impl<'a> Machine<'a> {
    pub(crate) fn make(cluster: &Cluster, node: &'a Node) -> Result<Self> {
        let folder = Folder::make(cluster.folder().join(&node.name))?;
        let name = cluster.prefix().name(&node.name);
        let mut version1 = Vec::new();
        for hierarchy in cgroup::version1()? {
            let cgroup = Cgroup::make(&hierarchy.path, &name)?;
            // A cgroup of cpuset takes processes only with processors and memory.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (hierarchy.path.join(file), cgroup.path().join(file));
                if from.exists() {
                    fs::write(&to, fs::read(&from)?)?;
                }
            }
            version1.push(cgroup);
        }
        // Beside version 1, the node's cgroup2 folder is the root of cgroup2 and has no controllers.
        let root = if version1.is_empty() { "/".to_owned() } else { format!("/{name}") };
        let programs = Cgroup::make(node.cgroup.path(), "programs")?;
        delegate(&cgroup::root()?)?;
        delegate(node.cgroup.path())?;
        let mounts = mounts::make(folder.path(), node.cgroup.path())?;
        Ok(Self { node, folder, mounts, programs, version1, root })
    }

    /// The folder of its files, on every node's file system.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of its cgroup, as its programs see it.
    pub(crate) fn cgroup_root(&self) -> &str {
        &self.root
    }

    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.folder().join(program).with_extension("log")
    }

    /// Makes `command` run on this machine.
    pub(crate) fn enter(&self, command: &mut Command) -> Result<()> {
        enter(command, &self.node.netns, Some(&self.programs))?;
        let mounts = self.mounts.try_clone()?;
        let doors = self.version1.iter().map(Cgroup::door).collect::<Result<Vec<_>>>()?;
        let name = self.node.name.clone();
        // SAFETY: between fork and exec this makes only system calls, on files opened before; it
        // neither allocates nor locks.
        unsafe {
            command.pre_exec(move || {
                for mut door in &doors {
                    door.write_all(b"0")?;
                }
                move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
                // Pods in the host's network have the host's name.
                unshare_unsafe(UnshareFlags::NEWUTS)?;
                sethostname(name.as_bytes())?;
                Ok(())
            });
        }
        Ok(())
    }

    /// Starts a program; its output goes to its log.
    pub(crate) fn start(&self, name: &str, mut command: Command) -> Result<Running> {
        self.enter(&mut command)?;
        spawn_logged(&mut command, &self.log(name))
    }

    /// Runs a program to its end, and returns its output.
    pub(crate) fn run(&self, mut command: Command) -> Result<String> {
        self.enter(&mut command)?;
        let text = printed(command.stdin(Stdio::null()));
        text.with_context(|| format!("on {}", self.node.name))
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // All processes first: they use the files and mounts.
        for cgroup in &self.version1 {
            report(cgroup::remove(cgroup.path()));
        }
        for entry in fs::read_dir(self.node.cgroup.path()).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                report(cgroup::remove(&entry.path()));
            }
        }
    }
}

fn report(outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("{error:#}");
    }
}

/// Lets cgroups below `parent` use its controllers; beside version 1 it has none.
fn delegate(parent: &Path) -> Result<()> {
    let controllers = fs::read_to_string(parent.join("cgroup.controllers"))?;
    for controller in controllers.split_whitespace() {
        fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(())
}
