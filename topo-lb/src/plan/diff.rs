//! The steps from what is installed to what is desired.
//!
//! The order makes every prefix of a plan safe: what a published entry refers to is written
//! before it, and what it referred to is reused only after a grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::range::Range;

use super::capacity::Shortage;
use super::desired::{Desired, Target};
use super::frontend::{Family, Frontend};
use super::installed::Installed;
use super::slots::Slots;
use super::step::{Plan, Step};
use crate::cluster::ServiceId;

/// Plans the changes of the Services in `touched`, which must hold every Service whose desired
/// state changed since `installed` last agreed with it.
pub fn plan(desired: &Desired, installed: &Installed, touched: &BTreeSet<ServiceId>) -> Plan {
    let mut draft = Draft::new(installed);
    for id in touched {
        let targets = desired.targets(id);
        match draft.place(desired, id, targets) {
            Ok(ports) => draft.retire(id, &ports),
            Err(shortage) => {
                draft.left_out.insert(id.clone(), shortage);
                draft.retire(id, &BTreeMap::new());
            }
        }
    }
    draft.finish()
}

/// Services that are installed and that nobody desires: what was deleted while no agent ran.
pub fn orphans(desired: &Desired, installed: &Installed) -> BTreeSet<ServiceId> {
    installed
        .indexes()
        .iter()
        .filter_map(|(_, name)| service_of(name))
        .filter(|id| desired.targets(id).is_empty())
        .collect()
}

/// The Service of a Service port's name, `namespace/name:port`.
pub(super) fn service_of(name: &str) -> Option<ServiceId> {
    let (namespace, rest) = name.split_once('/')?;
    let (name, _) = rest.split_once(':')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

/// A Service port that a Service keeps or gets: its index, and the members it is to have.
#[derive(Default)]
struct Port {
    index: u32,
    members: BTreeMap<SocketAddr, bool>,
}

/// What one Service needs: put into the draft only when all of it fits.
#[derive(Default)]
struct Part {
    names: Vec<Step>,
    fills: Vec<Step>,
    members: Vec<Step>,
    publishes: Vec<Step>,
    owned: Vec<Frontend>,
    new_frontends: [usize; 2],
    new_members: [usize; 2],
    taken_slots: Vec<(Family, u32, u32)>,
    ports: BTreeMap<Arc<str>, Port>,
}

/// A plan in the making, by phase.
struct Draft<'a> {
    installed: &'a Installed,
    free_indexes: Box<dyn Iterator<Item = u32> + 'a>,
    slots: [Slots; 2],
    frontends: [usize; 2],
    members: [usize; 2],
    names: Vec<Step>,
    fills: Vec<Step>,
    set_members: Vec<Step>,
    publishes: Vec<Step>,
    owned: BTreeSet<Frontend>,
    surplus: BTreeSet<Frontend>,
    remove_members: Vec<Step>,
    unname: Vec<Step>,
    left_out: BTreeMap<ServiceId, Shortage>,
}

impl<'a> Draft<'a> {
    fn new(installed: &'a Installed) -> Self {
        Self {
            installed,
            free_indexes: Box::new(installed.indexes().free()),
            slots: Family::BOTH.map(|family| installed.slots(family).clone()),
            frontends: Family::BOTH.map(|family| installed.frontends_in(family)),
            members: Family::BOTH.map(|family| installed.members_in(family)),
            names: Vec::new(),
            fills: Vec::new(),
            set_members: Vec::new(),
            publishes: Vec::new(),
            owned: BTreeSet::new(),
            surplus: BTreeSet::new(),
            remove_members: Vec::new(),
            unname: Vec::new(),
            left_out: BTreeMap::new(),
        }
    }

    /// Takes in all that a Service needs, or, where it does not fit, nothing.
    fn place(
        &mut self,
        desired: &Desired,
        id: &ServiceId,
        targets: &[Target],
    ) -> Result<BTreeMap<Arc<str>, Port>, Shortage> {
        let mut part = Part::default();
        for (place, target) in targets.iter().enumerate() {
            let owned: Vec<Frontend> =
                target.frontends.iter().filter(|f| desired.owns(id, place, f)).copied().collect();
            if let Err(shortage) = self.fit(target, owned, &mut part) {
                for (family, base, length) in part.taken_slots {
                    self.slots[family as usize].release(base, length);
                }
                return Err(shortage);
            }
        }
        for family in [0, 1] {
            self.frontends[family] += part.new_frontends[family];
            self.members[family] += part.new_members[family];
        }
        self.names.append(&mut part.names);
        self.fills.append(&mut part.fills);
        self.set_members.append(&mut part.members);
        self.publishes.append(&mut part.publishes);
        self.owned.extend(part.owned);
        Ok(part.ports)
    }

