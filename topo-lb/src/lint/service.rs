//! One Service, looked at from every kind of node.

use std::collections::{BTreeMap, BTreeSet};

use super::sites;
use super::{Finding, Rule};
use crate::cluster::{ServiceId, ServicePort, State};
use crate::explain::shown;
use crate::topology::cause::Cause;
use crate::topology::decision::Choice;
use crate::topology::hints::Off;
use crate::topology::label::{HOSTNAME, ZONE};
use crate::topology::validation::ANY;
use crate::topology::{Decision, PolicyKind, Scope, Verdict, decide};

/// What was found about a port, but for the nodes where it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sighting {
    port: Option<String>,
    rule: Rule,
    message: String,
}

/// By sighting, the nodes where it hurts; `None` where it does not depend on the node.
type Sightings = BTreeMap<Sighting, Option<BTreeSet<String>>>;

pub(super) fn look(
    state: &State,
    id: &ServiceId,
    node_keys: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    let Some(service) = state.service(id) else { return };
    let mut sightings = Sightings::new();
    let from_nowhere = decide(state, "", Scope::All, id);
    let Some(first) = from_nowhere.first() else { return };
    for ignored in &first.policy.ignored {
        everywhere(&mut sightings, None, Rule::Ignored, ignored.to_string());
    }
    if first.policy.kind == PolicyKind::Keys {
        unknown_keys(first, node_keys, &mut sightings);
    }
    for decision in &from_nowhere {
        hints_missing(decision, &mut sightings);
        unknown_nodes(state, decision, &mut sightings);
    }
    let kinds = match from_nowhere.iter().any(depends_on_node) {
        true => sites::alike(state, service, widest(&from_nowhere, first)),
        false => Vec::new(),
    };
    for alike in kinds {
        let Some(&one) = alike.first() else { continue };
        for decision in decide(state, one, Scope::All, id) {
            for choice in &decision.choices {
                from_node(&decision, choice, &alike, &mut sightings);
            }
        }
    }
    findings.extend(sightings.into_iter().map(|(sighting, nodes)| Finding {
        namespace: id.namespace.to_string(),
        name: id.name.to_string(),
        port: sighting.port,
        rule: sighting.rule,
        message: sighting.message,
        nodes: nodes.into_iter().flatten().collect(),
    }));
}

/// Whether anything can hurt on one node and not on another.
fn depends_on_node(decision: &Decision<'_>) -> bool {
    let keys = &decision.policy.keys;
    decision.service.internal_local
        || match decision.policy.kind {
            PolicyKind::Keys => {
                let tiers = decision.choices.iter().flat_map(|choice| &choice.tiers);
                keys.last() != Some(&ANY) || tiers.into_iter().any(|tier| tier.least > 1)
            }
            PolicyKind::OpenYurt | PolicyKind::Hints => true,
            PolicyKind::None => false,
        }
}

/// The decision whose policy depends on most of a node: hints may be on one port alone.
fn widest<'a, 'b>(all: &'b [Decision<'a>], first: &'b Decision<'a>) -> &'b Decision<'a> {
    all.iter().find(|decision| decision.policy.kind != PolicyKind::None).unwrap_or(first)
}

fn everywhere(sightings: &mut Sightings, port: Option<String>, rule: Rule, message: String) {
    sightings.insert(Sighting { port, rule, message }, None);
}

fn unknown_keys(decision: &Decision<'_>, known: &BTreeSet<&str>, sightings: &mut Sightings) {
    for key in decision.policy.keys.iter().filter(|key| **key != ANY && !known.contains(*key)) {
        let message = format!(
            "no Node carries the label {key} of {}: the key never matches; label the Nodes, or \
             remove the key",
            decision.policy.source.name(),
        );
        everywhere(sightings, None, Rule::UnknownKey, message);
    }
}

fn hints_missing(decision: &Decision<'_>, sightings: &mut Sightings) {
    let asked = decision.service.policy.hints_asked && !decision.service.internal_local;
    let usable: usize = decision.choices.iter().map(|choice| choice.usable).sum();
    if asked && decision.policy.kind == PolicyKind::None && usable > 0 {
        let message = "hints were asked for (spec.trafficDistribution or topology-mode), but no \
                       endpoint carries any: the EndpointSlice controller does not make them, or \
                       found no fair share for every zone";
        let port = Some(port(decision.port));
        everywhere(sightings, port, Rule::HintsMissing, message.to_owned());
    }
}

