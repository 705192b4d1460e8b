//! Rows of `topo-lb list connections`: flows of sockets, and connections of clients without one on this
//! node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustix::net::sockopt::socket_cookie;
use serde::Serialize;

use super::{UNKNOWN, name};
use topo_lb_core::cluster::Frontend;
use topo_lb_kernel::datapath::maps::connections::Connection;
use topo_lb_kernel::datapath::maps::error::{ReadError, StoreError};
use topo_lb_kernel::datapath::maps::socket_storage::Flows;
use topo_lb_kernel::socket::holder;

/// An unconnected UDP flow, or a connection of a client without a socket on this node.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRow {
    /// The kernel's socket cookie, for the flow of a socket.
    pub socket: Option<u64>,
    /// `address:port` of a client without a socket on this node.
    pub client: Option<String>,
    /// `opening`, `open`, `closing` or `closed`, for such a client's connection.
    pub state: Option<&'static str>,
    /// Seconds since such a client's last packet.
    pub idle_seconds: Option<u64>,
    /// `namespace/name:port`.
    pub service: Arc<str>,
    /// `address:port/protocol`.
    pub frontend: String,
    /// `address:port`.
    pub endpoint: String,
}

pub(super) fn connection_row(
    names: &BTreeMap<u32, Arc<str>>,
    connection: Connection,
) -> ConnectionRow {
    ConnectionRow {
        socket: None,
        client: Some(connection.client.to_string()),
        state: Some(connection.state),
        idle_seconds: Some(connection.idle.as_secs()),
        service: name(names, connection.service),
        frontend: connection.frontend.to_string(),
        endpoint: connection.endpoint.to_string(),
    }
}

/// Frontend, socket cookie and endpoint of a flow.
pub(super) type Flow = (Frontend, u64, SocketAddr);

/// The flows of all sockets that processes of this pid namespace have open, sorted; and how many
/// processes do not show theirs.
pub(super) fn flows(pin_dir: &Path) -> Result<(Vec<Flow>, usize), ReadError> {
    let flows = Flows::open(pin_dir)?;
    let mut all = Vec::new();
    let hidden = holder::every(|socket| {
        let cookie = socket_cookie(socket).unwrap_or_default();
        let of_socket = flows.by(socket)?.into_iter();
        all.extend(of_socket.map(|(frontend, endpoint)| (frontend, cookie, endpoint)));
        Ok::<_, StoreError>(())
    })?;
    all.sort_unstable();
    Ok((all, hidden))
}

pub(super) fn flow_row(
    service: Option<Arc<str>>,
    (frontend, cookie, endpoint): Flow,
) -> ConnectionRow {
    ConnectionRow {
        socket: Some(cookie),
        service: service.unwrap_or_else(|| UNKNOWN.into()),
        frontend: frontend.to_string(),
        endpoint: endpoint.to_string(),
        ..ConnectionRow::default()
    }
}
