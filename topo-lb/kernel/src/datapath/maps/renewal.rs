//! Moves from pinned maps to maps of another layout or size. The new maps are made beside the old
//! ones, and each hook switches in one step.
//!
//! Maps that the agent writes are made anew as one set, because they refer to each other. Each map
//! that the programs write (`STATE`) is kept if it fits, so that sockets keep their peers and flows
//! their endpoints; if only the number of entries differs, the entries are copied. A socket's storage
//! of another layout cannot be copied: an unconnected UDP socket then chooses again. Service indexes
//! stay the same, because the kept maps refer to them.
//!
//! The new set is pinned in a directory below the pin directory until the hooks have the new
//! programs. Then it replaces the old set. An agent that finds this directory at start begins the
//! move again, and never writes to maps that the programs of the earlier agent read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Array, HashMap, Map, MapData, MapError, MapInfo};
use bytemuck::Pod;
use topo_lb_common::affinity::{Affinity4, Affinity6, AffinityKey};
use topo_lb_common::counters::{Counters, Name};
use topo_lb_common::maps;
use tracing::{info, warn};

use super::carried::{self, CarriedConnections};
use super::counters::place;
use super::layout::{self, LAYOUT};
use super::mapped::Mapped;
use super::pinned::{Raw, added};
use super::spec::{MapSpec, cpus};
use crate::datapath::error::{LoadError, causes};
use crate::datapath::host::removal::BPF_NOEXIST;

/// The new set's directory, below the pin directory.
const DIRECTORY: &str = "renewal";

/// Maps that the programs write; they outlive a renewal if they fit.
const STATE: [&str; 37] = [
    maps::SNAT,
    maps::FLOWS4,
    maps::FLOWS6,
    maps::CONNECTED4,
    maps::CONNECTED6,
    maps::AFFINITY4,
    maps::AFFINITY6,
    maps::CONNECTIONS4,
    maps::CONNECTIONS6,
    maps::HALF_OPEN4,
    maps::HALF_OPEN6,
    maps::FRAGMENTS4,
    maps::FRAGMENTS6,
    maps::CLOSED4,
    maps::CLOSED6,
    maps::SETTLED4,
    maps::SETTLED6,
    maps::OPENED4,
    maps::OPENED6,
    maps::OPENINGS4,
    maps::OPENINGS6,
    maps::USAGE,
    maps::CLIENTS4,
    maps::CLIENTS6,
    maps::OWN4,
    maps::OWN6,
    maps::HOPS4,
    maps::HOPS6,
    maps::PEERS,
    maps::PROBES,
    maps::TOTALS,
    maps::FAR_ENDPOINTS,
    maps::ENDED,
    maps::ENDED_LOST,
    maps::TORN,
    maps::TRACE,
    maps::TRACE_LOST,
];

/// The result of comparing the pinned maps with the needed ones.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// Every pinned map fits.
    Fits,
    /// Some maps do not fit, for these reasons.
    Differs(Vec<String>),
}

/// Compares the pins with the needed shapes, without changing anything.
///
/// # Errors
/// A newer version made them, or a map cannot be read.
pub(crate) fn look(pin_dir: &Path, map_specs: &[MapSpec]) -> Result<Pinned, LoadError> {
    let mut differences = Vec::new();
    if let Some(found) = layout::marked(pin_dir) {
        if found > LAYOUT {
            let path = pin_dir.to_owned();
            return Err(LoadError::Newer { path, found, own: LAYOUT });
        }
        if found < LAYOUT {
            differences.push(format!("they have layout {found}, and this agent has {LAYOUT}"));
        }
    }
    for spec in map_specs.iter().filter(|spec| spec.is_pinned) {
        differences.extend(difference(spec, &pin_dir.join(spec.name))?);
    }
    if differences.is_empty() && pin_dir.join(DIRECTORY).exists() {
        differences.push("an agent was stopped while it replaced them".into());
    }
    Ok(if differences.is_empty() { Pinned::Fits } else { Pinned::Differs(differences) })
}

