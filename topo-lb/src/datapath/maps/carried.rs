//! tc's connections, carried from old maps to new ones.

use std::path::{Path, PathBuf};

use aya::maps::{HashMap, Map, MapData, MapError};
use bytemuck::Pod;
use topo_lb_common::connection::{Connection4, Connection6, Tuple4, Tuple6};
use topo_lb_common::maps;
use tracing::warn;

use super::earlier;
use super::pinned::{BPF_NOEXIST, Raw, added};
use crate::datapath::error::causes;

/// The old maps of connections that were replaced, beside the new ones. The hooks of cgroups switch
/// first: until a device has the new programs, its old ones write to the old maps.
#[derive(Debug)]
pub(crate) struct CarriedConnections {
    pin_dir: PathBuf,
    maps: Vec<Carried>,
}

#[derive(Debug)]
struct Carried {
    name: &'static str,
    old: Map,
    new: Map,
    /// In bytes.
    old_key_size: u32,
}

impl CarriedConnections {
    pub(super) fn new(pin_dir: &Path) -> Self {
        Self { pin_dir: pin_dir.to_owned(), maps: Vec::new() }
    }

    /// # Errors
    /// The kernel does not describe the old map.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        (old, new): (MapData, MapData),
    ) -> Result<(), MapError> {
        let old_key_size = old.info()?.key_size();
        let (old, new) = (Map::LruHashMap(old), Map::LruHashMap(new));
        self.maps.push(Carried { name, old, new, old_key_size });
        Ok(())
    }

    /// Copies what the new maps lack, as far as there is room.
    pub(crate) fn copy(&mut self) {
        for carried in &mut self.maps {
            let copied = match carried.name {
                maps::CONNECTIONS4 => {
                    carried.copy::<[u32; 4], [u64; 5], Tuple4, Connection4>(&self.pin_dir)
                }
                _ => carried.copy::<[u32; 10], [u64; 8], Tuple6, Connection6>(&self.pin_dir),
            };
            if let Err(error) = copied {
                let name = carried.name;
                warn!("the new map {name} lacks what the old one had: {}", causes(&error));
            }
        }
    }
}

impl Carried {
    /// Entries of this version, or with the key `OK` and the value `OV` of an earlier one.
    fn copy<OK: Pod, OV: Pod, K: Pod, V: Pod>(&mut self, pin_dir: &Path) -> Result<(), MapError> {
        let Self { old, new, old_key_size, .. } = self;
        if *old_key_size as usize == size_of::<OK>() {
            earlier::copy::<OK, OV, K, V>(pin_dir, old, new)
        } else {
            copy::<K, V>(old, new)
        }
    }
}

/// Copies the entries that `new` lacks.
pub(super) fn copy<K: Pod, V: Pod>(old: &Map, new: &mut Map) -> Result<(), MapError> {
    let old = HashMap::<_, Raw<K>, Raw<V>>::try_from(old)?;
    let mut new = HashMap::<_, Raw<K>, Raw<V>>::try_from(new)?;
    // An entry that is removed meanwhile is skipped.
    for (key, value) in old.iter().filter_map(Result::ok) {
        added(new.insert(key, value, BPF_NOEXIST))?;
    }
    Ok(())
}
