//! tc's connections, carried from old maps to new ones.

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use bytemuck::Pod;
use topo_lb_common::connection::{
    Connection, Connection4, Connection6, REPLY, Tuple, Tuple4, Tuple6, may_be_in_time_wait,
};
use topo_lb_common::device::{HALF_OPEN_UNIT, Quota};
use topo_lb_common::maps;
use tracing::warn;

use super::connections::now;
use super::pinned::{Raw, absent_is_fine, added};
use crate::datapath::error::causes;
use crate::datapath::host::grace;
use crate::datapath::host::removal::BPF_NOEXIST;

/// How long connections stay half-open if the agent crashes while it replaces programs, in units of
/// [`Quota::half_open_until`], beside the time to copy the tables.
const AT_MOST: u32 = 10;
/// Entries that are copied in such a unit, also by a slow CPU.
const COPIED: u32 = 50_000;

/// The old maps of connections that were replaced, beside the new ones. The hooks of cgroups switch
/// first: until a device has the new programs, its old ones write to the old maps.
#[derive(Debug, Default)]
pub(crate) struct CarriedConnections {
    maps: Vec<Carried>,
    /// The old `quota`, and the new one.
    quotas: Vec<Map>,
}

#[derive(Debug)]
struct Carried {
    name: &'static str,
    old: Map,
    new: Map,
    /// Most entries of `old`.
    room: u32,
}

impl CarriedConnections {
    pub(super) fn add_quotas(&mut self, (old, new): (MapData, MapData)) {
        self.quotas = vec![Map::Array(old), Map::Array(new)];
    }

    /// # Errors
    /// The kernel does not describe the old map.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        (old, new): (MapData, MapData),
    ) -> Result<(), MapError> {
        let room = old.info()?.max_entries();
        let (old, new) = (Map::HashMap(old), Map::HashMap(new));
        self.maps.push(Carried { name, old, new, room });
        Ok(())
    }

    /// Copies the connections before the programs of devices are replaced. From now on both sets of
    /// programs leave new connections half-open, in maps that both have: one that the old programs
    /// establish would be unknown to the new ones.
    pub(crate) fn begin(&mut self) {
        if self.maps.is_empty() {
            return;
        }
        self.keep_half_open(self.until());
        self.copy();
    }

    /// Copies what is left once the programs are replaced, and lets them establish connections.
    pub(crate) fn end(&mut self) {
        if self.maps.is_empty() {
            return;
        }
        // As long again, for the second copy.
        self.keep_half_open(self.until());
        self.copy();
        for carried in &mut self.maps {
            let removed = match carried.name {
                maps::CONNECTIONS4 => remove_halves::<[u8; 4]>(&mut carried.new),
                _ => remove_halves::<[u8; 16]>(&mut carried.new),
            };
            if let Err(error) = removed {
                let name = carried.name;
                warn!("the new map {name} may have entries without another: {}", causes(&error));
            }
        }
        self.keep_half_open(0);
    }

    /// Until when connections stay half-open while the tables are copied, if they are full.
    fn until(&self) -> u32 {
        let room = self.maps.iter().map(|carried| carried.room).sum::<u32>();
        (now() >> HALF_OPEN_UNIT) as u32 + at_most(room)
    }

    fn keep_half_open(&mut self, until: u32) {
        for quota in &mut self.quotas {
            if let Err(error) = set_half_open(quota, until) {
                warn!("connections that are opened now may be lost: {}", causes(&error));
            }
        }
        self.wait();
    }

    /// Waits until no program runs that began before.
    fn wait(&self) {
        if let Err(error) = grace::wait() {
            warn!("connections that are opened now may be lost: {error}");
        }
    }

    /// Copies what the new maps lack, as far as there is room.
    fn copy(&mut self) {
        for carried in &mut self.maps {
            let copied = match carried.name {
                maps::CONNECTIONS4 => copy::<Tuple4, Connection4>(&carried.old, &mut carried.new),
                _ => copy::<Tuple6, Connection6>(&carried.old, &mut carried.new),
            };
            if let Err(error) = copied {
                let name = carried.name;
                warn!("the new map {name} lacks what the old one had: {}", causes(&error));
            }
        }
    }
}

/// How long connections stay half-open while tables with so many entries are copied, in units of
/// [`Quota::half_open_until`].
const fn at_most(entries: u32) -> u32 {
    AT_MOST + entries / COPIED
}

fn set_half_open(quota: &mut Map, until: u32) -> Result<(), MapError> {
    let mut quota = Array::<_, Raw<Quota>>::try_from(quota)?;
    let Raw(before) = quota.get(&0, 0)?;
    quota.set(0, Raw(Quota { half_open_until: until, ..before }), 0)
}

/// Removes entries of connections whose other entry is missing: the old programs have removed both while
/// they were copied. A client's entry would hide its next connection from the same port. An entry for replies
/// stays if the endpoint may have its port in TIME-WAIT.
fn remove_halves<A: Pod>(map: &mut Map) -> Result<(), MapError>
where
    Tuple<A>: Pod,
    Connection<A, Tuple<A>>: Pod,
{
    let mut map = HashMap::<_, Raw<Tuple<A>>, Raw<Connection<A, Tuple<A>>>>::try_from(map)?;
    let halves: Vec<_> = map
        .iter()
        .filter_map(Result::ok)
        .filter(|(_, Raw(value))| {
            value.kind & REPLY == 0 || !may_be_in_time_wait(value.kind, value.state)
        })
        .filter(|(Raw(key), Raw(value))| map.get(&Raw(value.other_key(key)), 0).is_err())
        .map(|(key, _)| key)
        .collect();
    for key in halves {
        absent_is_fine(map.remove(&key))?;
    }
    Ok(())
}

/// Copies the entries that `new` lacks.
pub(super) fn copy<K: Pod, V: Pod>(old: &Map, new: &mut Map) -> Result<(), MapError> {
    let old = HashMap::<_, Raw<K>, Raw<V>>::try_from(old)?;
    let mut new = HashMap::<_, Raw<K>, Raw<V>>::try_from(new)?;
    // An entry that is removed meanwhile is skipped.
    for (key, value) in old.iter().filter_map(Result::ok) {
        added(new.insert(key, value, BPF_NOEXIST))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tables_have_the_time_that_their_copy_takes() {
        // Those of a node of 2 and of 64 CPUs.
        for (connections, seconds) in [(131_072, 10), (2_097_152, 100)] {
            let unit = 1_u64 << HALF_OPEN_UNIT;
            let time = u64::from(at_most(2 * maps::entries(connections))) * unit;
            assert!(time >= seconds * 1_000_000_000, "{time} ns for {connections}");
        }
        assert_eq!(at_most(0), AT_MOST);
    }
}
