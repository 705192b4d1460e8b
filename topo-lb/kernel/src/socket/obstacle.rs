//! What keeps the agent from sockets.

use super::diag::Unable;

/// Why sockets, or some of them, cannot be ended.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// The kernel does not support it.
    #[error("{0}")]
    Kernel(String),
    /// The sockets of these processes cannot be found.
    #[error(
        "{0} processes cannot be seen from here: it takes the host's pid namespace (hostPID) and \
         CAP_SYS_PTRACE"
    )]
    Hidden(usize),
    /// Namespaces that cannot be entered.
    #[error(
        "going into other network namespaces takes CAP_SYS_ADMIN, and opening others' sockets \
             CAP_SYS_PTRACE"
    )]
    Forbidden,
}

impl From<Unable> for Obstacle {
    fn from(unable: Unable) -> Self {
        Self::Kernel(unable.to_string())
    }
}
