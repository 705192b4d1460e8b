//! Section 1: what all objects say about a Service, and what is valid of it.

use std::collections::BTreeSet;

use topo_lb_core::cluster::selector::{Operator, Selector};
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Protocol, Service, TopologyPolicy};

use crate::made::Cluster;

/// Labels with their values, the key that strict policies take instead, and whether all may leave.
#[derive(Clone)]
pub(crate) struct Evacuation {
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) instead: Option<String>,
    pub(crate) force: bool,
}

/// What holds for a Service on a node.
#[derive(Clone)]
pub(crate) struct Said {
    pub(crate) source: &'static str,
    /// Without any: no policy, unless `source` is one.
    pub(crate) keys: Vec<String>,
    /// For each key: a number, and whether it is a percentage.
    pub(crate) least: Vec<(usize, bool)>,
    pub(crate) spill: u16,
    pub(crate) auto: bool,
    /// Keys of one tier each and the label "", or a label and its values.
    pub(crate) weights: Option<(String, Vec<(String, f64)>)>,
    /// Keys for clients outside.
    pub(crate) outside: Option<Vec<String>>,
    /// After how many failures an endpoint is ejected; 0: never.
    pub(crate) failures: u8,
    pub(crate) intended: bool,
    /// In how many seconds the share of an endpoint grows to its own, if it does.
    pub(crate) slowly: Option<i64>,
    /// What is evacuated on this node, the strongest first.
    pub(crate) evacuations: Vec<Evacuation>,
    /// What becomes of clients that dial endpoints which the policy passes over: `allow`, `refuse` or `steer`.
    pub(crate) direct: &'static str,
    pub(crate) direct_return: bool,
    /// `consistent` or `random`, if anybody says so.
    pub(crate) choice: Option<&'static str>,
    /// Whether topo-lb translates: in scope, and not left alone.
    pub(crate) ours: bool,
    pub(crate) errors: usize,
}

pub(crate) fn said(cluster: &Cluster, me: &str, service: &Service, only_opted_in: bool) -> Said {
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
    let of_trials = errors;
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
    let mut weights = None;
    if let Some(text) = all[..heard].iter().find_map(|(_, said)| said.weights.as_deref()) {
        match weighed(text, if by_keys { &keys } else { &[] }) {
            Some(parsed) if spill == 0 && !auto => weights = Some(parsed),
            _ => errors += 1,
        }
    }
    // What does not refine keys: of the strongest object that says it.
    let first = |what: fn(&PolicySources) -> Option<&str>| {
        all.iter().find_map(|(who, said)| Some((*who, what(said)?)))
    };
    let mut outside = None;
    if let Some((_, text)) = first(|said| said.external_topology_keys.as_deref()) {
        let split: Vec<String> = text.split(',').map(|key| key.trim().to_owned()).collect();
        match well_formed(&split, false) {
            true => outside = Some(split),
            false => errors += 1,
        }
    }
    let mut failures = 0;
    if let Some((who, text)) = first(|said| said.ejection.as_deref()) {
        match failing(text) {
            Some(number) if service.ports.iter().any(|one| one.protocol == Protocol::Tcp) => {
                failures = number;
            }
            Some(_) if who != "the Service" => {}
            _ => errors += 1,
        }
    }
    if let Some((who, text)) = first(|said| said.return_after.as_deref()) {
        let any = source != "none" || service.policy.hints_asked;
        let tcp = service.ports.iter().any(|one| one.protocol == Protocol::Tcp);
        errors += match text.trim() {
            "off" => 0,
            "10m" | "5 s" | "24h" => usize::from(who == "the Service" && !(any && tcp)),
            _ => 1,
        };
    }
    let mut slowly = None;
    if let Some((who, text)) = first(|said| said.slow_start.as_deref()) {
        let seconds = match text.trim() {
            "100s" | "100 s" => Some(100),
            "60m" | "1h" => Some(3_600),
            _ => None,
        };
        match seconds {
            Some(_) if spill > 0 || auto => errors += usize::from(who == "the Service"),
            Some(_) => slowly = seconds,
            None => errors += usize::from(text.trim() != "off"),
        }
    }
    let mut intended = false;
    if let Some((_, text)) = first(|said| said.refusal.as_deref()) {
        intended = text.trim() == "intended";
        errors += usize::from(!intended);
    }
    let (mut evacuations, mut evacuates) = (vec![], false);
    for (_, said) in &all {
        match said.evacuate.as_deref().map(|text| evacuation(text, cluster.now)) {
            None => {}
            Some(None) => errors += 1,
            Some(Some((evacuation, share))) => {
                evacuates |= share > 0.0;
                if f64::from(place(me)) < share {
                    evacuations.push(evacuation);
                }
            }
        }
    }
    let mut direct = "allow";
    if let Some((who, text)) = first(|said| said.direct.as_deref()) {
        let strict = source != "none" && keys.last().is_none_or(|last| last != "*");
        let any = source != "none" || service.policy.hints_asked;
        let nameless = service.skipped.is_some() && service.cluster_ips.is_empty();
        match text.trim() {
            // Members of a StatefulSet dial each other.
            _ if nameless && who != "the Service" => {}
            "refuse" if strict => direct = "refuse",
            "steer" if any => direct = "steer",
            "refuse" | "steer" => errors += usize::from(who == "the Service"),
            other => errors += usize::from(other != "allow"),
        }
    }
    let mut direct_return = true;
    if let Some((_, text)) = first(|said| said.direct_return.as_deref()) {
        direct_return = text.trim() != "false";
        errors += usize::from(!["true", "false"].contains(&text.trim()));
    }
    let mut choice = None;
    if let Some((_, text)) = first(|said| said.choice.as_deref()) {
        choice = ["consistent", "random"].into_iter().find(|it| *it == text.trim());
        errors += usize::from(choice.is_none());
    }
    let mut alone = false;
    if let Some((_, text)) = first(|said| said.handle.as_deref()) {
        alone = text.trim() == "false";
        errors += usize::from(!["true", "false"].contains(&text.trim()));
    }
    let has_own = source != "none" || weights.is_some() || failures > 0 || evacuates;
    let has_own = has_own || slowly.is_some();
    Said {
        source,
        keys,
        least,
        spill,
        auto,
        weights,
        outside,
        failures,
        intended,
        slowly,
        evacuations,
        direct,
        direct_return,
        choice,
        ours: !alone && (!only_opted_in || has_own || service.policy.hints_asked),
        errors: if alone { of_trials } else { errors },
    }
}

