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
    let flows: Hash<FlowKey4, Flow4> = open(pin_dir, maps::FLOWS4, Map::LruHashMap)?;
    for pair in entries(&flows, maps::FLOWS4) {
        let (key, flow) = pair?;
        let Some(frontend) = V4::read_frontend(&key.frontend) else { continue };
        let endpoint = V4::read_backend(&flow.endpoint).address();
        all.push(Flow { cookie: key.cookie, frontend, endpoint, service: flow.service });
    }
    let flows: Hash<FlowKey6, Flow6> = open(pin_dir, maps::FLOWS6, Map::LruHashMap)?;
    for pair in entries(&flows, maps::FLOWS6) {
        let (key, flow) = pair?;
        let Some(frontend) = V6::read_frontend(&key.frontend) else { continue };
        let endpoint = V6::read_backend(&flow.endpoint).address();
        all.push(Flow { cookie: key.cookie, frontend, endpoint, service: flow.service });
    }
    all.sort_by_key(|flow| (flow.frontend, flow.cookie));
    Ok(all)
}
