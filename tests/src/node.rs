//! The nodes of a lab's cluster.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cgroup::Cgroup;
use crate::netns::NetNs;
use crate::pod::Pod;
use crate::process::enter;

/// The plan of a node.
#[derive(Clone, Debug)]
pub struct NodePlan<'a> {
    /// The node's name.
    pub name: &'a str,
    /// The node's number, 0–99: its pods are in `10.244.<number>.0/24` and
    /// `fd00:244:<number>::/64`.
    pub number: u8,
    /// The names of its pods, and the last byte of their addresses.
    pub pods: Vec<(&'a str, u8)>,
}

/// A node: a network namespace and a cgroup.
#[derive(Debug)]
pub struct Node {
    /// The node's name.
    pub name: String,
    pub(crate) pods: Vec<Pod>,
    pub(crate) cgroup: Cgroup,
    pub(crate) netns: NetNs,
}

impl Node {
    /// Makes `command` run as a process of the node itself.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        enter(command, &self.netns, Some(&self.cgroup))
    }

    /// The processor time of the node's processes, those of its pods included.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn processor_time(&self) -> Result<Duration> {
        self.cgroup.processor_time()
    }

    /// The directory of the node's cgroup.
    #[must_use]
    pub fn cgroup_path(&self) -> &Path {
        self.cgroup.path()
    }
}
