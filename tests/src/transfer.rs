//! Bytes that a client in a pod moves through a TCP connection, and how it ends the connection.

use serde::{Deserialize, Serialize};

/// How a client ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It closes it.
    Close,
    /// It says that it sends no more, and reads until the other side does the same.
    HalfClose,
    /// It resets it (`SO_LINGER` of zero).
    Reset,
}

impl Ending {
    /// All.
    pub const ALL: [Self; 3] = [Self::Close, Self::HalfClose, Self::Reset];
}

/// What a program wrote to a connection, and read from it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes that `write` took.
    pub written: u64,
    /// Bytes that `read` returned.
    pub read: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, more: Self) {
        self.written += more.written;
        self.read += more.read;
    }
}