    fn fit(
        &mut self,
        target: &Target,
        owned: Vec<Frontend>,
        part: &mut Part,
    ) -> Result<(), Shortage> {
        let capacity = self.installed.capacity();
        let index = match part.ports.get(&target.name) {
            Some(port) => port.index,
            None => match self.installed.indexes().get(&target.name) {
                Some(index) => index,
                None => {
                    let index = self.free_indexes.next().ok_or(Shortage::Services)?;
                    part.names.push(Step::Name { index, name: target.name.clone() });
                    index
                }
            },
        };
        let entry = target.entry(index);
        for &frontend in &owned {
            let family = frontend.family();
            let before = self.installed.get(&frontend);
            if before.is_some_and(|placed| placed.entry == entry) {
                continue;
            }
            if before.is_none() {
                part.new_frontends[family as usize] += 1;
                let used = self.frontends[family as usize] + part.new_frontends[family as usize];
                if used > capacity.services as usize {
                    return Err(Shortage::Services);
                }
            }
            let slot_base = if entry.needs_slots() {
                let length = entry.row.len() as u32;
                let base =
                    self.slots[family as usize].allocate(length).ok_or(Shortage::Endpoints)?;
                part.taken_slots.push((family, base, length));
                part.fills.push(Step::FillSlots { family, base, row: entry.row.clone() });
                Some(base)
            } else {
                None
            };
            part.publishes.push(Step::Publish { frontend, entry: entry.clone(), slot_base });
        }
        part.owned.extend(owned);
        let port = part.ports.entry(target.name.clone()).or_default();
        port.index = index;
        for (endpoint, chosen) in target.members() {
            let known = self.installed.member(index, endpoint);
            if known != Some(chosen) {
                let family = Family::of(endpoint.ip()) as usize;
                part.new_members[family] += usize::from(known.is_none());
                if self.members[family] + part.new_members[family] > capacity.members as usize {
                    return Err(Shortage::Endpoints);
                }
                part.members.push(Step::SetMember { index, endpoint, chosen });
            }
            port.members.insert(endpoint, chosen);
        }
        Ok(())
    }

    /// Takes away what a Service has installed beyond these ports.
    fn retire(&mut self, id: &ServiceId, ports: &BTreeMap<Arc<str>, Port>) {
        for (name, index) in self.installed.indexes().of_service(id) {
            let port = ports.get(name);
            self.surplus.extend(self.installed.frontends_of(index).copied());
            self.remove_members.extend(
                self.installed
                    .members_of(index)
                    .filter(|(endpoint, _)| {
                        !port.is_some_and(|port| port.members.contains_key(endpoint))
                    })
                    .map(|(endpoint, _)| Step::RemoveMember { index, endpoint }),
            );
            if port.is_none() {
                self.unname.push(Step::Unname(index));
            }
        }
    }

    fn finish(self) -> Plan {
        let published = |step: &Step| match step {
            Step::Publish { frontend, .. } => Some(*frontend),
            _ => None,
        };
        let withdrawn: BTreeSet<Frontend> = self.surplus.difference(&self.owned).copied().collect();
        let replaced = self.publishes.iter().filter_map(published).chain(withdrawn.iter().copied());
        let freed: Vec<Step> = replaced.filter_map(|f| freed_slots(self.installed, &f)).collect();

        let wide =
            self.publishes.iter().filter_map(published).fold(self.installed.range(), widened);
        let mut steps = Vec::new();
        if wide != self.installed.range() {
            steps.push(Step::SetRange(wide));
        }
        steps.extend(self.names);
        steps.extend(self.fills);
        steps.extend(self.set_members);
        // Before what is published without them: a UDP flow asks once for each new value whether
        // its endpoint is still a member, and never again if the answer was yes.
        steps.extend(self.remove_members);
        steps.extend(self.publishes);
        steps.extend(withdrawn.iter().copied().map(Step::Withdraw));
        if !freed.is_empty() || !self.unname.is_empty() {
            steps.push(Step::Grace);
            steps.extend(freed);
            steps.extend(self.unname);
        }
        if !withdrawn.is_empty() {
            let staying =
                self.installed.placed().map(|(f, _)| f).filter(|f| !withdrawn.contains(f));
            let narrow = staying
                .chain(self.owned.iter())
                .fold(Range::EMPTY, |range, frontend| widened(range, *frontend));
            if narrow != wide {
                steps.push(Step::SetRange(narrow));
            }
        }
        Plan { steps, left_out: self.left_out }
    }
}

fn freed_slots(installed: &Installed, frontend: &Frontend) -> Option<Step> {
    let placed = installed.get(frontend)?;
    let length = placed.entry.row.len() as u32;
    placed.slot_base.map(|base| Step::FreeSlots { family: frontend.family(), base, length })
}

fn widened(range: Range, frontend: Frontend) -> Range {
    match frontend.address {
        IpAddr::V4(address) => range.with4(address.octets()),
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h, ..] = address.octets();
            range.with6([a, b, c, d, e, f, g, h])
        }
    }
}