/// Removes marks and the new set from a pin directory.
///
/// # Errors
/// The path that cannot be removed, and why.
pub(crate) fn remove_all(pin_dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let staged = pin_dir.join(DIRECTORY);
    remove(&staged).map_err(|error| (staged, error))?;
    for (_, path) in layout::marks(pin_dir) {
        fs::remove_dir(&path).map_err(|error| (path, error))?;
    }
    Ok(())
}

/// How the map at `path` differs from `spec`; `None` if it fits or is not pinned.
fn difference(spec: &MapSpec, path: &Path) -> Result<Option<String>, LoadError> {
    if !path.exists() {
        return Ok(None);
    }
    let info = MapInfo::from_pin(path)
        .map_err(|error| LoadError::Map { name: spec.name.to_owned(), reason: causes(&error) })?;
    let map_type = info.map_type().map(|map_type| format!("{map_type:?}")).unwrap_or_default();
    let needed_type = format!("{:?}", spec.map_type);
    let name = spec.name;
    if map_type != needed_type {
        return Ok(Some(format!("{name} is of type {map_type} and not {needed_type}")));
    }
    Ok([
        ("keys of {} bytes", info.key_size(), spec.key),
        ("values of {} bytes", info.value_size(), spec.value),
        ("room for {} entries", info.max_entries(), spec.max_entries),
        ("flags {}", info.map_flags(), spec.flags),
    ]
    .into_iter()
    .find(|(_, found, needed)| found != needed)
    .map(|(what, found, needed)| {
        let found = what.replace("{}", &found.to_string());
        format!("{name} has {found} and not {needed}")
    }))
}

/// A move to a new set of maps. Dropping it before `finish` removes the new set.
#[derive(Debug)]
pub(crate) struct Renewal {
    pin_dir: PathBuf,
    staged: PathBuf,
    /// Maps that both sets have, but not as the same map.
    copied: Vec<&'static str>,
    finished: bool,
}

impl Renewal {
    /// Creates the directory of the new set, and pins in it the maps that are kept.
    ///
    /// # Errors
    /// The directory cannot be created, or a map cannot be pinned.
    pub(crate) fn begin(
        pin_dir: &Path,
        map_specs: &[MapSpec],
        differences: &[String],
    ) -> Result<Self, LoadError> {
        info!(
            "the pinned maps do not fit: {}; new ones are made beside them, and connections go on \
             by the old ones until the hooks take the new ones",
            differences.join("; ")
        );
        let staged = pin_dir.join(DIRECTORY);
        let failed = |error| LoadError::PinDirectory(staged.clone(), error);
        // An agent that stopped during a move left it. No program uses these maps.
        remove(&staged).map_err(failed)?;
        fs::create_dir(&staged).map_err(failed)?;
        let mut renewal =
            Self { pin_dir: pin_dir.to_owned(), staged, copied: Vec::new(), finished: false };
        for spec in map_specs.iter().filter(|spec| spec.is_pinned) {
            let path = pin_dir.join(spec.name);
            if !path.exists() {
                continue;
            }
            if STATE.contains(&spec.name) && difference(spec, &path)?.is_none() {
                renewal.keep(spec.name)?;
            } else {
                renewal.copied.push(spec.name);
            }
        }
        Ok(renewal)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.staged
    }

    /// Pins the old map in the new set.
    fn keep(&self, name: &str) -> Result<(), LoadError> {
        let unusable = |reason: String| LoadError::Map { name: name.to_owned(), reason };
        let map =
            MapData::from_pin(self.pin_dir.join(name)).map_err(|error| unusable(causes(&error)))?;
        map.pin(self.staged.join(name)).map_err(|error| unusable(causes(&error)))
    }

    /// Copies what plans build on: Service indexes, counters and the revision, which must not
    /// decrease. What cannot be copied starts from zero.
    pub(crate) fn copy_books(&self) {
        self.copy(maps::REVISION, || self.revision());
        self.copy(maps::NAMES, || self.names());
        self.copy(maps::COUNTERS, || self.counters());
    }

