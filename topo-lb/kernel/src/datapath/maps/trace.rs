//! The ring buffer into which programs write their decisions, while somebody traces.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData, MapError, MapInfo, RingBuf};
use aya_obj::generated::bpf_map_type;
use thiserror::Error;
use topo_lb_common::maps;
use topo_lb_common::trace::Decision;

use super::error::{OpenError, StoreError};
use super::pinned::{PerCpu, data, open, sum};
use crate::datapath::error::causes;
use crate::datapath::host::lock::{Lock, LockError};
use crate::datapath::host::memlock;
use crate::datapath::host::syscall::{inner_map, remove_inner, update};
use crate::datapath::link::DIRECTORY;

/// Why nothing can be traced.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The maps cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another process traces.
    #[error("another `topo-lb trace` runs on this node: stop it first, there is one ring buffer")]
    Busy,
    /// The folder that tracers lock cannot be locked.
    #[error(transparent)]
    Lock(LockError),
    /// The ring buffer cannot be made.
    #[error("a ring buffer of {0} bytes cannot be made: {1}")]
    Ring(u32, String),
    /// A map cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The programs write something else.
    #[error(
        "the programs tell {0} bytes for each connection, and this command reads {own}: use the \
         `topo-lb` of the agent's version", own = size_of::<Decision>()
    )]
    Layout(usize),
}

/// A ring buffer that the programs know. Dropping it takes it away from them.
pub struct Ring {
    ring: RingBuf<MapData>,
    lost: PerCpu<u64>,
    /// What was lost before.
    lost_before: u64,
    /// The pinned map `trace`, which has the ring buffer.
    slot: MapData,
    path: PathBuf,
    /// Released last.
    _lock: Lock,
}

impl Ring {
    /// Gives the programs a ring buffer of so many bytes: a power of two, and at least a page.
    ///
    /// # Errors
    /// No agent ran here, or another process traces.
    pub fn open(pin_dir: &Path, bytes: u32) -> Result<Self, TraceError> {
        let path = pin_dir.join(maps::TRACE);
        let slot = data(pin_dir, maps::TRACE)?;
        let lock = lock(pin_dir)?;
        let lost = open(pin_dir, maps::TRACE_LOST, Map::PerCpuArray)?;
        let lost_before = sum(&lost, maps::TRACE_LOST, 0)?;
        // Before Linux 5.11 it counts as locked memory.
        memlock::lift_limit();
        let ring = ring(bytes).map_err(|error| TraceError::Ring(bytes, causes(&error)))?;
        update(slot.fd().as_fd(), ring.as_fd())
            .map_err(|error| TraceError::Ring(bytes, error.to_string()))?;
        Ok(Self { ring, lost, lost_before, slot, path, _lock: lock })
    }

    /// Takes the oldest decision out, if there is one.
    ///
    /// # Errors
    /// The programs are of another version.
    pub fn take(&mut self) -> Result<Option<Decision>, TraceError> {
        self.ring.next().map(|bytes| read(&bytes)).transpose()
    }

    /// How many decisions had no room since the last call.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn newly_lost(&mut self) -> Result<u64, TraceError> {
        let now = sum(&self.lost, maps::TRACE_LOST, 0)?;
        Ok(now - std::mem::replace(&mut self.lost_before, now))
    }

    /// Whether the pin is still that of the map with this ring buffer.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let (own, pinned) = (self.slot.info(), MapInfo::from_pin(&self.path));
        own.is_ok_and(|own| pinned.is_ok_and(|pinned| pinned.id() == own.id()))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // If it fails, the agent does it.
        let _ = remove_inner(self.slot.fd().as_fd());
    }
}

/// Locks the folder of links: a pinned map cannot be locked.
fn lock(pin_dir: &Path) -> Result<Lock, TraceError> {
    Lock::take(&pin_dir.join(DIRECTORY)).map_err(|error| match error {
        LockError::Held(_) => TraceError::Busy,
        other => TraceError::Lock(other),
    })
}

fn ring(bytes: u32) -> Result<RingBuf<MapData>, MapError> {
    let ring = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    let ring = aya_obj::Map::new_from_params(ring, 0, 0, bytes, 0);
    RingBuf::try_from(Map::RingBuf(MapData::create(ring, "trace_ring", None)?))
}

/// An element of the ring buffer.
fn read(bytes: &[u8]) -> Result<Decision, TraceError> {
    bytemuck::try_pod_read_unaligned(bytes).map_err(|_| TraceError::Layout(bytes.len()))
}

/// Takes the ring buffer of a tracer that was killed away from the programs. Returns whether there was
/// one. Takes a microsecond if nobody has traced. `slot`: the map `trace`.
pub(crate) fn forget_killed(slot: BorrowedFd<'_>, pin_dir: &Path) -> io::Result<bool> {
    if inner_map(slot)?.is_none() {
        return Ok(false);
    }
    // A tracer that runs holds it: the agent's task must not wait.
    let Ok(_lock) = Lock::take_now(&pin_dir.join(DIRECTORY)) else { return Ok(false) };
    // Meanwhile a tracer may have ended as it should.
    if inner_map(slot)?.is_none() {
        return Ok(false);
    }
    remove_inner(slot).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_tells_is_refused_with_a_sentence() {
        let own = size_of::<Decision>();
        assert!(read(&vec![0; own]).is_ok());
        for other in [0, own - 8, own + 8] {
            let error = read(&vec![0; other]).unwrap_err().to_string();
            assert!(error.contains(&format!("tell {other} bytes")), "{error}");
        }
    }
}
