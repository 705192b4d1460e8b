//! What time it is.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC, by this host's clock; 0 before then.
#[must_use]
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs().cast_signed())
}
