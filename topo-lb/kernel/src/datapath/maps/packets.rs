//! Reads the outcomes of packets that the programs of tc and XDP saw.

use std::path::Path;

use aya::maps::Map;
use topo_lb_common::maps;
use topo_lb_common::packets::{Packets, XDP};

use super::error::ReadError;
use super::pinned::{PerCpu, open, sum};
use crate::datapath::direction::Direction;

/// Packets by outcome, for each tc hook; none if the agent runs without tc.
///
/// # Errors
/// The map cannot be read.
pub fn read(pin_dir: &Path) -> Result<Vec<(Direction, Packets)>, ReadError> {
    if !pin_dir.join(maps::PACKETS).exists() {
        return Ok(Vec::new());
    }
    let per_cpu: PerCpu<Packets> = open(pin_dir, maps::PACKETS, Map::PerCpuArray)?;
    let mut all = Vec::new();
    for direction in Direction::BOTH {
        all.push((direction, sum(&per_cpu, maps::PACKETS, direction.hook())?));
    }
    Ok(all)
}

/// Packets by outcome that XDP has not left to tc; `None` if the agent runs without tc, or is one of before XDP.
///
/// # Errors
/// The map cannot be read.
pub fn of_xdp(pin_dir: &Path) -> Result<Option<Packets>, ReadError> {
    if !pin_dir.join(maps::PACKETS).exists() {
        return Ok(None);
    }
    let per_cpu: PerCpu<Packets> = open(pin_dir, maps::PACKETS, Map::PerCpuArray)?;
    if per_cpu.len() <= XDP {
        return Ok(None);
    }
    Ok(Some(sum(&per_cpu, maps::PACKETS, XDP)?))
}
