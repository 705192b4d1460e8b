//! One agent per pin directory.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use topo_lb_core::flag::PIN_DIR;

/// Why a pin directory cannot be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// An agent runs on it.
    #[error(
        "another agent holds {}: stop it first, or give this one its own {PIN_DIR}", .0.display()
    )]
    Held(PathBuf),
    /// It cannot be opened or locked.
    #[error("{} cannot be locked: {}", .0.display(), .1)]
    Unusable(PathBuf, #[source] io::Error),
}

/// Exclusive use of a pin directory. The kernel releases it however the process ends.
#[derive(Debug)]
pub struct Lock {
    _directory: File,
}

/// `topo-lb check` holds the lock for a moment, which a starting agent must tolerate.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

impl Lock {
    /// Locks an existing directory. Retries for a tenth of a second while it is locked.
    ///
    /// # Errors
    /// Another process holds it, or it cannot be opened.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        for _ in 0..ATTEMPTS {
            match Self::take_now(directory) {
                Err(LockError::Held(_)) => thread::sleep(PAUSE),
                result => return result,
            }
        }
        Err(LockError::Held(directory.to_owned()))
    }

    /// The same, without any pause.
    ///
    /// # Errors
    /// Another process holds it, or it cannot be opened.
    pub fn take_now(directory: &Path) -> Result<Self, LockError> {
        let unusable = |error| LockError::Unusable(directory.to_owned(), error);
        let file = File::open(directory).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _directory: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held(directory.to_owned())),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_only_for_a_moment_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let held = Lock::take(directory).unwrap();
        assert!(matches!(Lock::take(directory), Err(LockError::Held(_))));
        let release = thread::spawn(move || {
            thread::sleep(PAUSE);
            drop(held);
        });
        assert!(Lock::take(directory).is_ok());
        release.join().unwrap();
    }
}
