//! The kernel's maps, opened by their pins: the agent writes them, `list` reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use aya::maps::{Array, Map, MapData};
use topo_lb_common::counters::{Counters, Name};
use topo_lb_common::maps;
use topo_lb_common::range::Range;

use super::counters;
use super::encode::{self, V4, V6};
use super::error::{OpenError, StoreError};
use super::family::{BATCH, FamilyMaps, Publication, Published};
use super::frontends::FrontendFilter;
use super::pinned::{Hash, Raw, absent_is_fine, data, entries, failed, open, size, write_all};
use super::spec::cpus;
use super::totals::TotalsMap;
use crate::datapath::host::grace;
use topo_lb_core::cluster::Family;
use topo_lb_core::plan::store::Store;
use topo_lb_core::plan::{Capacity, Installed, Step};

/// Calls a method of the maps of a family.
macro_rules! of {
    ($store:ident, $family:expr, $method:ident($($argument:expr),*)) => {
        match $family {
            Family::V4 => $store.v4.$method($($argument),*),
            Family::V6 => $store.v6.$method($($argument),*),
        }
    };
}

/// The pinned maps.
pub struct BpfStore {
    v4: FamilyMaps<V4>,
    v6: FamilyMaps<V6>,
    range: Array<MapData, Raw<Range>>,
    /// Only with `--frontends all`.
    frontends: Option<FrontendFilter>,
    revision: Array<MapData, Raw<u32>>,
    names: Hash<u32, Name>,
    counters: MapData,
    totals: TotalsMap,
    /// Service indexes that are named or free since their entries of `totals` were last removed.
    renamed: BTreeSet<u32>,
    capacity: Capacity,
    /// The parts of `counters`.
    cpus: u32,
}

impl BpfStore {
    /// Opens the maps pinned under `pin_dir`.
    ///
    /// # Errors
    /// A map does not exist, or has another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        let v4 = FamilyMaps::open(pin_dir)?;
        let services = size(pin_dir, maps::SERVICES4)?;
        let capacity = Capacity {
            services,
            spare: size(pin_dir, maps::RECORDS4)?.saturating_sub(services),
            slots: size(pin_dir, maps::SLOTS4)?,
            members: size(pin_dir, maps::MEMBERS4)?,
            flows: size(pin_dir, maps::AFFINITY4)?,
            sources: match pin_dir.join(maps::SOURCES4).exists() {
                true => size(pin_dir, maps::SOURCES4)?,
                false => 0,
            },
            // Plans do not fill these maps.
            connections: 0,
            hops: 0,
        };
        Ok(Self {
            v4,
            v6: FamilyMaps::open(pin_dir)?,
            range: open(pin_dir, maps::RANGE, Map::Array)?,
            frontends: FrontendFilter::open(pin_dir)?,
            revision: open(pin_dir, maps::REVISION, Map::Array)?,
            names: open(pin_dir, maps::NAMES, Map::HashMap)?,
            counters: data(pin_dir, maps::COUNTERS)?,
            totals: TotalsMap::open(pin_dir)?,
            renamed: BTreeSet::new(),
            capacity,
            cpus: cpus(),
        })
    }

    /// Every published frontend, IPv4 first, in the order of the kernel's hash.
    pub fn published(&self) -> Result<Vec<Published>, StoreError> {
        let mut all = Vec::new();
        self.v4.published(&mut all)?;
        self.v6.published(&mut all)?;
        Ok(all)
    }

    /// The Service port of each index.
    pub fn names(&self) -> Result<BTreeMap<u32, Arc<str>>, StoreError> {
        let mut all = BTreeMap::new();
        for pair in entries(&self.names, maps::NAMES) {
            let (index, name) = pair?;
            if let Some(name) = encode::read_text(&name.text) {
                all.insert(index, name.into());
            }
        }
        Ok(all)
    }

    fn set_range(&mut self, range: Range) -> Result<(), StoreError> {
        self.range.set(0, Raw(range), 0).map_err(failed(maps::RANGE, "write"))
    }

    /// Publishes what the first of these steps publish; returns how many did.
    fn publish(&mut self, family: Family, steps: &[Step]) -> Result<usize, StoreError> {
        let first = steps.iter().take(BATCH).map_while(|step| match step {
            Step::Publish { frontend, entry, slot_base, record } => {
                let (frontend, slot_base, record) = (*frontend, *slot_base, *record);
                Some(Publication { frontend, entry, slot_base, record })
            }
            _ => None,
        });
        let first: Vec<_> = first.collect();
        if let Some(filter) = &mut self.frontends {
            first.iter().try_for_each(|one| filter.add(one.frontend))?;
        }
        of!(self, family, publish(&first))
    }

    /// Removes what the last Service ports with these indexes moved.
    fn clear_totals(&mut self) -> Result<(), StoreError> {
        if !self.renamed.is_empty() {
            self.totals.clear(&self.renamed)?;
            self.renamed.clear();
        }
        Ok(())
    }

    fn name(&mut self, index: u32, name: &str) -> Result<(), StoreError> {
        let places: Vec<u32> =
            (0..self.cpus).map(|cpu| counters::place(self.capacity.services, cpu, index)).collect();
        let zeros = vec![Counters::default(); places.len()];
        write_all(&self.counters, &places, &zeros).map_err(failed(maps::COUNTERS, "reset"))?;
        self.names
            .insert(Raw(index), Raw(Name { text: encode::text(name) }), 0)
            .map_err(failed(maps::NAMES, "write"))
    }
}

