//! The storage of translated sockets: `connected4`, `connected6`.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, SkStorage};
use topo_lb_common::connected::{Connected4, Connected6};
use topo_lb_common::maps;

use super::encode::{Layout, V4, V6};
use super::error::{OpenError, StoreError};
use super::pinned::{Raw, found, open};
use crate::cluster::{Family, Frontend};

/// The pinned maps.
pub struct Connected {
    four: SkStorage<MapData, Raw<Connected4>>,
    six: SkStorage<MapData, Raw<Connected6>>,
}

impl Connected {
    /// Opens the maps.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            four: open(pin_dir, maps::CONNECTED4, Map::SkStorage)?,
            six: open(pin_dir, maps::CONNECTED6, Map::SkStorage)?,
        })
    }

    /// The frontend that a socket last dialled in a family, and the endpoint that was chosen;
    /// `None` if the socket was not translated. The socket may be connected elsewhere by now.
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
