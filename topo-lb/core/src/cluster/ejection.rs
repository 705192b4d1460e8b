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
}

impl Ejections {
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
