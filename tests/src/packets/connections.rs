//! The programs' connections in a test, and the marks of endpoints in the reply filter.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData};
use bytemuck::Pod;
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    ANSWERED, Connection, Connection4, Connection6, FROM_CLIENT, OUTSIDE_DEVICE, REPLY, TICK,
    TO_CLIENT, Tuple4, Tuple6,
};
use topo_lb_common::maps;
use topo_lb_common::reply_filter::{self, ReplyFilterEntry, ReplyFilterPlace};
use topo_lb_kernel::datapath::maps::encode::{V4, V6};

use super::{Hook, LOOPBACK, Programs, Raw, octets};

impl Programs {
    /// Adds an entry of an established TCP connection, with the current time and revision: the
    /// program translates a hook's packets with the addresses `says` (source, destination) to the
    /// addresses `becomes`. Marks their sender.
    pub fn remember(
        &mut self,
        hook: Hook,
        says: (SocketAddr, SocketAddr),
        becomes: (SocketAddr, SocketAddr),
    ) -> Result<()> {
        let kind = match hook {
            Hook::Ingress | Hook::ExternalIngress => 0,
            Hook::Egress | Hook::ExternalEgress => REPLY,
        };
        self.remember_as(hook, says, becomes, (TCP, kind, ANSWERED))
    }

    /// The same, with this protocol, kind and state.
    pub fn remember_as(
        &mut self,
        hook: Hook,
        says: (SocketAddr, SocketAddr),
        becomes: (SocketAddr, SocketAddr),
        (protocol, kind, state): (u8, u8, u8),
    ) -> Result<()> {
        let (last_used, revision) = (uptime()?, self.revision()?);
        let way = match hook {
            Hook::Ingress | Hook::ExternalIngress => FROM_CLIENT,
            Hook::Egress | Hook::ExternalEgress => TO_CLIENT,
        };
        let device = if hook.is_external() { OUTSIDE_DEVICE } else { LOOPBACK };
        let source = match says.0.ip() {
            IpAddr::V4(ip) => u32::from_ne_bytes(ip.octets()),
            IpAddr::V6(ip) => reply_filter::folded(bytemuck::cast(ip.octets())),
        };
        self.mark(reply_filter::place(source, says.0.port()), 1)?;
        macro_rules! add {
            ($family:ty, $tuple:ident, $connection:ident, $map:expr) => {{
                let key = $tuple {
                    source: octets::<$family>(says.0)?,
                    destination: octets::<$family>(says.1)?,
                    source_port: says.0.port(),
                    destination_port: says.1.port(),
                    protocol,
                    way,
                    reserved: 0,
                    device,
                };
                let value = $connection {
                    last_used,
                    key,
                    revision,
                    source: octets::<$family>(becomes.0)?,
                    destination: octets::<$family>(becomes.1)?,
                    source_port: becomes.0.port(),
                    destination_port: becomes.1.port(),
                    kind,
                    state,
                    ..$connection::default()
                };
                self.insert($map, key, value)
            }};
        }
        if says.0.is_ipv4() {
            add!(V4, Tuple4, Connection4, maps::CONNECTIONS4)
        } else {
            add!(V6, Tuple6, Connection6, maps::CONNECTIONS6)
        }
    }

    /// Sets whether the programs look up only packets from marked senders, as they do once an agent
    /// has marked the endpoints of earlier connections.
    pub fn rely_on_marks(&mut self, rely: bool) -> Result<()> {
        for entry in 0..reply_filter::ENTRIES {
            self.change_entry(entry, |entry| entry.complete = rely.into())?;
        }
        Ok(())
    }

    /// Removes the mark of an IPv4 endpoint.
    pub fn unmark(&mut self, endpoint: SocketAddr) -> Result<()> {
        let address = u32::from_ne_bytes(octets::<V4>(endpoint)?);
        self.mark(reply_filter::place(address, endpoint.port()), 0)
    }

    fn mark(
        &mut self,
        ReplyFilterPlace { entry, mark }: ReplyFilterPlace,
        value: u8,
    ) -> Result<()> {
        self.change_entry(entry, |entry| entry.marks[mark as usize] = value)
    }

    /// No program runs meanwhile.
    fn change_entry(
        &mut self,
        entry: u32,
        change: impl FnOnce(&mut ReplyFilterEntry),
    ) -> Result<()> {
        let map = self.ebpf.map_mut(maps::REPLY_FILTER).context("a map")?;
        let mut map = Array::<&mut MapData, Raw<ReplyFilterEntry>>::try_from(map)?;
        let Raw(mut value) = map.get(&entry, 0)?;
        change(&mut value);
        Ok(map.set(entry, Raw(value), 0)?)
    }

    /// The IPv4 connections, with an entry for each direction; half-open ones first.
    pub fn connections4(&self) -> Result<Vec<(Tuple4, Connection4)>> {
        Ok([self.entries(maps::HALF_OPEN4)?, self.established4()?].concat())
    }

