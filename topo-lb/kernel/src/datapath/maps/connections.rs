//! Reads the connections that tc tracks, for `topo-lb list`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use aya::maps::Map;
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, CLIENT_FIN, Connection4, Connection6, DIRECT, ENDPOINT_FIN, MASQUERADE, REPLY,
    Tuple4, Tuple6, is_closed, lifetime,
};
use topo_lb_common::maps;

use super::encode::protocol_of;
use super::error::{ReadError, StoreError};
use super::pinned::{Hash, another, entries, open};
use topo_lb_core::cluster::Frontend;

/// A connection that tc translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The frontend that it dialled.
    pub frontend: Frontend,
    /// The endpoint that its packets go to.
    pub endpoint: SocketAddr,
    /// Index of the Service port.
    pub service: u32,
    /// `opening`, `open`, `closing` or `closed`.
    pub state: &'static str,
    /// Time since the client's last packet.
    pub idle: Duration,
}

/// Reads every connection that is not over, by frontend and client; none without tc.
///
/// # Errors
/// A map cannot be read.
pub fn read(pin_dir: &Path) -> Result<Vec<Connection>, ReadError> {
    let mut all = Vec::new();
    if !pin_dir.join(maps::CONNECTIONS4).exists() {
        return Ok(all);
    }
    let now = now();
    macro_rules! read {
        ($tuple:ty, $connection:ty, $address:ty, $map:expr) => {
            let table: Hash<$tuple, $connection> = open(pin_dir, $map, Map::HashMap)?;
            for pair in entries(&table, $map) {
                let (key, value) = pair?;
                let Some(protocol) = protocol_of(key.protocol) else { continue };
                let idle = now.saturating_sub(value.last_used);
                // A direct connection has no frontend.
                if value.kind & (REPLY | DIRECT) != 0 || idle >= lifetime(key.protocol, value.state)
                {
                    continue;
                }
                all.push(Connection {
                    client: (<$address>::from(key.source), key.source_port).into(),
                    frontend: Frontend::new(
                        <$address>::from(key.destination).into(),
                        key.destination_port,
                        protocol,
                    ),
                    endpoint: (<$address>::from(value.destination), value.destination_port).into(),
                    service: value.service,
                    state: state(key.protocol, value.state),
                    idle: Duration::from_nanos(idle),
                });
            }
        };
    }
    // A connection moves from the first map to the second one: none is missed.
    read!(Tuple4, Connection4, Ipv4Addr, maps::HALF_OPEN4);
    read!(Tuple4, Connection4, Ipv4Addr, maps::CONNECTIONS4);
    read!(Tuple6, Connection6, Ipv6Addr, maps::HALF_OPEN6);
    read!(Tuple6, Connection6, Ipv6Addr, maps::CONNECTIONS6);
    all.sort_by_key(|connection| (connection.frontend, connection.client));
    Ok(all)
}

/// Whether the kernel masquerades a connection that is not over. `table` finds the maps by name.
///
/// # Errors
/// A map is missing, or cannot be read.
pub(crate) fn any_masqueraded<'a>(
    table: impl Fn(&str) -> Option<&'a Map>,
) -> Result<bool, StoreError> {
    let now = now();
    macro_rules! look {
        ($tuple:ty, $connection:ty, $map:expr) => {
            let map: Hash<$tuple, $connection> = another(&table, $map)?;
            for pair in entries(&map, $map) {
                let (key, value): ($tuple, $connection) = pair?;
                let is_alive =
                    now.saturating_sub(value.last_used) < lifetime(key.protocol, value.state);
                if value.kind & MASQUERADE != 0 && is_alive {
                    return Ok(true);
                }
            }
        };
    }
    // As above.
    look!(Tuple4, Connection4, maps::HALF_OPEN4);
    look!(Tuple4, Connection4, maps::CONNECTIONS4);
    look!(Tuple6, Connection6, maps::HALF_OPEN6);
    look!(Tuple6, Connection6, maps::CONNECTIONS6);
    Ok(false)
}

fn state(protocol: u8, state: u8) -> &'static str {
    if state & ANSWERED == 0 {
        "opening"
    } else if protocol != TCP || state & (CLIENT_FIN | ENDPOINT_FIN) == 0 && !is_closed(state) {
        "open"
    } else if is_closed(state) {
        "closed"
    } else {
        "closing"
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds: the programs' clock, which they read as of the last tick.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
