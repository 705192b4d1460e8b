//! The iptables that kube-proxy calls on its node, whatever the machine's own default is.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::cluster::Cluster;
use crate::process::printed;
use crate::requirements;

/// Names the lock file of iptables: the lab does not use the machine's.
const LOCK: &str = "XTABLES_LOCKFILE";

/// Where iptables writes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// The kernel's own tables of iptables.
    Legacy,
    /// Tables of nftables; each match is translated, or called through a compatibility layer.
    Nftables,
}

impl Tables {
    /// The name that iptables prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nftables => "nf_tables",
        }
    }

    /// The most Services measured with kube-proxy. kube-proxy writes all rules twice: a minute of
    /// work for 50,000 with legacy tables, two minutes for 10,000 with nftables.
    pub fn limit(self) -> u32 {
        match self {
            Self::Legacy => 50_000,
            Self::Nftables => 10_000,
        }
    }
}

/// iptables for programs that call it by name.
#[derive(Debug)]
pub struct Iptables {
    /// Where it writes rules.
    pub tables: Tables,
    environment: [(&'static str, OsString); 2],
}

impl Iptables {
    /// Prefers legacy tables where the kernel has them, as the wrapper in kube-proxy's image does
    /// on a node without rules (build/debian-iptables/iptables-wrapper of Kubernetes 1.20);
    /// otherwise the machine's default. Looks on this node.
    pub fn find(cluster: &Cluster, node: &str) -> Result<Self> {
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
            cluster.beside(cluster.node(node)?, &mut look)?;
            if printed(&mut look).is_ok() {
                tables = Tables::Legacy;
                folders.insert(0, link(cluster.folder(), &legacy)?);
            }
        }
        let path = env::join_paths(folders).context("a folder of the PATH has a colon")?;
        Ok(Self { tables, environment: [("PATH", path), (LOCK, lock.into())] })
    }

    /// The environment that makes a program use it.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        self.environment.clone()
    }
}

/// Makes a folder with links of the names by which other programs call iptables. Whoever asks again, as each
/// part of the bench does, gets the same folder.
fn link(folder: &Path, legacy: &Path) -> Result<PathBuf> {
    let folder = folder.join("iptables");
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir(&folder)?;
    for family in ["iptables", "ip6tables"] {
        for end in ["", "-save", "-restore"] {
            let of = legacy.with_file_name(format!("{family}-legacy{end}"));
            symlink(&of, folder.join(format!("{family}{end}")))?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::prefix::Prefix;

    #[test]
    fn each_part_of_the_bench_may_ask_for_it() {
        let folder = Folder::make(Prefix::new().folder()).unwrap();
        let ask = || link(folder.path(), Path::new("/usr/sbin/iptables-legacy")).unwrap();
        let first = ask();
        assert_eq!(first, ask());
        let restore = fs::read_link(first.join("ip6tables-restore")).unwrap();
        assert_eq!(restore, Path::new("/usr/sbin/ip6tables-legacy-restore"));
    }
}
