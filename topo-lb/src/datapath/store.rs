//! What the executor needs of the maps: the one place where deciding ends and doing begins.

use std::net::SocketAddr;

use topo_lb_common::range::Range;

use crate::plan::{Entry, Family, Frontend, Installed};
use crate::topology::Chosen;

/// A write or a read that the maps did not take.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kernel refused.
    #[error("map {map}: cannot {action}: {reason}")]
    Map {
        /// The map's name.
        map: &'static str,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        reason: String,
    },
    /// `membarrier(MEMBARRIER_CMD_GLOBAL)` failed, although it served at start.
    #[error("membarrier(2) failed: {0}; the agent needs it to reuse slots safely")]
    Grace(std::io::Error),
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
