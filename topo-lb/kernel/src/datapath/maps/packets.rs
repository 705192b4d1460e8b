//! Reads the outcomes of packets that the programs of tc and XDP saw.

use std::path::Path;

use aya::maps::Map;
use topo_lb_common::maps;
use topo_lb_common::packets::{Packets, XDP};

use super::error::ReadError;
use super::pinned::{PerCpu, open, sum};
use crate::datapath::direction::Direction;

/// Packets by outcome, for each hook: `ingress` and `egress` of tc, and `xdp` for what it has not left to tc. None if
/// the agent runs without tc, and none of `xdp` if it is one of before XDP.
///
/// # Errors
/// The map cannot be read.
pub fn read(pin_dir: &Path) -> Result<Vec<(&'static str, Packets)>, ReadError> {
    if !pin_dir.join(maps::PACKETS).exists() {
        return Ok(Vec::new());
    }
    let per_cpu: PerCpu<Packets> = open(pin_dir, maps::PACKETS, Map::PerCpuArray)?;
    let mut hooks = Direction::BOTH.map(|it| (it.into(), it.hook())).to_vec();
    if per_cpu.len() > XDP {
        hooks.push(("xdp", XDP));
    }
    hooks
        .into_iter()
        .map(|(name, index)| Ok((name, sum(&per_cpu, maps::PACKETS, index)?)))
        .collect()
}
