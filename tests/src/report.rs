//! The results of connections while Services change and agents restart.

use serde::{Deserialize, Serialize};

/// The most errors to describe; all are counted.
const DESCRIBED: usize = 10;

/// Counts, and descriptions of the first errors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Connections made and checked.
    pub connections: u64,
    /// Connections rightly refused or untouched.
    pub not_translated: u64,
    /// Changes of Services.
    pub changes: u64,
    /// Restarts of the agent.
    pub restarts: u64,
    /// Connections answered by a pod that was not an endpoint at that time.
    pub wrong_endpoint: u64,
    /// Connections that failed, or were wrongly refused or untouched, and open sockets that lost
    /// their endpoint or the address of their peer.
    pub failed: u64,
    /// Descriptions of the first errors.
    pub described: Vec<String>,
}

impl Report {
    /// Whether there was no error.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.wrong_endpoint == 0 && self.failed == 0
    }

    /// Adds another report.
    pub fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.not_translated += other.not_translated;
        self.changes += other.changes;
        self.restarts += other.restarts;
        self.wrong_endpoint += other.wrong_endpoint;
        self.failed += other.failed;
        self.described.extend(other.described);
        self.described.truncate(DESCRIBED);
    }

    /// Describes an error, unless enough are described.
    pub fn describe(&mut self, what: impl FnOnce() -> String) {
        if self.described.len() < DESCRIBED {
            self.described.push(what());
        }
    }
}
