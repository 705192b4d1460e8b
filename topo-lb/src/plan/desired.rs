//! What every frontend should do, by Service, and which Service gets a frontend that two claim.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::entry::Entry;
use crate::cluster::{Family, Frontend, Protocol, ServiceId};
use crate::topology::{Chosen, Route, Verdict};

/// One Service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `namespace/name:port`.
    pub name: Arc<str>,
    /// The family of all that follows.
    pub family: Family,
    /// The addresses and ports that clients dial.
    pub frontends: Box<[Frontend]>,
    /// Their entry without the index, which only the plan knows.
    entry: Entry,
    /// Serving endpoints that are not chosen.
    serving: Box<[SocketAddr]>,
    /// Whether the kernel needs the Service's members: for UDP flows, session affinity and tc.
    lists_members: bool,
    strict: bool,
}

impl Target {
    /// Returns `None` for a Service port that topo-lb does not translate.
    fn new(route: Route, lists_all: bool) -> Option<Self> {
        let family = Family::of(*route.frontends.first()?);
        let (endpoints, wider) = match route.verdict {
            Verdict::Bypass => return None,
            Verdict::Refuse => (Vec::new(), Vec::new()),
            Verdict::Route => (route.endpoints, route.wider),
        };
        // The kernel's row length has 16 bits. Endpoints beyond it are not used; the cut is the
        // same for every client, and changes only with the Service.
        let count = endpoints.len().min(usize::from(u16::MAX));
        let row: Arc<[Chosen]> =
            endpoints.into_iter().take(count).chain(wider).take(usize::from(u16::MAX)).collect();
        let affinity_seconds = route.affinity_seconds.unwrap_or(0);
        let lists_members = lists_all || route.protocol == Protocol::Udp || affinity_seconds != 0;
        Some(Self {
            frontends: route
                .frontends
                .iter()
                .map(|&address| Frontend { address, port: route.port, protocol: route.protocol })
                .collect(),
            entry: Entry {
                index: 0,
                tier: route.tier,
                count: count as u16,
                spill: if row.len() > count { route.spill } else { 0 },
                affinity_seconds,
                row,
            },
            // Without `lists_members`, the kernel needs none: most of a cluster's endpoints.
            serving: if lists_members { route.serving.into() } else { Box::default() },
            lists_members,
            strict: route.strict,
            name: route.name,
            family,
        })
    }

    /// The entry, with this index.
    pub fn entry(&self, index: u32) -> Entry {
        Entry { index, ..self.entry.clone() }
    }

    /// The members that the kernel needs, and whether each is chosen.
    pub fn members(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let row = self.entry.row.iter().map(|chosen| (chosen.address(), true));
        let serving = self.serving.iter().map(|&address| (address, false));
        row.chain(serving).take(if self.lists_members { usize::MAX } else { 0 })
    }
}

/// A Service that claims a frontend, and the place of the target in its list.
type Claim = (ServiceId, usize);

/// What every Service should do.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    services: BTreeMap<ServiceId, Box<[Target]>>,
    /// Sorted; the lowest claim gets the frontend. Nearly always there is one, so a `Vec` suffices.
    claims: BTreeMap<Frontend, Vec<Claim>>,
    lists_all: bool,
}

impl Desired {
    /// Starts empty. `lists_all` lists the members of all Services, as tc and `--terminate-tcp`
    /// need it: only this list tells tc that the endpoint of a TCP connection is gone.
    pub fn new(lists_all: bool) -> Self {
        Self { lists_all, ..Self::default() }
    }

    /// Sets what a Service should do; no routes remove it. Returns the Services whose frontends may
    /// change owner: this one and those that claim the same frontends.
    pub fn set(&mut self, id: ServiceId, routes: Vec<Route>) -> BTreeSet<ServiceId> {
        let mut affected = BTreeSet::new();
        let before = self.services.remove(&id).unwrap_or_default();
        for (place, frontend) in claimed(&before) {
            if let Some(claims) = self.claims.get_mut(&frontend) {
                claims.retain(|(other, at)| *other != id || *at != place);
                affected.extend(claims.iter().map(|(other, _)| other.clone()));
                if claims.is_empty() {
                    self.claims.remove(&frontend);
                }
            }
        }
        let targets: Box<[Target]> =
            routes.into_iter().filter_map(|route| Target::new(route, self.lists_all)).collect();
        // Installed entries share the row of the target: an equal target is not replaced.
        let targets = if targets == before { before } else { targets };
        for (place, frontend) in claimed(&targets) {
            let claims = self.claims.entry(frontend).or_insert_with(|| Vec::with_capacity(1));
            affected.extend(claims.iter().map(|(other, _)| other.clone()));
            let claim = (id.clone(), place);
            if let Err(at) = claims.binary_search(&claim) {
                claims.insert(at, claim);
            }
        }
        if !targets.is_empty() {
            self.services.insert(id.clone(), targets);
        }
        affected.insert(id);
        affected
    }

    /// The targets of a Service; empty if there are none.
    pub fn targets(&self, id: &ServiceId) -> &[Target] {
        self.services.get(id).map_or(&[], |targets| targets)
    }

    /// Whether the Service's target at `place` gets the frontend.
    pub fn owns(&self, id: &ServiceId, place: usize, frontend: &Frontend) -> bool {
        self.claims
            .get(frontend)
            .and_then(|claims| claims.first())
            .is_some_and(|(owner, at)| owner == id && *at == place)
    }

    /// Whether a Service's policy refuses when nothing matches.
    pub fn is_strict(&self, id: &ServiceId) -> bool {
        self.targets(id).iter().any(|target| target.strict)
    }

    /// Whether all connections to a Service should be refused.
    pub fn refuses(&self, id: &ServiceId) -> bool {
        let targets = self.targets(id);
        !targets.is_empty() && targets.iter().all(|target| target.entry.count == 0)
    }

    /// Every Service with a target.
    pub fn services(&self) -> impl Iterator<Item = &ServiceId> {
        self.services.keys()
    }
}

fn claimed(targets: &[Target]) -> impl Iterator<Item = (usize, Frontend)> {
    targets
        .iter()
        .enumerate()
        .flat_map(|(place, target)| target.frontends.iter().map(move |frontend| (place, *frontend)))
}
