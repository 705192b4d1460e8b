//! Veth devices that behave like network cards.

use std::env;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Result, ensure};
use aya_obj::generated::bpf_attach_type::BPF_XDP;
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_XDP;
use topo_lb_kernel::datapath::host::syscall::{link_xdp, load};

use crate::foreign::instruction;
use crate::netns::{NetNs, ethtool};

/// `ETHTOOL_STXCSUM` and its value: `ethtool -K DEVICE tx off`.
const CHECKSUMS_OFF: [u32; 2] = [0x17, 0];

/// Whether all labs are to have uplinks like those of cards, and agents in place of kube-proxy `--xdp any`:
/// `TOPO_LB_XDP=any` in the environment. What clients see has to be the same.
#[must_use]
pub fn is_asked() -> bool {
    env::var_os("TOPO_LB_XDP").is_some_and(|value| value == "any")
}

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
    attach(netns, device, "pass_all", &always(PASS))
}

/// Like [`pass_all`], one that drops all.
///
/// # Errors
/// There is no such device, or it has a program.
pub fn drop_all(netns: &NetNs, device: &str) -> Result<OwnedFd> {
    attach(netns, device, "drop_all", &always(DROP))
}

/// Like [`pass_all`], one that is whom datagrams of IPv4 are for: it answers those whose first byte of payload is
/// [`ASKS`], with a zero there and all addresses swapped, and drops the others.
///
/// # Errors
/// There is no such device, or it has a program.
pub fn answer_all(netns: &NetNs, device: &str) -> Result<OwnedFd> {
    attach(netns, device, "answer_all", &answer())
}

/// The first byte of a payload that [`answer_all`] answers.
pub const ASKS: u8 = 1;

/// `XDP_DROP`, `XDP_PASS` and `XDP_TX`, include/uapi/linux/bpf.h.
const DROP: i32 = 1;
const PASS: i32 = 2;
const TX: i32 = 3;

/// A program that does nothing but return this verdict.
#[must_use]
pub fn always(verdict: i32) -> [[u8; 8]; 2] {
    // r0 = verdict; exit.
    [instruction(0xb7, 0, 0, 0, verdict), instruction(0x95, 0, 0, 0, 0)]
}

/// IP headers have no options.
fn answer() -> Vec<[u8; 8]> {
    const WORD: [u8; 2] = [0x61, 0x63];
    const HALF: [u8; 2] = [0x69, 0x6b];
    // Ethernet addresses, IP addresses, ports.
    let pairs = [(HALF, 0, 6), (HALF, 2, 8), (HALF, 4, 10), (WORD, 26, 30), (HALF, 34, 36)];
    let swap = |([read, write], one, other): ([u8; 2], i16, i16)| {
        [
            instruction(read, 4, 2, one, 0),    // r4 = *(r2 + one)
            instruction(read, 5, 2, other, 0),  // r5 = *(r2 + other)
            instruction(write, 2, 5, one, 0),   // *(r2 + one) = r5
            instruction(write, 2, 4, other, 0), // *(r2 + other) = r4
        ]
    };
    let mut sent_back = vec![instruction(0x72, 2, 0, 42, 0)]; // *(u8 *)(r2 + 42) = 0
    sent_back.extend(pairs.into_iter().flat_map(swap));
    sent_back.push(instruction(0xb7, 0, 0, 0, TX)); // r0 = XDP_TX
    let length = sent_back.len() as i16;
    let mut code = vec![
        instruction(0xb7, 0, 0, 0, PASS),       // r0 = XDP_PASS
        instruction(0x61, 2, 1, 0, 0),          // w2 = *(u32 *)(r1 + data)
        instruction(0x61, 3, 1, 4, 0),          // w3 = *(u32 *)(r1 + data_end)
        instruction(0xbf, 4, 2, 0, 0),          // r4 = r2
        instruction(0x07, 4, 0, 0, 43),         // r4 += 43
        instruction(0x2d, 4, 3, length + 7, 0), // if r4 > r3 goto exit
        instruction(0x69, 4, 2, 12, 0),         // r4 = *(u16 *)(r2 + 12)
        instruction(0x55, 4, 0, length + 5, i32::from(0x0800_u16.to_be())), // if r4 != IPv4 goto exit
        instruction(0x71, 4, 2, 23, 0),                                     // r4 = *(u8 *)(r2 + 23)
        instruction(0x55, 4, 0, length + 3, libc::IPPROTO_UDP), // if r4 != UDP goto exit
        instruction(0xb7, 0, 0, 0, DROP),                       // r0 = XDP_DROP
        instruction(0x71, 4, 2, 42, 0),                         // r4 = *(u8 *)(r2 + 42)
        instruction(0x55, 4, 0, length, i32::from(ASKS)),       // if r4 != ASKS goto exit
    ];
    code.extend(sent_back);
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    code
}

fn attach(netns: &NetNs, device: &str, name: &str, code: &[[u8; 8]]) -> Result<OwnedFd> {
    let program = load(BPF_PROG_TYPE_XDP, name, code, BPF_XDP as u32)?;
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
