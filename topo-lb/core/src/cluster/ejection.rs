//! Endpoints that this node ejects for a while, because its connects to them failed. The agent finds
//! them (`ejection`); no source sends them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use topo_lb_common::totals::Failure;

use super::service::ServiceId;

/// An endpoint that is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// When it is probed.
    pub until: Instant,
    /// How many connects in a row failed.
    pub failures: u8,
    /// How the last one failed.
    pub why: Failure,
}

impl Ejection {
    /// Why it is ejected, as a clause.
    #[must_use]
    pub fn cause(&self) -> String {
        let why = self.why.name();
        match self.failures {
            1 => format!("a connect of this node failed ({why})"),
            many => format!("{many} connects of this node in a row failed ({why})"),
        }
    }
}

/// The endpoints of a Service that are ejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEjections {
    /// Most of a tier, in percent: 1–100.
    pub most: u8,
    /// In the order in which they were ejected.
    pub endpoints: Arc<[Ejection]>,
}

/// What this node ejects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ejections {
    /// Why this node does not see that connects fail; `None`: it does.
    pub unseen: Option<Arc<str>>,
    /// By Service; only Services with any.
    pub services: BTreeMap<ServiceId, ServiceEjections>,
    /// What this node finds while it hears nothing from the API server; `None`: it does.
    pub island: Option<Island>,
}

/// A node that hears nothing from its API server looks itself which endpoints are dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Island {
    /// When the API server was last heard of.
    pub since: Instant,
    /// The Services that it watches over, and which of their endpoints are dead, sorted.
    pub services: BTreeMap<ServiceId, Arc<[SocketAddr]>>,
}

impl Ejections {
    /// The endpoints of a Service that are dead, sorted.
    #[must_use]
    pub fn dead(&self, service: &ServiceId) -> &[SocketAddr] {
        let all = self.island.as_ref().and_then(|island| island.services.get(service));
        all.map_or(&[], |dead| dead)
    }

    /// Whether this node, as an island, watches over a Service.
    #[must_use]
    pub fn watches(&self, service: &ServiceId) -> bool {
        self.island.as_ref().is_some_and(|island| island.services.contains_key(service))
    }

    /// The Services for which `other` says something else of an island.
    pub(super) fn island_differs<'a>(&'a self, other: &'a Self) -> Vec<&'a ServiceId> {
        let of = |it: &'a Self| it.island.iter().flat_map(|island| &island.services);
        let get = |it: &'a Self, id| it.island.as_ref().and_then(|island| island.services.get(id));
        let named = of(self).chain(of(other)).map(|(id, _)| id);
        named.filter(|id| get(self, id) != get(other, id)).collect()
    }

    /// Sets what is ejected of a Service. Returns whether that differs.
    pub(super) fn put(&mut self, service: &ServiceId, of: ServiceEjections) -> bool {
        if of.endpoints.is_empty() {
            return self.services.remove(service).is_some();
        }
        let differs = self.services.get(service) != Some(&of);
        if differs {
            self.services.insert(service.clone(), of);
        }
        differs
    }
}

/// How many of so many endpoints of a tier may be ejected, if `most` percent may: never all.
#[must_use]
pub const fn most_ejected(endpoints: usize, most: u8) -> usize {
    let share = endpoints.saturating_mul(most as usize) / 100;
    let all_but_one = endpoints.saturating_sub(1);
    if share < all_but_one { share } else { all_but_one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_share_and_never_the_last_one() {
        for endpoints in 0..200 {
            for most in 1..=100 {
                let out = most_ejected(endpoints, most);
                assert!(out * 100 <= endpoints * usize::from(most), "{out} of {endpoints}");
                assert!(out < endpoints.max(1), "{out} of {endpoints}");
            }
        }
        let half = [0, 1, 2, 3, 4, 5].map(|endpoints| most_ejected(endpoints, 50));
        assert_eq!(half, [0, 0, 1, 1, 2, 2]);
    }
}
