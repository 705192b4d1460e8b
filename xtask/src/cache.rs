//! Downloads and builds that are kept in the user's cache, outside the repository.

use fs_err::{self as fs, File};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::progress;

/// The folder with this name.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    folder_below(env::var_os("XDG_CACHE_HOME"), env::home_dir(), name)
        .context("neither XDG_CACHE_HOME nor HOME says where caches go")
}

/// Whether the folder with this name exists.
pub(crate) fn has(name: &str) -> bool {
    folder(name).is_ok_and(|folder| folder.is_dir())
}

/// Ignores a relative `XDG_CACHE_HOME` (XDG Base Directory Specification 0.8).
fn folder_below(xdg: Option<OsString>, home: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    let caches = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(home?.join(".cache")))?;
    Some(caches.join("topo-lb").join(name))
}

/// Makes a folder unless it exists. `work` gets a temporary folder, and returns the folder in it
/// that becomes the result. After a failure the temporary folder stays for the next attempt.
///
/// # Errors
/// `work` fails, or the file system refuses.
pub(crate) fn make_once(folder: &Path, work: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let (lock, room) = (beside(folder, ".lock"), beside(folder, ".building"));
    fs::create_dir_all(&room)?;
    let file = File::create(&lock)?;
    if file.try_lock().is_err() {
        progress::note(&format!(
            "waiting for another cargo xtask, which works in {}",
            room.display()
        ));
        file.lock()?;
    }
    if folder.is_dir() {
        return Ok(());
    }
    let made = work(&room)?;
    fs::rename(&made, folder)?;
    if !room.exists() {
        return Ok(());
    }
    Ok(fs::remove_dir_all(&room)?)
}

/// Appends `end` to the name of a path.
fn beside(folder: &Path, end: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(end);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_kept_among_the_users_caches() {
        let home = || Some(PathBuf::from("/home/me"));
        let expected = Some("/home/me/.cache/topo-lb/kernels/6.1".into());
        assert_eq!(folder_below(None, home(), "kernels/6.1"), expected);
        assert_eq!(folder_below(Some("relative".into()), home(), "kernels/6.1"), expected);
        let elsewhere = folder_below(Some("/var/caches".into()), home(), "qemu");
        assert_eq!(elsewhere, Some("/var/caches/topo-lb/qemu".into()));
        assert_eq!(folder_below(None, None, "qemu"), None);
    }

    #[test]
    fn what_was_begun_is_not_taken_for_whole() {
        let base = env::temp_dir().join(format!("xtask-cache-{}", std::process::id()));
        let folder = base.join("thing");
        let make = |fails: bool| {
            make_once(&folder, |room| {
                fs::create_dir_all(room.join("made"))?;
                anyhow::ensure!(!fails, "no network");
                Ok(room.join("made"))
            })
        };
        assert!(make(true).is_err());
        assert!(!folder.exists());
        make(false).unwrap();
        assert!(folder.is_dir() && !base.join("thing.building").exists());
        make(true).unwrap();
        fs::remove_dir_all(base).unwrap();
    }
}
