//! Why a saved state cannot be used or written.

use std::io;
use std::path::PathBuf;

use topo_lb_core::flag::STATE_DIR;

/// Why a saved state cannot be used or written. Never fatal.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read.
    #[error(
        "the saved state {path} cannot be read ({reason}): the agent starts without it; check the \
         folder that {STATE_DIR} names"
    )]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The file is damaged, of another version or of another cluster.
    #[error("the saved state {path} is not used: {reason}; it was set aside as {aside}")]
    SetAside {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Its new name.
        aside: PathBuf,
    },
    /// Like [`SetAside`](Self::SetAside), but the file stays until it is overwritten.
    #[error("the saved state {path} is not used: {reason}; and it cannot be set aside ({error})")]
    InTheWay {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Why it cannot be renamed.
        error: io::Error,
    },
    /// The saved state has no Node of this name.
    #[error(
        "the saved state {path} is not used: it has no Node {node:?}; this agent waits for the API \
         server"
    )]
    OtherNode {
        /// Which file.
        path: PathBuf,
        /// This node's name.
        node: String,
    },
    /// The state cannot be written.
    #[error(
        "the state cannot be saved as {path} ({reason}): a restart without an API server will start \
         from what was saved before; check the room on that disk, and that it can be written to"
    )]
    NotSaved {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
}
