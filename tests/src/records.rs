//! The records of a population's Services in an agent's maps.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use bytemuck::bytes_of;
use topo_lb_common::address::{Frontend4, OUTSIDE, TCP};
use topo_lb_common::maps;

use crate::agent::Agent;
use crate::population::{Population, SERVICE_PORT};

/// The map `services4` of an agent.
#[derive(Debug)]
pub struct Records(HashMap<MapData, [u8; 8], u32>);

impl Records {
    /// Opens the map.
    ///
    /// # Errors
    /// The agent has none.
    pub fn open(agent: &Agent<'_>) -> Result<Self> {
        let map = MapData::from_pin(agent.pins().join(maps::SERVICES4));
        let map = Map::HashMap(map.context("a map is pinned")?);
        Ok(Self(map.try_into().context("services4 is a hash map")?))
    }

    /// The index of a Service's record. Every change of what the record says changes it.
    ///
    /// # Errors
    /// The Service has none.
    pub fn of(&self, service: u32) -> Result<u32> {
        self.at(Population::frontend(service), TCP)
    }

    /// The same of an address that clients outside reach, if they have a choice of their own.
    ///
    /// # Errors
    /// There is none.
    pub fn of_outside(&self, address: Ipv4Addr) -> Result<u32> {
        self.at(address, TCP | OUTSIDE)
    }

    fn at(&self, address: Ipv4Addr, protocol: u8) -> Result<u32> {
        let octets = address.octets();
        let frontend = Frontend4 { address: octets, port: SERVICE_PORT, protocol, reserved: 0 };
        let mut key = [0; 8];
        key.copy_from_slice(bytes_of(&frontend));
        self.0.get(&key, 0).with_context(|| format!("{address} is not there"))
    }
}
