//! Reads the flows of unconnected UDP sockets, for `topo-lb list`.

use std::net::SocketAddr;
use std::path::Path;

use aya::maps::Map;
use topo_lb_common::flow::{Flow4, Flow6, FlowKey4, FlowKey6};
use topo_lb_common::maps;

use super::encode::{Layout, V4, V6};
use super::error::ReadError;
use super::pinned::{Hash, entries, open};
use crate::cluster::Frontend;

/// An unconnected UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// The frontend that the socket sends to.
    pub frontend: Frontend,
    /// The endpoint that its datagrams go to.
    pub endpoint: SocketAddr,
    /// Index of the Service port.
    pub service: u32,
}

/// Reads every flow, sorted by frontend and socket.
pub fn read(pin_dir: &Path) -> Result<Vec<Flow>, ReadError> {
    let mut all = Vec::new();
    macro_rules! read {
        ($layout:ty, $key:ty, $flow:ty, $map:expr) => {
            let flows: Hash<$key, $flow> = open(pin_dir, $map, Map::LruHashMap)?;
            for pair in entries(&flows, $map) {
                let (key, flow) = pair?;
                let Some(frontend) = <$layout>::read_frontend(&key.frontend) else { continue };
                let endpoint = <$layout>::read_backend(&flow.endpoint).address();
                all.push(Flow { cookie: key.cookie, frontend, endpoint, service: flow.service });
            }
        };
    }
    read!(V4, FlowKey4, Flow4, maps::FLOWS4);
    read!(V6, FlowKey6, Flow6, maps::FLOWS6);
    all.sort_by_key(|flow| (flow.frontend, flow.cookie));
    Ok(all)
}
