//! The storage of sockets: what connected ones dialled, and the flows of unconnected UDP.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, SkStorage};
use topo_lb_common::connected::{Connected4, Connected6};
use topo_lb_common::flow::{Flows4, Flows6};
use topo_lb_common::maps;

use super::encode::{Layout, V4, V6};
use super::error::{OpenError, StoreError};
use super::pinned::{Raw, found, open};
use topo_lb_core::cluster::{Family, Frontend};

/// The pinned maps of both address families.
pub struct SocketStorage<Four: bytemuck::Pod, Six: bytemuck::Pod> {
    four: SkStorage<MapData, Raw<Four>>,
    six: SkStorage<MapData, Raw<Six>>,
}

/// `connected4` and `connected6`.
pub type Connected = SocketStorage<Connected4, Connected6>;

/// `flows4` and `flows6`.
pub type Flows = SocketStorage<Flows4, Flows6>;

impl<Four: bytemuck::Pod, Six: bytemuck::Pod> SocketStorage<Four, Six> {
    fn of(pin_dir: &Path, four: &str, six: &str) -> Result<Self, OpenError> {
        Ok(Self {
            four: open(pin_dir, four, Map::SkStorage)?,
            six: open(pin_dir, six, Map::SkStorage)?,
        })
    }
}

impl Connected {
    /// Opens the maps.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Self::of(pin_dir, maps::CONNECTED4, maps::CONNECTED6)
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

impl Flows {
    /// Opens the maps.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Self::of(pin_dir, maps::FLOWS4, maps::FLOWS6)
    }

    /// The frontends that a socket sends to without being connected, and the endpoints that get the
    /// datagrams.
    ///
    /// # Errors
    /// It is no socket, or a map cannot be read.
    pub fn by(&self, socket: &impl AsRawFd) -> Result<BTreeMap<Frontend, SocketAddr>, StoreError> {
        let mut all = BTreeMap::new();
        macro_rules! read {
            ($layout:ty, $map:expr, $name:expr) => {
                if let Some(mut stored) = found($name, $map.get(socket, 0))? {
                    // A later flow to the same frontend replaced an earlier one.
                    stored.flows.sort_by_key(|flow| Reverse(stored.turn.wrapping_sub(flow.turn)));
                    all.extend(stored.flows.iter().filter_map(|flow| {
                        let endpoint = <$layout>::read_backend(&flow.endpoint).address();
                        Some((<$layout>::read_frontend(&flow.frontend)?, endpoint))
                    }));
                }
            };
        }
        read!(V4, self.four, maps::FLOWS4);
        read!(V6, self.six, maps::FLOWS6);
        Ok(all)
    }
}
