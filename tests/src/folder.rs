//! A folder for files of one lab or one test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{env, fs, process};

use anyhow::Result;
use fs_err as fs;

use crate::permit::permit;
use crate::residue;

/// A folder; dropping this removes it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder; its parent must exist.
    pub fn make(path: PathBuf) -> Result<Self> {
        let _permit = permit();
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Makes an empty folder for a unit test, with a name of its own, and returns its true path.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn temporary() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("topo-lb-test-{}-{}", process::id(), MADE.fetch_add(1, Relaxed));
        let parent = env::temp_dir().canonicalize().context("no folder for temporary files")?;
        Self::make(parent.join(name))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = residue::remove_tree(&self.0) {
            eprintln!("{error:#}");
        }
    }
}
