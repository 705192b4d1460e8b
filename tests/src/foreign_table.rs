//! The table `inet topo-lb` in the hands of another process, so that no agent can write it.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::node::Node;
use crate::process::printed;
use crate::wait::until;

/// A process of `nft` that owns the table: nobody else may delete such a table (Linux 5.12).
#[derive(Debug)]
pub struct ForeignTable(Child);

impl ForeignTable {
    /// Makes the table on a node.
    ///
    /// # Errors
    /// `nft` does not make it.
    pub fn make(cluster: &Cluster, node: &Node) -> Result<Self> {
        let mut nft = Command::new("nft");
        nft.arg("-i");
        cluster.beside(node, &mut nft)?;
        let mut nft = nft.stdin(Stdio::piped()).spawn()?;
        let input = nft.stdin.as_mut().context("a pipe")?;
        input.write_all(b"add table inet topo-lb { flags owner; }\n")?;
        let made = Self(nft);
        until("the owned table", Duration::from_secs(15), || {
            let list = || printed(Command::new("nft").args(["list", "ruleset"]));
            let now = node.netns.run(list)?;
            Ok(if now.contains("owner") { Ok(()) } else { Err(now) })
        })?;
        Ok(made)
    }

    /// Ends its owner; the kernel removes the table with it.
    ///
    /// # Errors
    /// `nft` fails.
    pub fn remove(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        ensure!(self.0.wait()?.success(), "nft failed");
        Ok(())
    }
}

impl Drop for ForeignTable {
    fn drop(&mut self) {
        // It ends with its input; `remove` has waited for it already.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
