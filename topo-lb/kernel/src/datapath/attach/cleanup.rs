//! Detaches and unpins everything.

use std::fs;
use std::io;
use std::path::Path;

use topo_lb_common::maps;

use super::accounting;
use super::devices;
use super::guards;
use super::masquerade;
use super::mode;
use crate::datapath::error::CleanupError;
use crate::datapath::hook::Hook;
use crate::datapath::host::lock::Lock;
use crate::datapath::link::{DIRECTORY, pin_path, pin_path_new};
use crate::datapath::maps::renewal;

/// What [`cleanup`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hooks with a program that was detached.
    pub detached: Vec<String>,
    /// Maps that were unpinned.
    pub unpinned: Vec<String>,
    /// Whether the nftables table was removed.
    pub table: bool,
    /// Whether the pin directory was removed. It stays if it has files of others.
    pub directory: bool,
}

impl Report {
    /// Whether there was anything to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Detaches all programs, unpins all maps and removes the pin directory. Touches only what topo-lb
/// created. New connections to Services are no longer translated; existing ones go on.
///
/// # Errors
/// An agent holds the directory, or something cannot be removed; a second call removes the rest.
pub fn cleanup(pin_dir: &Path) -> Result<Report, CleanupError> {
    let mut report = Report::default();
    if !pin_dir.exists() {
        return Ok(report);
    }
    let _lock = Lock::take(pin_dir)?;
    report.detached.extend(devices::detach_all(pin_dir));
    // The reverse of attaching: replies must be translated as long as connections are.
    for hook in Hook::ALL.into_iter().rev() {
        let pinned = remove(&pin_path(pin_dir, hook))?;
        if remove(&pin_path_new(pin_dir, hook))? || pinned {
            report.detached.push(hook.name().to_owned());
        }
    }
    let accounting = accounting::remove(pin_dir);
    if accounting.map_err(|(path, error)| CleanupError::Remove(path, error))? {
        report.detached.push(accounting::NAME.to_owned());
    }
    let guards = guards::remove(pin_dir);
    let guards = guards.map_err(|(path, error)| CleanupError::Remove(path, error))?;
    report.detached.extend(guards.into_iter().map(str::to_owned));
    // Now no packet is marked any more.
    report.table = masquerade::remove(pin_dir).map_err(CleanupError::Masquerade)?;
    for name in maps::ALL {
        if remove(&pin_dir.join(name))? {
            report.unpinned.push(name.to_owned());
        }
    }
    renewal::remove_all(pin_dir).map_err(|(path, error)| CleanupError::Remove(path, error))?;
    remove_empty(&pin_dir.join(DIRECTORY))?;
    remove_empty(&pin_dir.join(mode::OBSERVING))?;
    report.directory = remove_empty(pin_dir)?;
    Ok(report)
}

/// Removes a file; returns whether it existed.
fn remove(path: &Path) -> Result<bool, CleanupError> {
    removed(path, fs::remove_file(path), io::ErrorKind::NotFound)
}

/// Removes a directory if it is empty; returns whether it did.
fn remove_empty(path: &Path) -> Result<bool, CleanupError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        result => removed(path, result, io::ErrorKind::DirectoryNotEmpty),
    }
}

fn removed(path: &Path, result: io::Result<()>, kept: io::ErrorKind) -> Result<bool, CleanupError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == kept => Ok(false),
        Err(error) => Err(CleanupError::Remove(path.to_owned(), error)),
    }
}
