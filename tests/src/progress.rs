//! Shows the current step on standard error.

use std::io::{IsTerminal, Write, stderr};
use std::time::Instant;

use anyhow::Result;

use crate::paint::{DIM, GREEN, RED, paint};

/// One line for each step.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    terminal: bool,
}

impl Progress {
    /// For this process's standard error.
    #[must_use]
    pub fn new() -> Self {
        Self { terminal: stderr().is_terminal() }
    }

    /// Runs `work`; shows its title meanwhile, then its outcome and duration.
    pub fn step<T>(&self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let outcome = self.while_under_way(title, work);
        let mark = match outcome {
            Ok(_) => paint(GREEN, "✓"),
            Err(_) => paint(RED, "✗"),
        };
        let time = paint(DIM, &format!("{:.1} s", begun.elapsed().as_secs_f64()));
        anstream::eprintln!("{mark} {title}  {time}");
        outcome
    }

    /// Runs `work`; on a terminal shows its title meanwhile.
    pub fn while_under_way<T>(&self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.terminal {
            write(&format!("… {title}"));
        }
        let outcome = work();
        if self.terminal {
            write("\r\x1b[K");
        }
        outcome
    }
}

/// Ignores errors: standard error may be closed.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
    let _ = stderr().flush();
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
