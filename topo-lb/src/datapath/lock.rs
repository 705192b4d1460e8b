//! One agent to one pin directory.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a pin directory cannot be had.
#[derive(Debug, Error)]
pub enum LockError {
    /// An agent runs on it.
    #[error(
        "another agent holds {}: stop it first, or give this one its own --pin-dir", .0.display()
    )]
    Held(PathBuf),
    /// It cannot be opened or locked.
    #[error("{} cannot be locked: {source}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A pin directory that nobody else uses as long as this lives; the kernel gives it back however
/// the process ends.
#[derive(Debug)]
pub struct Lock {
    _directory: File,
}

impl Lock {
    /// Locks `directory`, which exists.
    ///
    /// # Errors
    ///
    /// Another process holds it, or it cannot be opened.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let unusable = |source| LockError::Unusable { path: directory.to_owned(), source };
        let file = File::open(directory).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _directory: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held(directory.to_owned())),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }
}
