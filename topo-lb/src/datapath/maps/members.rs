//! Whether an endpoint serves a frontend, as the maps have it at this moment: for those who act on
//! what is told them later than it was true.

use std::net::SocketAddr;
use std::path::Path;

use aya::maps::Map;
use topo_lb_common::maps;
use topo_lb_common::member::Member;

use super::encode::{self, Layout, V4, V6};
use super::error::{OpenError, StoreError};
use super::pinned::{Hash, Raw, found, open};
use crate::cluster::{Family, Frontend};

/// The maps of one family.
struct Books<L: Layout> {
    services: Hash<L::Frontend, L::Service>,
    members: Hash<L::MemberKey, Member>,
    names: [&'static str; 2],
}

/// The pinned maps that say so.
pub struct Members {
    v4: Books<V4>,
    v6: Books<V6>,
}

/// A value that is being written is read again.
const ATTEMPTS: u32 = 3;

impl Members {
    /// Opens them.
    ///
    /// # Errors
    /// They are not there, or are something else.
    pub fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            v4: Books::open(pin_dir, [maps::SERVICES4, maps::MEMBERS4])?,
            v6: Books::open(pin_dir, [maps::SERVICES6, maps::MEMBERS6])?,
        })
    }

    /// Whether an endpoint is a member of a frontend's Service: only of Services whose members are
    /// listed. A value that is never found whole has every member.
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

impl<L: Layout> Books<L> {
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
