//! The ring buffer of frames of other agents.

use std::path::Path;

use aya::maps::Map;
use topo_lb_common::hop::{PROBES, Probe};
use topo_lb_common::maps;

use super::pinned::data;
use super::ring::Ring;

/// Most elements that are taken at once: what fits into the ring buffer.
const BATCH: usize = PROBES as usize / size_of::<Probe>();

/// A frame that may be another agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardFrame {
    /// Interface index of the device that has received it.
    pub device: u32,
    /// From its Ethernet header on.
    pub bytes: Box<[u8]>,
}

/// Opens the pinned ring buffer, and forgets what came while no agent ran. Needs a runtime.
///
/// # Errors
/// Why it cannot be read.
pub fn ring(pin_dir: &Path) -> Result<Ring<HeardFrame>, String> {
    let map = data(pin_dir, maps::PROBES).map_err(|error| error.to_string())?;
    let mut ring = Ring::new(Map::RingBuf(map), BATCH, read)?;
    drop(ring.take());
    Ok(ring)
}

/// An element; `None` if an agent of another version left it.
fn read(bytes: &[u8]) -> Option<HeardFrame> {
    let Probe { device, length, frame } = bytemuck::try_pod_read_unaligned(bytes).ok()?;
    Some(HeardFrame { device, bytes: frame.get(..length.into())?.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_common::hop::PROBE_FRAME;

    #[test]
    fn an_element_is_read_and_foreign_bytes_are_nothing() {
        let element = Probe { device: 7, length: 3, frame: [9; PROBE_FRAME] };
        let wanted = HeardFrame { device: 7, bytes: [9; 3].into() };
        assert_eq!(read(bytemuck::bytes_of(&element)), Some(wanted));
        assert_eq!(read(bytemuck::bytes_of(&Probe { length: 343, ..element })), None);
        assert_eq!(read(&[0; 23]), None);
    }
}
