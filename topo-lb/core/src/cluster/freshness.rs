//! How fresh a source's state is.

use std::time::SystemTime;

/// How fresh a source's state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Changes arrive as they happen.
    #[default]
    Live,
    /// As of this time: when it was saved, or when the API server last sent something.
    AsOf(SystemTime),
}