/// Where labels decide, an endpoint whose Node is not there matches next to nothing.
fn unknown_nodes(state: &State, decision: &Decision<'_>, sightings: &mut Sightings) {
    let by_labels = match decision.policy.kind {
        PolicyKind::Keys | PolicyKind::OpenYurt => {
            decision.policy.keys.iter().any(|key| ![HOSTNAME, ANY].contains(key))
        }
        PolicyKind::Hints | PolicyKind::None => false,
    };
    let unknown: BTreeSet<_> = decision
        .endpoints
        .iter()
        .filter_map(|one| one.node)
        .filter(|node| by_labels && state.node(node).is_none())
        .collect();
    for node in unknown {
        let on_it = decision.endpoints.iter().filter(|one| one.node == Some(node)).count();
        let message = format!(
            "there is no Node {}, so its {on_it} endpoint{} no labels: only {HOSTNAME} and \
             `*` can match",
            shown(node),
            if on_it == 1 { " has" } else { "s have" },
        );
        let port = Some(port(decision.port));
        everywhere(sightings, port, Rule::UnknownNode, message);
    }
}

/// What hurts on the nodes that are `alike` the one that decided.
fn from_node(
    decision: &Decision<'_>,
    choice: &Choice<'_>,
    alike: &[&str],
    sightings: &mut Sightings,
) {
    let endpoint = match decision.choices.len() {
        1 => "endpoint".to_owned(),
        _ => format!("{} endpoint", choice.family.name()),
    };
    let mut saw = |rule, message| {
        let sighting = Sighting { port: Some(port(decision.port)), rule, message };
        let nodes = sightings.entry(sighting).or_insert_with(|| Some(BTreeSet::new()));
        nodes.get_or_insert_default().extend(alike.iter().map(|&node| node.to_owned()));
    };

    if let Some(why) = refused(choice, &endpoint) {
        saw(Rule::Refused, format!("connections are refused: {why}"));
    }
    for tier in &choice.tiers {
        if tier.endpoints > 0 && tier.endpoints < usize::from(tier.least) {
            saw(
                Rule::TooFew,
                format!(
                    "the tier {} has fewer than the {} {endpoint}s of topo-lb.io/min-endpoints, \
                     and is passed over",
                    tier.key, tier.least
                ),
            );
        }
    }
    match choice.cause {
        Cause::HintsOff(Off::Unhinted(address)) => saw(
            Rule::HintsOff,
            format!(
                "hints are off: {address} is ready and has no zone hint, which switches them off \
                 for all {} {endpoint}s",
                choice.usable
            ),
        ),
        Cause::HintsOff(Off::NoZone) => {
            saw(Rule::HintsOff, format!("hints are off: the node has no label {ZONE}"));
        }
        _ => {}
    }
}

/// Why connections are refused, where the topology is to blame: the Service has endpoints that
/// other nodes can use.
fn refused(choice: &Choice<'_>, endpoint: &str) -> Option<String> {
    if choice.verdict != Verdict::Refuse {
        return None;
    }
    match choice.cause {
        Cause::NoKey if choice.tiers.iter().any(|tier| tier.endpoints > 0) => Some(format!(
            "no key has as many {endpoint}s as topo-lb.io/min-endpoints asks for; lower it, or \
             end the keys with `*`"
        )),
        Cause::NoKey => Some(format!(
            "no {endpoint} shares any of the keys' labels; add endpoints there, or end the keys \
             with `*`"
        )),
        Cause::Node | Cause::NodeForLackOfPool => {
            Some(format!("no {endpoint} is on the node, and OpenYurt's policy has no fall-back"))
        }
        Cause::Pool(_) => Some(format!(
            "no {endpoint} is in the node's pool, and OpenYurt's policy has no fall-back"
        )),
        Cause::NoneHere => Some(format!(
            "no {endpoint} is on the node, and internalTrafficPolicy: Local allows no other"
        )),
        _ => None,
    }
}

/// By name, else by number.
pub(super) fn port(port: &ServicePort) -> String {
    match &*port.name {
        "" => port.port.to_string(),
        name => name.to_owned(),
    }
}
