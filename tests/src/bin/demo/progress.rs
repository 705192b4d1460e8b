//! What is under way, on standard error.

use std::io::{IsTerminal, Write, stderr};
use std::time::Instant;

use anyhow::Result;

use crate::paint::Paint;

/// One line for each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    terminal: bool,
    paint: Paint,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { terminal: stderr().is_terminal(), paint: Paint::of_standard_error() }
    }

    /// Runs `work`; its title is on the screen while it does.
    ///
    /// # Errors
    /// `work` fails.
    pub(crate) fn step<T>(&self, title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.terminal {
            write(&format!("… {title}"));
        }
        let begun = Instant::now();
        let outcome = work();
        let mark = match outcome {
            Ok(_) => self.paint.green("✓"),
            Err(_) => self.paint.red("✗"),
        };
        let again = if self.terminal { "\r\x1b[K" } else { "" };
        let time = self.paint.dim(&format!("{:.1} s", begun.elapsed().as_secs_f64()));
        write(&format!("{again}{mark} {title}  {time}\n"));
        outcome
    }
}

/// Nobody is left to tell when standard error is closed.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
    let _ = stderr().flush();
}
