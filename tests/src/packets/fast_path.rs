//! Runs each packet of a client outside through the program of XDP, too: it sends back what the program of tc
//! sends on, the same bytes, drops what that drops, or leaves it to that, as it came.

use anyhow::{Context as _, Result, bail, ensure};
use aya::Ebpf;
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use topo_lb_common::packets::{Packets, XDP};

use super::{BACK, DROP, Programs};
use crate::requirements::kernel;

/// The program of XDP.
const PROGRAM: &str = "topo_lb_xdp";
/// `XDP_DROP`, `XDP_PASS` and `XDP_TX`, include/uapi/linux/bpf.h.
const XDP_DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
/// Longer frames do not fit into the page of a run.
const LONGEST: usize = 3_000;
/// The addresses of an Ethernet header: tc leaves them to the kernel.
const ADDRESSES: usize = 12;

/// What XDP does with a frame that it does not leave to tc.
pub(super) enum ByXdp {
    /// It sends this back.
    SentBack(Vec<u8>),
    Dropped,
}

pub(super) fn load(ebpf: &mut Ebpf) -> Result<()> {
    program(ebpf)?.load().context("the verifier refuses the program of XDP")
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp> {
    Ok(ebpf.program_mut(PROGRAM).context("the object has no program of XDP")?.try_into()?)
}

impl Programs {
    /// What XDP does with a frame; `None`: it leaves it to tc.
    pub(super) fn run_by_xdp(&mut self, device: u32, frame: &[u8]) -> Result<Option<ByXdp>> {
        // A run has the device that it is given from Linux 5.14 on (ec94670fcb3b, "bpf: Support specifying ingress
        // via xdp_md context in BPF_PROG_TEST_RUN").
        if kernel() < (5, 14) || frame.len() > LONGEST {
            return Ok(None);
        }
        let mut out = vec![0; frame.len()];
        // `struct xdp_md`: begin, end, metadata, device, its queue, and where it would leave.
        let context = [0, frame.len() as u32, 0, device, 0, 0];
        let mut options = TestRunOptions::new();
        options.ctx_in = Some(bytemuck::bytes_of(&context));
        options.data_in = Some(frame);
        options.data_out = Some(&mut out);
        let result = program(&mut self.ebpf)?.test_run(options)?;
        let verdict = result.return_value;
        Ok(match verdict {
            TX => Some(ByXdp::SentBack(out)),
            XDP_DROP => Some(ByXdp::Dropped),
            PASS if out == frame => None,
            verdict => bail!("verdict {verdict} of XDP"),
        })
    }

    /// The outcomes of packets that XDP has not left to tc.
    pub fn done_by_xdp(&self) -> Result<Packets> {
        self.counted(XDP)
    }
}

/// Checks that tc has sent on what XDP has sent back, and dropped what it has dropped.
pub(super) fn compare(by_xdp: &ByXdp, frame: &[u8], verdict: i32, by_tc: &[u8]) -> Result<()> {
    let ByXdp::SentBack(sent_back) = by_xdp else {
        ensure!(verdict == DROP, "XDP drops a packet on which tc's verdict is {verdict}");
        return Ok(());
    };
    ensure!(verdict == BACK, "XDP sends back a packet on which tc's verdict is {verdict}");
    let (own, [receiver, sender]) = (&frame[..6], [&sent_back[..6], &sent_back[6..ADDRESSES]]);
    ensure!(
        sender == own && receiver != own && receiver[0] & 1 == 0,
        "XDP sends a frame from {sender:02x?} to {receiver:02x?}"
    );
    ensure!(
        sent_back[ADDRESSES..] == by_tc[ADDRESSES..],
        "XDP sends back {sent_back:02x?}, and tc sends on {by_tc:02x?}"
    );
    Ok(())
}
