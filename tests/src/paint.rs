//! Styles of the programs' texts. `anstream`, which prints them, omits them without a terminal and with
//! `NO_COLOR` (<https://no-color.org>).

use anstyle::{AnsiColor, Style};

/// Headings.
pub const BOLD: Style = Style::new().bold();
/// What matters less.
pub const DIM: Style = Style::new().dimmed();
/// Failures.
pub const RED: Style = AnsiColor::Red.on_default();
/// Successes.
pub const GREEN: Style = AnsiColor::Green.on_default();
/// Warnings.
pub const YELLOW: Style = AnsiColor::Yellow.on_default();
/// Names.
pub const CYAN: Style = AnsiColor::Cyan.on_default();

/// A text in a style.
#[must_use]
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
