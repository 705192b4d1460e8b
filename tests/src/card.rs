//! Veth devices that behave like network cards.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Result, ensure};
use aya_obj::generated::bpf_attach_type::BPF_XDP;
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_XDP;
use topo_lb_kernel::datapath::host::syscall::{link_xdp, load};

use crate::netns::{NetNs, ethtool};

/// `ETHTOOL_STXCSUM` and its value: `ethtool -K DEVICE tx off`.
const CHECKSUMS_OFF: [u32; 2] = [0x17, 0];

/// Makes a veth device the far end of a card's cable, until the link is dropped: frames that leave by it have
/// their checksums, and it takes frames that a program of XDP sends back. With GRO alone it would leave them in its
/// ring until another packet comes (`veth_xdp_flush`, drivers/net/veth.c).
///
/// # Errors
/// There is no such device.
pub fn far_end(netns: &NetNs, device: &str) -> Result<OwnedFd> {
    netns.run(|| ethtool(device, &mut CHECKSUMS_OFF.clone()))?;
    pass_all(netns, device)
}

/// Attaches a program of XDP that lets all pass to the driver of a device, until the link is dropped.
///
/// # Errors
/// There is no such device, or it has a program.
pub fn pass_all(netns: &NetNs, device: &str) -> Result<OwnedFd> {
    // r0 = XDP_PASS; exit.
    let code = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let program = load(BPF_PROG_TYPE_XDP, "pass_all", &code, BPF_XDP as u32)?;
    let index = index(netns, device)?;
    netns.run(|| Ok(link_xdp(program.as_fd(), index)?))
}

/// The interface index of a device.
///
/// # Errors
/// There is no such device.
pub fn index(netns: &NetNs, device: &str) -> Result<u32> {
    let name = CString::new(device)?;
    // SAFETY: the name is terminated.
    let index = netns.run(|| Ok(unsafe { libc::if_nametoindex(name.as_ptr()) }))?;
    ensure!(index != 0, "no device {device}");
    Ok(index)
}
