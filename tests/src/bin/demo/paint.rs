//! Colours: only on a terminal, never with `NO_COLOR` (<https://no-color.org>).

use std::env;
use std::io::{IsTerminal, stderr, stdout};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    colour: bool,
}

impl Paint {
    pub(crate) fn of_standard_output() -> Self {
        Self::on(stdout().is_terminal())
    }

    pub(crate) fn of_standard_error() -> Self {
        Self::on(stderr().is_terminal())
    }

    fn on(terminal: bool) -> Self {
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { colour: terminal && !plain }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with(1, text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with(2, text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with(31, text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with(32, text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with(33, text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with(36, text)
    }

    /// SGR parameters of ECMA-48.
    fn with(self, parameter: u8, text: &str) -> String {
        if self.colour { format!("\x1b[{parameter}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
