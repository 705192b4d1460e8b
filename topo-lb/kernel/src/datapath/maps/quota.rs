//! The quota of open connections per device: `quota`, and the counts in `devices` and `usage`. A client
//! outside of this node counts as a device of its own.
//!
//! The programs add the connections that they establish and subtract those that close, and refuse
//! openings beyond the quota. They do not see when an entry expires, so this thread removes those and
//! subtracts them. It reads the tables at its start, because connections stay where a
//! renewal makes `devices` anew, once a minute, and while a device has used half of its quota, or a table
//! half of its room. It then removes what is over.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData, MapError};
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    Connection, Connection4, Connection6, LONGEST_TIME_WAIT, OUTSIDE_DEVICE, REPLY, Tuple, Tuple4,
    Tuple6, is_closed, lifetime, may_be_in_time_wait,
};
use topo_lb_common::device::{Device, Quota, SHARE, outside, word};
use topo_lb_common::maps;
use topo_lb_common::usage::Usage;
use tracing::warn;

use super::connections::now;
use super::error::StoreError;
use super::pinned::{Hash, Raw, another, entries, failed, found};
use crate::datapath::host::batch::lookup_batch;
use crate::datapath::host::removal::remove_if;

/// Shortest pause between two passes.
const PERIOD: Duration = Duration::from_secs(1);
/// A pass takes at most this part of a CPU's time.
const PART: u32 = 50;
/// How long the quota holds after a pass.
const HOLDS: Duration = Duration::from_secs(60);
/// Longest time between two passes that read the tables: what is over takes memory until then.
const IDLE: Duration = Duration::from_secs(60);
/// Entries that are read at once. More than the kernel has of one hash.
const BATCH: usize = 4_096;

/// Keeps the counts true until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaKeeper {
    _stop: Sender<()>,
}

impl QuotaKeeper {
    /// Starts the thread. `connections`: room for open ones in each table; `half_open`: for half-open ones;
    /// `seed`: that of the attached programs, whose maps `table` finds by name.
    ///
    /// # Errors
    /// A map is missing or has another type, or the thread cannot start. No device is limited then.
    pub(crate) fn start<'a>(
        quota: Map,
        (connections, half_open, seed): (u32, u32, u64),
        table: impl Fn(&str) -> Option<&'a Map>,
    ) -> Result<Self, StoreError> {
        let mut work = Work {
            seed,
            counted: None,
            most: (connections / SHARE).max(1),
            half_open,
            quota: Array::try_from(quota).map_err(failed(maps::QUOTA, "write"))?,
            devices: another(&table, maps::DEVICES)?,
            usage: usage(&table)?,
            half_open4: Table::open(&table, maps::HALF_OPEN4)?,
            half_open6: Table::open(&table, maps::HALF_OPEN6)?,
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
                    let pause = pause(cpu_time().saturating_sub(before));
                    if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(|error| failed(maps::QUOTA, "count")(MapError::IoError(error)))?;
        Ok(Self { _stop: stop })
    }
}

/// The pause after a pass that took so much CPU time.
fn pause(spent: Duration) -> Duration {
    PERIOD.max(spent * PART)
}

/// How long the quota holds after a pass that took so much CPU time: a large table takes long to read, and the
/// pause after it is a multiple of that.
fn holds(spent: Duration) -> Duration {
    HOLDS.max(spent * PART * 2)
}

/// The CPU time that this thread has used. On a busy node a pass waits for a CPU, and the next one is
/// due no later for it: the connections that are over would fill the quota meanwhile.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Another handle to `usage`.
fn usage<'a>(
    table: impl Fn(&str) -> Option<&'a Map>,
) -> Result<Array<MapData, Raw<Usage>>, StoreError> {
    let open = || {
        let Some(Map::Array(data)) = table(maps::USAGE) else {
            return Err(MapError::IoError(std::io::ErrorKind::InvalidData.into()));
        };
        let fd = data.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
        Array::try_from(Map::Array(MapData::from_fd(fd)?))
    };
    open().map_err(failed(maps::USAGE, "read"))
}

struct Work {
    seed: u64,
    /// When the tables were read last; `None`: the connections that were there at the start do not count
    /// yet.
    counted: Option<Instant>,
    /// Most open connections of a device.
    most: u32,
    /// Half-open connections for which there is room.
    half_open: u32,
    quota: Array<MapData, Raw<Quota>>,
    devices: Hash<u32, Device>,
    usage: Array<MapData, Raw<Usage>>,
    half_open4: Table<Tuple4, Connection4>,
    half_open6: Table<Tuple6, Connection6>,
    four: Table<Tuple4, Connection4>,
    six: Table<Tuple6, Connection6>,
}

