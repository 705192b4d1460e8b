//! What a person sees: one line for each step, on standard error.

use std::env;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Standard error, as a terminal or as a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    terminal: bool,
    colour: bool,
}

/// The colours in use (SGR parameters).
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
}

impl Screen {
    /// Colours and a spinner only on a terminal; no colours either with `NO_COLOR`
    /// (<https://no-color.org>) or on a terminal that has none.
    pub(crate) fn of_standard_error() -> Self {
        let terminal = stderr().is_terminal();
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { terminal, colour: terminal && !plain }
    }

    /// No terminal, no colours.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { terminal: false, colour: false }
    }

    /// Starts a step: its title is on the screen while it runs.
    pub(crate) fn start(&self, title: impl Into<String>) -> Running {
        let running =
            Running { screen: *self, title: title.into(), begun: Instant::now(), frame: 0 };
        if self.terminal {
            running.draw("");
        } else {
            // Completed by the same line's end, so that a log shows what is under way.
            write(&format!("  {} … ", running.title));
        }
        running
    }

    /// A line as it is.
    pub(crate) fn line(&self, text: &str) {
        write(&format!("{text}\n"));
    }

    /// Something to know, on a line of its own.
    pub(crate) fn note(&self, text: &str) {
        self.line(&format!("  {text}"));
    }

    /// Something to know that nobody should overlook.
    pub(crate) fn warn(&self, text: &str) {
        write(&format!("{} {text}\n", self.paint(Colour::Yellow, "!")));
    }

    /// What went wrong, at the end.
    pub(crate) fn error(&self, text: &str) {
        write(&format!("{} {text}\n", self.paint(Colour::Red, "error:")));
    }

    /// A headline.
    pub(crate) fn headline(&self, text: &str) {
        write(&format!("\n{}\n", self.paint(Colour::Bold, text)));
    }

    /// The text, coloured where colours are on.
    pub(crate) fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }
}

/// A step under way.
#[derive(Debug)]
pub(crate) struct Running {
    screen: Screen,
    title: String,
    begun: Instant,
    frame: usize,
}

impl Running {
    /// Turns the spinner and shows the last line that the step's command wrote.
    pub(crate) fn tick(&mut self, last_line: &str) {
        if self.screen.terminal {
            self.frame += 1;
            self.draw(last_line);
        }
    }

    /// The step has succeeded.
    pub(crate) fn done(self) -> Duration {
        self.end(Colour::Green, "✓", "")
    }

    /// The step has failed.
    pub(crate) fn failed(self) -> Duration {
        self.end(Colour::Red, "✗", "failed after ")
    }

    fn end(self, colour: Colour, mark: &str, verdict: &str) -> Duration {
        let elapsed = self.begun.elapsed();
        let time = format!("{verdict}{}", clock(elapsed));
        if self.screen.terminal {
            let time = self.screen.paint(Colour::Dim, &time);
            write(&format!("\r\x1b[K{} {}  {time}\n", self.screen.paint(colour, mark), self.title));
        } else {
            write(&format!("{time}\n"));
        }
        elapsed
    }

    fn draw(&self, last_line: &str) {
        const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        let frame = self.screen.paint(Colour::Yellow, FRAMES[self.frame % FRAMES.len()]);
        let head = format!("{}  {}", self.title, clock(self.begun.elapsed()));
        // A line that wraps could not be overwritten.
        let width = width().saturating_sub(4);
        let head: String = head.chars().take(width).collect();
        let room = width.saturating_sub(head.chars().count() + 2);
        let tail: String =
            last_line.chars().filter(|letter| !letter.is_control()).take(room).collect();
        write(&format!("\r\x1b[K{frame} {head}  {}", self.screen.paint(Colour::Dim, &tail)));
    }
}

/// A duration as people say it: tenths of a second up to a minute, then minutes and seconds.
pub(crate) fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if seconds < 60 {
        format!("{:.1} s", elapsed.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

/// Columns of the terminal on standard error; 80 where it does not say.
fn width() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one `winsize`, and `size` is one that outlives the call.
    let status = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if status == 0 && size.ws_col > 0 { size.ws_col.into() } else { 80 }
}

/// Nobody is left to tell when standard error is closed.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
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

    #[test]
    fn without_colours_the_text_is_untouched() {
        let screen = Screen { terminal: true, colour: false };
        assert_eq!(screen.paint(Colour::Red, "text"), "text");
    }
}
