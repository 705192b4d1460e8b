//! What the executor needs of the maps: the one place where deciding ends and doing begins.

use std::net::SocketAddr;

use topo_lb_common::range::Range;

use crate::cluster::{Family, Frontend};
use crate::plan::{Entry, Installed};
use crate::topology::Chosen;

/// A write or a read that the maps did not take.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kernel refused.
    #[error("map {map}: cannot {action}: {reason}{}", advice(*errno))]
    Map {
        /// The map's name.
        map: &'static str,
        /// What was tried.
        action: &'static str,
        /// The kernel's error number; none where the kernel was not asked.
        errno: Option<i32>,
        /// What the kernel said.
        reason: String,
    },
    /// `membarrier(MEMBARRIER_CMD_GLOBAL)` failed, although it served at start.
    #[error("membarrier(2) failed: {0}; the agent needs it to reuse slots safely")]
    Grace(std::io::Error),
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

/// What to do, in the words that follow the kernel's; nothing where a retry is enough.
const fn advice(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => "",
        Some(libc::ENOMEM) => {
            "; if this lasts, raise the container's memory limit, or lower --max-services and \
             --max-endpoints"
        }
        Some(libc::E2BIG | libc::ENOSPC) => {
            "; the map is full although the agent counted room in it, so somebody else writes to it: \
             stop that, and restart the agent, or start it with a larger --max-services or \
             --max-endpoints"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "; this process may not use the map any more: compare its capabilities and security \
             profile with `topo-lb check`, and restart it"
        }
        _ => {
            "; a retry does not help: restart the agent, and run `topo-lb check` if it comes again"
        }
    }
}

/// The maps: the kernel's, or a test's in memory.
pub trait Store {
    /// Replaces the range of frontends.
    fn set_range(&mut self, range: Range) -> Result<(), StoreError>;
    /// Names an index and sets its counters to zero.
    fn name(&mut self, index: u32, name: &str) -> Result<(), StoreError>;
    /// Forgets an index's name.
    fn unname(&mut self, index: u32) -> Result<(), StoreError>;
    /// Writes endpoints into the slots from `base` on.
    fn fill_slots(&mut self, family: Family, base: u32, row: &[Chosen]) -> Result<(), StoreError>;
    /// Lists a member.
    fn set_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
        chosen: bool,
    ) -> Result<(), StoreError>;
    /// Takes a member off the list; one that is not listed is no error.
    fn remove_member(&mut self, index: u32, endpoint: SocketAddr) -> Result<(), StoreError>;
    /// Publishes an entry with one write.
    fn publish(
        &mut self,
        frontend: &Frontend,
        entry: &Entry,
        slot_base: Option<u32>,
    ) -> Result<(), StoreError>;
    /// Removes a frontend; one that is not there is no error.
    fn withdraw(&mut self, frontend: &Frontend) -> Result<(), StoreError>;
    /// Waits until every program that was running has ended.
    fn grace(&mut self) -> Result<(), StoreError>;
    /// Lets tc's connections look at their endpoints anew.
    fn revise(&mut self) -> Result<(), StoreError>;
    /// Reads what is there.
    fn installed(&mut self) -> Result<Installed, StoreError>;
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
    fn want_of_memory_may_pass() {
        for errno in [libc::ENOMEM, libc::EAGAIN, libc::EBUSY, libc::EINTR] {
            assert!(refused(errno).may_pass(), "{errno}");
        }
        assert_eq!(refused(libc::EAGAIN).to_string(), "map services4: cannot write: no");
        assert!(refused(libc::ENOMEM).to_string().contains("memory limit"));
    }

    #[test]
    fn what_lasts_says_what_to_do() {
        let words = [
            (libc::E2BIG, "larger --max-services or --max-endpoints"),
            (libc::ENOSPC, "larger --max-services or --max-endpoints"),
            (libc::EPERM, "capabilities"),
            (libc::EINVAL, "restart the agent"),
        ];
        for (errno, action) in words {
            let error = refused(errno);
            assert!(!error.may_pass(), "{error}");
            assert!(error.to_string().contains(action), "{error}");
        }
        assert!(!StoreError::Grace(std::io::Error::from_raw_os_error(libc::EINVAL)).may_pass());
    }
}