impl Work {
    fn pass(&mut self) -> Result<(), StoreError> {
        let began = cpu_time();
        let devices: HashMap<u32, Device> =
            entries(&self.devices, maps::DEVICES).collect::<Result<_, StoreError>>()?;
        let before = [self.read_usage(0)?, self.read_usage(1)?];
        let is_half_used = |device: &Device| device.connections.max(device.flows) > self.most / 2;
        let is_half_full = |usage: &Usage| {
            usage.half_open > i64::from(self.half_open / 2)
                || usage.open > i64::from(self.most) * i64::from(SHARE) / 2
        };
        if self.counted.is_none_or(|then| then.elapsed() > IDLE)
            || devices.values().any(is_half_used)
            || before.iter().any(is_half_full)
        {
            let mut left = devices.keys().map(|&index| (index, Device::default())).collect();
            let counted = [
                Usage {
                    half_open: self.half_open4.sweep(self.seed, None)?,
                    open: self.four.sweep(self.seed, Some(&mut left))?,
                },
                Usage {
                    half_open: self.half_open6.sweep(self.seed, None)?,
                    open: self.six.sweep(self.seed, Some(&mut left))?,
                },
            ];
            for (index, counted) in left {
                let before = devices.get(&index).copied().unwrap_or_default();
                self.correct(index, before, counted)?;
            }
            for (family, (before, counted)) in (0..).zip(before.into_iter().zip(counted)) {
                let now = self.read_usage(family)?;
                // What came or went meanwhile counts; at worst, the next pass corrects it.
                let usage = Usage {
                    half_open: counted.half_open + now.half_open - before.half_open,
                    open: counted.open + now.open - before.open,
                };
                self.usage.set(family, Raw(usage), 0).map_err(failed(maps::USAGE, "write"))?;
            }
            self.counted = Some(Instant::now());
        }
        let holds = holds(cpu_time().saturating_sub(began));
        let until = now() + holds.as_nanos() as u64;
        let quota = Quota { until, connections: self.most, half_open_until: 0 };
        self.quota.set(0, Raw(quota), 0).map_err(failed(maps::QUOTA, "write"))
    }

    fn read_usage(&self, family: u32) -> Result<Usage, StoreError> {
        let Raw(usage) = self.usage.get(&family, 0).map_err(failed(maps::USAGE, "read"))?;
        Ok(usage)
    }

    /// Corrects the counts of a device. What it has established since `before` is added.
    fn correct(&mut self, index: u32, before: Device, counted: Device) -> Result<(), StoreError> {
        let now = found(maps::DEVICES, self.devices.get(&Raw(index), 0))?;
        // Later, an entry that is missing is of a device that has gone.
        let Some(now) = now.or(self.counted.is_none().then(Device::default)) else {
            return Ok(());
        };
        let sum = |counted, now: u32, before| counted + now.saturating_sub(before);
        let connections = sum(counted.connections, now.connections, before.connections);
        let flows = sum(counted.flows, now.flows, before.flows);
        // A token that a program takes meanwhile is given back, which harms nobody.
        self.devices
            .insert(Raw(index), Raw(Device { connections, flows, ..now }), 0)
            .map_err(failed(maps::DEVICES, "count"))
    }
}

