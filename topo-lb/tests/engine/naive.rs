//! A second implementation of the rules, simple and slow: section by section, without the engine.

mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use topo_lb_core::cluster::service::Protocol;
use topo_lb_core::cluster::{Endpoint, Port, Service};

use crate::made::Cluster;
pub(crate) use policy::{Said, said};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) refused: bool,
    /// A refused connection gets no answer.
    pub(crate) dropped: bool,
    pub(crate) tier: Option<usize>,
    /// Address and locality: `node`, `zone`, `region` or `elsewhere`.
    pub(crate) chosen: BTreeMap<SocketAddr, &'static str>,
    /// The same for the endpoints of spilled connections.
    pub(crate) wider: BTreeMap<SocketAddr, &'static str>,
    /// Hundredths of a percent.
    pub(crate) spill: u16,
    /// The parts by weight that have endpoints, and the share of each in parts of a million.
    pub(crate) parts: Vec<(u32, BTreeSet<SocketAddr>)>,
    pub(crate) serving: BTreeSet<SocketAddr>,
    pub(crate) source: &'static str,
    /// Whether a node may get nothing of endpoints that are there.
    pub(crate) strict: bool,
    /// After how many failures an endpoint is ejected.
    pub(crate) failures: u8,
    /// Endpoints that clients of this node may not dial, or are steered away from.
    pub(crate) direct: BTreeSet<SocketAddr>,
}

/// Who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A client of this node, at a ClusterIP.
    Inside,
    /// The same, at an address for clients outside.
    InsideAtOutsideAddress,
    Outside,
    /// Another node, which has followed the policy.
    Peer,
    /// Whoever asks for the name of a headless Service.
    Asking,
}

/// Endpoints to which connects of this node fail, in their order, and the most of a tier, in percent, that may be
/// ejected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failing {
    pub(crate) most: u8,
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Endpoints that do not answer, on a node that is cut off from its API server.
    pub(crate) island: Option<BTreeSet<SocketAddr>>,
}

/// A Service that is ours, as a node sees it.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) me: &'a str,
    pub(crate) service: &'a Service,
    pub(crate) said: &'a Said,
    pub(crate) failing: &'a Failing,
}

