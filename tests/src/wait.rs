//! Waiting for what the kernel or an agent does in its own time.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a lab waits for something that should take milliseconds, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Asks `probe` again and again until it says yes; how long that took.
///
/// # Errors
/// `probe` fails, or still says no after `limit`: the error says that `what` did not come, and
/// what the last probe saw.
pub fn until<S: Display>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Result<(), S>>,
) -> Result<Duration> {
    let start = Instant::now();
    loop {
        match probe()? {
            Ok(()) => return Ok(start.elapsed()),
            Err(seen) if start.elapsed() > limit => {
                bail!("{what} did not come within {limit:?}; last seen: {seen}")
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}
