//! Veth devices that behave like network cards.

use anyhow::Result;

use crate::netns::{NetNs, ethtool};

/// `ETHTOOL_STXCSUM` and `ETHTOOL_SGRO` with their values: `ethtool -K DEVICE tx off gro on`.
const CHECKSUMS: [u32; 2] = [0x17, 0];
const RECEIVES: [u32; 2] = [0x2c, 1];

/// Makes a veth device the far end of a cable to a card: frames that leave by it have their checksums, and it takes
/// frames that a program of XDP sends (`veth_xdp_xmit`, drivers/net/veth.c).
///
/// # Errors
/// There is no such device.
pub fn far_end(netns: &NetNs, device: &str) -> Result<()> {
    netns.run(|| {
        ethtool(device, &mut CHECKSUMS.clone())?;
        ethtool(device, &mut RECEIVES.clone())
    })
}