/// The decision for one of its ports in one family.
pub(crate) fn answer(view: View<'_>, port: &Port, v6: bool, who: Who) -> Answer {
    let View { cluster, me, service, said, failing } = view;
    let outside = said.outside.as_ref().filter(|_| who == Who::Outside);
    let Said { mut source, mut spill, auto, .. } = *said;
    let mut keys = &said.keys;
    let mut least = said.least.clone();
    let mut weights = &said.weights;
    let mut only_local = match who {
        Who::Inside => service.internal_local,
        Who::Outside => service.external_local,
        Who::Peer => true,
        Who::InsideAtOutsideAddress | Who::Asking => false,
    };
    if who == Who::Peer {
        (source, spill, weights) = ("none", 0, &None);
    }
    if let Some(own) = outside {
        (source, keys, least) =
            ("topo-lb.io/external-topology-keys", own, vec![(1, false); own.len()]);
        (spill, weights, only_local) = (0, &None, false);
    }
    let auto = auto && outside.is_none() && who != Who::Peer;

    // Section 2: candidates; of two with the same address and port, the better one.
    let mut candidates: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    let mut mirrored: BTreeSet<SocketAddr> = BTreeSet::new();
    let mut slices: Vec<_> = cluster.slices.iter().collect();
    slices.sort_by(|a, b| a.id.cmp(&b.id));
    for slice in slices {
        if slice.service.as_ref() != Some(&service.id) {
            continue;
        }
        if slice.headless && who != Who::Asking {
            continue;
        }
        for own in &slice.ports {
            if own.name != port.name || protocol(own.protocol) != protocol(port.protocol) {
                continue;
            }
            for endpoint in &slice.endpoints {
                if matches!(endpoint.address, IpAddr::V6(_)) != v6 {
                    continue;
                }
                let at = SocketAddr::new(endpoint.address, own.port);
                let better = match candidates.get(&at) {
                    None => true,
                    Some(old) => merit(endpoint) > merit(old),
                };
                if better {
                    mirrored.remove(&at);
                    if slice.mirrored {
                        mirrored.insert(at);
                    }
                    candidates.insert(at, endpoint.clone());
                }
            }
        }
    }
    let everyone = candidates.clone();
    let dead: BTreeSet<SocketAddr> = match &failing.island {
        Some(dead) if port.protocol == Protocol::Tcp => dead.clone(),
        _ => BTreeSet::new(),
    };
    let mut answering = everyone.clone();
    if best(&everyone, |at| !dead.contains(at)) == best(&everyone, |_| true) {
        answering.retain(|at, _| !dead.contains(at));
    }
    let gone = if only_local || who == Who::Peer {
        vec![]
    } else {
        leaving(cluster, said, &everyone, &answering)
    };
    candidates.retain(|at, _| !gone.contains(at));
    if only_local {
        candidates.retain(|_, endpoint| endpoint.node().map(|name| &**name) == Some(me));
    }
    let mut usable = candidates.clone();
    usable.retain(|_, endpoint| endpoint.ready);
    let anyone_ready = !usable.is_empty();
    if !anyone_ready {
        usable = candidates.clone();
        usable.retain(|_, endpoint| endpoint.serving && endpoint.terminating);
    }
    if usable.keys().any(|at| !dead.contains(at)) {
        usable.retain(|at, _| !dead.contains(at));
    }

    // Sections 4 to 6: the policy.
    let hundredths = usable.len() as f64 / 100.0;
    let needs = |at: usize| match least[at] {
        (number, false) => number,
        (percent, true) => (hundredths * percent as f64 - 1e-9).ceil() as usize,
    };
    let hinted =
        everyone.values().any(|one| !one.for_nodes().is_empty() || !one.for_zones().is_empty());
    let mut chosen = usable.clone();
    let mut tier = None;
    let mut wider: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    if source == "openyurt.io/topologyKeys" {
        let mut mine = None;
        if keys[0] != "kubernetes.io/hostname" {
            mine = pool(cluster, Some(me));
        }
        chosen.retain(|_, endpoint| match &mine {
            Some(mine) => pool(cluster, endpoint.node().map(|name| &**name)).as_ref() == Some(mine),
            None => endpoint.node().map(|name| &**name) == Some(me),
        });
        tier = Some(0);
    } else if source != "none" {
        chosen.clear();
        let mut later: Vec<(f64, BTreeMap<SocketAddr, Endpoint>)> = vec![];
        for (index, key) in keys.iter().enumerate() {
            let mut matches = usable.clone();
            if key != "*" {
                let mine = node_label(cluster, me, key);
                matches
                    .retain(|_, one| mine.is_some() && endpoint_label(cluster, one, key) == mine);
            }
            if tier.is_none() {
                if !matches.is_empty() && matches.len() >= needs(index) {
                    (chosen, tier) = (matches, Some(index));
                }
            } else {
                let crowd = people(cluster, me, key) / matches.len() as f64;
                matches.retain(|at, _| !chosen.contains_key(at));
                if !matches.is_empty() {
                    later.push((crowd, matches));
                }
            }
        }
        if let (true, Some(tier), Some((mean, _))) = (auto, tier, later.last()) {
            let crowd = people(cluster, me, &keys[tier]) / chosen.len() as f64;
            let leaving = 1.0 - 1.2 * mean / crowd;
            spill = ((leaving * 20.0 - 1e-9).ceil().max(0.0) * 500.0) as u16;
            let mean = *mean;
            later.retain(|(crowd, _)| *crowd <= mean);
        }
        match later.first() {
            Some((_, nearest)) if spill > 0 => wider = nearest.clone(),
            _ => spill = 0,
        }
    } else if hinted && !only_local {
        source = "hints";
        if anyone_ready {
            let me_too = |one: &Endpoint| one.for_nodes().iter().any(|name| &**name == me);
            let zone = node_label(cluster, me, "topology.kubernetes.io/zone");
            let my_zone =
                |one: &Endpoint| one.for_zones().iter().any(|name| Some(name.to_string()) == zone);
            if usable.values().all(|one| !one.for_nodes().is_empty()) && usable.values().any(me_too)
            {
                chosen.retain(|_, one| me_too(one));
            } else if usable.values().all(|one| !one.for_zones().is_empty())
                && usable.values().any(my_zone)
            {
                chosen.retain(|_, one| my_zone(one));
            }
        }
    }

    // What an evacuation allows instead.
    let instead = said.evacuations.iter().find_map(|one| one.instead.clone());
    if let (true, true, Some(key)) = (chosen.is_empty(), !gone.is_empty(), instead) {
        let stays = Said { evacuations: vec![], ..said.clone() };
        if !answer(View { said: &stays, ..view }, port, v6, who).refused {
            chosen = usable.clone();
            if key != "*" {
                let mine = node_label(cluster, me, &key);
                chosen
                    .retain(|_, one| mine.is_some() && endpoint_label(cluster, one, &key) == mine);
            }
            tier = Some(keys.len());
        }
    }

    // Weights.
    let refused = chosen.is_empty();
    let mut direct: BTreeSet<SocketAddr> = BTreeSet::new();
    for (at, one) in &usable {
        let is_far = one.node().is_some_and(|name| &**name != me);
        if is_far && !mirrored.contains(at) && !chosen.contains_key(at) && !wider.contains_key(at) {
            direct.insert(*at);
        }
    }
    let mut parts: Vec<(BTreeSet<SocketAddr>, f64)> = vec![];
    if let (Some((label, weights)), false) = (weights, refused) {
        for (name, weight) in weights {
            let mut members = BTreeSet::new();
            for (at, one) in if label.is_empty() { &usable } else { &chosen } {
                let value =
                    endpoint_label(cluster, one, if label.is_empty() { name } else { label });
                let is_in = if label.is_empty() {
                    name == "*" || value.is_some() && value == node_label(cluster, me, name)
                } else if weights.iter().any(|(other, _)| Some(other) == value.as_ref()) {
                    value.as_ref() == Some(name)
                } else {
                    name == "*"
                };
                if is_in {
                    members.insert(*at);
                }
            }
            if label.is_empty() {
                let place = keys.iter().position(|key| key == name).unwrap();
                if members.len() < needs(place) {
                    continue;
                }
                for (earlier, _) in &parts {
                    members.retain(|at| !earlier.contains(at));
                }
            }
            parts.push((members, *weight));
        }
        parts.retain(|(members, weight)| !members.is_empty() && *weight > 0.0);
        direct.retain(|at| !parts.iter().any(|(members, _)| members.contains(at)));
    }
    if said.direct == "steer" {
        let sticky = service.affinity_seconds.is_some();
        direct.retain(|at| !sticky && stands_for(cluster, service, port, *at));
    }
    let sum: f64 = parts.iter().map(|(_, weight)| weight).sum();
    // What is a tier to ejection: parts by values of a label are one, by keys the first and all others.
    let mut tiers: Vec<BTreeSet<SocketAddr>> =
        vec![chosen.keys().copied().collect(), wider.keys().copied().collect()];
    if !parts.is_empty() {
        let by_value = weights.as_ref().is_some_and(|(label, _)| !label.is_empty());
        let own = if by_value { parts.len() } else { 1 };
        let all = |some: &[(BTreeSet<SocketAddr>, f64)]| {
            some.iter().flat_map(|(members, _)| members.iter().copied()).collect()
        };
        tiers = vec![all(&parts[..own]), all(&parts[own..])];
        chosen = usable.clone();
        chosen.retain(|at, _| tiers.iter().any(|tier| tier.contains(at)));
    }

    // Ejection: of each tier the first that failed, up to the share, and never all.
    let mut out: BTreeSet<SocketAddr> = BTreeSet::new();
    for tier in &tiers {
        let mut left = tier.len();
        for one in &failing.endpoints {
            let gone = tier.len() - left + 1;
            let fits = gone as f64 / tier.len() as f64 <= f64::from(failing.most) / 100.0 + 1e-9;
            if tier.contains(one) && left > 1 && fits && port.protocol == Protocol::Tcp {
                out.insert(*one);
                left -= 1;
            }
        }
    }
    chosen.retain(|at, _| !out.contains(at));
    wider.retain(|at, _| !out.contains(at));
    let mut shared = vec![];
    for (mut members, weight) in parts {
        members.retain(|at| !out.contains(at));
        shared.push((weight, members));
    }
    shared.retain(|(_, members)| !members.is_empty());
    let sum = if out.is_empty() { sum } else { shared.iter().map(|(weight, _)| weight).sum() };
    // Slow start: what is alike young stays one part.
    let own = match shared.is_empty() {
        true => vec![(sum.max(1.0), chosen.keys().copied().collect())],
        false => shared.clone(),
    };
    let sum = if shared.is_empty() { 1.0 } else { sum };
    if let Some(during) = said.slowly.filter(|_| wider.is_empty()) {
        let grown = grown_up(cluster, service, during, own);
        if grown.len() > shared.len().max(1) {
            shared = grown;
        }
    }
    let part = |(weight, members): (f64, _)| ((weight / sum * 1e6).round() as u32, members);

    // Section 7, and the endpoints that may keep flows.
    let mut serving = BTreeSet::new();
    for (at, endpoint) in &everyone {
        if (endpoint.ready || endpoint.serving)
            && !chosen.contains_key(at)
            && !wider.contains_key(at)
        {
            serving.insert(*at);
        }
    }
    let somewhere = everyone.values().any(|one| one.ready || one.serving && one.terminating);
    let by_keys = source != "none" && source != "hints";
    Answer {
        refused,
        dropped: refused && who == Who::Outside && service.external_local && somewhere,
        tier: if refused { None } else { tier },
        chosen: chosen.iter().map(|(at, one)| (*at, distance(cluster, me, one))).collect(),
        wider: wider.iter().map(|(at, one)| (*at, distance(cluster, me, one))).collect(),
        spill,
        parts: shared.into_iter().map(part).collect(),
        serving,
        source,
        strict: only_local && who != Who::Peer
            || by_keys && keys.last().is_none_or(|key| key != "*"),
        failures: match port.protocol {
            Protocol::Tcp if said.failures == 0 && failing.island.is_some() => 3,
            Protocol::Tcp => said.failures,
            _ => 0,
        },
        direct,
    }
}

