//! How long an API server may take.

use std::time::Duration;

/// How long things may take; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Longest wait for a connection, with all its routes and TLS.
    pub(super) connect: Duration,
    /// Longest silence of the server before a connection counts as dead. Bookmarks come about every
    /// minute; where they do not, because nothing of a kind has changed since the server was started or
    /// because it does not send any, the watch goes on by another connection from where it was.
    pub(super) read: Duration,
    /// What a server may be expected to mend by itself is said when it lasts for longer: one that was
    /// just started knows no roles yet, and answers 403. Longer for one that has served before.
    pub(super) settling: Duration,
    /// A watch that is closed for less than this is no news.
    pub(super) grace: Duration,
    /// Credentials are not read anew more often.
    pub(super) renewal: Duration,
}

impl Timing {
    pub(super) const DEFAULT: Self = Self {
        connect: Duration::from_secs(20),
        read: Duration::from_secs(90),
        settling: Duration::from_secs(20),
        grace: Duration::from_secs(10),
        renewal: Duration::from_secs(5),
    };
}
