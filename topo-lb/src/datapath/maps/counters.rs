//! What the kernel has counted: connections of Service ports, packets of tc hooks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aya::maps::{Map, MapData, PerCpuArray};
use topo_lb_common::connection::Packets;
use topo_lb_common::counter::{Counters, Name};
use topo_lb_common::maps;

use super::bpf::{self, Raw, ReadError, failed, spec};
use super::encode;
use super::store::StoreError;
use crate::datapath::attach::devices::Direction;

/// Reads the connections of every Service port that had any, in one pass over `names` and
/// `counters`, which takes some microseconds for each Service port.
///
/// # Errors
///
/// A map cannot be read.
pub fn connections(pin_dir: &Path) -> Result<BTreeMap<Arc<str>, Counters>, ReadError> {
    let names: bpf::Hash<u32, Name> = bpf::hash(pin_dir, maps::NAMES)?;
    let per_cpu: PerCpuArray<MapData, Raw<Counters>> = array(pin_dir, maps::COUNTERS)?;
    let mut all = BTreeMap::new();
    // While others write, the kernel may show an element twice; what it shows last stays.
    for pair in names.iter() {
        let (Raw(index), Raw(name)) = pair.map_err(failed(maps::NAMES, "read"))?;
        let counted = counters(&per_cpu, index)?;
        if counted != Counters::default()
            && let Some(name) = encode::read_name(&name)
        {
            all.insert(name.into(), counted);
        }
    }
    Ok(all)
}

/// Reads how many look-ups of Services have given no whole value; none where the agent before had no
/// such counter.
///
/// # Errors
///
/// The map cannot be read.
pub fn torn(pin_dir: &Path) -> Result<u64, ReadError> {
    if !pin_dir.join(maps::TORN).exists() {
        return Ok(0);
    }
    let per_cpu: PerCpuArray<MapData, Raw<u64>> = array(pin_dir, maps::TORN)?;
    let values = per_cpu.get(&0, 0).map_err(failed(maps::TORN, "read"))?;
    Ok(values.iter().map(|Raw(one)| one).sum())
}

/// Reads how often the Service ports whose name is `wanted` have refused.
///
/// # Errors
///
/// A map cannot be read.
pub fn refused(
    pin_dir: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<Arc<str>, u64>, ReadError> {
    let names: bpf::Hash<u32, Name> = bpf::hash(pin_dir, maps::NAMES)?;
    let per_cpu: PerCpuArray<MapData, Raw<Counters>> = array(pin_dir, maps::COUNTERS)?;
    let mut all = BTreeMap::new();
    for pair in names.iter() {
        let (Raw(index), Raw(name)) = pair.map_err(failed(maps::NAMES, "read"))?;
        if let Some(name) = encode::read_name(&name)
            && wanted(name)
        {
            all.insert(name.into(), counters(&per_cpu, index)?.refused);
        }
    }
    Ok(all)
}

/// Reads what became of the packets of each tc hook; nothing where the agent runs without tc.
///
/// # Errors
///
/// The map cannot be read.
pub fn packets(pin_dir: &Path) -> Result<Vec<(Direction, Packets)>, ReadError> {
    if !pin_dir.join(maps::PACKETS).exists() {
        return Ok(Vec::new());
    }
    let per_cpu: PerCpuArray<MapData, Raw<Packets>> = array(pin_dir, maps::PACKETS)?;
    let mut all = Vec::new();
    for direction in Direction::BOTH {
        let values = per_cpu.get(&direction.hook(), 0).map_err(failed(maps::PACKETS, "read"))?;
        let sum = values.iter().fold(Packets::default(), |sum, Raw(one)| Packets {
            untouched: sum.untouched + one.untouched,
            translated: sum.translated + one.translated,
            opened: sum.opened + one.opened,
            refused: sum.refused + one.refused,
            unanswered: sum.unanswered + one.unanswered,
            unknown: sum.unknown + one.unknown,
            malformed: sum.malformed + one.malformed,
            errors: sum.errors + one.errors,
            dropped: sum.dropped + one.dropped,
        });
        all.push((direction, sum));
    }
    Ok(all)
}

fn array<V: bytemuck::Pod>(
    pin_dir: &Path,
    name: &str,
) -> Result<PerCpuArray<MapData, Raw<V>>, bpf::OpenError> {
    PerCpuArray::try_from(Map::PerCpuArray(bpf::map(pin_dir, name)?))
        .map_err(|error| spec(pin_dir, name, &error))
}

/// Connections of a Service port by where they went, over all CPUs.
pub(crate) fn counters(
    per_cpu: &PerCpuArray<MapData, Raw<Counters>>,
    index: u32,
) -> Result<Counters, StoreError> {
    let values = per_cpu.get(&index, 0).map_err(failed(maps::COUNTERS, "read"))?;
    Ok(values.iter().fold(Counters::default(), |sum, Raw(one)| Counters {
        same_node: sum.same_node + one.same_node,
        same_zone: sum.same_zone + one.same_zone,
        same_region: sum.same_region + one.same_region,
        elsewhere: sum.elsewhere + one.elsewhere,
        refused: sum.refused + one.refused,
    }))
}
