//! The flows that the kernel remembers, for people to look at.

use std::net::SocketAddr;
use std::path::Path;

use topo_lb_common::flow::{Flow4, Flow6, FlowKey4, FlowKey6};
use topo_lb_common::maps;

use super::bpf::{self, Raw, ReadError};
use super::encode::{Layout, V4, V6};
use crate::cluster::Frontend;

/// An unconnected UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// What the socket sends to.
    pub frontend: Frontend,
    /// Where its datagrams go.
    pub endpoint: SocketAddr,
    /// Index of the Service port.
    pub service: u32,
}

/// Reads every flow, sorted by frontend and socket.
pub fn read(pin_dir: &Path) -> Result<Vec<Flow>, ReadError> {
    let mut all = Vec::new();
    for pair in bpf::lru_hash::<FlowKey4, Flow4>(pin_dir, maps::FLOWS4)?.iter() {
        let (Raw(key), Raw(flow)) = pair.map_err(bpf::failed(maps::FLOWS4, "read"))?;
        let Some(frontend) = V4::read_frontend(&key.frontend) else { continue };
        let endpoint = V4::read_backend(&flow.endpoint).address();
        all.push(Flow { cookie: key.cookie, frontend, endpoint, service: flow.service });
    }
    for pair in bpf::lru_hash::<FlowKey6, Flow6>(pin_dir, maps::FLOWS6)?.iter() {
        let (Raw(key), Raw(flow)) = pair.map_err(bpf::failed(maps::FLOWS6, "read"))?;
        let Some(frontend) = V6::read_frontend(&key.frontend) else { continue };
        let endpoint = V6::read_backend(&flow.endpoint).address();
        all.push(Flow { cookie: key.cookie, frontend, endpoint, service: flow.service });
    }
    all.sort_by_key(|flow| (flow.frontend, flow.cookie));
    Ok(all)
}
