//! What commands say beside their result, on standard error. Nobody has to listen: a reader that has gone does not
//! end a command in the middle of its work.

use std::fmt::Display;
use std::io::{self, Write as _};

use crate::called::called;

/// Says a sentence, after the name of this program.
pub fn say(sentence: impl Display) {
    line(format_args!("{}: {sentence}", called()));
}

/// Writes a line as it is.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
