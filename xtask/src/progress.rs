//! Progress for people: one line per step, on standard error.
//!
//! `anstream` omits colours without a terminal, with `NO_COLOR` (<https://no-color.org>), and on
//! terminals without colours.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use anstream::{eprint, eprintln};
use anstyle::{AnsiColor, Effects, Style};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) const BOLD: Style = Style::new().effects(Effects::BOLD);
pub(crate) const DIM: Style = Style::new().effects(Effects::DIMMED);
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// How often the spinner turns.
const PERIOD: Duration = Duration::from_millis(80);

/// Prints a line.
pub(crate) fn line(text: &str) {
    eprintln!("{text}");
}

/// Prints information, indented.
pub(crate) fn note(text: &str) {
    line(&format!("  {text}"));
}

pub(crate) fn warn(text: &str) {
    line(&format!("{} {text}", paint(YELLOW, "!")));
}

/// Prints the error that ends the program.
pub(crate) fn error(text: &str) {
    line(&format!("{} {text}", paint(RED, "error:")));
}

pub(crate) fn headline(text: &str) {
    line(&format!("\n{}", paint(BOLD, text)));
}

/// Colours a text for the functions above.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// A running step, shown on the screen.
#[derive(Debug)]
pub(crate) struct Running {
    title: String,
    begun: Instant,
    /// `None` without a terminal.
    spinner: Option<ProgressBar>,
}

impl Running {
    pub(crate) fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let spinner = stderr().is_terminal().then(|| spinner(&title));
        if spinner.is_none() {
            // The end of the step completes this line, so a log shows the running step.
            eprint!("  {title} … ");
            // Fails only if standard error is closed.
            let _ = stderr().flush();
        }
        Self { title, begun: Instant::now(), spinner }
    }

    /// Shows the last output line of the step's command.
    pub(crate) fn tick(&self, last_line: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_prefix(format!("{}  {}", self.title, clock(self.begun.elapsed())));
            spinner.set_message(last_line.replace(char::is_control, ""));
        }
    }

    /// Ends the step, and shows its duration.
    pub(crate) fn end(self, has_succeeded: bool) {
        let time = clock(self.begun.elapsed());
        let (style, mark, time) = match has_succeeded {
            true => (GREEN, "✓", time),
            false => (RED, "✗", format!("failed after {time}")),
        };
        match self.spinner {
            Some(spinner) => {
                spinner.finish_and_clear();
                line(&format!("{} {}  {}", paint(style, mark), self.title, paint(DIM, &time)));
            }
            None => line(&time),
        }
    }
}

fn spinner(title: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner:.yellow} {prefix}  {wide_msg:.dim}");
    let spinner = ProgressBar::new_spinner().with_prefix(title.to_owned());
    // Only an invalid template has no style; the default style is good enough.
    spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    spinner.enable_steady_tick(PERIOD);
    spinner
}

/// A duration for people: tenths of a second up to a minute, then minutes and seconds.
pub(crate) fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if seconds < 60 {
        format!("{:.1} s", elapsed.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_short_and_exact_enough() {
        assert_eq!(clock(Duration::from_millis(240)), "0.2 s");
        assert_eq!(clock(Duration::from_millis(59_940)), "59.9 s");
        assert_eq!(clock(Duration::from_secs(60)), "1 min 00 s");
        assert_eq!(clock(Duration::from_secs(3725)), "62 min 05 s");
    }
}