/// `FAILURES, TIME, PERCENT%`, of which the last two may be absent: the number of failures.
fn failing(text: &str) -> Option<u8> {
    let number = |text: &str, most: u32| {
        let text = text.trim();
        let plain = !text.is_empty() && text.chars().all(|one| one.is_ascii_digit());
        text.parse::<u32>().ok().filter(|one| plain && (1..=most).contains(one))
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let time = parts.get(1).is_none_or(|text| match text.chars().last() {
        Some('s') => number(text.trim_end_matches('s'), 600).is_some(),
        Some('m') => number(text.trim_end_matches('m'), 10).is_some(),
        _ => false,
    });
    let most = parts.get(2).is_none_or(|text| {
        text.ends_with('%') && number(text.trim_end_matches('%'), 100).is_some()
    });
    let failures = number(parts[0], 15).filter(|_| time && most && parts.len() <= 3)?;
    u8::try_from(failures).ok()
}

/// Whether what an object says holds on a node; `None` if its mode or ramp is wrong.
fn on_trial(said: &PolicySources, node: &str) -> Option<bool> {
    let mode = said.mode.as_deref().map_or("enforce", str::trim);
    if !["observe", "enforce"].contains(&mode) {
        return None;
    }
    let ramp = said.ramp.as_deref().map_or(Some(10_000), share)?;
    Some(mode == "enforce" && place(node) < u32::from(ramp))
}

/// The place of a node among all, below 10,000.
fn place(node: &str) -> u32 {
    // CRC-32, bit by bit.
    let mut crc = !0_u32;
    for byte in node.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc % 2 == 1 { (crc / 2) ^ 0xedb8_8320 } else { crc / 2 };
        }
    }
    !crc % 10_000
}

/// What is evacuated, and on how many of 10,000 places of nodes.
fn evacuation(text: &str, now: Option<i64>) -> Option<(Evacuation, f64)> {
    let parts: Vec<&str> = text.split(';').map(str::trim).collect();
    let mut labels = vec![];
    for one in parts[0].split(',') {
        let two: Vec<&str> = one.split('=').map(str::trim).collect();
        if two.len() != 2 || !qualified(two[0]) || !qualified(two[1]) || two[1].contains('/') {
            return None;
        }
        labels.push((two[0].to_owned(), two[1].to_owned()));
    }
    let mut all = Evacuation { labels, instead: None, force: false };
    let (mut until, mut ramp) = (None, 0.0);
    for option in parts[1..].iter().filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=')?;
        match (name.trim(), value.trim()) {
            ("force", "true") => all.force = true,
            ("allow-strict", key) if key == "*" || qualified(key) => {
                all.instead = Some(key.to_owned())
            }
            ("until", "1970-01-01T00:16:41Z") => until = Some(1_001),
            ("until", "1970-01-01T00:16:40Z") => until = Some(1_000),
            ("until", "1970-01-01T00:15:50Z") => until = Some(950),
            ("ramp", "100s") => ramp = 100.0,
            _ => return None,
        }
    }
    let share = match (until, now) {
        (Some(until), Some(now)) if now >= until => {
            let left: f64 = ramp - (now - until) as f64;
            if left > 0.0 { (left / ramp * 1e4).round() } else { 0.0 }
        }
        _ => 1e4,
    };
    Some((all, share))
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
        let age = |one: &TopologyPolicy| String::from(one.created);
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
