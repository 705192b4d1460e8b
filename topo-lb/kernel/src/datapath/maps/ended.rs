//! The ring buffer in which programs tell which TCP connections ended that they did not translate.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;

use aya::maps::Map;
use topo_lb_common::ended::{ESTABLISHED, Ended, RING_BYTES};
use topo_lb_common::maps;
use topo_lb_common::totals::{Failure, Totals, rtt_place};

use super::error::ReadError;
use super::pinned::{PerCpu, open, sum};
use super::ring::Ring;

/// Most elements that are taken at once: what fits into the ring buffer.
const BATCH: usize = RING_BYTES as usize / size_of::<Ended>();

/// A connection that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedConnection {
    /// The client's socket.
    pub client: SocketAddr,
    /// What it dialled.
    pub dialled: SocketAddr,
    /// What it moved, or how it failed.
    pub totals: Totals,
}

/// Opens the ring buffer. Needs a runtime.
pub(crate) fn ring(map: Map) -> Result<Ring<EndedConnection>, String> {
    Ring::new(map, BATCH, read)
}

/// Connections for which the ring buffer had no room, since it exists.
///
/// # Errors
/// The map cannot be read.
pub fn lost(pin_dir: &Path) -> Result<u64, ReadError> {
    let lost: PerCpu<u64> = open(pin_dir, maps::ENDED_LOST, Map::PerCpuArray)?;
    Ok(sum(&lost, maps::ENDED_LOST, 0)?)
}

/// An element; `None` if an agent of another version left it.
fn read(bytes: &[u8]) -> Option<EndedConnection> {
    let ended: Ended = bytemuck::try_pod_read_unaligned(bytes).ok()?;
    let address = |octets, port| SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port);
    let mut totals = Totals {
        sent: ended.sent,
        received: ended.received,
        retransmitted: ended.retransmitted.into(),
        ..Totals::default()
    };
    if ended.failure == ESTABLISHED {
        if ended.rtt_micros != 0 {
            totals.rtt_micros = ended.rtt_micros.into();
            totals.rtt[rtt_place(ended.rtt_micros)] = 1;
        }
    } else {
        let failure = Failure::ALL.get(usize::from(ended.failure))?;
        totals.failures[*failure as usize] = 1;
    }
    Some(EndedConnection {
        client: address(ended.client, ended.client_port),
        dialled: address(ended.dialled, ended.dialled_port),
        totals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(address: &str) -> [u8; 16] {
        address.parse::<Ipv6Addr>().expect("an address").octets()
    }

    #[test]
    fn an_element_is_a_connection_and_what_it_moved() {
        let element = Ended {
            client: octets("::ffff:10.0.0.9"),
            dialled: octets("2001:db8::1"),
            sent: 7,
            received: 9,
            retransmitted: 1,
            rtt_micros: 100,
            client_port: 40_000,
            dialled_port: 80,
            failure: ESTABLISHED,
            reserved: [0; 3],
        };
        let one = read(bytemuck::bytes_of(&element)).expect("an element");
        assert_eq!(one.client, "10.0.0.9:40000".parse().expect("an address"));
        assert_eq!(one.dialled, "[2001:db8::1]:80".parse().expect("an address"));
        let Totals { sent, received, retransmitted, failures, rtt_micros, rtt } = one.totals;
        assert_eq!((sent, received, retransmitted, failures), (7, 9, 1, [0; 4]));
        assert_eq!((rtt_micros, rtt[rtt_place(100)], rtt.iter().sum::<u64>()), (100, 1, 1));
        let failed = Ended { failure: Failure::Timeout as u8, rtt_micros: 0, ..element };
        let totals = read(bytemuck::bytes_of(&failed)).expect("an element").totals;
        assert_eq!((totals.failures, totals.rtt), ([0, 1, 0, 0], [0; 16]));
        assert_eq!(read(bytemuck::bytes_of(&Ended { failure: 4, ..element })), None);
        assert_eq!(read(&[0; 63]), None);
    }
}
