//! What a socket remembers of its connection, by a descriptor of it: `connected4`, `connected6`.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, MapError, SkStorage};
use topo_lb_common::maps;
use topo_lb_common::reverse::{Connected4, Connected6};

use super::bpf::{OpenError, Raw, failed, map, spec};
use super::encode::{Layout, V4, V6};
use super::store::StoreError;
use crate::cluster::{Family, Frontend};

/// The pinned maps that say so.
pub struct Connected {
    four: SkStorage<MapData, Raw<Connected4>>,
    six: SkStorage<MapData, Raw<Connected6>>,
}

impl Connected {
    /// Opens them.
    ///
    /// # Errors
    /// They are not there, or are something else.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        let storage = |name| Ok(Map::SkStorage(map(pin_dir, name)?));
        Ok(Self {
            four: SkStorage::try_from(storage(maps::CONNECTED4)?)
                .map_err(|error| spec(pin_dir, maps::CONNECTED4, &error))?,
            six: SkStorage::try_from(storage(maps::CONNECTED6)?)
                .map_err(|error| spec(pin_dir, maps::CONNECTED6, &error))?,
        })
    }

    /// The frontend that a socket dialled last in a family, and the endpoint where it went then; none
    /// for a socket that the programs have not translated. It may be connected elsewhere since.
    ///
    /// # Errors
    /// It is no socket, or the map cannot be read.
    pub fn by(
        &self,
        socket: &impl AsRawFd,
        family: Family,
    ) -> Result<Option<(Frontend, SocketAddr)>, StoreError> {
        let parts = match family {
            Family::V4 => found(maps::CONNECTED4, self.four.get(socket, 0))?.map(|stored| {
                (V4::read_frontend(&stored.frontend), V4::read_backend(&stored.endpoint).address())
            }),
            Family::V6 => found(maps::CONNECTED6, self.six.get(socket, 0))?.map(|stored| {
                (V6::read_frontend(&stored.frontend), V6::read_backend(&stored.endpoint).address())
            }),
        };
        Ok(parts.and_then(|(frontend, endpoint)| Some((frontend?, endpoint))))
    }
}

fn found<T>(name: &'static str, got: Result<Raw<T>, MapError>) -> Result<Option<T>, StoreError> {
    match got {
        Ok(Raw(value)) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(failed(name, "read")(error)),
    }
}