/// Parts and their weights, divided by how much of its own share each endpoint gets.
fn grown_up(
    cluster: &Cluster,
    service: &Service,
    during: i64,
    parts: Vec<(f64, BTreeSet<SocketAddr>)>,
) -> Vec<(f64, BTreeSet<SocketAddr>)> {
    let mut all = vec![];
    let many = parts.iter().map(|(_, members)| members.len()).sum::<usize>() > 16;
    for (weight, members) in parts {
        let mut by_share: Vec<(f64, BTreeSet<SocketAddr>)> = vec![];
        for at in members {
            let mut share = 1.0;
            let slices =
                cluster.slices.iter().filter(|it| it.service.as_ref() == Some(&service.id));
            let times = slices.flat_map(|it| &it.ready_since).filter(|it| it.0 == at.ip());
            if let Some(since) = times.map(|it| it.1).min() {
                let age = (cluster.now.unwrap() - since) as f64 / during as f64;
                // A tenth, a quarter, a half, three quarters.
                if (-1.0..1.0).contains(&age) {
                    share = [0.1, 0.25, 0.5, 0.75][(age.max(0.0) * 4.0) as usize];
                }
            }
            match by_share.iter_mut().find(|it| (it.0 - share).abs() < 0.01) {
                Some((_, members)) => members.extend([at]),
                None => by_share.push((share, [at].into())),
            }
        }
        if many && by_share.len() > 2 {
            // The young are one group.
            let young = by_share.iter().filter(|it| it.0 < 0.9);
            let sum: f64 = young.clone().map(|(share, members)| share * members.len() as f64).sum();
            let together: BTreeSet<SocketAddr> = young.flat_map(|it| it.1.clone()).collect();
            let first = by_share.iter().position(|it| it.0 < 0.9).unwrap();
            by_share.retain(|it| it.0 > 0.9);
            by_share.insert(first, (sum / together.len() as f64, together));
        }
        let sum: f64 = by_share.iter().map(|(share, members)| share * members.len() as f64).sum();
        for (share, members) in by_share {
            all.push((weight * share * members.len() as f64 / sum, members));
        }
    }
    all
}

