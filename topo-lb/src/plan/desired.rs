//! What every frontend should do, by Service; and which Service a frontend belongs to when two
//! claim it.

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
    /// Where clients dial.
    pub frontends: Box<[Frontend]>,
    /// What they get, but for the index, which only the plan knows.
    entry: Entry,
    /// Endpoints that serve without being chosen.
    serving: Box<[SocketAddr]>,
    /// Whether the kernel needs to know the Service's members: for UDP flows, affinity and tc.
    lists_members: bool,
    /// The policy refuses where nothing matches.
    strict: bool,
}

impl Target {
    /// `None` for what topo-lb leaves alone.
    fn new(route: Route, lists_all: bool) -> Option<Self> {
        let family = Family::of(*route.frontends.first()?);
        let (endpoints, wider) = match route.verdict {
            Verdict::Bypass => return None,
            Verdict::Refuse => (Vec::new(), Vec::new()),
            Verdict::Route => (route.endpoints, route.wider),
        };
        // A row's length is 16 bits wide in the kernel. The rest of so large a Service is the
        // same for every client, and changes only when the Service does.
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
            // Nobody asks for those of the others, which are most of a cluster's endpoints.
            serving: if lists_members { route.serving.into() } else { Box::default() },
            lists_members,
            strict: route.strict,
            name: route.name,
            family,
        })
    }

    /// The entry under this index.
    pub fn entry(&self, index: u32) -> Entry {
        Entry { index, ..self.entry.clone() }
    }

    /// The members that the kernel is to know, and whether each is chosen.
    pub fn members(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let row = self.entry.row.iter().map(|chosen| (chosen.address(), true));
        let serving = self.serving.iter().map(|&address| (address, false));
        row.chain(serving).take(if self.lists_members { usize::MAX } else { 0 })
    }
}

/// Who claims a frontend.
type Claim = (ServiceId, usize);

/// What every Service should do.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    services: BTreeMap<ServiceId, Box<[Target]>>,
    /// In order: the lowest gets it. Nearly always there is one, so this is no tree.
    claims: BTreeMap<Frontend, Vec<Claim>>,
    lists_all: bool,
}

impl Desired {
    /// Nothing yet. With `lists_all`, the members of all Services are listed, as tc and
    /// `--terminate-tcp` need it: a TCP connection that tc translates hears of its endpoint's end only
    /// by this, where a socket would hear it from the network.
    pub fn new(lists_all: bool) -> Self {
        Self { lists_all, ..Self::default() }
    }

    /// Sets what a Service should do, nothing when there are no routes. Returns the Services whose
    /// frontends change hands: this one, and those that claim the same frontends.
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
        // What is installed refers to the row that it was made of: an equal one is no news.
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

    /// What a Service should do.
    pub fn targets(&self, id: &ServiceId) -> &[Target] {
        self.services.get(id).map_or(&[], |targets| targets)
    }

    /// Whether this Service's target at `place` is the one that gets the frontend.
    pub fn owns(&self, id: &ServiceId, place: usize, frontend: &Frontend) -> bool {
        self.claims
            .get(frontend)
            .and_then(|claims| claims.first())
            .is_some_and(|(owner, at)| owner == id && *at == place)
    }

    /// Whether a Service's policy refuses where nothing matches.
    pub fn is_strict(&self, id: &ServiceId) -> bool {
        self.targets(id).iter().any(|target| target.strict)
    }

    /// Whether all connections to a Service should be refused.
    pub fn refuses(&self, id: &ServiceId) -> bool {
        let targets = self.targets(id);
        !targets.is_empty() && targets.iter().all(|target| target.entry.count == 0)
    }

    /// Every Service that should do something.
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
