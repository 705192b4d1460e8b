//! Errors of opening, reading and writing maps, and whether a retry can help.

use std::io;
use std::path::PathBuf;
use topo_lb_core::flag::{MAX_ENDPOINTS, MAX_SERVICES, PIN_DIR};

/// A failed write or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kernel refused.
    #[error("map {map}: cannot {action}: {reason}{}", advice(*errno))]
    Map {
        /// The map's name.
        map: &'static str,
        /// The action that failed.
        action: &'static str,
        /// The kernel's error number; `None` if the error is not the kernel's.
        errno: Option<i32>,
        /// The kernel's answer.
        reason: String,
    },
    /// The wait for a grace period failed.
    #[error("waiting for running programs failed: {0}; the agent needs it to reuse records safely")]
    Grace(io::Error),
}

impl StoreError {
    /// Whether the same call may succeed later without anybody's action.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        let errno = match self {
            Self::Map { errno, .. } => *errno,
            Self::Grace(error) => error.raw_os_error(),
        };
        matches!(errno, Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY | libc::EINTR))
    }
}

/// What to do, as the end of the error's text; empty if a retry is enough.
fn advice(errno: Option<i32>) -> String {
    match errno {
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => String::new(),
        Some(libc::ENOMEM) => {
            format!(
                "; if this lasts, raise the container's memory limit, or lower {MAX_SERVICES} and \
                 {MAX_ENDPOINTS}"
            )
        }
        Some(libc::E2BIG | libc::ENOSPC) => {
            format!(
                "; the map is full although the agent counted room in it, so somebody else writes to it: \
                 stop that, and restart the agent, or start it with a larger {MAX_SERVICES} or \
                 {MAX_ENDPOINTS}"
            )
        }
        Some(libc::EPERM | libc::EACCES) => {
            "; this process may not use the map any more: compare its capabilities and security \
             profile with `topo-lb check`, and restart it"
                .to_owned()
        }
        _ => {
            "; a retry does not help: restart the agent, and run `topo-lb check` if it comes again"
                .to_owned()
        }
    }
}

/// Why a pinned map cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such pin.
    #[error(
        "nothing is installed at {0}: no agent ran with this {PIN_DIR}, or `topo-lb cleanup` removed it"
    )]
    Absent(String),
    /// The pin exists, but is not the expected map.
    #[error("cannot open the pinned map {path}: {reason}")]
    Map {
        /// Where it is pinned.
        path: String,
        /// The kernel's answer, or how the map differs.
        reason: String,
    },
}

/// Why pinned maps cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// They cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// They cannot be read.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// A pin of an attached program cannot be read.
    #[error("the pin {} cannot be read: {}", .0.display(), .1)]
    Link(PathBuf, #[source] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32) -> StoreError {
        StoreError::Map {
            map: "services4",
            action: "write",
            errno: Some(errno),
            reason: "no".into(),
        }
    }

    #[test]
    fn an_error_says_whether_a_retry_can_help_and_what_to_do() {
        for (errno, may_pass, advice) in [
            (libc::ENOMEM, true, "memory limit"),
            (libc::EAGAIN, true, "cannot write: no"),
            (libc::EBUSY, true, "cannot write: no"),
            (libc::EINTR, true, "cannot write: no"),
            (libc::E2BIG, false, "larger --max-services or --max-endpoints"),
            (libc::ENOSPC, false, "larger --max-services or --max-endpoints"),
            (libc::EPERM, false, "capabilities"),
            (libc::EINVAL, false, "restart the agent"),
        ] {
            let error = refused(errno);
            assert_eq!(error.may_pass(), may_pass, "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
        assert_eq!(refused(libc::EAGAIN).to_string(), "map services4: cannot write: no");
        assert!(!StoreError::Grace(io::Error::from_raw_os_error(libc::EINVAL)).may_pass());
    }
}
