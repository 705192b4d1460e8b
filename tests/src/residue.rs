//! Finds and removes what labs leave behind, by name.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::requirements::BPFFS;
use crate::{cgroup, netns};

/// Where programs say what they keep: on every machine the same.
pub(crate) const STATES: &str = "/run";

/// All namespaces, cgroups (with their processes), pins and folders with names that `is_ours`
/// accepts.
pub fn find(is_ours: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    Ok(found(is_ours)?.into_iter().map(|(path, _)| path).collect())
}

type Remove = fn(&Path) -> Result<()>;

/// Like [`find`], each with the function that removes it.
fn found(is_ours: impl Fn(&str) -> bool) -> Result<Vec<(PathBuf, Remove)>> {
    // Cgroups first: their processes use everything else.
    let version1 = cgroup::version1()?.into_iter().map(|hierarchy| hierarchy.path);
    let cgroups = version1.chain([cgroup::root()?]);
    let mut places: Vec<(PathBuf, Remove)> =
        cgroups.map(|path| (path, cgroup::remove as Remove)).collect();
    // Unpinning the last link of a program detaches it.
    places.push((BPFFS.into(), remove_tree));
    places.push((netns::FOLDER.into(), netns::remove));
    places.push((STATES.into(), remove_tree));
    places.push((std::env::temp_dir(), remove_tree));
    let mut found = Vec::new();
    for (place, remove) in places {
        let entries = match fs::read_dir(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let ours = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(&is_ours);
        found.extend(entries.flatten().filter(ours).map(|entry| (entry.path(), remove)));
    }
    Ok(found)
}

/// Removes everything with a name that `is_ours` accepts, and kills its processes.
///
/// # Errors
/// Something cannot be removed; the rest is removed all the same.
pub fn sweep(is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let outcomes = found(is_ours)?.into_iter().map(|(path, remove)| remove(&path));
    let failures = outcomes.filter_map(|outcome| Some(format!("{:#}", outcome.err()?)));
    let failures: Vec<_> = failures.collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Removes a folder with its content; accepts that there is none.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
