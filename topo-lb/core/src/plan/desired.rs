//! What every frontend should do, by Service, and which Service gets a frontend that two claim.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use topo_lb_common::selection::{HASHED, LEASED};

use super::apportionment::{self, Rows};
use super::entry::Entry;
use super::maglev;
use super::member::Member;
use crate::cluster::{Clients, Created, Family, Frontend, FrontendKind, Protocol, ServiceId};
use crate::topology::claim::Claim;
use crate::topology::direct::{self, Direct};
use crate::topology::exposed::FrontendOfKind;
use crate::topology::homeward::Homeward;
use crate::topology::size::Excess;
use crate::topology::{Chosen, Part, Route, Verdict};

/// One Service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `namespace/name:port`.
    pub name: Arc<str>,
    /// The Service port's place in `spec.ports`.
    pub place: usize,
    /// The family of all that follows.
    pub family: Family,
    /// What clients dial.
    frontends: Box<[FrontendOfKind]>,
    /// When the Service was created.
    created: Created,
    /// The only sources that may dial the load balancer IPs among the frontends.
    source_ranges: Option<Arc<[IpNet]>>,
    /// Their entry without the index, which only the plan knows.
    entry: Entry,
    /// Serving endpoints that are not chosen.
    serving: Box<[SocketAddr]>,
    /// Which connections return to a nearer tier.
    homeward: Option<Box<Homeward>>,
    /// The node tags of the members on other nodes, if packets may be sent on to them. Sorted.
    nodes: Arc<[(SocketAddr, u16)]>,
    /// Whether the kernel needs the Service's members: for UDP flows, session affinity, ejection and tc.
    lists_members: bool,
    /// The row has endpoints more than once.
    is_weighted: bool,
    strict: bool,
}

impl Target {
    /// Returns `None` for a Service port that topo-lb does not translate. `is_headless`: its Service has no other
    /// frontends than endpoints.
    pub(crate) fn new(route: Route, lists_all: bool, is_headless: bool) -> Option<Self> {
        let mut frontends = route.frontends;
        let family = frontends.first()?.1.family();
        // An address may be a load balancer IP and an external IP of the same Service. Most have a ClusterIP alone.
        if frontends.len() > 1 {
            let mut seen = HashSet::with_capacity(frontends.len());
            frontends.retain(|(_, frontend)| seen.insert(*frontend));
        }
        let is_routed = route.verdict == Verdict::Route;
        let is_consistent = route.consistent && is_routed && route.wider.is_empty();
        let is_weighted = !route.parts.is_empty() && !is_consistent;
        let is_direct = direct::of_frontends(&frontends) != Direct::Allow;
        let (endpoints, wider, spill) = match route.verdict {
            Verdict::Bypass => return None,
            Verdict::Refuse => (Vec::new(), Vec::new(), 0),
            Verdict::Route if is_weighted => {
                let Rows { first, second, share } = apportionment::rows(&route.parts);
                (first, second, share)
            }
            Verdict::Route => (route.endpoints, route.wider, route.spill),
        };
        // The kernel's row length has 16 bits. Endpoints beyond it are not used; the cut is the
        // same for every client, and changes only with the Service.
        let count = endpoints.len().min(usize::from(u16::MAX));
        let (row, count, spill, table): (Arc<[Chosen]>, _, _, _) = if is_consistent {
            let alike = || vec![Part { weight: 1, endpoints }];
            let parts = if route.parts.is_empty() { alike() } else { route.parts };
            let (row, shares) = maglev::apportioned(&parts);
            (row, shares.size(), HASHED, Some(Arc::new(shares)))
        } else {
            let all = endpoints.into_iter().take(count).chain(wider);
            let row: Arc<[_]> = all.take(usize::from(u16::MAX)).collect();
            let spill = if row.len() > count { spill } else { 0 };
            (row, count as u16, spill, None)
        };
        let affinity_seconds = route.affinity_seconds.unwrap_or(0);
        let needs_members = lists_all
            || route.protocol == Protocol::Udp
            || affinity_seconds != 0
            || route.failures != 0
            || !route.nodes.is_empty();
        // Otherwise the port's own target lists them.
        let lists_members = needs_members && (!is_direct || is_headless);
        Some(Self {
            frontends: frontends.into(),
            created: route.created,
            source_ranges: route.source_ranges,
            place: route.place,
            entry: Entry {
                index: 0,
                tier: route.tier,
                count,
                drops: route.drops,
                spill,
                failures: route.failures,
                affinity_seconds,
                row,
                table,
            },
            // Without `lists_members`, the kernel needs none: most of a cluster's endpoints.
            serving: if lists_members { route.serving.into() } else { Box::default() },
            homeward: route.homeward.map(Box::new),
            nodes: route.nodes,
            lists_members,
            is_weighted,
            strict: route.strict,
            name: route.name,
            family,
        })
    }

