//! Waits for asynchronous work of the kernel or an agent.

use std::env;
use std::fmt::Display;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// How long a lab waits for something that takes milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// `TOPO_LB_PATIENCE`: how many times slower than a real machine this one is.
static FACTOR: LazyLock<u32> = LazyLock::new(|| {
    let text = env::var("TOPO_LB_PATIENCE").unwrap_or_default();
    factor(&text).unwrap_or_else(|error| panic!("{error}"))
});

fn factor(text: &str) -> Result<u32, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(1),
        Ok(factor) if (1..=1_000).contains(&factor) => Ok(factor),
        _ => Err(format!("TOPO_LB_PATIENCE is {text:?}: it takes a whole number from 1 to 1000")),
    }
}

/// Multiplies a limit by `TOPO_LB_PATIENCE`, which is for emulated machines: they are many times
/// slower. All limits of the lab and its suites pass through here; [`until`] does it itself.
///
/// # Panics
/// The variable is not a whole number from 1 to 1000.
#[must_use]
pub fn patient(limit: Duration) -> Duration {
    limit * *FACTOR
}

/// Calls `probe` every 2 ms until it returns `Ok(())`, and returns how long that took.
///
/// # Errors
/// `probe` fails, or returns no `Ok(())` within `limit` ([`patient`]); the error has the last
/// result.
pub fn until<S: Display>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Result<(), S>>,
) -> Result<Duration> {
    let limit = patient(limit);
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

/// Calls `look` repeatedly until `is` accepts its result, and returns that.
///
/// # Errors
/// `look` fails, or `is` accepts nothing within `limit` ([`patient`]); the error has the last one.
pub fn until_is<S: Display>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<S>,
    is: impl Fn(&S) -> bool,
) -> Result<S> {
    let mut found = None;
    until(what, limit, || {
        let seen = look()?;
        if !is(&seen) {
            return Ok(Err(seen));
        }
        found = Some(seen);
        Ok(Ok(()))
    })?;
    found.context("until returns when something is found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_whole_number_and_one_by_default() {
        assert_eq!(factor(""), Ok(1));
        assert_eq!(factor("20"), Ok(20));
        for text in ["0", "-1", "1.5", "much", "1001"] {
            assert!(factor(text).unwrap_err().contains("TOPO_LB_PATIENCE"), "{text}");
        }
    }
}