/// The endpoints that are evacuated; never all that serve, unless forced.
fn leaving(
    cluster: &Cluster,
    said: &Said,
    all: &BTreeMap<SocketAddr, Endpoint>,
    answering: &BTreeMap<SocketAddr, Endpoint>,
) -> Vec<SocketAddr> {
    let among = |forced: bool| -> Vec<SocketAddr> {
        let mut gone = vec![];
        for (at, one) in all {
            for evacuation in said.evacuations.iter().filter(|it| it.force || !forced) {
                for (key, value) in &evacuation.labels {
                    if endpoint_label(cluster, one, key).as_ref() == Some(value) {
                        gone.push(*at);
                    }
                }
            }
        }
        gone
    };
    let gone = among(false);
    let left = best(answering, |at| !gone.contains(at));
    if left < best(answering, |_| true) { among(true) } else { gone }
}

/// The best of some endpoints: 2 for a ready one, 1 for one that drains, 0 for none of these.
fn best(all: &BTreeMap<SocketAddr, Endpoint>, counts: impl Fn(&SocketAddr) -> bool) -> u8 {
    let worth = |one: &Endpoint| match one.ready {
        true => 2,
        false => u8::from(one.serving && one.terminating),
    };
    all.iter().filter(|(at, _)| counts(at)).map(|(_, one)| worth(one)).max().unwrap_or(0)
}