    /// Whether it is for clients that dial endpoints directly, and for nobody else.
    pub fn is_direct(&self) -> bool {
        self.direct() != Direct::Allow
    }

    fn direct(&self) -> Direct {
        direct::of_frontends(&self.frontends)
    }

    /// What clients dial, whoever gets it.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        self.frontends.iter().map(|(_, frontend)| *frontend)
    }

    /// The entry, with this index.
    pub fn entry(&self, index: u32) -> Entry {
        Entry { index, ..self.entry.clone() }
    }

    /// The endpoints that new connections get, some more than once, and which connections return to them.
    pub fn homeward(&self) -> Option<(&Arc<[Chosen]>, &Homeward)> {
        Some((&self.entry.row, self.homeward.as_deref()?))
    }

    /// The endpoints of the chosen tier, or all with a share by weight; each once. Without those that have
    /// a lease: they serve only beside the others.
    pub fn chosen(&self) -> Vec<Chosen> {
        if self.entry.spill == LEASED {
            return self.entry.row[usize::from(self.entry.count)..].to_vec();
        }
        let row = if self.is_weighted { self.entry.row.len() } else { self.entry.count.into() };
        self.distinct(row).collect()
    }

    /// The endpoints at the first places of the row, each once.
    fn distinct(&self, places: usize) -> impl Iterator<Item = Chosen> {
        let mut seen = HashSet::new();
        let is_new = move |chosen: &Chosen| !self.is_weighted || seen.insert(*chosen);
        self.entry.row.iter().take(places).copied().filter(is_new)
    }

    /// About how many entries it takes.
    pub fn size(&self) -> usize {
        self.entry.slots() as usize + self.serving.len()
    }

    /// The members that the kernel needs, and what is known of each.
    pub fn members(&self) -> impl Iterator<Item = (SocketAddr, Member)> {
        let row = self.distinct(self.entry.row.len()).map(|chosen| (chosen.address(), true));
        let serving = self.serving.iter().map(|&address| (address, false));
        let node = |address| {
            let at = self.nodes.binary_search_by_key(&address, |(own, _)| *own);
            at.map_or(0, |at| self.nodes[at].1)
        };
        let member = move |(address, chosen)| (address, Member::new(chosen, node(address)));
        row.chain(serving).map(member).take(if self.lists_members { usize::MAX } else { 0 })
    }
}

