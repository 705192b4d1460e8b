//! Whether an endpoint serves a frontend by the maps as they are now. The socket terminator asks this,
//! because it acts some time after the change.

use std::net::SocketAddr;
use std::path::Path;

use aya::maps::Map;
use topo_lb_common::maps;
use topo_lb_common::members::Member;

use super::encode::{self, Layout, V4, V6};
use super::error::{OpenError, StoreError};
use super::pinned::{Hash, Raw, found, open};
use crate::cluster::{Family, Frontend};

/// The maps of one family.
struct FamilyMaps<L: Layout> {
    services: Hash<L::Frontend, L::Service>,
    members: Hash<L::MemberKey, Member>,
    names: [&'static str; 2],
}

/// The pinned maps.
pub struct Members {
    v4: FamilyMaps<V4>,
    v6: FamilyMaps<V6>,
}

/// A read that overlaps with a write is repeated.
const ATTEMPTS: u32 = 3;

impl Members {
    /// Opens them.
    ///
    /// # Errors
    /// They are not there, or are something else.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            v4: FamilyMaps::open(pin_dir, [maps::SERVICES4, maps::MEMBERS4])?,
            v6: FamilyMaps::open(pin_dir, [maps::SERVICES6, maps::MEMBERS6])?,
        })
    }

    /// Whether an endpoint is a member of a frontend's Service. Only Services whose members are listed
    /// have any. `true` if every read overlapped with a write.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn serves(&self, frontend: &Frontend, endpoint: SocketAddr) -> Result<bool, StoreError> {
        match frontend.family() {
            Family::V4 => self.v4.serves(frontend, endpoint),
            Family::V6 => self.v6.serves(frontend, endpoint),
        }
    }
}

impl<L: Layout> FamilyMaps<L> {
    fn open(pin_dir: &Path, names: [&'static str; 2]) -> Result<Self, OpenError> {
        let [services, members] = names;
        Ok(Self {
            services: open(pin_dir, services, Map::HashMap)?,
            members: open(pin_dir, members, Map::HashMap)?,
            names,
        })
    }

    fn serves(&self, frontend: &Frontend, endpoint: SocketAddr) -> Result<bool, StoreError> {
        let addresses = (L::octets(frontend.address), L::octets(endpoint.ip()));
        let (Some(vip), Some(address)) = addresses else { return Ok(false) };
        let key = L::frontend(vip, frontend.port, encode::protocol_number(frontend.protocol));
        for _ in 0..ATTEMPTS {
            let Some(service) = found(self.names[0], self.services.get(&Raw(key), 0))? else {
                return Ok(false);
            };
            if L::is_whole(&service, &key) {
                let (header, _) = L::read_service(&service);
                let member = L::member(header.service, address, endpoint.port());
                let member = found(self.names[1], self.members.get(&Raw(member), 0))?;
                return Ok(member.is_some());
            }
        }
        Ok(true)
    }
}
