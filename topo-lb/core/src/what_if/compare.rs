//! The loads of a cluster before a change and after it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::Arc;

use rayon::prelude::*;

use super::load::{self, Load};
use super::{
    ASSUMPTION, BYTES_ASSUMPTION, Both, Bytes, Endpoint, Figures, Group, Proxied, Report,
    ServicePort, Totals, moved,
};
use crate::cluster::{Family, ServiceId, State};
use crate::explain;
use crate::topology::NodesByLabel;

/// Loads and shares are rounded to a millionth: what differs by less is the same.
const PRECISION: f64 = 1e6;

/// What clients dial: number, protocol and family.
type Dialled = (u16, &'static str, Family);

/// Compares all Services. `label` groups the nodes. The report has those that change, and those of
/// `asked`. `figures`: what agents have counted, if anybody asked them.
#[must_use]
pub fn compare<'a>(
    before: &'a Proxied,
    after: &'a Proxied,
    label: &'a str,
    asked: &BTreeSet<ServiceId>,
    figures: Option<&Figures>,
) -> Report<'a> {
    let same_nodes = before.state.nodes().eq(after.state.nodes());
    let ids: BTreeSet<&ServiceId> = before.state.services().chain(after.state.services()).collect();
    let ids: Vec<&ServiceId> = ids.into_iter().collect();
    let nodes = [before, after].map(|cluster| NodesByLabel::of(&cluster.state));
    let compared = ids.par_iter().map(|&id| {
        let is_asked = asked.contains(id);
        let mut sums = Sums::default();
        let mut reported = Vec::new();
        if same_nodes && !is_asked && is_same(before, after, id) {
            sums.ports = ports(&after.state, id);
            return (sums, reported);
        }
        for (port, pair) in service([before, after], [&nodes[0], &nodes[1]], label, id, figures) {
            sums += Sums::of(&port, &pair);
            reported.extend((port.changes || is_asked).then_some(port));
        }
        (sums, reported)
    });
    let mut sums = Sums::default();
    let mut services = Vec::new();
    for (one, reported) in compared.collect::<Vec<_>>() {
        sums += one;
        services.extend(reported);
    }
    let bytes_assumption = figures.map(|_| BYTES_ASSUMPTION);
    let changed: BTreeSet<ServiceId> =
        services.iter().filter(|port| port.changes).map(ServicePort::service).collect();
    Report {
        assumption: ASSUMPTION,
        bytes_assumption,
        bytes_over: figures.and_then(|figures| figures.over.clone()),
        bytes_direct: figures.map(|figures| figures.direct(&changed)),
        cost: None,
        label,
        services,
        totals: sums.totals(),
    }
}

/// The ports of a Service, before and after.
pub(super) fn service<'a>(
    [before, after]: [&'a Proxied; 2],
    [old_nodes, new_nodes]: [&NodesByLabel<'a>; 2],
    label: &str,
    id: &ServiceId,
    figures: Option<&Figures>,
) -> Vec<Compared<'a>> {
    let old = load::of(before, old_nodes, label, id, figures);
    let new = load::of(after, new_nodes, label, id, figures);
    by_loads([&old, &new], &after.state, label, id, figures)
}

/// The same, with the loads before and after.
pub(super) fn by_loads<'a>(
    [old, new]: [&[Arc<Load<'a>>]; 2],
    after: &State,
    label: &str,
    id: &ServiceId,
    figures: Option<&Figures>,
) -> Vec<Compared<'a>> {
    let mut all: Vec<_> = pairs(old, new)
        .into_iter()
        .map(|(dialled, pair)| (service_port(id, dialled, &pair, after), pair))
        .collect();
    if let Some(figures) = figures {
        add_bytes(&mut all, id, figures, label);
    }
    all
}

/// Whether nothing that a decision for this Service reads has changed, given the same Nodes.
fn is_same(before: &Proxied, after: &Proxied, id: &ServiceId) -> bool {
    before.state.service(id) == after.state.service(id)
        && before.state.has_same_policies(&after.state, id)
        && before.state.slices(id).eq(after.state.slices(id))
        && before.by_kube_proxy.contains(id) == after.by_kube_proxy.contains(id)
}

/// How many ports a Service has, by address family.
fn ports(state: &State, id: &ServiceId) -> usize {
    let Some(service) = state.service(id).filter(|service| service.skipped.is_none()) else {
        return 0;
    };
    let families: HashSet<_> = service.cluster_ips.iter().copied().map(Family::of).collect();
    service.ports.len() * families.len()
}

