//! The kernel's maps, opened by their pins: for the agent to write, for `list` to read.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use topo_lb_common::counter::{Counters, Name};
use topo_lb_common::maps;
use topo_lb_common::member::{CHOSEN, Member};
use topo_lb_common::range::Range;

use super::counters;
use super::encode::{self, Layout, V4, V6};
use super::store::{Store, StoreError};
use crate::cluster::{Family, Frontend};
use crate::datapath::programs::load::causes;
use crate::plan::{Capacity, Entry, Installed};
use crate::topology::Chosen;

/// A layout of `topo-lb-common` as aya wants it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Raw<T>(pub T);

// SAFETY: `bytemuck::Pod` is a stricter promise than `aya::Pod`: every bit pattern is valid and
// there is no padding.
unsafe impl<T: bytemuck::Pod> aya::Pod for Raw<T> {}

pub(crate) type Hash<K, V> = HashMap<MapData, Raw<K>, Raw<V>>;

/// The maps of one address family.
struct FamilyMaps<L: Layout> {
    services: Hash<L::Frontend, L::Service>,
    slots: Array<MapData, Raw<L::Backend>>,
    members: Hash<L::MemberKey, Member>,
    names: FamilyNames,
}

/// What the maps of one family are called.
#[derive(Clone, Copy)]
struct FamilyNames {
    services: &'static str,
    slots: &'static str,
    members: &'static str,
}

const NAMES4: FamilyNames =
    FamilyNames { services: maps::SERVICES4, slots: maps::SLOTS4, members: maps::MEMBERS4 };
const NAMES6: FamilyNames =
    FamilyNames { services: maps::SERVICES6, slots: maps::SLOTS6, members: maps::MEMBERS6 };

/// The pinned maps.
pub struct BpfStore {
    v4: FamilyMaps<V4>,
    v6: FamilyMaps<V6>,
    range: Array<MapData, Raw<Range>>,
    revision: Array<MapData, Raw<u32>>,
    names: Hash<u32, Name>,
    counters: PerCpuArray<MapData, Raw<Counters>>,
    capacity: Capacity,
    generation: u32,
}

/// What a frontend's value says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The key.
    pub frontend: Frontend,
    /// What its connections do.
    pub entry: Entry,
    /// First slot, where the row is not inline.
    pub slot_base: Option<u32>,
    /// Number of the write: it stays while nothing is written.
    pub generation: u32,
}

/// Pins that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is pinned there.
    #[error(
        "nothing is installed at {0}: no agent ran with this --pin-dir, or `topo-lb cleanup` removed it"
    )]
    Absent(String),
    /// A pin is there, but not what it should be.
    #[error("cannot open the pinned map {path}: {reason}")]
    Map {
        /// Where it is pinned.
        path: String,
        /// What the kernel, or its shape, said.
        reason: String,
    },
}

