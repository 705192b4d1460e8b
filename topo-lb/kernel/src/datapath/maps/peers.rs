//! `peers`: the other nodes, for direct return.

use std::path::Path;

use aya::maps::Map;
use topo_lb_common::hop::Peer;
use topo_lb_common::maps;

use super::error::{OpenError, ReadError, StoreError};
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, open};

/// The pinned map.
pub struct PeerMap(Hash<Peer, u32>);

impl PeerMap {
    /// Opens the map in the directory of the maps.
    ///
    /// # Errors
    /// It does not exist, or has another type.
    pub fn open(maps_directory: &Path) -> Result<Self, OpenError> {
        open(maps_directory, maps::PEERS, Map::HashMap).map(Self)
    }

    /// Its entries, in no order: each with the node's tag and [`PROVED`](topo_lb_common::hop::PROVED).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn read(&self) -> Result<Vec<(Peer, u32)>, StoreError> {
        entries(&self.0, maps::PEERS).collect()
    }

    /// Whether there is an entry.
    #[must_use]
    pub fn has(&self, peer: Peer) -> bool {
        self.0.get(&Raw(peer), 0).is_ok()
    }

    /// Writes an entry, or removes it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn write(&mut self, peer: Peer, value: Option<u32>) -> Result<(), StoreError> {
        let done = match value {
            Some(value) => self.0.insert(Raw(peer), Raw(value), 0),
            None => absent_is_fine(self.0.remove(&Raw(peer))),
        };
        done.map_err(failed(maps::PEERS, "write"))
    }
}

/// Removes all entries: nothing is sent on. Without the map, there is nothing to remove.
///
/// # Errors
/// The kernel refuses.
pub fn clear(maps_directory: &Path) -> Result<(), ReadError> {
    if !maps_directory.join(maps::PEERS).exists() {
        return Ok(());
    }
    let mut map = PeerMap::open(maps_directory)?;
    for (peer, _) in map.read()? {
        map.write(peer, None)?;
    }
    Ok(())
}