impl Store for BpfStore {
    type Error = StoreError;

    fn write(&mut self, steps: &[Step]) -> Result<usize, StoreError> {
        let Some(step) = steps.first() else { return Ok(0) };
        if !matches!(step, Step::Name { .. } | Step::Unname(_)) {
            self.clear_totals()?;
        }
        match step {
            Step::SetRange(range) => self.set_range(*range),
            Step::Name { index, name } => {
                self.renamed.insert(*index);
                self.name(*index, name)
            }
            Step::Unname(index) => {
                self.renamed.insert(*index);
                absent_is_fine(self.names.remove(&Raw(*index)))
                    .map_err(failed(maps::NAMES, "remove"))
            }
            Step::FillSlots { family, base, entry } => {
                of!(self, *family, fill_slots(*base, &entry.filled()))
            }
            Step::SetMember { index, endpoint, member } => {
                of!(self, Family::of(endpoint.ip()), set_member(*index, *endpoint, *member))
            }
            Step::RemoveMember { index, endpoint } => {
                of!(self, Family::of(endpoint.ip()), remove_member(*index, *endpoint))
            }
            Step::Publish { frontend, .. } => return self.publish(frontend.family(), steps),
            Step::Withdraw(frontend) => {
                of!(self, frontend.family(), withdraw(frontend))?;
                self.frontends.as_mut().map_or(Ok(()), |filter| filter.remove(*frontend))
            }
            Step::Grace => grace::wait().map_err(StoreError::Grace),
            Step::Free { family, record, .. } => of!(self, *family, free(*record)),
            Step::SetSource(entry) => of!(self, entry.frontend.family(), set_source(entry)),
            Step::RemoveSource(entry) => of!(self, entry.frontend.family(), remove_source(entry)),
        }?;
        Ok(1)
    }

    fn revise(&mut self) -> Result<(), StoreError> {
        let Raw(last) = self.revision.get(&0, 0).map_err(failed(maps::REVISION, "read"))?;
        self.revision.set(0, Raw(last.wrapping_add(1)), 0).map_err(failed(maps::REVISION, "write"))
    }

    fn installed(&mut self) -> Result<Installed, StoreError> {
        let mut installed = Installed::new(self.capacity);
        for (index, name) in self.names()? {
            installed.adopt_name(index, name);
        }
        let published = self.published()?;
        if let Some(filter) = &mut self.frontends {
            filter.begin(published.iter().map(|published| published.frontend))?;
        }
        for published in published {
            installed.adopt(published.frontend, published.placed);
        }
        self.v4.read_beside(&mut installed)?;
        self.v6.read_beside(&mut installed)?;
        if installed.placed().next().is_none() {
            // New maps are all zero, which would mean "anywhere".
            self.set_range(Range::EMPTY)?;
        } else {
            let Raw(range) = self.range.get(&0, 0).map_err(failed(maps::RANGE, "read"))?;
            installed.adopt_range(range);
        }
        Ok(installed)
    }
}
