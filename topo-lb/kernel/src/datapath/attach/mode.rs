//! Whether the attached programs translate or only observe: a mark among the pins. The kernel's counters
//! belong to one of both.

use std::path::{Path, PathBuf};
use std::{fs, io};

use topo_lb_common::counters::Counters;

use crate::datapath::Datapath;
use crate::datapath::maps::counters::MappedCounters;
use crate::datapath::maps::error::OpenError;

/// The directory that marks programs that only observe.
pub(crate) const OBSERVING: &str = "observing";

/// The mode cannot be marked.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// The mark cannot be made or removed.
    #[error("cannot make or remove {}: {}", .0.display(), .1)]
    Mark(PathBuf, io::Error),
    /// The counters cannot be cleared.
    #[error("{0}")]
    Counters(#[from] OpenError),
}

/// Whether the programs that are pinned here only observe.
#[must_use]
pub fn observes(pin_dir: &Path) -> bool {
    pin_dir.join(OBSERVING).is_dir()
}

impl Datapath {
    /// Marks the mode of the attached programs. If the last ones had the other one, connections by
    /// locality and refusals begin at zero: what would have been is not what has been.
    ///
    /// # Errors
    /// The mark or the counters cannot be written; the next start tries again.
    pub fn mark_mode(&self) -> Result<(), ModeError> {
        let pin_dir = &self.options.pin_dir;
        let mark = pin_dir.join(OBSERVING);
        if observes(pin_dir) == self.options.observe {
            return Ok(());
        }
        MappedCounters::open(pin_dir)?.fill(&Counters::default());
        let change = if self.options.observe { fs::create_dir } else { fs::remove_dir };
        change(&mark).map_err(|error| ModeError::Mark(mark, error))
    }
}