/// Whether an endpoint stands for this port and nothing else of its namespace.
fn stands_for(cluster: &Cluster, service: &Service, port: &Port, at: SocketAddr) -> bool {
    for other in &cluster.services {
        if other.id.namespace != service.id.namespace {
            continue;
        }
        for slice in cluster.slices.iter().filter(|one| one.service.as_ref() == Some(&other.id)) {
            let mine: Vec<_> =
                slice.endpoints.iter().filter(|one| one.address == at.ip()).collect();
            if mine.iter().any(|one| one.has_hostname) {
                return false;
            }
            let says = other.skipped.is_some() && other.policy.direct.is_some();
            let proxied = (other.id == service.id || !other.cluster_ips.is_empty() || says)
                && (!slice.headless || other.skipped.is_some());
            for own in &slice.ports {
                let same =
                    own.port == at.port() && protocol(own.protocol) == protocol(port.protocol);
                let mut another = proxied
                    && other.ports.iter().any(|one| {
                        one.name == own.name && protocol(one.protocol) == protocol(own.protocol)
                    });
                if other.id == service.id && own.name == port.name {
                    another = false;
                }
                if same && another && !mine.is_empty() {
                    return false;
                }
            }
        }
    }
    true
}

/// Addresses that answer for the name of a headless Service together, with their share in parts of a million.
pub(crate) type Groups = Vec<(u32, BTreeSet<IpAddr>)>;

