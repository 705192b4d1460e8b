//! Reads the connection counters of Service ports.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aya::maps::Map;
use topo_lb_common::counters::{self, Counters, Name};
use topo_lb_common::maps;

use super::encode;
use super::error::{OpenError, ReadError, StoreError};
use super::mapped::Mapped;
use super::pinned::{Hash, PerCpu, entries, failed, open, size, sum};

/// Index in `counters` of a Service port's connections on a CPU; `row`: room for Service ports.
pub(crate) const fn place(row: u32, cpu: u32, index: u32) -> u32 {
    cpu.saturating_mul(row).saturating_add(index)
}

/// The counters, mapped into this process.
pub struct MappedCounters {
    memory: Mapped<Counters>,
    row: u32,
}

impl MappedCounters {
    /// Opens the map in the folder of the maps.
    ///
    /// # Errors
    /// It is not there, or it is another map.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        let row = size(pin_dir, maps::SERVICES4)?;
        Ok(Self { memory: Mapped::open(pin_dir, maps::COUNTERS)?, row })
    }

    /// Writes the same value for all Service ports and CPUs. What programs count meanwhile may be lost.
    pub(crate) fn fill(&self, value: &Counters) {
        for index in 0..self.memory.entries() {
            // Pages that nobody has used stay unused.
            if self.memory.get(index).is_ok_and(|now| now != *value) {
                let _ = self.memory.set(index, value);
            }
        }
    }

    /// The sum over all CPUs. Reads memory, without system calls.
    pub fn of(&self, index: u32) -> Result<Counters, StoreError> {
        let mut all = Counters::default();
        for cpu in 0..self.memory.entries() / self.row.max(1) {
            let one = self.memory.get(place(self.row, cpu, index));
            all = counters::sum([&all, &one.map_err(failed(maps::COUNTERS, "read"))?]);
        }
        Ok(all)
    }
}

/// Reads the connections of every Service port that had any, in one pass over `names`, which takes
/// about a microsecond per Service port, and the memory of `counters`.
///
/// # Errors
/// A map cannot be read.
pub fn connections(pin_dir: &Path) -> Result<BTreeMap<Arc<str>, Counters>, ReadError> {
    counters(pin_dir, |_| true, |counted| *counted != Counters::default())
}

/// The counters of Service ports with wanted names, if they count, by these names.
fn counters(
    pin_dir: &Path,
    is_wanted: impl Fn(&str) -> bool,
    count: impl Fn(&Counters) -> bool,
) -> Result<BTreeMap<Arc<str>, Counters>, ReadError> {
    let names: Hash<u32, Name> = open(pin_dir, maps::NAMES, Map::HashMap)?;
    let counters = MappedCounters::open(pin_dir)?;
    let mut all = BTreeMap::new();
    for pair in entries(&names, maps::NAMES) {
        let (index, name) = pair?;
        let name = encode::read_text(&name.text).filter(|name| is_wanted(name));
        let Some(name) = name else { continue };
        let counted = counters.of(index)?;
        if count(&counted) {
            all.insert(name.into(), counted);
        }
    }
    Ok(all)
}

/// Reads how many look-ups of a Service gave up because of overlapping writes; zero if the agent
/// had no such counter.
///
/// # Errors
/// The map cannot be read.
pub fn torn(pin_dir: &Path) -> Result<u64, ReadError> {
    if !pin_dir.join(maps::TORN).exists() {
        return Ok(0);
    }
    let per_cpu: PerCpu<u64> = open(pin_dir, maps::TORN, Map::PerCpuArray)?;
    Ok(sum(&per_cpu, maps::TORN, 0)?)
}

/// Reads how many connections the Service ports with a `wanted` name refused.
///
/// # Errors
/// A map cannot be read.
pub fn refused(
    pin_dir: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<Arc<str>, u64>, ReadError> {
    let counted = counters(pin_dir, wanted, |_| true)?.into_iter();
    Ok(counted.map(|(name, counted)| (name, counted.refused)).collect())
}
