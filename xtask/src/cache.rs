//! Downloads and builds that are kept in the user's cache, outside the repository.

use fs_err::{self as fs, File};
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::alone;
use crate::progress;

/// The folder with this name (XDG Base Directory Specification 0.8).
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let given = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let place = place(given, env::home_dir());
    let place = place.context("neither XDG_CACHE_HOME nor HOME has an absolute path for caches")?;
    Ok(place.join("topo-lb").join(name))
}

/// `XDG_CACHE_HOME`, which counts only if absolute, or else `.cache` in the user's home.
fn place(given: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let home = home.map(|home| home.join(".cache"));
    [given, home].into_iter().flatten().find(|path| path.is_absolute())
}

/// Whether the folder with this name exists.
pub(crate) fn has(name: &str) -> bool {
    folder(name).is_ok_and(|folder| folder.is_dir())
}

/// Makes a folder unless it exists. `work` gets a temporary folder, and returns the folder in it
/// that becomes the result. After a failure the temporary folder stays for the next attempt.
///
/// # Errors
/// `work` fails, the file system refuses, or [nothing may be downloaded](alone::may_get).
pub(crate) fn make_once(folder: &Path, work: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    alone::may_get(&folder.display().to_string())?;
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
    fn caches_need_no_home_where_they_have_a_place_of_their_own() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(place(path("/caches"), None), path("/caches"));
        assert_eq!(place(path("relative"), path("/home/me")), path("/home/me/.cache"));
        assert_eq!(place(None, path("/home/me")), path("/home/me/.cache"));
        assert_eq!(place(None, None), None);
    }

    #[test]
    fn what_was_begun_is_not_taken_for_whole() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("thing");
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
        assert!(folder.is_dir() && !base.path().join("thing.building").exists());
        make(true).unwrap();
    }
}
