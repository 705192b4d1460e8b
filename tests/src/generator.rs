//! Frames at the rate of a network card: the kernel runs a program of XDP again and again on pages of its own, and
//! sends what it makes of them into a veth device (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18, b530e9e1063e). They
//! come out at the other end as from a driver, without an skb.
//!
//! That end needs a program of XDP ([`crate::card::pass_all`]) or GRO, or the device takes none.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_attach_type::BPF_XDP;
use aya_obj::generated::bpf_cmd::BPF_PROG_TEST_RUN;
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_XDP;
use topo_lb_kernel::datapath::host::syscall::{bpf, load};

use crate::foreign::instruction;
use crate::netns::NetNs;

/// `BPF_F_TEST_XDP_LIVE_FRAMES`, include/uapi/linux/bpf.h.
const LIVE_FRAMES: u32 = 1 << 1;
/// Frames that the kernel makes and sends at once.
const BATCH: u32 = 64;
/// Where the source port is: behind an Ethernet header and an IPv4 header without options.
const SOURCE_PORT: i16 = 34;
/// Helpers, as numbered there.
const RANDOM: i32 = 7;
const REDIRECT: i32 = 23;

/// Sends copies of a frame.
#[derive(Debug)]
pub struct Generator {
    program: OwnedFd,
    frame: Vec<u8>,
}

impl Generator {
    /// Of an IPv4 frame, into the device with this index. The source port of each is one of `flows` at random, from
    /// the frame's one on. The frame's transport checksum has to be right for all of them: UDP's zero is.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn new(frame: &[u8], flows: u16, device: u32) -> Result<Self> {
        ensure!(flows > 0, "no flow");
        let mut frame = frame.to_vec();
        // Whole words are written.
        let length = frame.len().next_multiple_of(4);
        frame.resize(length, 0);
        let code = code(&frame, flows, device)?;
        let program = load(BPF_PROG_TYPE_XDP, "generator", &code, BPF_XDP as u32)?;
        Ok(Self { program, frame })
    }

    /// Sends so many frames, from a network namespace with that device.
    ///
    /// # Errors
    /// The kernel is older than 5.18.
    pub fn send(&self, netns: &NetNs, frames: u32) -> Result<()> {
        netns.run(|| {
            let sent = bpf(BPF_PROG_TEST_RUN, |attribute| {
                // SAFETY: all variants are integers, and all are zero.
                let test = unsafe { &mut attribute.test };
                test.prog_fd = self.program.as_fd().as_raw_fd() as u32;
                test.data_in = self.frame.as_ptr() as u64;
                test.data_size_in = self.frame.len() as u32;
                test.repeat = frames;
                test.flags = LIVE_FRAMES;
                test.batch_size = BATCH;
            });
            sent.map(drop).context("live frames take Linux 5.18")
        })
    }
}

/// Writes the whole frame, as its receivers change the pages in which the next ones are made, and redirects it.
fn code(frame: &[u8], flows: u16, device: u32) -> Result<Vec<[u8; 8]>> {
    let length = i32::try_from(frame.len())?;
    let mut code = vec![
        instruction(0xbf, 6, 1, 0, 0),      // r6 = r1
        instruction(0x85, 0, 0, 0, RANDOM), // r0 = a random number
        instruction(0x61, 7, 6, 0, 0),      // w7 = *(u32 *)(r6 + data)
        instruction(0x61, 3, 6, 4, 0),      // w3 = *(u32 *)(r6 + data_end)
        instruction(0xbf, 4, 7, 0, 0),      // r4 = r7
        instruction(0x07, 4, 0, 0, length), // r4 += length
        instruction(0xbf, 8, 0, 0, 0),      // r8 = r0
        instruction(0xb7, 0, 0, 0, 0),      // r0 = XDP_ABORTED
    ];
    let mut rest = Vec::new();
    for (place, word) in frame.chunks_exact(4).enumerate() {
        let word = i32::from_ne_bytes(word.try_into()?);
        let at = i16::try_from(place * 4)?;
        rest.push(instruction(0x62, 7, 0, at, word)); // *(u32 *)(r7 + at) = word
    }
    let [high, low] = [frame[SOURCE_PORT as usize], frame[SOURCE_PORT as usize + 1]];
    rest.extend([
        instruction(0x97, 8, 0, 0, i32::from(flows)), // r8 %= flows
        instruction(0x07, 8, 0, 0, i32::from(u16::from_be_bytes([high, low]))), // r8 += port
        instruction(0xdc, 8, 0, 0, 16),               // r8 = htobe16(r8)
        instruction(0x6b, 7, 8, SOURCE_PORT, 0),      // *(u16 *)(r7 + port) = r8
        instruction(0xb4, 1, 0, 0, device.cast_signed()), // w1 = device
        instruction(0xb7, 2, 0, 0, 0),                // r2 = 0
        instruction(0x85, 0, 0, 0, REDIRECT),         // r0 = bpf_redirect(r1, r2)
    ]);
    code.push(instruction(0x2d, 4, 3, i16::try_from(rest.len())?, 0)); // if r4 > r3 goto exit
    code.extend(rest);
    code.push(instruction(0x95, 0, 0, 0, 0)); // exit
    Ok(code)
}
