//! Reads how full the tables of connections are.

use std::path::Path;

use aya::maps::{Array, Map, MapData};
use topo_lb_common::device::{Quota, SHARE};
use topo_lb_common::maps;
use topo_lb_common::usage::Usage;

use super::error::ReadError;
use super::pinned::{Raw, failed, open};
use topo_lb_core::flag::MAX_CONNECTIONS;

/// How full the table of an address family is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Open connections.
    pub open: u64,
    /// Connections that are not established yet.
    pub half_open: u64,
    /// Open connections for which there is room.
    pub room: u64,
}

/// Reads it for IPv4 and IPv6; `None` without tc.
///
/// # Errors
/// A map cannot be read.
pub fn read(pin_dir: &Path) -> Result<Option<[TableUse; 2]>, ReadError> {
    if !pin_dir.join(maps::USAGE).exists() {
        return Ok(None);
    }
    let quota: Array<MapData, Raw<Quota>> = open(pin_dir, maps::QUOTA, Map::Array)?;
    let usage: Array<MapData, Raw<Usage>> = open(pin_dir, maps::USAGE, Map::Array)?;
    let Raw(quota) = quota.get(&0, 0).map_err(failed(maps::QUOTA, "read"))?;
    let of = |family| {
        let Raw(usage) = usage.get(&family, 0).map_err(failed(maps::USAGE, "read"))?;
        Ok::<_, ReadError>(TableUse {
            open: u64::try_from(usage.open).unwrap_or_default(),
            half_open: u64::try_from(usage.half_open).unwrap_or_default(),
            room: u64::from(quota.connections) * u64::from(SHARE),
        })
    };
    Ok(Some([of(0)?, of(1)?]))
}

/// What to say while a table is full. A full one is so until a sixteenth of it is free, so that one
/// connection that comes and goes does not begin it anew.
#[must_use]
pub fn full(uses: &[TableUse; 2], was_full: bool) -> Option<String> {
    let is_full = |one: &&TableUse| {
        let enough = if was_full { one.room - one.room / 16 } else { one.room };
        one.room > 0 && one.open >= enough
    };
    let full = uses.iter().find(is_full)?;
    Some(format!(
        "the table of connections of guests and clients outside is full: {} of {} are open, and new \
         ones are dropped; raise {MAX_CONNECTIONS}",
        full.open, full.room
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_full_until_some_of_it_is_free() {
        let said = |open, was_full| {
            let six = TableUse { open, half_open: 0, room: 160 };
            full(&[TableUse { open: 0, ..six }, six], was_full)
        };
        assert_eq!(said(159, false), None);
        assert!(said(160, false).is_some_and(|text| text.contains("160 of 160 are open")));
        assert!(said(150, true).is_some());
        assert_eq!(said(149, true), None);
        // The agent has not said yet how much room there is.
        assert_eq!(full(&Default::default(), false), None);
    }
}
