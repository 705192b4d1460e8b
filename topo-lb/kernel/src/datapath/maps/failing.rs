//! The ring buffer in which programs tell which endpoints fail.

use std::net::{Ipv6Addr, SocketAddr};

use aya::maps::Map;
use topo_lb_common::failing::{Failing, RING_BYTES};
use topo_lb_common::totals::Failure;

use super::ring::Ring;

/// Most elements that are taken at once: what fits into the ring buffer.
const BATCH: usize = RING_BYTES as usize / size_of::<Failing>();

/// An endpoint of a Service port to which connects failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailingEndpoint {
    /// Index of the Service port.
    pub service: u32,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// How the last connect failed.
    pub why: Failure,
}

/// Opens the ring buffer, and forgets what failed while no agent ran. Needs a runtime.
pub(crate) fn ring(map: Map) -> Result<Ring<FailingEndpoint>, String> {
    let mut ring = Ring::new(map, BATCH, read)?;
    drop(ring.take());
    Ok(ring)
}

/// An element; `None` if an agent of another version left it.
fn read(bytes: &[u8]) -> Option<FailingEndpoint> {
    let Failing { address, service, port, failure, .. } =
        bytemuck::try_pod_read_unaligned(bytes).ok()?;
    let why = *Failure::ALL.get(usize::from(failure))?;
    let address = Ipv6Addr::from(address).to_canonical();
    Some(FailingEndpoint { service, endpoint: SocketAddr::new(address, port), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_read_and_foreign_bytes_are_nothing() {
        let address = "::ffff:10.1.2.3".parse::<Ipv6Addr>().expect("an address").octets();
        let element = Failing { address, service: 7, port: 80, failure: 1, reserved: 0 };
        let endpoint = "10.1.2.3:80".parse().expect("an address");
        let wanted = FailingEndpoint { service: 7, endpoint, why: Failure::Timeout };
        assert_eq!(read(bytemuck::bytes_of(&element)), Some(wanted));
        assert_eq!(read(bytemuck::bytes_of(&Failing { failure: 4, ..element })), None);
        assert_eq!(read(&[0; 23]), None);
    }
}
