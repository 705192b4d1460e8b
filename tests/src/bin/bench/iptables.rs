//! The iptables that kube-proxy calls on its node, apart from what the machine's owner has chosen.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;

use crate::ground::KUBE_PROXY;

/// Names the file by which those who change tables wait for each other: the machine's own is not the
/// lab's.
const LOCK: &str = "XTABLES_LOCKFILE";

/// What it writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// The kernel's own tables of iptables.
    Legacy,
    /// nftables', for which each match is translated, or called through a layer.
    Nftables,
}

impl Tables {
    /// As iptables calls them.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nftables => "nf_tables",
        }
    }

    /// The most Services with which kube-proxy is measured by it. All rules are written twice: for 50,000
    /// that is a minute of work for the legacy one, and for 10,000 two for the other.
    pub(crate) fn limit(self) -> u32 {
        match self {
            Self::Legacy => 50_000,
            Self::Nftables => 10_000,
        }
    }
}

/// One of the two that there may be.
#[derive(Debug)]
pub(crate) struct Iptables {
    pub(crate) tables: Tables,
    environment: [(&'static str, OsString); 2],
}

impl Iptables {
    /// That of the legacy tables where the kernel has them, as the wrapper in kube-proxy's image chooses on a
    /// node without rules (build/debian-iptables/iptables-wrapper of Kubernetes 1.20); the machine's
    /// otherwise.
    pub(crate) fn find(cluster: &Cluster) -> Result<Self> {
        requirements::command("iptables", "iptables")?;
        let path = env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
        folders.extend(["/usr/sbin".into(), "/sbin".into()]);
        let lock = cluster.folder().join("xtables.lock");
        let legacy = folders.iter().map(|it| it.join("iptables-legacy")).find(|it| it.is_file());
        let mut tables = Tables::Nftables;
        if let Some(legacy) = legacy {
            let mut look = Command::new(&legacy);
            look.args(["-t", "nat", "-S"]).env(LOCK, &lock);
            cluster.beside(cluster.node(KUBE_PROXY)?, &mut look)?;
            if printed(&mut look).is_ok() {
                tables = Tables::Legacy;
                folders.insert(0, link(cluster.folder(), &legacy)?);
            }
        }
        let path = env::join_paths(folders).context("a folder of the PATH has a colon")?;
        Ok(Self { tables, environment: [("PATH", path), (LOCK, lock.into())] })
    }

    /// What makes a program find it.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        self.environment.clone()
    }
}

/// A folder in which it has the names that others call it by.
fn link(folder: &Path, legacy: &Path) -> Result<PathBuf> {
    let folder = folder.join("iptables");
    fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for end in ["", "-save", "-restore"] {
        let mut of = legacy.as_os_str().to_owned();
        of.push(end);
        let link = folder.join(format!("iptables{end}"));
        symlink(&of, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(folder)
}
