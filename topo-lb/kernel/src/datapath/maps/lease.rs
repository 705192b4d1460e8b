//! The lease of the resolver: while it is renewed, the cluster DNS Service leads to this node.

use std::path::Path;
use std::time::Duration;

use aya::maps::MapError;
use rustix::time::{ClockId, clock_gettime};
use topo_lb_common::maps;

use super::error::OpenError;
use super::mapped::Mapped;

/// How often the lease is renewed.
pub const RENEWAL: Duration = Duration::from_millis(200);
/// For how long: two renewals may be late.
const TERM: Duration = Duration::from_millis(600);

/// The map `lease`. Its end is one word, so no program reads a half of it.
pub struct Lease(Mapped<u64>);

impl Lease {
    /// Opens the map in the directory of the maps.
    pub fn open(maps_directory: &Path) -> Result<Self, OpenError> {
        Mapped::open(maps_directory, maps::LEASE).map(Self)
    }

    /// Has the lease last for a while from now on.
    pub fn renew(&self) -> Result<(), MapError> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        self.0.set(0, &((now + TERM).as_nanos() as u64))
    }

    /// Ends the lease now.
    pub fn end(&self) -> Result<(), MapError> {
        self.0.set(0, &0)
    }
}
