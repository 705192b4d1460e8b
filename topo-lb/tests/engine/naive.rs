//! A second implementation of the rules, simple and slow: section by section, without the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use topo_lb::cluster::selector::{Operator, Selector};
use topo_lb::cluster::service::{PolicySources, Protocol};
use topo_lb::cluster::{Endpoint, Port, Service, TopologyPolicy};

use crate::made::Cluster;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) refused: bool,
    pub(crate) tier: Option<usize>,
    /// Address and locality: `node`, `zone`, `region` or `elsewhere`.
    pub(crate) chosen: BTreeMap<SocketAddr, &'static str>,
    /// The same for the endpoints of spilled connections.
    pub(crate) wider: BTreeMap<SocketAddr, &'static str>,
    /// In parts of 1,048,576.
    pub(crate) spill: u16,
    /// The share of each endpoint in parts of a million, if there are weights.
    pub(crate) shares: BTreeMap<SocketAddr, u32>,
    pub(crate) serving: BTreeSet<SocketAddr>,
    pub(crate) source: &'static str,
    pub(crate) errors: usize,
}

/// The decision for one Service port in one family on `me`; `None` if the Service is not ours.
pub(crate) fn answer(
    cluster: &Cluster,
    me: &str,
    service: &Service,
    port: &Port,
    v6: bool,
    only_opted_in: bool,
) -> Option<Answer> {
    // Section 1: the source.
    let mut errors = 0;
    let mut source = "none";
    let mut keys: Vec<String> = vec![];
    let mut all = sayings(cluster, service);
    all.retain(|(_, said)| match on_trial(said, me) {
        Some(holds) => holds,
        None => {
            errors += 1;
            false
        }
    });
    let mut heard = 0;
    for (who, said) in &all {
        heard += 1;
        let of_service = *who == "the Service";
        let local = of_service && service.external_local;
        if let Some(text) = said.topology_keys.as_deref() {
            let split: Vec<String> = text.split(',').map(|key| key.trim().to_owned()).collect();
            if well_formed(&split, local) {
                (source, keys) = (if of_service { "topo-lb.io/topology-keys" } else { who }, split);
                break;
            }
            errors += 1;
        }
        if let Some(value) = said.openyurt.as_deref() {
            if ["kubernetes.io/hostname", "openyurt.io/nodepool", "kubernetes.io/zone"]
                .contains(&value)
            {
                (source, keys) = ("openyurt.io/topologyKeys", vec![value.to_owned()]);
                break;
            }
            errors += 1;
        }
        if !said.spec_topology_keys.is_empty() {
            let field: Vec<String> =
                said.spec_topology_keys.iter().map(|key| key.to_string()).collect();
            if well_formed(&field, local) {
                (source, keys) = (if of_service { "spec.topologyKeys" } else { who }, field);
                break;
            }
            errors += 1;
        }
    }
    let by_keys = source != "none" && source != "openyurt.io/topologyKeys";
    let mut least = vec![(1, false); keys.len()];
    if let Some(text) = all[..heard].iter().find_map(|(_, said)| said.min_endpoints.as_deref()) {
        match needed(text, &keys) {
            Some(numbers) if by_keys => least = numbers,
            _ => errors += 1,
        }
    }
    let (mut spill, mut auto) = (0, false);
    if let Some(text) = all[..heard].iter().find_map(|(_, said)| said.spill.as_deref()) {
        match share(text) {
            _ if by_keys && text.trim() == "auto" => auto = true,
            Some(parts) if by_keys => spill = parts,
            _ => errors += 1,
        }
    }
    // Keys of one tier each, or a label and its values.
    let mut weights: Option<(String, Vec<(String, f64)>)> = None;
    if let Some(text) = all[..heard].iter().find_map(|(_, said)| said.weights.as_deref()) {
        match weighed(text, if by_keys { &keys } else { &[] }) {
            Some(parsed) if spill == 0 && !auto => weights = Some(parsed),
            _ => errors += 1,
        }
    }
    if only_opted_in && weights.is_none() && source == "none" && !service.policy.hints_asked {
        return None;
    }

    // Section 2: candidates; of two with the same address and port, the better one.
    let mut candidates: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    let mut slices: Vec<_> = cluster.slices.iter().collect();
    slices.sort_by(|a, b| a.id.cmp(&b.id));
    for slice in slices {
        if slice.service.as_ref() != Some(&service.id) {
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
                    candidates.insert(at, endpoint.clone());
                }
            }
        }
    }
    let everyone = candidates.clone();
    if service.internal_local {
        candidates.retain(|_, endpoint| endpoint.node().map(|name| &**name) == Some(me));
    }
    let mut usable = candidates.clone();
    usable.retain(|_, endpoint| endpoint.ready);
    let anyone_ready = !usable.is_empty();
    if !anyone_ready {
        usable = candidates.clone();
        usable.retain(|_, endpoint| endpoint.serving && endpoint.terminating);
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
    } else if hinted && !service.internal_local {
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

    // Weights.
    let mut parts: Vec<(BTreeSet<SocketAddr>, f64)> = vec![];
    if let (Some((label, weights)), false) = (&weights, chosen.is_empty()) {
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
    }
    let mut shares = BTreeMap::new();
    let sum: f64 = parts.iter().map(|(_, weight)| weight).sum();
    for (members, weight) in &parts {
        for at in members {
            let share = weight / sum / members.len() as f64;
            shares.insert(*at, (share * 1e6).round() as u32);
        }
    }
    if !shares.is_empty() {
        chosen = usable.clone();
        chosen.retain(|at, _| shares.contains_key(at));
    }

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
    Some(Answer {
        refused: chosen.is_empty(),
        tier: if chosen.is_empty() { None } else { tier },
        chosen: chosen.iter().map(|(at, one)| (*at, distance(cluster, me, one))).collect(),
        wider: wider.iter().map(|(at, one)| (*at, distance(cluster, me, one))).collect(),
        spill,
        shares,
        serving,
        source,
        errors,
    })
}

