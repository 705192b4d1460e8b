//! The quota of established connections per device: `quota`, and the count in `devices`. A client
//! outside of this node counts as a device of its own.
//!
//! The programs add the connections that they establish, and refuse openings beyond the quota. They
//! do not see when an entry is evicted or expires, so this thread subtracts these. It reads the
//! tables at its start, because connections stay where a renewal makes `devices` anew, and while a
//! device has used half of its quota. It then removes what is over.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use aya::maps::{Array, Map, MapData, MapError};
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    Connection, Connection4, Connection6, LONGEST_TIME_WAIT, OUTSIDE_DEVICE, REPLY, SNAT, Tuple,
    Tuple4, Tuple6, is_closed, lifetime,
};
use topo_lb_common::device::{Device, Quota, SHARE, outside};
use topo_lb_common::maps;
use tracing::warn;

use super::connections::now;
use super::error::StoreError;
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, found};
use super::reply_filter::another;
use crate::datapath::host::batch::lookup_batch;

/// Shortest pause between two passes.
const PERIOD: Duration = Duration::from_secs(1);
/// A pass takes at most this part of a CPU's time.
const PART: u32 = 50;
/// How long the quota holds after a pass.
const HOLDS: Duration = Duration::from_secs(60);
/// How long a closed connection is left for its last packets, in nanoseconds: less than its lifetime,
/// because a client that opens and closes many needs the room.
const LAST_PACKETS: u64 = 2_000_000_000;
/// Entries that are read at once. More than the kernel has of one hash.
const BATCH: usize = 4_096;

/// Keeps the counts true until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaKeeper {
    _stop: Sender<()>,
}

