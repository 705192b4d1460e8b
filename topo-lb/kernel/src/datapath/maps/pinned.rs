//! Opens pinned maps, and explains failures in words.

use std::error::Error;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::{io, iter};

use aya::maps::{HashMap, IterableMap as _, Map, MapData, MapError, MapInfo, PerCpuArray};
use topo_lb_common::counters;

use super::error::{OpenError, StoreError};
use crate::datapath::error::causes;
use crate::datapath::host::batch::{lookup_batch, update_batch};

/// A layout of `topo-lb-common`, as a type for aya.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Raw<T>(pub T);

// SAFETY: `bytemuck::Pod` promises more: every bit pattern is valid, and there is no padding.
unsafe impl<T: bytemuck::Pod> aya::Pod for Raw<T> {}

/// A hash map, by bytes.
pub type Hash<K, V> = HashMap<MapData, Raw<K>, Raw<V>>;
pub(crate) type PerCpu<V> = PerCpuArray<MapData, Raw<V>>;

/// Opens a pinned map of a type: `open(pin_dir, NAME, Map::HashMap)`.
pub fn open<M: TryFrom<Map, Error = MapError>>(
    pin_dir: &Path,
    name: &str,
    map_type: fn(MapData) -> Map,
) -> Result<M, OpenError> {
    M::try_from(map_type(data(pin_dir, name)?)).map_err(|error| unusable(pin_dir, name, &error))
}

/// Opens a pinned map of any type.
pub(crate) fn data(pin_dir: &Path, name: &str) -> Result<MapData, OpenError> {
    let path = pin_dir.join(name);
    if !path.exists() {
        return Err(OpenError::Absent(pin_dir.display().to_string()));
    }
    MapData::from_pin(&path).map_err(|error| unusable(pin_dir, name, &error))
}

/// Most entries of a pinned map.
pub(crate) fn size(pin_dir: &Path, name: &str) -> Result<u32, OpenError> {
    let info = MapInfo::from_pin(pin_dir.join(name));
    Ok(info.map_err(|error| unusable(pin_dir, name, &error))?.max_entries())
}

pub(crate) fn unusable(pin_dir: &Path, name: &str, error: &dyn Error) -> OpenError {
    OpenError::Map { path: pin_dir.join(name).display().to_string(), reason: causes(error) }
}

/// Opens another handle to a hash, LRU or not.
pub(super) fn another<'a, K: bytemuck::Pod, V: bytemuck::Pod>(
    table: impl Fn(&str) -> Option<&'a Map>,
    name: &'static str,
) -> Result<Hash<K, V>, StoreError> {
    let open = || {
        let Some(Map::HashMap(data) | Map::LruHashMap(data)) = table(name) else {
            return Err(MapError::IoError(io::ErrorKind::InvalidData.into()));
        };
        let fd = data.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
        HashMap::try_from(Map::HashMap(MapData::from_fd(fd)?))
    };
    open().map_err(failed(name, "read"))
}

/// Entries that one call reads.
const BATCH: usize = 1_024;

/// Every entry of the map `name`, many by one call. One that is written or removed meanwhile may be missing, or be there
/// as it was.
pub fn entries<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: &Hash<K, V>,
    name: &'static str,
) -> impl Iterator<Item = Result<(K, V), StoreError>> {
    let (mut keys, mut values) = (vec![K::zeroed(); BATCH], vec![V::zeroed(); BATCH]);
    // What was read, and where to go on; `None` at the end.
    let (mut read, mut next) = (0..0, Some(None));
    iter::from_fn(move || {
        loop {
            if let Some(at) = read.next() {
                return Some(Ok((keys[at], values[at])));
            }
            let place = next.take()?;
            match lookup_batch(map.map().fd().as_fd(), place, &mut keys, &mut values) {
                Ok((count, place)) => (read, next) = (0..count, place.map(Some)),
                // So many have one hash.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    keys.resize(2 * keys.len(), K::zeroed());
                    values.resize(keys.len(), V::zeroed());
                    next = Some(place);
                }
                Err(error) => return Some(Err(failed(name, "read")(MapError::IoError(error)))),
            }
        }
    })
}

/// Writes these entries, by as few calls as the kernel takes.
pub(crate) fn write_all<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: &MapData,
    keys: &[K],
    values: &[V],
) -> Result<(), MapError> {
    let mut done = 0;
    while done < keys.len() {
        let written = update_batch(map.fd().as_fd(), &keys[done..], &values[done..]);
        done += written.map_err(MapError::IoError)?;
    }
    Ok(())
}

/// A value read from the map `name`; `None` if the key does not exist.
pub fn found<T>(
    name: &'static str,
    got: Result<Raw<T>, MapError>,
) -> Result<Option<T>, StoreError> {
    match got {
        Ok(Raw(value)) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(failed(name, "read")(error)),
    }
}

/// The sum of an entry over all CPUs. `V` consists of `u64`s.
pub(crate) fn sum<V: bytemuck::Pod>(
    map: &PerCpu<V>,
    name: &'static str,
    index: u32,
) -> Result<V, StoreError> {
    let each = map.get(&index, 0).map_err(failed(name, "read"))?;
    Ok(counters::sum(each.iter().map(|Raw(one)| one)))
}

pub(crate) fn failed(map: &'static str, action: &'static str) -> impl Fn(MapError) -> StoreError {
    move |error| StoreError::Map { map, action, errno: errno(&error), reason: causes(&error) }
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        MapError::IoError(error) | MapError::CreateError { io_error: error, .. } => {
            error.raw_os_error()
        }
        _ => None,
    }
}

/// For removals: a missing entry is no error.
pub(crate) fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        result => result,
    }
}

/// An existing key and a full map are no errors.
pub(super) fn added(outcome: Result<(), MapError>) -> Result<(), MapError> {
    match outcome {
        Err(MapError::SyscallError(error))
            if matches!(error.io_error.raw_os_error(), Some(libc::EEXIST | libc::E2BIG)) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use topo_lb_common::maps;

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
