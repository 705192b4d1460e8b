//! Services whose decisions depend on endpoints of others: with `topo-lb.io/direct: steer`, what two Services of a
//! namespace have is left alone.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Changed, State};
use crate::cluster::kept::Endpoints;
use crate::cluster::service::{PolicySources, Service};
use crate::cluster::slice::Endpoint;

/// Addresses that an update gave to Services or took from them, by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved(BTreeMap<Arc<str>, HashSet<IpAddr>>);

impl Moved {
    /// A slice is replaced, is new, or is gone.
    pub(super) fn slice(&mut self, old: Option<&Endpoints>, new: Option<&Endpoints>) {
        if old.zip(new).is_some_and(|(old, new)| are_alike(old, new)) {
            return;
        }
        old.into_iter().chain(new).for_each(|slice| self.add(slice));
    }

    fn add(&mut self, slice: &Endpoints) {
        let addresses = slice.endpoints.iter().map(|one| one.address);
        self.0.entry(Arc::clone(&slice.id.namespace)).or_default().extend(addresses);
    }
}

/// Whether two versions of a slice give the same addresses to the same ports.
fn are_alike(old: &Endpoints, new: &Endpoints) -> bool {
    let each = |one: &Endpoint| (one.address, one.has_hostname);
    old.service == new.service
        && old.ports == new.ports
        && old.headless == new.headless
        && old.endpoints.iter().map(each).eq(new.endpoints.iter().map(each))
}

impl State {
    /// A Service is replaced, is new, or is gone: notes the addresses that count for others now, or no longer.
    pub(super) fn note_service(
        &self,
        old: Option<&Service>,
        new: Option<&Service>,
        changed: &mut Changed,
    ) {
        let is_alike = |old: &Service, new: &Service| {
            let counts = |service: &Service| {
                let says = service.policy.direct.is_some();
                (service.cluster_ips.is_empty(), service.skipped, says)
            };
            counts(old) == counts(new) && old.ports == new.ports
        };
        if old.zip(new).is_some_and(|(old, new)| is_alike(old, new)) {
            return;
        }
        let slices = old.or(new).and_then(|it| self.of_service.get(&it.id));
        slices.into_iter().flatten().for_each(|slice| changed.moved.add(slice));
    }

    /// Touches the Services that steer and have an address that moved. Reads every endpoint of the namespaces
    /// once, if anybody steers.
    pub(super) fn touch_sharers(&self, changed: &mut Changed) {
        let moved = std::mem::take(&mut changed.moved);
        if moved.0.is_empty() || !self.steers_pods() {
            return;
        }
        let is_said_above = self.policies.sources().any(PolicySources::steers);
        if !is_said_above && self.steering == 0 {
            return;
        }
        for (namespace, addresses) in moved.0 {
            for service in self.in_namespace(&namespace) {
                let steers_itself = service.policy.steers();
                let may_steer = steers_itself || is_said_above;
                if !may_steer || changed.services.contains(&service.id) {
                    continue;
                }
                let mut own = self.slices(&service.id).flat_map(|(_, slice)| &slice.endpoints);
                let is_said = || {
                    let above = self.policies.above(service);
                    steers_itself || above.iter().any(|it| it.policy().steers())
                };
                if own.any(|one| addresses.contains(&one.address)) && is_said() {
                    changed.services.insert(service.id.clone());
                }
            }
        }
    }
}