/// Whether what an object says holds on a node; `None` if its mode or ramp is wrong.
fn on_trial(said: &PolicySources, node: &str) -> Option<bool> {
    let mode = said.mode.as_deref().map_or("enforce", str::trim);
    if !["observe", "enforce"].contains(&mode) {
        return None;
    }
    let ramp = said.ramp.as_deref().map_or(Some(10_000), share)?;
    // CRC-32, bit by bit.
    let mut crc = !0_u32;
    for byte in node.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc % 2 == 1 { (crc / 2) ^ 0xedb8_8320 } else { crc / 2 };
        }
    }
    Some(mode == "enforce" && !crc % 10_000 < u32::from(ramp))
}

/// Who says something about a Service, the strongest first, and what.
fn sayings(cluster: &Cluster, service: &Service) -> Vec<(&'static str, PolicySources)> {
    let home = &*service.id.namespace;
    let namespace = cluster.namespaces.iter().find(|namespace| *namespace.name == *home);
    let of_service = |key: &str| service.labels.get(key).map(|value| value.to_string());
    let of_namespace = |key: &str| {
        let own = namespace.and_then(|it| it.labels.get(key)).map(|value| value.to_string());
        own.or_else(|| (key == "kubernetes.io/metadata.name").then(|| home.to_owned()))
    };
    let ranked = |mut policies: Vec<&TopologyPolicy>, who| -> Vec<_> {
        let age = |one: &TopologyPolicy| one.created.as_deref().unwrap_or("9999").to_owned();
        policies.sort_by_key(|one| (-one.precedence, age(one), one.id.name.clone()));
        policies.iter().map(|one| (who, PolicySources::clone(&one.policy))).collect()
    };
    let own = cluster.policies.iter().filter(|one| *one.id.namespace == *home);
    let own = own.filter(|one| holds(&one.services, &of_service)).collect();
    let others =
        cluster.cluster_policies.iter().map(|one| &one.0).filter(|one| {
            holds(&one.namespaces, &of_namespace) && holds(&one.services, &of_service)
        });
    let mut all = vec![("the Service", PolicySources::clone(&service.policy))];
    all.extend(ranked(own, "TopologyPolicy"));
    all.extend(namespace.map(|it| ("Namespace", PolicySources::clone(&it.policy))));
    all.extend(ranked(others.collect(), "ClusterTopologyPolicy"));
    all
}

/// Whether all requirements hold.
fn holds(selector: &Selector, label: &dyn Fn(&str) -> Option<String>) -> bool {
    for requirement in &selector.0 {
        let values: Vec<_> = requirement.values.iter().map(|value| value.to_string()).collect();
        let good = match (requirement.operator, label(&requirement.key)) {
            (Operator::In, Some(value)) => values.contains(&value),
            (Operator::NotIn, Some(value)) => !values.contains(&value),
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::In, None) => false,
            (Operator::NotIn, None) => true,
        };
        if !good {
            return false;
        }
    }
    true
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