/// Pinned maps that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// They cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// They cannot be read.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// What a pin says of where a program is attached cannot be read.
    #[error("the pin {} cannot be read: {source}", path.display())]
    Link {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BpfStore {
    /// Opens the maps pinned under `pin_dir`.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        let services4: Hash<_, _> = hash(pin_dir, maps::SERVICES4)?;
        let slots4 = array(pin_dir, maps::SLOTS4)?;
        let members4: Hash<_, _> = hash(pin_dir, maps::MEMBERS4)?;
        let capacity = Capacity {
            services: size(pin_dir, maps::SERVICES4)?,
            slots: size(pin_dir, maps::SLOTS4)?,
            members: size(pin_dir, maps::MEMBERS4)?,
            flows: size(pin_dir, maps::FLOWS4)?,
            // The plan does not fill them.
            connections: 0,
        };
        Ok(Self {
            v4: FamilyMaps { services: services4, slots: slots4, members: members4, names: NAMES4 },
            v6: FamilyMaps {
                services: hash(pin_dir, maps::SERVICES6)?,
                slots: array(pin_dir, maps::SLOTS6)?,
                members: hash(pin_dir, maps::MEMBERS6)?,
                names: NAMES6,
            },
            range: array(pin_dir, maps::RANGE)?,
            revision: array(pin_dir, maps::REVISION)?,
            names: hash(pin_dir, maps::NAMES)?,
            counters: PerCpuArray::try_from(Map::PerCpuArray(map(pin_dir, maps::COUNTERS)?))
                .map_err(|error| spec(pin_dir, maps::COUNTERS, &error))?,
            capacity,
            // Anywhere, and not where the last agent stopped: its highest number may have gone
            // with the Service that had it, and a UDP flow that remembers it must not take a later
            // write for that one.
            generation: RandomState::new().build_hasher().finish() as u32,
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
        for pair in self.names.iter() {
            let (Raw(index), Raw(name)) = pair.map_err(failed(maps::NAMES, "read"))?;
            if let Some(name) = encode::read_name(&name) {
                all.insert(index, name.into());
            }
        }
        Ok(all)
    }

    /// Connections of a Service port by where they went, over all CPUs.
    pub fn counters(&self, index: u32) -> Result<Counters, StoreError> {
        counters::counters(&self.counters, index)
    }
}

impl<L: Layout> FamilyMaps<L> {
    fn key(frontend: &Frontend) -> Option<L::Frontend> {
        let protocol = encode::protocol_number(frontend.protocol);
        L::octets(frontend.address).map(|octets| L::frontend(octets, frontend.port, protocol))
    }

    fn publish(
        &mut self,
        frontend: &Frontend,
        entry: &Entry,
        slot_base: Option<u32>,
        generation: u32,
    ) -> Result<(), StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(()) };
        let value = encode::service::<L>(key, entry, slot_base, generation);
        self.services
            .insert(Raw(key), Raw(value), 0)
            .map_err(failed(self.names.services, "write a Service"))
    }

    fn withdraw(&mut self, frontend: &Frontend) -> Result<(), StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(()) };
        absent_is_fine(self.services.remove(&Raw(key)))
            .map_err(failed(self.names.services, "remove a Service"))
    }

    fn fill_slots(&mut self, base: u32, row: &[Chosen]) -> Result<(), StoreError> {
        for (slot, backend) in (base..).zip(encode::backends::<L>(row)) {
            self.slots
                .set(slot, Raw(backend), 0)
                .map_err(failed(self.names.slots, "write an endpoint"))?;
        }
        Ok(())
    }

    fn set_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
        chosen: bool,
    ) -> Result<(), StoreError> {
        let Some(octets) = L::octets(endpoint.ip()) else { return Ok(()) };
        let key = L::member(index, octets, endpoint.port());
        let member = Member { state: if chosen { CHOSEN } else { 0 } };
        self.members
            .insert(Raw(key), Raw(member), 0)
            .map_err(failed(self.names.members, "write a member"))
    }

    fn remove_member(&mut self, index: u32, endpoint: SocketAddr) -> Result<(), StoreError> {
        let Some(octets) = L::octets(endpoint.ip()) else { return Ok(()) };
        let key = L::member(index, octets, endpoint.port());
        absent_is_fine(self.members.remove(&Raw(key)))
            .map_err(failed(self.names.members, "remove a member"))
    }

    fn published(&self, all: &mut Vec<Published>) -> Result<(), StoreError> {
        for pair in self.services.iter() {
            let (Raw(key), Raw(value)) = pair.map_err(failed(self.names.services, "read"))?;
            let Some(frontend) = L::read_frontend(&key) else { continue };
            let (entry, slot_base, generation) = encode::entry::<L>(&value, |slot| {
                self.slots.get(&slot, 0).ok().map(|Raw(backend)| backend)
            });
            all.push(Published { frontend, entry, slot_base, generation });
        }
        Ok(())
    }

    fn read_members(&self, installed: &mut Installed) -> Result<(), StoreError> {
        for pair in self.members.iter() {
            let (Raw(key), Raw(member)) = pair.map_err(failed(self.names.members, "read"))?;
            let (index, endpoint) = L::read_member(&key);
            installed.adopt_member(index, endpoint, member.state & CHOSEN != 0);
        }
        Ok(())
    }
}

/// Waits until every program that is running now has ended: some milliseconds.
///
/// # Errors
///
/// The kernel does not wait.
pub fn grace() -> Result<(), StoreError> {
    // MEMBARRIER_CMD_GLOBAL is synchronize_rcu(): programs run under RCU, so all that were
    // running when it was called have ended when it returns (kernel/sched/membarrier.c).
    const GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result == 0 { Ok(()) } else { Err(StoreError::Grace(io::Error::last_os_error())) }
}

impl Store for BpfStore {
    fn set_range(&mut self, range: Range) -> Result<(), StoreError> {
        self.range.set(0, Raw(range), 0).map_err(failed(maps::RANGE, "write"))
    }

    fn name(&mut self, index: u32, name: &str) -> Result<(), StoreError> {
        let cpus = aya::util::nr_cpus().map_err(|(path, error)| StoreError::Map {
            map: maps::COUNTERS,
            action: "count the CPUs of this host",
            errno: error.raw_os_error(),
            reason: format!("{path}: {error}"),
        })?;
        let zeros = PerCpuValues::try_from(vec![Raw(Counters::default()); cpus])
            .map_err(|error| failed(maps::COUNTERS, "reset")(MapError::IoError(error)))?;
        self.counters.set(index, zeros, 0).map_err(failed(maps::COUNTERS, "reset"))?;
        self.names
            .insert(Raw(index), Raw(encode::name(name)), 0)
            .map_err(failed(maps::NAMES, "write"))
    }

    fn unname(&mut self, index: u32) -> Result<(), StoreError> {
        absent_is_fine(self.names.remove(&Raw(index))).map_err(failed(maps::NAMES, "remove"))
    }