    /// Copies entries that the programs wrote and the new set lacks, if the layout is the same and
    /// there is room. Call it before and after the hooks switch.
    pub(crate) fn copy_state(&self) {
        self.copy(maps::AFFINITY4, || self.hash::<AffinityKey, Affinity4>(maps::AFFINITY4));
        self.copy(maps::AFFINITY6, || self.hash::<AffinityKey, Affinity6>(maps::AFFINITY6));
        self.copy(maps::CLIENTS4, || self.hash::<AffinityKey, Affinity4>(maps::CLIENTS4));
        self.copy(maps::CLIENTS6, || self.hash::<AffinityKey, Affinity6>(maps::CLIENTS6));
    }

    /// tc's connections in maps that do not fit.
    pub(crate) fn connections(&self) -> CarriedConnections {
        let mut carried = CarriedConnections::default();
        for name in [maps::CONNECTIONS4, maps::CONNECTIONS6] {
            self.copy(name, || carried.add(name, self.both(name)?));
        }
        self.copy(maps::QUOTA, || {
            carried.add_quotas(self.both(maps::QUOTA)?);
            Ok(())
        });
        carried
    }

    fn copy(&self, name: &str, copy: impl FnOnce() -> Result<(), MapError>) {
        if self.copied.contains(&name)
            && let Err(error) = copy()
        {
            warn!("the new map {name} lacks what the old one had: {}", causes(&error));
        }
    }

    fn both(&self, name: &str) -> Result<(MapData, MapData), MapError> {
        Ok((
            MapData::from_pin(self.pin_dir.join(name))?,
            MapData::from_pin(self.staged.join(name))?,
        ))
    }

    fn hash<K: Pod, V: Pod>(&self, name: &str) -> Result<(), MapError> {
        let (old, new) = self.both(name)?;
        carried::copy::<K, V>(&Map::LruHashMap(old), &mut Map::LruHashMap(new))
    }

    /// Copies only indexes for which the new set has room.
    fn names(&self) -> Result<(), MapError> {
        let (old, new) = self.both(maps::NAMES)?;
        let room = new.info()?.max_entries();
        let old = HashMap::<_, u32, Raw<Name>>::try_from(Map::HashMap(old))?;
        let mut new = HashMap::<_, u32, Raw<Name>>::try_from(Map::HashMap(new))?;
        for (index, name) in old.iter().filter_map(Result::ok).filter(|(index, _)| *index < room) {
            added(new.insert(index, name, BPF_NOEXIST))?;
        }
        Ok(())
    }

    fn counters(&self) -> Result<(), MapError> {
        let (_, names) = self.both(maps::NAMES)?;
        let names = HashMap::<_, u32, Raw<Name>>::try_from(Map::HashMap(names))?;
        let (old, new) = self.both(maps::COUNTERS)?;
        let new = Mapped::<Counters>::of(new)?;
        let old = Mapped::<Counters>::of(old)?;
        let (old_row, row) = (old.entries() / cpus(), new.entries() / cpus());
        for index in names.keys().filter_map(Result::ok) {
            for cpu in 0..cpus() {
                new.set(place(row, cpu, index), &old.get(place(old_row, cpu, index))?)?;
            }
        }
        Ok(())
    }

    fn revision(&self) -> Result<(), MapError> {
        let (old, new) = self.both(maps::REVISION)?;
        let old = Array::<_, u32>::try_from(Map::Array(old))?;
        let mut new = Array::<_, u32>::try_from(Map::Array(new))?;
        new.set(0, old.get(&0, 0)?, 0)
    }

    /// Replaces the old set, which no program uses any more.
    ///
    /// # Errors
    /// A pin cannot be moved: the next agent repeats the move, and nothing is lost.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        // From now on attached programs use the new set: dropping must not remove it.
        self.finished = true;
        for name in maps::ALL {
            match fs::rename(self.staged.join(name), self.pin_dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_dir(&self.staged)?;
        for (layout, path) in layout::marks(&self.pin_dir) {
            if layout != LAYOUT {
                fs::remove_dir(path)?;
            }
        }
        info!("the hooks have the new maps, and the old ones are gone");
        Ok(())
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // The caller reports the error that led here; the next agent retries.
        if !self.finished {
            let _ = remove(&self.staged);
        }
    }
}

/// Removes a directory of pins; a missing one is no error.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
