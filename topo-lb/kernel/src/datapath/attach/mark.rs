//! Marks: empty directories beside the pins, which outlive the agent. Each says what an agent has made
//! elsewhere in the kernel, so that the next one or `cleanup` removes that and nothing of others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::datapath::link::DIRECTORY;

/// A mark, which is there or not.
#[derive(Debug)]
pub(super) struct Mark(PathBuf);

impl Mark {
    /// There can be a masquerade table. Without this mark nothing is asked of nftables, which would load
    /// kernel modules.
    pub(super) fn of_masquerade(pin_dir: &Path) -> Self {
        Self(pin_dir.join("masquerade"))
    }

    /// The devices with a [mark of a clsact queueing discipline](Self::of_clsact).
    pub(super) fn with_clsact(pin_dir: &Path) -> Vec<u32> {
        let entries = fs::read_dir(pin_dir.join(DIRECTORY)).into_iter().flatten().flatten();
        let device = |name: &str| name.strip_prefix("clsact_")?.parse().ok();
        entries.filter_map(|entry| device(entry.file_name().to_str()?)).collect()
    }

    /// The device had no clsact queueing discipline before ours.
    pub(super) fn of_clsact(pin_dir: &Path, device: u32) -> Self {
        Self(pin_dir.join(DIRECTORY).join(format!("clsact_{device}")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.exists()
    }

    /// Sets it, unless it is set.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn set(&self) -> io::Result<()> {
        match fs::create_dir(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes it.
    ///
    /// # Errors
    /// It is not set, or the directory cannot be removed.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_dir(self.0)
    }
}