    fn fill_slots(&mut self, family: Family, base: u32, row: &[Chosen]) -> Result<(), StoreError> {
        match family {
            Family::V4 => self.v4.fill_slots(base, row),
            Family::V6 => self.v6.fill_slots(base, row),
        }
    }

    fn set_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
        chosen: bool,
    ) -> Result<(), StoreError> {
        match Family::of(endpoint.ip()) {
            Family::V4 => self.v4.set_member(index, endpoint, chosen),
            Family::V6 => self.v6.set_member(index, endpoint, chosen),
        }
    }

    fn remove_member(&mut self, index: u32, endpoint: SocketAddr) -> Result<(), StoreError> {
        match Family::of(endpoint.ip()) {
            Family::V4 => self.v4.remove_member(index, endpoint),
            Family::V6 => self.v6.remove_member(index, endpoint),
        }
    }

    fn publish(
        &mut self,
        frontend: &Frontend,
        entry: &Entry,
        slot_base: Option<u32>,
    ) -> Result<(), StoreError> {
        // Zero is what an unwritten value has: no write gets it, also not when the number wraps.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        match frontend.family() {
            Family::V4 => self.v4.publish(frontend, entry, slot_base, self.generation),
            Family::V6 => self.v6.publish(frontend, entry, slot_base, self.generation),
        }
    }

    fn withdraw(&mut self, frontend: &Frontend) -> Result<(), StoreError> {
        match frontend.family() {
            Family::V4 => self.v4.withdraw(frontend),
            Family::V6 => self.v6.withdraw(frontend),
        }
    }

    fn grace(&mut self) -> Result<(), StoreError> {
        grace()
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
        for published in self.published()? {
            installed.adopt(published.frontend, published.entry, published.slot_base);
        }
        self.v4.read_members(&mut installed)?;
        self.v6.read_members(&mut installed)?;
        if installed.placed().next().is_none() {
            // Maps that were just made are all zero, which would mean "anywhere".
            self.set_range(Range::EMPTY)?;
        } else {
            let Raw(range) = self.range.get(&0, 0).map_err(failed(maps::RANGE, "read"))?;
            installed.adopt_range(range);
        }
        Ok(installed)
    }
}

pub(crate) fn map(pin_dir: &Path, name: &str) -> Result<MapData, OpenError> {
    let path = pin_dir.join(name);
    if !path.exists() {
        return Err(OpenError::Absent(pin_dir.display().to_string()));
    }
    MapData::from_pin(&path).map_err(|error| spec(pin_dir, name, &error))
}

fn size(pin_dir: &Path, name: &str) -> Result<u32, OpenError> {
    let map = map(pin_dir, name)?;
    Ok(map.info().map_err(|error| spec(pin_dir, name, &error))?.max_entries())
}

pub(crate) fn hash<K: bytemuck::Pod, V: bytemuck::Pod>(
    pin_dir: &Path,
    name: &str,
) -> Result<Hash<K, V>, OpenError> {
    HashMap::try_from(Map::HashMap(map(pin_dir, name)?))
        .map_err(|error| spec(pin_dir, name, &error))
}

/// Opens a pinned LRU hash.
pub(crate) fn lru_hash<K: bytemuck::Pod, V: bytemuck::Pod>(
    pin_dir: &Path,
    name: &str,
) -> Result<Hash<K, V>, OpenError> {
    HashMap::try_from(Map::LruHashMap(map(pin_dir, name)?))
        .map_err(|error| spec(pin_dir, name, &error))
}

pub(crate) fn array<V: bytemuck::Pod>(
    pin_dir: &Path,
    name: &str,
) -> Result<Array<MapData, Raw<V>>, OpenError> {
    Array::try_from(Map::Array(map(pin_dir, name)?)).map_err(|error| spec(pin_dir, name, &error))
}

pub(crate) fn spec(pin_dir: &Path, name: &str, error: &dyn std::error::Error) -> OpenError {
    OpenError::Map { path: pin_dir.join(name).display().to_string(), reason: causes(error) }
}

pub(crate) fn failed(map: &'static str, action: &'static str) -> impl Fn(MapError) -> StoreError {
    move |error| StoreError::Map { map, action, errno: errno(&error), reason: causes(&error) }
}

/// The number of the kernel's error, where it is one.
fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        MapError::IoError(error) | MapError::CreateError { io_error: error, .. } => {
            error.raw_os_error()
        }
        _ => None,
    }
}

/// Of a removal: that there was nothing to remove is no error.
pub(crate) fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_error_number_outlives_its_words() {
        let refused = |errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            failed(maps::SERVICES4, "write")(MapError::SyscallError(aya::sys::SyscallError {
                call: "bpf_map_update_elem",
                io_error,
            }))
        };
        assert!(refused(libc::ENOMEM).may_pass());
        assert!(!refused(libc::E2BIG).may_pass());
        assert!(!failed(maps::SERVICES4, "write")(MapError::ProgramNotLoaded).may_pass());
    }
}
