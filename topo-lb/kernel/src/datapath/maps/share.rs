//! Which device or client outside has all the open connections that one may have.

use std::path::Path;

use aya::maps::Map;
use topo_lb_common::device::{Device, SHARE, is_outside};
use topo_lb_common::maps;

use super::error::ReadError;
use super::pinned::{Hash, entries, open};
use super::usage::TableUse;
use crate::device;
use topo_lb_core::flag::MAX_CONNECTIONS;

/// What to say while one has its share of the room. As for a full table, it has until a sixteenth of that is
/// free. Reads `devices` only if there are so many connections at all.
///
/// # Errors
/// A map cannot be read.
pub fn used_up(
    pin_dir: &Path,
    tables: &[TableUse; 2],
    was_used_up: bool,
) -> Result<Option<String>, ReadError> {
    let most = tables[0].room / u64::from(SHARE);
    let enough = if was_used_up { most - most / 16 } else { most };
    if enough == 0 || tables.iter().map(|table| table.open).sum::<u64>() < enough {
        return Ok(None);
    }
    let devices: Hash<u32, Device> = open(pin_dir, maps::DEVICES, Map::LruHashMap)?;
    let devices: Vec<_> = entries(&devices, maps::DEVICES).collect::<Result<_, _>>()?;
    let Some((key, has)) = largest(devices).filter(|(_, has)| *has >= enough) else {
        return Ok(None);
    };
    let name = device::name(key);
    Ok(Some(sentence(key, name, has, most)))
}

/// The one that has most connections or flows, and how many.
fn largest(devices: Vec<(u32, Device)>) -> Option<(u32, u64)> {
    let has = |(key, one): (u32, Device)| (key, u64::from(one.connections.max(one.flows)));
    devices.into_iter().map(has).max_by_key(|(_, has)| *has)
}

fn sentence(key: u32, name: Option<String>, has: u64, most: u64) -> String {
    let who = match name {
        _ if is_outside(key) => "a client outside".to_owned(),
        Some(name) => format!("the guest behind {name}"),
        None => format!("the guest behind device {key}"),
    };
    format!(
        "{who} has used its quarter of the table of connections: {has} of {most} are open, and its new ones \
         are dropped (`topo-lb list connections` says whose they are); if a proxy or NAT hides many clients \
         there, raise {MAX_CONNECTIONS}"
    )
}

#[cfg(test)]
mod tests {
    use topo_lb_common::device::outside;

    use super::*;

    #[test]
    fn the_largest_is_named_by_what_it_is() {
        let of = |connections, flows| Device { connections, flows, ..Device::default() };
        let client = outside(1, 2);
        let all = vec![(3, of(7, 1)), (client, of(1, 16)), (4, of(15, 15))];
        assert_eq!(largest(all), Some((client, 16)));
        assert_eq!(largest(Vec::new()), None);
        for (key, name, begins) in [
            (client, None, "a client outside has used its quarter "),
            (4, Some("tap0".to_owned()), "the guest behind tap0 has used its quarter "),
            (4, None, "the guest behind device 4 has used its quarter "),
        ] {
            let said = sentence(key, name, 16, 16);
            assert!(said.starts_with(begins) && said.contains(": 16 of 16 are open"), "{said}");
        }
    }
}
