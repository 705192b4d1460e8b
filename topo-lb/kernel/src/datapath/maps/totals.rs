//! Reads and clears what TCP connections moved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use aya::maps::Map;
use topo_lb_common::backend::Locality;
use topo_lb_common::counters::Name;
use topo_lb_common::maps;
use topo_lb_common::record::NO_TIER;
use topo_lb_common::totals::{OTHERS, Totals, TotalsKey};

use super::encode;
use super::error::{OpenError, ReadError, StoreError};
use super::pinned::{Hash, Raw, absent_is_fine, added, entries, failed, found, open};
use crate::datapath::host::removal::BPF_NOEXIST;
use topo_lb_core::metrics::Tier;
use topo_lb_core::topology::validation::MAX_KEYS;

/// Whose connections a value is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// The Service port, as `namespace/name:port`; `None`: all for which the map has no room.
    pub service: Option<Arc<str>>,
    /// How far their endpoints are.
    pub locality: Locality,
    /// The tier in force when they were made.
    pub tier: Tier,
}

fn tier(byte: u8) -> Tier {
    match byte {
        NO_TIER => Tier::None,
        key => Tier::Key(key),
    }
}

/// Connections that were established and have ended, without those whose round trip was never measured.
#[must_use]
pub fn ended(totals: &Totals) -> u64 {
    totals.rtt.iter().sum()
}

/// The pinned map.
pub(crate) struct TotalsMap(Hash<TotalsKey, Totals>);

impl TotalsMap {
    /// Opens the map.
    pub(crate) fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        open(pin_dir, maps::TOTALS, Map::HashMap).map(Self)
    }

    /// Makes the entries in which programs count when there is no room for another one.
    pub(crate) fn make_others(&mut self) -> Result<(), StoreError> {
        for locality in Locality::ALL {
            let key = Raw(TotalsKey::others(locality));
            let made = added(self.0.insert(key, Raw(Totals::default()), BPF_NOEXIST));
            made.map_err(failed(maps::TOTALS, "write"))?;
        }
        Ok(())
    }

    /// Removes the entries of Service ports with these indexes.
    pub(crate) fn clear(&mut self, indexes: &BTreeSet<u32>) -> Result<(), StoreError> {
        let there = self.0.keys().map(|key| key.map(|Raw(key)| key));
        for key in to_remove(indexes, there).map_err(failed(maps::TOTALS, "read"))? {
            absent_is_fine(self.0.remove(&Raw(key))).map_err(failed(maps::TOTALS, "remove"))?;
        }
        Ok(())
    }

    fn entries(&self) -> Result<BTreeMap<TotalsKey, Totals>, StoreError> {
        entries(&self.0, maps::TOTALS).collect()
    }
}

/// Service ports for which each key is removed, whether it is there or not.
const FEW: usize = 16;

/// The keys to remove for these Service ports, of which some may not be there. Each key of the map that is read takes a
/// system call, and each removal another one, so for many Service ports the map is read first, up to as many keys as they
/// can have. When an agent starts with new maps, there are none; later a few Service ports change beside many that have some.
fn to_remove<E>(
    indexes: &BTreeSet<u32>,
    there: impl Iterator<Item = Result<TotalsKey, E>>,
) -> Result<Vec<TotalsKey>, E> {
    let all = || indexes.iter().flat_map(|index| keys(*index)).collect();
    if indexes.len() <= FEW {
        return Ok(all());
    }
    let (mut found, most) = (Vec::new(), indexes.len() * KEYS);
    for (place, key) in there.enumerate() {
        let key = key?;
        if place == most {
            return Ok(all());
        }
        found.extend(indexes.contains(&key.service).then_some(key));
    }
    Ok(found)
}

/// Keys that a Service port can have: a locality and a tier each.
const KEYS: usize = Locality::ALL.len() * (MAX_KEYS + 1);

/// Each of these [`KEYS`].
fn keys(index: u32) -> impl Iterator<Item = TotalsKey> {
    let tiers = || (0..MAX_KEYS as u8).chain([NO_TIER]);
    let key = move |locality| tiers().map(move |tier| TotalsKey::new(index, locality, tier));
    Locality::ALL.into_iter().flat_map(key)
}

/// Reads what TCP connections moved, without Service ports that are gone. Takes some microseconds per
/// entry, of which only Service ports with connections have any.
///
/// # Errors
/// A map cannot be read.
pub fn read(pin_dir: &Path) -> Result<BTreeMap<Group, Totals>, ReadError> {
    let mut all = BTreeMap::new();
    let totals = TotalsMap::open(pin_dir)?;
    let names: Hash<u32, Name> = open(pin_dir, maps::NAMES, Map::HashMap)?;
    // In the order of keys: a Service port's entries follow each other.
    let mut last: Option<(u32, Option<Arc<str>>)> = None;
    for (key, value) in totals.entries()? {
        let name = match last.take() {
            Some((index, name)) if index == key.service => name,
            _ => found(maps::NAMES, names.get(&Raw(key.service), 0))?
                .and_then(|name| encode::read_text(&name.text).map(Arc::from)),
        };
        last = Some((key.service, name.clone()));
        if name.is_some() || key.service == OTHERS {
            let locality = Locality::from_byte(key.locality);
            let tier = tier(key.tier);
            all.insert(Group { service: name, locality, tier }, value);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_port_has_few_keys_however_many_others_there_are() {
        let all: BTreeSet<TotalsKey> = keys(7).collect();
        assert_eq!(all.len(), KEYS);
        assert!(all.iter().all(|key| key.service == 7));
        for locality in Locality::ALL {
            for tier in [0, MAX_KEYS as u8 - 1, NO_TIER] {
                assert!(all.contains(&TotalsKey::new(7, locality, tier)), "{locality:?} {tier}");
            }
        }
    }

    #[test]
    fn many_new_service_ports_cost_what_the_map_has_and_few_what_they_can_have() {
        use std::cell::Cell;
        use std::convert::Infallible;

        let entries = |of: std::ops::Range<u32>| {
            of.map(|index| Ok::<_, Infallible>(TotalsKey::new(index, Locality::Zone, 0)))
        };
        let asked = Cell::new(0);
        let removed = |indexes: std::ops::Range<u32>, there: std::ops::Range<u32>| {
            asked.set(0);
            let there = entries(there).inspect(|_| asked.set(asked.get() + 1));
            let Ok(all) = to_remove(&indexes.collect(), there);
            (asked.get(), all)
        };
        // An agent starts with empty maps.
        assert_eq!(removed(0..10_000, 0..0), (0, Vec::new()));
        // A thousand come and go beside nine thousand with connections; of the old ones ten had some.
        let (asked, all) = removed(0..1_000, 990..10_000);
        let found: Vec<_> =
            entries(990..1_000).map(|key| key.unwrap_or_else(|it| match it {})).collect();
        assert_eq!((asked, all), (9_010, found));
        // More entries than there are keys to remove: no more of them are read.
        let (asked, all) = removed(0..17, 0..10_000);
        assert_eq!((asked, all.len()), (17 * KEYS + 1, 17 * KEYS));
        // One changes.
        let (asked, all) = removed(0..1, 0..10_000);
        assert_eq!((asked, all.len()), (0, KEYS));
    }
}