/// A table of connections.
struct Table<K, V> {
    name: &'static str,
    is_half_open: bool,
    map: OwnedFd,
    entries: PhantomData<(K, V)>,
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
        let Some(Map::HashMap(data) | Map::LruHashMap(data)) = table(name) else {
            return Err(failed(name, "read")(MapError::IoError(
                std::io::ErrorKind::InvalidData.into(),
            )));
        };
        let map = data.fd().as_fd().try_clone_to_owned();
        let map = map.map_err(|error| failed(name, "read")(MapError::IoError(error)))?;
        let is_half_open = [maps::HALF_OPEN4, maps::HALF_OPEN6].contains(&name);
        Ok(Self { name, is_half_open, map, entries: PhantomData })
    }

    /// Removes entries of connections that are over. Adds those that are open to the sums of their
    /// devices, if given. Returns the number of the others.
    fn sweep(
        &mut self,
        seed: u64,
        mut left: Option<&mut HashMap<u32, Device>>,
    ) -> Result<i64, StoreError> {
        let mut sum = 0;
        let mut keys = vec![bytemuck::Zeroable::zeroed(); BATCH];
        let mut values = vec![bytemuck::Zeroable::zeroed(); BATCH];
        let mut place = None;
        loop {
            let (read, next) = lookup_batch::<Tuple<A>, Connection<A, K>>(
                self.map.as_fd(),
                place,
                &mut keys,
                &mut values,
            )
            .map_err(|error| failed(self.name, "read")(MapError::IoError(error)))?;
            let read_at = now();
            for (key, value) in keys.iter().zip(&values).take(read) {
                let is_over = |value: &_, now| is_over(key, value, self.is_half_open, now);
                if is_over(value, read_at) {
                    match remove_if(self.map.as_fd(), key, |value| is_over(value, now())) {
                        // Another connection has taken the room of one that was to be put back.
                        Err(error) if error.raw_os_error() == Some(libc::E2BIG) => {}
                        done => done.map_err(|error| {
                            failed(self.name, "remove")(MapError::IoError(error))
                        })?,
                    }
                } else if value.kind & REPLY == 0 {
                    let Some(left) = &mut left else {
                        sum += 1;
                        continue;
                    };
                    if key.protocol != TCP || !is_closed(value.state) {
                        sum += 1;
                        let device = left.entry(device(key, seed)).or_default();
                        *(if key.protocol == TCP {
                            &mut device.connections
                        } else {
                            &mut device.flows
                        }) += 1;
                    }
                }
            }
            place = next;
            if place.is_none() {
                return Ok(sum);
            }
        }
    }
}

/// The key in `devices` of the device or client of a client's entry.
fn device<A: bytemuck::Pod>(key: &Tuple<A>, seed: u64) -> u32 {
    match key.device {
        OUTSIDE_DEVICE => outside(seed, word(bytemuck::bytes_of(&key.source))),
        device => device,
    }
}

/// Whether the programs have no use for an entry any more, at `now`.
fn is_over<A, K>(key: &Tuple<A>, value: &Connection<A, K>, is_half_open: bool, now: u64) -> bool {
    let lifetime = match key.protocol {
        // Its client has had time to complete it: with a false source nobody does.
        TCP if is_half_open => lifetime(TCP, value.state).min(LONGEST_TIME_WAIT),
        TCP if may_be_in_time_wait(value.kind, value.state) => LONGEST_TIME_WAIT,
        protocol => lifetime(protocol, value.state),
    };
    now.saturating_sub(value.last_used) > lifetime
}

#[cfg(test)]
mod tests {
    use topo_lb_common::connection::{ANSWERED, RESET, SHORTEST_LIFETIME, SNAT};

    use super::*;

    #[test]
    fn the_quota_holds_until_the_next_pass_however_large_the_table_is() {
        for spent in [0, 1, 20, 1_000, 10_000].map(Duration::from_millis) {
            // Again so much for the pass itself, and a busy node's CPU.
            assert!(holds(spent) > pause(spent) + 10 * spent, "{spent:?}");
        }
        assert_eq!(holds(Duration::ZERO), HOLDS);
    }

    #[test]
    fn a_connection_from_outside_counts_to_its_client() {
        let from = Tuple4 { source: [203, 0, 113, 7], ..Tuple4::default() };
        assert_eq!(device(&from, 5), outside(5, word(&from.source)));
        assert_eq!(device(&Tuple4 { device: 7, ..from }, 5), 7);
        let from = Tuple6 { source: std::array::from_fn(|at| at as u8), ..Tuple6::default() };
        let neighbour = Tuple6 { source: from.source.map(|byte| byte % 8), ..from };
        assert_eq!(device(&from, 5), device(&neighbour, 5));
    }

    #[test]
    fn a_closed_connection_is_left_as_long_as_its_endpoint_may_remember_the_port() {
        let key = Tuple4 { protocol: TCP, ..Tuple4::default() };
        let closed = |kind| Connection4 { kind, state: ANSWERED | RESET, ..Connection4::default() };
        for (kind, lifetime) in [(0, SHORTEST_LIFETIME), (SNAT, LONGEST_TIME_WAIT)] {
            assert!(!is_over(&key, &closed(kind), false, lifetime));
            assert!(is_over(&key, &closed(kind), false, lifetime + 1));
        }
    }

    #[test]
    fn an_answered_opening_that_nobody_completes_does_not_stay() {
        let key = Tuple4 { protocol: TCP, ..Tuple4::default() };
        let answered = Connection4 { state: ANSWERED, ..Connection4::default() };
        assert!(is_over(&key, &answered, true, LONGEST_TIME_WAIT + 1));
        assert!(!is_over(&key, &answered, false, LONGEST_TIME_WAIT + 1));
    }
}