/// What the name stands for in a family; `None`: the cluster DNS knows.
pub(crate) fn named(
    cluster: &Cluster,
    me: &str,
    service: &Service,
    said: &Said,
    failing: &Failing,
    v6: bool,
) -> Option<Groups> {
    let asked = service.policy.dns.as_deref().map(str::trim) == Some("true");
    if service.skipped.is_none() || !service.cluster_ips.is_empty() || !asked || !said.ours {
        return None;
    }
    // Names do not follow a slow start.
    let said = &Said { slowly: None, ..said.clone() };
    for port in &service.ports {
        let failing = &Failing { island: failing.island.clone(), ..Failing::default() };
        let view = View { cluster, me, service, said, failing };
        let answer = answer(view, port, v6, Who::Asking);
        let known = answer.chosen.len() + answer.wider.len() + answer.serving.len();
        if known == 0 && nobody(cluster, service, port, v6) {
            continue;
        }
        if answer.source == "none" && said.weights.is_none() {
            return None;
        }
        let ips = |all: &BTreeSet<SocketAddr>| all.iter().map(SocketAddr::ip).collect();
        let keys = |all: &BTreeMap<SocketAddr, _>| all.keys().map(SocketAddr::ip).collect();
        let spilt = if answer.wider.is_empty() { 0 } else { u32::from(answer.spill) * 100 };
        let mut groups: Groups =
            vec![(1_000_000 - spilt, keys(&answer.chosen)), (spilt, keys(&answer.wider))];
        if !answer.parts.is_empty() {
            groups = answer.parts.iter().map(|(share, all)| (*share, ips(all))).collect();
        }
        groups.retain(|(share, all): &(u32, BTreeSet<IpAddr>)| *share > 0 && !all.is_empty());
        return Some(groups);
    }
    None
}

/// Whether no slice lists an endpoint of a port in a family.
fn nobody(cluster: &Cluster, service: &Service, port: &Port, v6: bool) -> bool {
    cluster.slices.iter().filter(|slice| slice.service.as_ref() == Some(&service.id)).all(|slice| {
        !slice
            .ports
            .iter()
            .any(|own| own.name == port.name && protocol(own.protocol) == protocol(port.protocol))
            || slice.endpoints.iter().all(|one| one.address.is_ipv6() != v6)
    })
}

fn protocol(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// Prefers not terminating, then ready, then serving.
fn merit(endpoint: &Endpoint) -> u8 {
    4 * u8::from(!endpoint.terminating) + 2 * u8::from(endpoint.ready) + u8::from(endpoint.serving)
}

fn node_label(cluster: &Cluster, name: &str, key: &str) -> Option<String> {
    for node in &cluster.nodes {
        if &*node.name == name {
            return node.labels.get(key).map(|value| value.to_string());
        }
    }
    None
}

/// How many nodes share my value of a key.
fn people(cluster: &Cluster, me: &str, key: &str) -> f64 {
    let mut all: Vec<_> = cluster.nodes.iter().collect();
    let mine = node_label(cluster, me, key);
    all.retain(|one| key == "*" || mine.is_some() && node_label(cluster, &one.name, key) == mine);
    all.len() as f64
}

/// Section 3.
fn endpoint_label(cluster: &Cluster, endpoint: &Endpoint, key: &str) -> Option<String> {
    if let Some(own) = endpoint.label(key) {
        return Some(own.to_string());
    }
    let node = endpoint.node().map(|name| &**name)?;
    let known = cluster.nodes.iter().any(|one| &*one.name == node);
    if !known && key == "kubernetes.io/hostname" {
        return Some(node.to_owned());
    }
    node_label(cluster, node, key)
}

/// Section 5.
fn pool(cluster: &Cluster, node: Option<&str>) -> Option<String> {
    let current = node_label(cluster, node?, "apps.openyurt.io/nodepool");
    let desired = node_label(cluster, node?, "apps.openyurt.io/desired-nodepool");
    current.filter(|name| !name.is_empty()).or(desired.filter(|name| !name.is_empty()))
}

fn distance(cluster: &Cluster, me: &str, endpoint: &Endpoint) -> &'static str {
    if endpoint.node().map(|name| &**name) == Some(me) {
        return "node";
    }
    for (key, name) in
        [("topology.kubernetes.io/zone", "zone"), ("topology.kubernetes.io/region", "region")]
    {
        let mine = node_label(cluster, me, key);
        if mine.is_some() && mine == endpoint_label(cluster, endpoint, key) {
            return name;
        }
    }
    "elsewhere"
}
