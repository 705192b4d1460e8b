//! The maps of one address family.

use std::net::SocketAddr;
use std::path::Path;

use aya::maps::{Array, Map, MapData};
use topo_lb_common::members::{CHOSEN, Member};

use super::encode::{self, Layout};
use super::error::{OpenError, StoreError};
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, found, open};
use crate::cluster::Frontend;
use crate::plan::{Entry, Installed, Step};

/// Attempts of a read that overlaps with a write.
const ATTEMPTS: u32 = 3;

pub(crate) struct FamilyMaps<L: Layout> {
    services: Hash<L::Frontend, L::Service>,
    slots: Array<MapData, Raw<L::Backend>>,
    members: Hash<L::MemberKey, Member>,
}

/// A published value of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The key.
    pub frontend: Frontend,
    /// What its connections do.
    pub entry: Entry,
    /// First slot, if the row is not inline.
    pub slot_base: Option<u32>,
    /// Number of the write that made this value; it changes only with a write.
    pub generation: u32,
}

impl<L: Layout> FamilyMaps<L> {
    pub(crate) fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            services: open(pin_dir, L::SERVICES, Map::HashMap)?,
            slots: open(pin_dir, L::SLOTS, Map::Array)?,
            members: open(pin_dir, L::MEMBERS, Map::HashMap)?,
        })
    }

    /// Carries out a step of this family.
    pub(crate) fn write(&mut self, step: &Step, generation: u32) -> Result<(), StoreError> {
        match step {
            Step::Publish { frontend, entry, slot_base } => {
                self.publish(frontend, entry, *slot_base, generation)
            }
            Step::Withdraw(frontend) => {
                let Some(key) = Self::key(frontend) else { return Ok(()) };
                absent_is_fine(self.services.remove(&Raw(key)))
                    .map_err(failed(L::SERVICES, "remove a Service"))
            }
            Step::FillSlots { base, row, .. } => {
                for (slot, backend) in (*base..).zip(encode::backends::<L>(row)) {
                    self.slots
                        .set(slot, Raw(backend), 0)
                        .map_err(failed(L::SLOTS, "write an endpoint"))?;
                }
                Ok(())
            }
            Step::SetMember { index, endpoint, chosen } => {
                let Some(key) = Self::member(*index, *endpoint) else { return Ok(()) };
                let member = Member { state: if *chosen { CHOSEN } else { 0 } };
                self.members
                    .insert(Raw(key), Raw(member), 0)
                    .map_err(failed(L::MEMBERS, "write a member"))
            }
            Step::RemoveMember { index, endpoint } => {
                let Some(key) = Self::member(*index, *endpoint) else { return Ok(()) };
                absent_is_fine(self.members.remove(&Raw(key)))
                    .map_err(failed(L::MEMBERS, "remove a member"))
            }
            // These belong to no family.
            Step::SetRange(_)
            | Step::Name { .. }
            | Step::Unname(_)
            | Step::Grace
            | Step::FreeSlots { .. } => Ok(()),
        }
    }

    fn key(frontend: &Frontend) -> Option<L::Frontend> {
        let protocol = encode::protocol_number(frontend.protocol);
        L::octets(frontend.address).map(|octets| L::frontend(octets, frontend.port, protocol))
    }

    fn member(index: u32, endpoint: SocketAddr) -> Option<L::MemberKey> {
        Some(L::member(index, L::octets(endpoint.ip())?, endpoint.port()))
    }

    fn publish(
        &mut self,
        frontend: &Frontend,
        entry: &Entry,
        slot_base: Option<u32>,
        generation: u32,
    ) -> Result<(), StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(()) };
        let value = encode::service::<L>(key, entry, slot_base, generation);
        self.services
            .insert(Raw(key), Raw(value), 0)
            .map_err(failed(L::SERVICES, "write a Service"))
    }

    pub(crate) fn published(&self, all: &mut Vec<Published>) -> Result<(), StoreError> {
        for pair in entries(&self.services, L::SERVICES) {
            let (key, value) = pair?;
            let Some(frontend) = L::read_frontend(&key) else { continue };
            let (entry, slot_base, generation) = encode::entry::<L>(&value, |slot| {
                self.slots.get(&slot, 0).ok().map(|Raw(backend)| backend)
            });
            all.push(Published { frontend, entry, slot_base, generation });
        }
        Ok(())
    }

    pub(crate) fn read_members(&self, installed: &mut Installed) -> Result<(), StoreError> {
        for pair in entries(&self.members, L::MEMBERS) {
            let (key, member) = pair?;
            let (index, endpoint) = L::read_member(&key);
            installed.adopt_member(index, endpoint, member.state & CHOSEN != 0);
        }
        Ok(())
    }

    /// Whether `endpoint` is a member of the frontend's Service; `true` if every read was torn.
    pub(crate) fn serves(
        &self,
        frontend: &Frontend,
        endpoint: SocketAddr,
    ) -> Result<bool, StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(false) };
        for _ in 0..ATTEMPTS {
            let Some(service) = found(L::SERVICES, self.services.get(&Raw(key), 0))? else {
                return Ok(false);
            };
            if L::is_whole(&service, &key) {
                let (header, _) = L::read_service(&service);
                let Some(key) = Self::member(header.service, endpoint) else { return Ok(false) };
                return Ok(found(L::MEMBERS, self.members.get(&Raw(key), 0))?.is_some());
            }
        }
        Ok(true)
    }
}
