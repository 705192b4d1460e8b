//! The maps that say which Pods are excluded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use aya::maps::{Array, MapData};
use topo_lb_common::exclusion::{Excluded, ExcludedKey, Levels};
use topo_lb_common::maps;

use super::bpf::{self, Hash, Raw, ReadError, failed};
use super::store::StoreError;
use crate::exclusion::Wanted;

/// The pinned maps, and what is in them.
pub struct ExcludedMap {
    cgroups: Hash<ExcludedKey, Excluded>,
    levels: Array<MapData, Raw<Levels>>,
    has: BTreeSet<u64>,
    spans: Option<Levels>,
}

impl ExcludedMap {
    /// Opens them, and reads what an agent before has left.
    ///
    /// # Errors
    /// They are not there, or are something else.
    pub fn open(pin_dir: &Path) -> Result<Self, ReadError> {
        let cgroups: Hash<ExcludedKey, Excluded> = bpf::hash(pin_dir, maps::EXCLUDED)?;
        let levels = bpf::array(pin_dir, maps::EXCLUSION)?;
        let mut has = BTreeSet::new();
        for key in cgroups.keys() {
            let Raw(ExcludedKey { cgroup }) = key.map_err(failed(maps::EXCLUDED, "read"))?;
            has.insert(cgroup);
        }
        Ok(Self { cgroups, levels, has, spans: None })
    }

    /// The cgroups that are in the map.
    #[must_use]
    pub const fn has(&self) -> &BTreeSet<u64> {
        &self.has
    }

    /// How many Pods there is room for.
    #[must_use]
    pub const fn room(&self) -> usize {
        maps::MOST_EXCLUDED as usize
    }

    /// Has the maps say this and no more.
    ///
    /// # Errors
    /// The kernel refuses a write; what is in the maps is still known.
    pub fn write(&mut self, wanted: &Wanted) -> Result<(), StoreError> {
        let surplus: Vec<u64> = self
            .has
            .iter()
            .filter(|cgroup| !wanted.cgroups.contains_key(cgroup))
            .copied()
            .collect();
        // Before what is new: it may need the room.
        for cgroup in surplus {
            self.cgroups
                .remove(&Raw(ExcludedKey { cgroup }))
                .map_err(failed(maps::EXCLUDED, "remove"))?;
            self.has.remove(&cgroup);
        }
        self.add(&wanted.cgroups)?;
        if self.spans != Some(wanted.levels) {
            self.levels.set(0, Raw(wanted.levels), 0).map_err(failed(maps::EXCLUSION, "write"))?;
            self.spans = Some(wanted.levels);
        }
        Ok(())
    }

    fn add(&mut self, cgroups: &BTreeMap<u64, u32>) -> Result<(), StoreError> {
        for (&cgroup, &level) in cgroups {
            if self.has.contains(&cgroup) {
                continue;
            }
            self.cgroups
                .insert(Raw(ExcludedKey { cgroup }), Raw(Excluded { level }), 0)
                .map_err(failed(maps::EXCLUDED, "write"))?;
            self.has.insert(cgroup);
        }
        Ok(())
    }
}