pub(super) type Pair<'a> = Both<Option<Arc<Load<'a>>>>;

/// A Service port, and what it was made of.
pub(super) type Compared<'a> = (ServicePort<'a>, Pair<'a>);

fn pairs<'a>(before: &[Arc<Load<'a>>], after: &[Arc<Load<'a>>]) -> BTreeMap<Dialled, Pair<'a>> {
    let dialled = |load: &Load<'_>| (load.port.port, load.port.protocol.into(), load.family);
    let mut pairs: BTreeMap<Dialled, Pair<'a>> = BTreeMap::new();
    for load in before {
        let key = dialled(load);
        pairs.entry(key).or_default().before = Some(Arc::clone(load));
    }
    for load in after {
        let key = dialled(load);
        pairs.entry(key).or_default().after = Some(Arc::clone(load));
    }
    pairs
}

/// Adds what was counted before the change, under the ports' names of then. Metrics do not say the address
/// family, so the bytes of a port are at the first one that changes, or at the first.
fn add_bytes(
    all: &mut [(ServicePort<'_>, Pair<'_>)],
    id: &ServiceId,
    figures: &Figures,
    label: &str,
) {
    let mut places: BTreeMap<u16, usize> = BTreeMap::new();
    for (at, (port, pair)) in all.iter().enumerate() {
        if port.port.protocol == "TCP" && pair.before.is_some() {
            let place = places.entry(port.port.port).or_insert(at);
            if port.changes && !all[*place].0.changes {
                *place = at;
            }
        }
    }
    for place in places.into_values() {
        let (port, pair) = &mut all[place];
        let before = pair.before.as_ref();
        let known = before.and_then(|load| figures.port(id, load.port));
        port.wider = before.and_then(|load| figures.wider(id, load.port));
        port.bytes = known.map(|counted| moved::bytes(counted, pair, label));
    }
}

fn rounded(number: f64) -> f64 {
    (number * PRECISION).round() / PRECISION
}

fn share(part: f64, whole: usize) -> Option<f64> {
    (whole > 0).then(|| rounded(part / whole as f64))
}

fn service_port<'a>(
    id: &ServiceId,
    dialled: Dialled,
    pair: &Pair<'a>,
    after: &State,
) -> ServicePort<'a> {
    let newest = pair.after.as_ref().or(pair.before.as_ref());
    let name = newest.map(|load| load.port.name.to_string());
    let served = |load: &Option<Arc<Load<'_>>>| load.as_ref().map(|load| load.served.clone());
    let served = Both { before: served(&pair.before), after: served(&pair.after) };
    let groups = groups(pair, after);
    let endpoints = endpoints(pair);
    let of = |load: &Option<Arc<Load<'_>>>| load.as_ref().map_or(0, |load| load.refused_direct);
    let refused_direct = Both { before: of(&pair.before), after: of(&pair.after) };
    let changes = served.before != served.after
        || refused_direct.before != refused_direct.after
        || groups.iter().any(group_changes)
        || endpoints.iter().any(|one| one.load.before != one.load.after);
    let usable = |load: &Option<Arc<Load<'_>>>| load.as_ref().map_or(0, |load| load.usable);
    let (port, protocol, family) = dialled;
    ServicePort {
        namespace: id.namespace.to_string(),
        name: id.name.to_string(),
        port: explain::Port { name: name.unwrap_or_default(), port, protocol },
        family: family.into(),
        changes,
        served,
        groups,
        refused_direct,
        endpoints,
        usable: Both { before: usable(&pair.before), after: usable(&pair.after) },
        bytes: None,
        wider: None,
    }
}

/// Whether the nodes of a group get something else.
pub(super) fn group_changes(group: &Group<'_>) -> bool {
    let Group { value: _, nodes, endpoints, refused, newly_refused, served_again, staying } = group;
    nodes.before != nodes.after
        || endpoints.before != endpoints.after
        || refused.before != refused.after
        || staying.before != staying.after
        || !newly_refused.is_empty()
        || !served_again.is_empty()
}