/// The rules of section 4.
fn well_formed(keys: &[String], external_local: bool) -> bool {
    let distinct: BTreeSet<_> = keys.iter().collect();
    let last = keys.len() - 1;
    keys.len() <= 16
        && distinct.len() == keys.len()
        && !external_local
        && (0..keys.len()).all(|at| if keys[at] == "*" { at == last } else { qualified(&keys[at]) })
}

/// `[prefix/]name`.
fn qualified(key: &str) -> bool {
    let parts: Vec<Vec<char>> = key.split('/').map(|part| part.chars().collect()).collect();
    let name = &parts[parts.len() - 1];
    let plain = |one: &char| matches!(one, 'a'..='z' | 'A'..='Z' | '0'..='9');
    let mut good = (1..=2).contains(&parts.len()) && (1..=63).contains(&name.len());
    good = good && plain(&name[0]) && plain(&name[name.len() - 1]);
    good = good && name.iter().all(|one| plain(one) || ['-', '_', '.'].contains(one));
    if parts.len() == 2 {
        good = good && parts[0].len() <= 253;
        for label in parts[0].split(|&one| one == '.') {
            let low = |one: &char| matches!(one, 'a'..='z' | '0'..='9');
            good = good
                && label.first().is_some_and(low)
                && label.last().is_some_and(low)
                && label.iter().all(|one| low(one) || *one == '-');
        }
    }
    good
}

/// One number for all label keys, or one per key, and whether it is a percentage; `*` always needs one endpoint.
fn needed(text: &str, keys: &[String]) -> Option<Vec<(usize, bool)>> {
    let mut numbers = vec![];
    for part in text.split(',') {
        let is_percent = part.trim().ends_with('%');
        let part = part.trim().trim_end_matches('%').trim_end();
        let most = if is_percent { 100 } else { 65535 };
        if part.is_empty() || part.chars().any(|one| !one.is_ascii_digit()) {
            return None;
        }
        let number = part.parse::<usize>().ok().filter(|one| (1..=most).contains(one))?;
        numbers.push((number, is_percent));
    }
    let mut labels = keys.to_vec();
    labels.retain(|key| key != "*");
    if numbers.len() == 1 {
        numbers = vec![numbers[0]; labels.len()];
    }
    if numbers.len() == labels.len() && labels.len() < keys.len() {
        numbers.push((1, false));
    }
    let star_needs = keys.iter().zip(&numbers).find(|(key, _)| *key == "*");
    (numbers.len() == keys.len() && star_needs.is_none_or(|(_, &one)| one == (1, false)))
        .then_some(numbers)
}

/// Weights of `keys`, in their order and for the label "", or of values of a label.
fn weighed(text: &str, keys: &[String]) -> Option<(String, Vec<(String, f64)>)> {
    let by_value = text.contains('=');
    let (label, list) = if by_value { text.split_once(':')? } else { ("", text) };
    let label = label.trim();
    let mut weights: Vec<(String, f64)> = vec![];
    for part in list.split(',') {
        let place = if by_value { part.find('=')? } else { part.rfind(':')? };
        let (name, number) = (part[..place].trim(), part[place + 1..].trim());
        let weight: u32 = number.parse().ok().filter(|_| !number.starts_with('+'))?;
        let good = if by_value {
            name == "*" || qualified(name)
        } else {
            keys.iter().any(|key| key == name) && weight > 0
        };
        if !good || weight > 1000 || weights.iter().any(|(other, _)| other == name) {
            return None;
        }
        weights.push((name.to_owned(), f64::from(weight)));
    }
    let place = |name: &String| keys.iter().position(|key| key == name);
    if by_value {
        if !qualified(label) || weights.iter().all(|(_, weight)| *weight == 0.0) {
            return None;
        }
    } else {
        weights.sort_by_key(|(name, _)| place(name));
        if weights.len() < keys.len() {
            return None;
        }
    }
    (weights.len() <= 16).then(|| (label.to_owned(), weights))
}

/// A percentage in parts of 1,048,576, to the nearest; by floating point, unlike the engine.
fn share(text: &str) -> Option<u16> {
    let number = text.trim().strip_suffix('%')?.trim_end();
    let shape: Vec<&str> = number.split('.').collect();
    let plain = |part: &&str| !part.is_empty() && part.chars().all(|one| one.is_ascii_digit());
    if shape.len() > 2 || !shape.iter().all(plain) || shape.get(1).is_some_and(|two| two.len() > 2)
    {
        return None;
    }
    let percent: f64 = number.parse().ok()?;
    (percent <= 100.0).then(|| (percent * 100.0).round() as u16)
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