/// What every Service should do.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    services: BTreeMap<ServiceId, Box<[Target]>>,
    /// Of frontends for clients anywhere: the first claim gets the frontend, whoever dials it. Of frontends for
    /// steered Pods: an only claim gets it, if nobody claims the same for clients anywhere.
    claims: BTreeSet<(Frontend, Claim)>,
    /// Services whose connections may return to a nearer tier.
    returning: BTreeSet<ServiceId>,
    /// Those of them that were set since [`take_returning`](Self::take_returning), and those that were.
    reset: BTreeSet<ServiceId>,
    /// Services with source ranges.
    limited: BTreeSet<ServiceId>,
    /// How often the answer of [`source_ranges`](Self::source_ranges) may have changed.
    ranges_revision: u64,
    /// Services without targets, as they alone are too large.
    too_large: BTreeMap<ServiceId, Excess>,
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
        self.too_large.remove(&id);
        let before = self.services.remove(&id).unwrap_or_default();
        for (frontend, claim) in claims_of(&id, &before) {
            self.claims.remove(&(frontend, claim));
            affected.extend(self.claims_about(frontend).map(|other| other.service.clone()));
        }
        let is_headless = routes.iter().all(|route| route.direct() != Direct::Allow);
        let target = |route| Target::new(route, self.lists_all, is_headless);
        let targets: Box<[Target]> = routes.into_iter().filter_map(target).collect();
        // Installed entries share the row of the target: an equal target is not replaced.
        let same_ranges = limits_of(&targets).eq(limits_of(&before));
        let targets = if targets == before { before } else { targets };
        for (frontend, claim) in claims_of(&id, &targets) {
            affected.extend(self.claims_about(frontend).map(|other| other.service.clone()));
            self.claims.insert((frontend, claim));
        }
        if !same_ranges || affected.iter().any(|other| *other != id && self.limited.contains(other))
        {
            self.ranges_revision += 1;
        }
        if targets.iter().any(|target| target.source_ranges.is_some()) {
            self.limited.insert(id.clone());
        } else {
            self.limited.remove(&id);
        }
        let returns = targets.iter().any(|target| target.homeward.is_some());
        let returned =
            if returns { !self.returning.insert(id.clone()) } else { self.returning.remove(&id) };
        if returns || returned {
            self.reset.insert(id.clone());
        }
        if !targets.is_empty() {
            self.services.insert(id.clone(), targets);
        }
        affected.insert(id);
        affected
    }

    /// Leaves a Service out, as it alone is too large. Returns the same as [`set`](Self::set).
    pub fn leave_out(&mut self, id: ServiceId, excess: Excess) -> BTreeSet<ServiceId> {
        let affected = self.set(id.clone(), Vec::new());
        self.too_large.insert(id, excess);
        affected
    }

    /// Of what a Service has too many, if it alone is too large.
    pub(super) fn too_large(&self, id: &ServiceId) -> Option<Excess> {
        self.too_large.get(id).copied()
    }

    /// The claims to a frontend for clients anywhere, the first of which gets it.
    fn claims_to(&self, frontend: Frontend) -> impl Iterator<Item = &Claim> {
        let claims = self.claims.range((frontend, Claim::first())..);
        claims.take_while(move |(other, _)| *other == frontend).map(|(_, claim)| claim)
    }

    /// The claims to what a client dials, whoever it is.
    fn claims_about(&self, frontend: Frontend) -> impl Iterator<Item = &Claim> {
        let dialled = frontend.of(Clients::Anywhere);
        let claims = self.claims.range((dialled, Claim::first())..);
        let is_about = move |(other, _): &&(Frontend, Claim)| other.of(dialled.clients) == dialled;
        claims.take_while(is_about).map(|(_, claim)| claim)
    }

    /// Whether a frontend is the ClusterIP of the Service that gets it.
    pub fn is_cluster_ip(&self, frontend: &Frontend) -> bool {
        self.claims_to(*frontend).next().is_some_and(Claim::is_cluster_ip)
    }

    /// The targets of a Service; empty if there are none.
    pub fn targets(&self, id: &ServiceId) -> &[Target] {
        self.services.get(id).map_or(&[], |targets| targets)
    }

    /// The frontends that a Service gets with one of its targets.
    pub fn owned<'a>(
        &'a self,
        id: &'a ServiceId,
        target: &'a Target,
    ) -> impl Iterator<Item = Frontend> + 'a {
        let owned = target.frontends.iter().filter(move |(kind, frontend)| {
            if frontend.clients == Clients::Steered {
                // Whoever else claims it may be meant.
                return self.claims_about(*frontend).count() == 1;
            }
            let owner = self.claims_to(frontend.of(Clients::Anywhere)).next();
            owner.is_some_and(|owner| {
                owner.service == *id
                    && owner.place as usize == target.place
                    // A port may claim an address for itself, and as an endpoint's.
                    && (owner.kind == FrontendKind::Endpoint) == (*kind == FrontendKind::Endpoint)
            })
        });
        owned.map(|(_, frontend)| *frontend)
    }

    /// The Services whose connections may return to a nearer tier, or might before, and that were set since
    /// the last call.
    pub fn take_returning(&mut self) -> BTreeSet<ServiceId> {
        std::mem::take(&mut self.reset)
    }

    /// As long as it is the same, so is what [`source_ranges`](Self::source_ranges) gives.
    pub const fn ranges_revision(&self) -> u64 {
        self.ranges_revision
    }

    /// The load balancer IPs that not everybody may dial, and who may.
    pub fn source_ranges(&self) -> impl Iterator<Item = (Frontend, &Arc<[IpNet]>)> {
        let limited = self
            .limited
            .iter()
            .flat_map(|id| self.targets(id).iter().map(move |target| (id, target)));
        limited.flat_map(|(id, target)| {
            let ranges = target.source_ranges.as_ref();
            let is_limited = |frontend: &Frontend| {
                target.frontends.contains(&(FrontendKind::LoadBalancerIp, *frontend))
            };
            let owned = self.owned(id, target).filter(is_limited).collect::<Vec<_>>();
            owned.into_iter().filter_map(move |frontend| Some((frontend, ranges?)))
        })
    }

    /// Service ports whose endpoints clients may not dial directly, or not all of them; also where only steered Pods
    /// are refused.
    pub fn refusing_direct(&self) -> impl Iterator<Item = (&ServiceId, &Arc<str>)> {
        let all =
            self.services.iter().flat_map(|(id, targets)| targets.iter().map(move |it| (id, it)));
        let refusing = all.filter(|(_, target)| target.is_direct() && target.entry.count == 0);
        refusing.map(|(id, target)| (id, &target.name))
    }

    /// Whether clients may not dial an endpoint directly over TCP.
    pub fn refuses_dials_of(&self, endpoint: SocketAddr) -> bool {
        let frontend = Frontend::new(endpoint.ip(), endpoint.port(), Protocol::Tcp);
        self.claims_to(frontend).next().is_some_and(|it| it.kind == FrontendKind::Endpoint)
    }

    /// Whether a Service has frontends for clients that dial its endpoints directly.
    pub fn has_direct(&self, id: &ServiceId) -> bool {
        self.targets(id).iter().any(Target::is_direct)
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

/// The claims of a Service.
fn claims_of(id: &ServiceId, targets: &[Target]) -> impl Iterator<Item = (Frontend, Claim)> {
    targets.iter().flat_map(move |target| {
        target.frontends.iter().map(move |&(kind, frontend)| {
            let claim = Claim::new(kind, target.created, id, target.place);
            let claimed = match frontend.clients {
                Clients::Anywhere | Clients::Outside | Clients::Peers => {
                    frontend.of(Clients::Anywhere)
                }
                Clients::Steered => frontend,
            };
            (claimed, claim)
        })
    })
}

/// What the Service ports with source ranges have, and which: two equal lists are one only if they are shared, as to
/// compare them takes as long as a Service has ports, times its ranges.
fn limits_of(targets: &[Target]) -> impl Iterator<Item = (&[FrontendOfKind], *const IpNet)> {
    let limited =
        targets.iter().filter_map(|it| Some((&*it.frontends, it.source_ranges.as_ref()?)));
    limited.map(|(frontends, ranges)| (frontends, ranges.as_ptr()))
}