impl QuotaKeeper {
    /// Starts the thread. `connections`: room in each table; `table` finds the maps of the attached
    /// programs by name.
    ///
    /// # Errors
    /// A map is missing or has another type, or the thread cannot start. No device is limited then.
    pub(crate) fn start<'a>(
        quota: Map,
        connections: u32,
        table: impl Fn(&str) -> Option<&'a Map>,
    ) -> Result<Self, StoreError> {
        let mut work = Work {
            is_counted: false,
            most: (connections / SHARE).max(1),
            quota: Array::try_from(quota).map_err(failed(maps::QUOTA, "write"))?,
            devices: another(&table, maps::DEVICES)?,
            four: Table::open(&table, maps::CONNECTIONS4)?,
            six: Table::open(&table, maps::CONNECTIONS6)?,
        };
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name("quota".to_owned())
            .spawn(move || {
                loop {
                    let before = cpu_time();
                    if let Err(error) = work.pass() {
                        warn!("{error}; soon the connections of a device are not limited");
                    }
                    let pause = PERIOD.max(cpu_time().saturating_sub(before) * PART);
                    if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(|error| failed(maps::QUOTA, "count")(MapError::IoError(error)))?;
        Ok(Self { _stop: stop })
    }
}

/// The CPU time that this thread has used. On a busy node a pass waits for a CPU, and the next one is
/// due no later for it: the connections that are over would fill the quota meanwhile.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

struct Work {
    /// Whether the connections that were there at the start count.
    is_counted: bool,
    /// Most connections of a device.
    most: u32,
    quota: Array<MapData, Raw<Quota>>,
    devices: Hash<u32, Device>,
    four: Table<Tuple4, Connection4>,
    six: Table<Tuple6, Connection6>,
}

impl Work {
    fn pass(&mut self) -> Result<(), StoreError> {
        let devices: HashMap<u32, Device> =
            entries(&self.devices, maps::DEVICES).collect::<Result<_, StoreError>>()?;
        let is_half_used = |device: &Device| device.connections > self.most / 2;
        if !self.is_counted || devices.values().any(is_half_used) {
            let mut left = devices.keys().map(|&index| (index, 0)).collect();
            self.four.sweep(&mut left)?;
            self.six.sweep(&mut left)?;
            for (index, entries) in left {
                let before = devices.get(&index).map_or(0, |device| device.connections);
                // Each connection has two entries, or one if the other is evicted.
                self.correct(index, before, entries.div_ceil(2))?;
            }
            self.is_counted = true;
        }
        let until = now() + HOLDS.as_nanos() as u64;
        let quota = Quota { until, connections: self.most, half_open_until: 0 };
        self.quota.set(0, Raw(quota), 0).map_err(failed(maps::QUOTA, "write"))
    }

    /// Corrects the count of a device. What it has established since `before` is added.
    fn correct(&mut self, index: u32, before: u32, counted: u32) -> Result<(), StoreError> {
        let now = found(maps::DEVICES, self.devices.get(&Raw(index), 0))?;
        // Later, an entry that is missing is of a device that has gone.
        let Some(now) = now.or((!self.is_counted).then(Device::default)) else {
            return Ok(());
        };
        let connections = counted + now.connections.saturating_sub(before);
        // A token that a program takes meanwhile is given back, which harms nobody.
        self.devices
            .insert(Raw(index), Raw(Device { connections, ..now }), 0)
            .map_err(failed(maps::DEVICES, "count"))
    }
}

/// A table of established connections.
struct Table<K, V> {
    name: &'static str,
    map: Hash<K, V>,
    /// `map` again, to read many entries at once.
    batch: OwnedFd,
}

impl<A: bytemuck::Pod, K> Table<Tuple<A>, Connection<A, K>>
where
    Tuple<A>: bytemuck::Pod,
    Connection<A, K>: bytemuck::Pod,
{
    fn open<'a>(
        table: impl Fn(&str) -> Option<&'a Map>,
        name: &'static str,
    ) -> Result<Self, StoreError> {
        let Some(Map::LruHashMap(data)) = table(name) else {
            return Err(failed(name, "read")(MapError::IoError(
                std::io::ErrorKind::InvalidData.into(),
            )));
        };
        let batch = data.fd().as_fd().try_clone_to_owned();
        let batch = batch.map_err(|error| failed(name, "read")(MapError::IoError(error)))?;
        Ok(Self { name, map: another(table, name)?, batch })
    }

    /// Removes entries of connections that are over. Adds the others to the sums of their devices.
    fn sweep(&mut self, left: &mut HashMap<u32, u32>) -> Result<(), StoreError> {
        let mut keys = vec![bytemuck::Zeroable::zeroed(); BATCH];
        let mut values = vec![bytemuck::Zeroable::zeroed(); BATCH];
        let mut place = None;
        loop {
            let (read, next) = lookup_batch::<Tuple<A>, Connection<A, K>>(
                self.batch.as_fd(),
                place,
                &mut keys,
                &mut values,
            )
            .map_err(|error| failed(self.name, "read")(MapError::IoError(error)))?;
            let now = now();
            for (key, value) in keys.iter().zip(&values).take(read) {
                if is_over(key, value, now) {
                    self.remove(key)?;
                } else {
                    *left.entry(device(key, value)).or_default() += 1;
                }
            }
            place = next;
            if place.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes an entry if it is still over. Between these two calls no client can open the
    /// connection again: that takes three packets and an answer of the endpoint.
    fn remove(&mut self, key: &Tuple<A>) -> Result<(), StoreError> {
        let value = found(self.name, self.map.get(&Raw(*key), 0))?;
        match value {
            Some(value) if is_over(key, &value, now()) => {
                absent_is_fine(self.map.remove(&Raw(*key))).map_err(failed(self.name, "remove"))
            }
            _ => Ok(()),
        }
    }
}

/// The key in `devices` of the device or client to which a connection counts.
fn device<A: bytemuck::Pod, K>(key: &Tuple<A>, value: &Connection<A, K>) -> u32 {
    if key.device != OUTSIDE_DEVICE {
        return key.device;
    }
    let client = if value.kind & REPLY == 0 { &key.source } else { &value.destination };
    let words = bytemuck::bytes_of(client).as_chunks().0.iter();
    outside(words.fold(0, |folded, word| folded ^ u32::from_ne_bytes(*word)))
}

/// Whether the programs have no use for an entry any more, at `now`.
fn is_over<A, K>(key: &Tuple<A>, value: &Connection<A, K>, now: u64) -> bool {
    let lifetime = match key.protocol {
        // The endpoint may remember the port for so long.
        TCP if is_closed(value.state) && value.kind & SNAT != 0 => LONGEST_TIME_WAIT,
        TCP if is_closed(value.state) => LAST_PACKETS,
        protocol => lifetime(protocol, value.state),
    };
    now.saturating_sub(value.last_used) > lifetime
}

#[cfg(test)]
mod tests {
    use topo_lb_common::reply_filter::folded;

    use super::*;

    #[test]
    fn both_entries_of_a_connection_from_outside_count_to_its_client() {
        let [client, node, pod] = [[203, 0, 113, 7], [192, 0, 2, 1], [10, 244, 2, 2]];
        let wanted = outside(u32::from_ne_bytes(client));
        let from = Tuple4 { source: client, destination: node, ..Tuple4::default() };
        let request = Connection4 { destination: pod, ..Connection4::default() };
        assert_eq!(device(&from, &request), wanted);
        // With the client's address as the source, and with one of this node.
        for (destination, kind) in [(client, REPLY), (node, REPLY | SNAT)] {
            let to = Tuple4 { source: pod, destination, ..Tuple4::default() };
            let reply =
                Connection4 { source: node, destination: client, kind, ..Connection4::default() };
            assert_eq!(device(&to, &reply), wanted);
            assert_eq!(device(&Tuple4 { device: 7, ..to }, &reply), 7);
        }
        let client = std::array::from_fn(|at| at as u8);
        let from = Tuple6 { source: client, ..Tuple6::default() };
        let wanted = outside(folded(bytemuck::cast(client)));
        assert_eq!(device(&from, &Connection6::default()), wanted);
    }
}
