//! Why an endpoint is selected or not, as text for a table.

use std::time::Instant;

use super::quoted::{key_name, label, shown, some};
use crate::cluster::{Ejection, Family};
use crate::stale_write_gate::in_words;
use crate::topology::Decision;
use crate::topology::candidate::Stock;
use crate::topology::cause::Cause;
use crate::topology::decision::{Endpoint, Status};
use crate::topology::label::Absent;
use crate::topology::validation::ANY;
use crate::topology::weights::{Portion, Weighs};

/// Why an endpoint is selected, or why not.
pub(super) fn reason(decision: &Decision<'_>, endpoint: &Endpoint<'_>) -> String {
    let family = Family::of(endpoint.address.ip());
    let choice = decision.choices.iter().find(|choice| choice.family == family);
    let portion = endpoint.part.and_then(|part| choice?.parts.get(part));
    match &endpoint.status {
        Status::Chosen(cause) => {
            let why = match portion {
                None => selected(decision, *cause),
                Some(portion) => weighed(decision, *cause, portion),
            };
            match choice.map(|choice| choice.stock) {
                Some(Stock::Draining) => format!("{why}; terminating, but still serves"),
                _ => why,
            }
        }
        Status::Wider(key) => {
            if let Some(portion) = portion {
                return format!("by key {}: {}", key_name(key), gets(portion));
            }
            let share = choice.and_then(|choice| choice.wider).map(|wider| wider.share);
            let share = share.unwrap_or_default();
            format!("for the {share} of new connections that spill, by key {}", key_name(key))
        }
        Status::Weightless { label, own } => {
            format!("{}: topo-lb.io/weights gives it nothing", own_value(label, *own))
        }
        Status::Ejected(ejection) => ejected(ejection),
        Status::Evacuated { key, value } => format!("evacuated: {}", label(key, value)),
        Status::Dead(since) => format!(
            "does not answer, and the API server has not been heard of for {}",
            in_words(since.elapsed())
        ),
        Status::LeftAlone => "left to kube-proxy".to_owned(),
        Status::OtherFamily(family) => {
            format!("the Service has no {family} ClusterIP")
        }
        Status::HeadlessSlice => {
            "its EndpointSlice is labelled service.kubernetes.io/headless: not for proxies"
                .to_owned()
        }
        Status::NotReady => "not ready".to_owned(),
        Status::Draining => "terminating, and others are ready".to_owned(),
        Status::Stopped => "terminating, and no longer serving".to_owned(),
        Status::Remote => match endpoint.node {
            Some(node) => format!("on {}, internalTrafficPolicy is Local", shown(node)),
            None => "on no node, internalTrafficPolicy is Local".to_owned(),
        },
        Status::Differs { key, own } => {
            let here = choice.map(|choice| choice.cause);
            match (own, here) {
                (Ok(own), Some(Cause::Key { value, .. })) => {
                    let (own, value) = (shown(own), shown(value));
                    format!("its {} is {own}, this node's is {value}", shown(key))
                }
                _ => own_value(key, *own),
            }
        }
        Status::NoKey(values) => {
            let here = |key: &str| {
                let tiers = choice.map_or(&[][..], |choice| &choice.tiers);
                tiers.iter().find(|tier| tier.key == key).and_then(|tier| tier.own)
            };
            let each = values.iter().map(|(key, own)| match own {
                Ok(value) if here(key) == Some(value) => {
                    format!("too few share {} with it", label(key, value))
                }
                _ => own_value(key, *own),
            });
            format!("no key decides: {}", each.collect::<Vec<_>>().join(", "))
        }
        Status::OtherNode => match endpoint.node {
            Some(node) => format!("on {}, not on this node", shown(node)),
            None => "it names no node".to_owned(),
        },
        Status::OtherPool(Ok(pool)) => format!("in node pool {}, not in this node's", shown(pool)),
        Status::OtherPool(Err(absent)) => match absent {
            Absent::NoNode => "it names no node, so it is in no node pool".to_owned(),
            Absent::UnknownNode(node) => {
                format!("its node {} is unknown, so it is in no node pool", shown(node))
            }
            Absent::UnwatchedNode(node) => {
                format!("this agent does not watch its node {}: no Service needs it", shown(node))
            }
            Absent::NoLabel(node) => format!("its node {} is in no node pool", shown(node)),
        },
        Status::HintedNodes(nodes) => format!("hinted for {}", listed("node", nodes)),
        Status::HintedZones(zones) => format!("hinted for {}", listed("zone", zones)),
    }
}

/// For how long it is ejected, and why.
fn ejected(ejection: &Ejection) -> String {
    let left = ejection.until.saturating_duration_since(Instant::now());
    match left.as_millis().div_ceil(1_000) {
        0 => format!("ejected until a probe is answered: {}", ejection.cause()),
        seconds => format!("ejected for {seconds} s more: {}", ejection.cause()),
    }
}

fn selected(decision: &Decision<'_>, cause: Cause<'_>) -> String {
    match cause {
        Cause::Unconstrained if decision.only_local.is_some() => {
            "on this node, internalTrafficPolicy is Local".to_owned()
        }
        Cause::Unconstrained => "there is no topology policy".to_owned(),
        Cause::Key { key, value, .. } => format!("shares {}", label(key, value)),
        Cause::Any { .. } => "any endpoint, by `*`".to_owned(),
        Cause::Node | Cause::NodeForLackOfPool => "on this node".to_owned(),
        Cause::Pool { pool, .. } => format!("in this node's pool {}", shown(pool)),
        Cause::HintedNode => "hinted for this node".to_owned(),
        Cause::HintedZone(zone) => format!("hinted for zone {}", shown(zone)),
        Cause::HintsOff(_) => "hints are off".to_owned(),
        Cause::NoKey | Cause::NoEndpoint(_) | Cause::NoneHere | Cause::NoneUsable => String::new(),
    }
}

/// An endpoint with a share by weight.
fn weighed(decision: &Decision<'_>, cause: Cause<'_>, portion: &Portion<'_>) -> String {
    let why = match &decision.policy.weighs {
        Some(Weighs::Values { .. }) if portion.name == ANY => "weight of `*`".to_owned(),
        Some(Weighs::Values { label: name, .. }) => {
            format!("weight of {}", label(name, portion.name))
        }
        Some(Weighs::Tiers) | None => selected(decision, cause),
    };
    format!("{why}: {}", gets(portion))
}

fn gets(portion: &Portion<'_>) -> String {
    match portion.endpoints {
        1 => format!("{} of new connections", portion.share),
        several => format!("{} of new connections, shared by {several}", portion.share),
    }
}

fn own_value(key: &str, own: Result<&str, Absent<'_>>) -> String {
    let key = shown(key);
    match own {
        Ok(value) => format!("its {key} is {}", shown(value)),
        Err(Absent::NoNode) => format!("it names no node, so it has no {key}"),
        Err(Absent::UnknownNode(node)) => {
            format!("its node {} is unknown, so it has no {key}", shown(node))
        }
        Err(Absent::UnwatchedNode(node)) => format!(
            "its {key} is not known here: this agent does not watch its node {}",
            shown(node)
        ),
        Err(Absent::NoLabel(node)) => format!("its node {} has no {key}", shown(node)),
    }
}

fn listed(noun: &str, names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{noun}{plural} {}", some(names.iter().copied(), 5))
}