    /// As [`connections4`](Self::connections4), without half-open ones.
    pub fn established4(&self) -> Result<Vec<(Tuple4, Connection4)>> {
        self.entries(maps::CONNECTIONS4)
    }

    /// The number of entries of established connections of a family.
    pub fn established(&self, is_v6: bool) -> Result<usize> {
        Ok(if is_v6 {
            self.entries::<Tuple6, Connection6>(maps::CONNECTIONS6)?.len()
        } else {
            self.established4()?.len()
        })
    }

    /// The number of entries of half-open connections of a family.
    pub fn half_open(&self, is_v6: bool) -> Result<usize> {
        Ok(if is_v6 {
            self.entries::<Tuple6, Connection6>(maps::HALF_OPEN6)?.len()
        } else {
            self.entries::<Tuple4, Connection4>(maps::HALF_OPEN4)?.len()
        })
    }

    /// As [`connections4`](Self::connections4), for IPv6.
    pub fn connections6(&self) -> Result<Vec<(Tuple6, Connection6)>> {
        Ok([self.entries(maps::HALF_OPEN6)?, self.entries(maps::CONNECTIONS6)?].concat())
    }

    /// Makes every established IPv4 connection a half-open one.
    pub fn make_half_open4(&mut self) -> Result<()> {
        for (key, entry) in self.established4()? {
            self.insert(maps::HALF_OPEN4, key, entry)?;
            self.remove::<_, Connection4>(maps::CONNECTIONS4, key)?;
        }
        Ok(())
    }

    /// Writes an entry of an established IPv4 connection.
    pub fn restore4(&mut self, key: Tuple4, entry: Connection4) -> Result<()> {
        self.insert(maps::CONNECTIONS4, key, entry)
    }

    /// Removes the entries for replies of half-open IPv4 connections.
    pub fn lose_replies4(&mut self) -> Result<()> {
        let entries = self.entries::<Tuple4, Connection4>(maps::HALF_OPEN4)?;
        let map = self.ebpf.map_mut(maps::HALF_OPEN4).context("a map")?;
        let mut map = HashMap::<&mut MapData, Raw<Tuple4>, Raw<Connection4>>::try_from(map)?;
        for (key, _) in entries.into_iter().filter(|(_, entry)| entry.kind & REPLY != 0) {
            map.remove(&Raw(key))?;
        }
        Ok(())
    }

    pub(super) fn entries<K: Pod, V: Pod>(&self, name: &str) -> Result<Vec<(K, V)>> {
        let map = self.ebpf.map(name).context("a map")?;
        let map = HashMap::<&MapData, Raw<K>, Raw<V>>::try_from(map)?;
        map.iter()
            .map(|pair| pair.map(|(key, value)| (key.0, value.0)).map_err(Into::into))
            .collect()
    }

    /// Sets the last use of every IPv4 connection to `time`.
    pub fn use_at(&mut self, time: u64) -> Result<()> {
        self.rewrite(|connection: &mut Connection4| connection.last_used = time, TABLES4)
    }

    /// Makes every connection look as if no packet had arrived for `age`.
    pub fn age(&mut self, age: Duration) -> Result<()> {
        // Whole ticks: all times of a connection keep their order.
        let ticks = age.as_nanos() as u64 >> TICK;
        let older = |last_used: &mut u64, asked: &mut u32| {
            *last_used = last_used.saturating_sub(ticks << TICK);
            *asked = asked.saturating_sub(ticks as u32);
        };
        self.rewrite(|one: &mut Connection4| older(&mut one.last_used, &mut one.asked), TABLES4)?;
        self.rewrite(|one: &mut Connection6| older(&mut one.last_used, &mut one.asked), TABLES6)?;
        self.age_own::<Tuple4>(maps::OWN4, ticks << TICK)?;
        self.age_own::<Tuple6>(maps::OWN6, ticks << TICK)?;
        self.age_hops(ticks as u32)
    }

    fn age_own<K: Pod>(&mut self, table: &str, age: u64) -> Result<()> {
        for (key, last_used) in self.entries::<K, u64>(table)? {
            self.insert(table, key, last_used.saturating_sub(age))?;
        }
        Ok(())
    }

    fn rewrite<A: Copy, K: Pod>(
        &mut self,
        change: impl Fn(&mut Connection<A, K>),
        tables: [&str; 2],
    ) -> Result<()>
    where
        Connection<A, K>: Pod,
    {
        for table in tables {
            for (key, mut value) in self.entries::<K, Connection<A, K>>(table)? {
                change(&mut value);
                self.insert(table, key, value)?;
            }
        }
        Ok(())
    }
}

const TABLES4: [&str; 2] = [maps::HALF_OPEN4, maps::CONNECTIONS4];
const TABLES6: [&str; 2] = [maps::HALF_OPEN6, maps::CONNECTIONS6];

/// Nanoseconds of the clock that the programs read (`CLOCK_MONOTONIC`).
pub fn uptime() -> Result<u64> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Ok((now.tv_sec * 1_000_000_000 + now.tv_nsec).try_into()?)
}
