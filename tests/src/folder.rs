//! A folder for files of one lab.

use std::path::{Path, PathBuf};

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
