//! The storage of unconnected UDP sockets, for `topo-lb list`: `flows4`, `flows6`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use aya::maps::{Map, MapData, SkStorage};
use topo_lb_common::flow::{Flows4, Flows6};
use topo_lb_common::maps;

use super::encode::{Layout, V4, V6};
use super::error::{OpenError, StoreError};
use super::pinned::{Raw, found, open};
use crate::cluster::Frontend;

/// The pinned maps.
pub struct Flows {
    four: SkStorage<MapData, Raw<Flows4>>,
    six: SkStorage<MapData, Raw<Flows6>>,
}

impl Flows {
    /// Opens the maps.
    ///
    /// # Errors
    /// They do not exist, or have another type.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            four: open(pin_dir, maps::FLOWS4, Map::SkStorage)?,
            six: open(pin_dir, maps::FLOWS6, Map::SkStorage)?,
        })
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
