//! Finds and removes what labs leave behind, by name.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fs_err as fs;

use crate::requirements::BPFFS;
use crate::{cgroup, memory, netns};

/// All namespaces, cgroups (with their processes), pins and folders with names that `is_ours`
/// accepts.
pub fn find(is_ours: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for place in places()? {
        let entries = match fs::read_dir(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(&is_ours) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Cgroups first: their processes use everything else.
fn places() -> Result<Vec<PathBuf>> {
    let mut places = vec![cgroup::root()?];
    places.extend(memory::version1()?);
    places.extend([BPFFS.into(), netns::FOLDER.into(), std::env::temp_dir()]);
    Ok(places)
}

/// Removes everything with a name that `is_ours` accepts, and kills its processes.
///
/// # Errors
/// Something cannot be removed; the rest is removed all the same.
pub fn sweep(is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let mut cgroups = vec![cgroup::root()?];
    cgroups.extend(memory::version1()?);
    let mut failures = Vec::new();
    for path in find(is_ours)? {
        let outcome = if cgroups.iter().any(|cgroup| path.starts_with(cgroup)) {
            cgroup::remove(&path)
        } else if path.starts_with(netns::FOLDER) {
            netns::remove(&path)
        } else {
            // Unpinning the last link of a program detaches it.
            remove_tree(&path)
        };
        failures.extend(outcome.err().map(|error| format!("{error:#}")));
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}

/// Removes a folder with its content; accepts that there is none.
pub fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
