//! The quota in a test, and what counts for it.

use anyhow::{Context, Result};
use aya::maps::{Array, MapData};
use topo_lb_common::device::{Device, Quota};
use topo_lb_common::maps;

use super::{Programs, Raw};

impl Programs {
    /// Lets each device have so many established connections.
    pub fn limit(&mut self, connections: u32) -> Result<()> {
        self.set_quota(Quota { until: u64::MAX, connections, half_open_until: 0 })
    }

    /// Makes the quota as it is when no agent has counted for a minute.
    pub fn let_the_quota_end(&mut self) -> Result<()> {
        let map = self.ebpf.map(maps::QUOTA).context("a map")?;
        let Raw(quota) = Array::<&MapData, Raw<Quota>>::try_from(map)?.get(&0, 0)?;
        self.set_quota(Quota { until: 0, ..quota })
    }

    /// Lets every client outside that has opened a connection have so many open ones.
    pub fn count_outside(&mut self, connections: u32) -> Result<()> {
        let devices = self.entries::<u32, Device>(maps::DEVICES)?.into_iter();
        for (key, device) in devices.filter(|(device, _)| device >> 31 != 0) {
            self.insert(maps::DEVICES, key, Device { connections, ..device })?;
        }
        Ok(())
    }

    /// The open connections and flows of all clients outside, as in `devices`.
    pub fn connections_outside(&self) -> Result<u32> {
        let devices = self.entries::<u32, Device>(maps::DEVICES)?.into_iter();
        let outside = devices.filter(|(device, _)| device >> 31 != 0);
        Ok(outside.map(|(_, device)| device.connections + device.flows).sum())
    }

    /// Lets connections stay half-open for ever, or not any more.
    pub fn keep_half_open(&mut self, keep: bool) -> Result<()> {
        let half_open_until = if keep { u32::MAX } else { 0 };
        self.set_quota(Quota { half_open_until, ..Quota::default() })
    }

    fn set_quota(&mut self, quota: Quota) -> Result<()> {
        let map = self.ebpf.map_mut(maps::QUOTA).context("a map")?;
        Ok(Array::<&mut MapData, Raw<Quota>>::try_from(map)?.set(0, Raw(quota), 0)?)
    }
}
