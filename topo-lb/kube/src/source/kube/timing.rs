//! How long an API server may take.

use std::time::Duration;

/// Time limits; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Time limit for a connection, including all routes and TLS.
    pub(super) connect: Duration,
    /// Longest silence of a connection. Bookmarks come about every minute. Without them (the server
    /// sends none, or no object changed since its start) the watch resumes on another connection.
    pub(super) read: Duration,
    /// Failures that a server may fix by itself are reported only after this time: a freshly
    /// started server knows no roles yet and answers 403. Longer after the server has served.
    pub(super) settling: Duration,
    /// A watch that is closed for less than this still counts as open.
    pub(super) grace: Duration,
    /// How long another server serves before the first one is asked again.
    pub(super) back: Duration,
    /// Shortest interval between readings of the credentials.
    pub(super) renewal: Duration,
    /// Pause if the server does not have an optional kind, or does not allow to read it. Up to a tenth more,
    /// at random.
    pub(super) absent: Duration,
    /// How long a deleted custom resource stays in force, before the agent looks up whether its kind is still
    /// there: who deletes a CustomResourceDefinition deletes all its objects.
    pub(super) deletion: Duration,
}

impl Timing {
    pub(super) const DEFAULT: Self = Self {
        connect: Duration::from_secs(20),
        read: Duration::from_secs(90),
        settling: Duration::from_secs(20),
        grace: Duration::from_secs(10),
        back: Duration::from_secs(60),
        renewal: Duration::from_secs(5),
        absent: Duration::from_secs(60),
        deletion: Duration::from_secs(5),
    };

    /// For somebody who waits for what the server says, and sees when it is over.
    pub(super) const SHOWN: Self = Self { settling: Duration::from_millis(300), ..Self::DEFAULT };
}