fn groups<'a>(pair: &Pair<'a>, after: &State) -> Vec<Group<'a>> {
    let Both { before: old, after: new } = pair;
    let refused = |load: &Option<Arc<Load<'a>>>| -> HashSet<&'a str> {
        let groups = load.iter().flat_map(|load| load.groups.values());
        groups.flat_map(|group| group.refused.iter().copied()).collect()
    };
    let (old_refused, new_refused) = (refused(old), refused(new));
    let is_served =
        |node: &str| new.is_some() && !new_refused.contains(node) && after.node(node).is_some();
    let loads = [old, new].into_iter().flatten();
    let values: BTreeSet<_> = loads.flat_map(|load| load.groups.keys().copied()).collect();
    let nothing = load::Group::default();
    let group = |value| {
        let [old, new] = [old, new]
            .map(|load| load.as_ref().and_then(|it| it.groups.get(&value)).unwrap_or(&nothing));
        let newly = new.refused.iter().filter(|node| !old_refused.contains(*node));
        let again = old.refused.iter().filter(|node| is_served(node));
        Group {
            value,
            nodes: Both { before: old.nodes, after: new.nodes },
            endpoints: Both { before: old.endpoints.len(), after: new.endpoints.len() },
            refused: Both { before: old.refused.len(), after: new.refused.len() },
            newly_refused: newly.copied().collect(),
            served_again: again.copied().collect(),
            staying: Both {
                before: share(old.staying, old.clients()),
                after: share(new.staying, new.clients()),
            },
        }
    };
    values.into_iter().map(group).collect()
}

fn endpoints<'a>(pair: &Pair<'a>) -> Vec<Endpoint<'a>> {
    let mut all: BTreeMap<SocketAddr, Endpoint<'a>> = BTreeMap::new();
    let mut take = |load: &Option<Arc<Load<'a>>>, keep: fn(&mut Both<f64>) -> &mut f64| {
        for (address, own) in load.iter().flat_map(|load| &load.endpoints) {
            let endpoint = all.entry(*address).or_insert_with(|| Endpoint {
                address: address.ip(),
                port: address.port(),
                node: None,
                value: None,
                load: Both::default(),
                times: None,
            });
            (endpoint.node, endpoint.value) = (own.node, own.value);
            *keep(&mut endpoint.load) = rounded(own.load);
        }
    };
    take(&pair.before, |load| &mut load.before);
    take(&pair.after, |load| &mut load.after);
    for endpoint in all.values_mut() {
        let Both { before, after } = endpoint.load;
        endpoint.times = (before > 0.0).then(|| rounded(after / before));
    }
    all.into_values().collect()
}

/// Sums over Service ports that change.
#[derive(Clone, Copy, Default)]
struct Sums {
    ports: usize,
    changed: usize,
    newly_refusing: usize,
    newly_ignored: usize,
    clients: Both<usize>,
    staying: Both<f64>,
    bytes: Option<Bytes>,
}

impl Sums {
    fn of(port: &ServicePort<'_>, pair: &Pair<'_>) -> Self {
        let unchanged = Self { ports: 1, ..Self::default() };
        if !port.changes {
            return unchanged;
        }
        let groups = |load: &Option<Arc<Load<'_>>>| -> (usize, f64) {
            let groups = load.iter().flat_map(|load| load.groups.values());
            groups.fold((0, 0.0), |(clients, staying), group| {
                (clients + group.clients(), staying + group.staying)
            })
        };
        let (before, after) = (groups(&pair.before), groups(&pair.after));
        Self {
            changed: 1,
            newly_refusing: port.newly_refuses().into(),
            newly_ignored: (!port.newly_ignored().is_empty()).into(),
            clients: Both { before: before.0, after: after.0 },
            staying: Both { before: before.1, after: after.1 },
            bytes: port.bytes,
            ..unchanged
        }
    }

    fn totals(self) -> Totals {
        Totals {
            service_ports: self.ports,
            changed: self.changed,
            newly_refusing: self.newly_refusing,
            newly_ignored: self.newly_ignored,
            staying: Both {
                before: share(self.staying.before, self.clients.before),
                after: share(self.staying.after, self.clients.after),
            },
            bytes: self.bytes,
        }
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.ports += other.ports;
        self.changed += other.changed;
        self.newly_refusing += other.newly_refusing;
        self.newly_ignored += other.newly_ignored;
        self.clients.before += other.clients.before;
        self.clients.after += other.clients.after;
        self.staying.before += other.staying.before;
        self.staying.after += other.staying.after;
        match (&mut self.bytes, other.bytes) {
            (Some(sum), Some(more)) => *sum += more,
            (sum, more) => *sum = sum.or(more),
        }
    }
}
