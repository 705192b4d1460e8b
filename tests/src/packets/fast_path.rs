//! Runs each packet of a client outside through the program of XDP, too: it sends back what the program of tc
//! sends on, the same bytes, or leaves it to that, as it came.

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::maps::PerCpuArray;
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use topo_lb_common::maps;
use topo_lb_common::packets::{Packets, XDP};

use super::{BACK, Programs, Raw};
use crate::requirements::kernel;

/// The program of XDP.
const PROGRAM: &str = "topo_lb_xdp";
/// `XDP_PASS` and `XDP_TX`, include/uapi/linux/bpf.h.
const PASS: u32 = 2;
const TX: u32 = 3;
/// Longer frames do not fit into the page of a run.
const LONGEST: usize = 3_000;
/// The addresses of an Ethernet header: tc leaves them to the kernel.
const ADDRESSES: usize = 12;

pub(super) fn load(ebpf: &mut Ebpf) -> Result<()> {
    program(ebpf)?.load().context("the verifier refuses the program of XDP")
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp> {
    Ok(ebpf.program_mut(PROGRAM).context("the object has no program of XDP")?.try_into()?)
}

impl Programs {
    /// The frame that XDP sends back; `None`: it leaves it to tc.
    pub(super) fn run_by_xdp(&mut self, device: u32, frame: &[u8]) -> Result<Option<Vec<u8>>> {
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
        ensure!(verdict == TX || verdict == PASS && out == frame, "verdict {verdict} of XDP");
        Ok((verdict == TX).then_some(out))
    }

    /// How many packets XDP has sent back.
    pub fn sent_back(&self) -> Result<u64> {
        let packets = self.ebpf.map(maps::PACKETS).context("a map")?;
        let packets = PerCpuArray::<_, Raw<Packets>>::try_from(packets)?.get(&XDP, 0)?;
        Ok(packets.iter().map(|packets| packets.0.translated).sum())
    }
}

/// Checks that tc has sent on what XDP has sent back.
pub(super) fn compare(sent_back: &[u8], verdict: i32, by_tc: &[u8]) -> Result<()> {
    ensure!(verdict == BACK, "XDP sends back a packet on which tc's verdict is {verdict}");
    ensure!(
        sent_back[ADDRESSES..] == by_tc[ADDRESSES..],
        "XDP sends back {sent_back:02x?}, and tc sends on {by_tc:02x?}"
    );
    Ok(())
}
