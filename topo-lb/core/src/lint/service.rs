//! Findings for one Service on every kind of node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Finding, Rule, Severity, unmatched, unread, weights};
use crate::cluster::{Annotation, Family, Port, Service, ServiceId, State};
use crate::explain::shown;
use crate::flag::KUBE_PROXY_REPLACEMENT;
use crate::topology::cause::{Cause, HintsOff};
use crate::topology::decision::{Choice, Status};
use crate::topology::direct::{Direct, MOST};
use crate::topology::label::{DESIRED_NODEPOOL, HOSTNAME, NODEPOOL, ZONE};
use crate::topology::named;
use crate::topology::validation::ANY;
use crate::topology::{
    self, Bypass, Decision, NodesByLabel, Origin, PolicyKind, Scope, Verdict, decide_in_full,
};

/// A finding about a port, without its nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sighting {
    port: Option<String>,
    rule: Rule,
    severity: Severity,
    /// The family, if families are examined separately.
    family: Option<Family>,
    message: String,
}

/// The affected nodes by sighting; `None` if it does not depend on the node.
type Sightings = BTreeMap<Sighting, Option<BTreeSet<String>>>;

pub(super) fn look(
    state: &State,
    scope: Scope,
    nodes: &NodesByLabel<'_>,
    id: &ServiceId,
    node_keys: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    let Some(service) = state.service(id) else { return };
    let mut sightings = Sightings::new();
    let faults = named::fault(state, service).into_iter().chain(unread::without_effect(service));
    findings.extend(faults.map(|it| Finding::of(&id.namespace, &id.name, Rule::Ignored, it)));
    // Policies on trial count as if they held everywhere: this is what they will do.
    let decide = |node| decide_in_full(state, node, scope, id).unwrap_or_default();
    let from_nowhere = decide("");
    let Some(first) = from_nowhere.first() else {
        // A headless one that says what becomes of direct dials.
        let broken = topology::ignored(state, id).into_iter();
        findings.extend(broken.map(|it| Finding::of(&id.namespace, &id.name, Rule::Ignored, it)));
        return;
    };
    let is_left = |bypass| matches!(bypass, Some(Bypass::Annotation | Bypass::OutOfScope));
    let ignored = || first.policy.ignored.iter().filter(|one| one.origin == Origin::Service);
    if first.choices.iter().any(|choice| is_left(choice.bypass)) {
        // A policy that is ignored may be why nobody handles it.
        if first.choices.iter().any(|choice| choice.bypass == Some(Bypass::OutOfScope)) {
            findings.extend(
                ignored()
                    .map(|it| Finding::of(&id.namespace, &id.name, Rule::Ignored, it.to_string())),
            );
        }
        return;
    }
    for ignored in ignored() {
        everywhere(&mut sightings, None, Rule::Ignored, ignored.to_string());
    }
    if first.policy.kind == PolicyKind::Keys && first.policy.origin == Origin::Service {
        unknown_keys(first, node_keys, &mut sightings);
    }
    if is_strict(first) {
        exposed(service, &mut sightings);
    }
    for decision in &from_nowhere {
        if let Some(message) = unmatched::message(state, decision) {
            everywhere(&mut sightings, Some(port(decision.port)), Rule::Unmatched, message);
        }
        hints_missing(decision, &mut sightings);
        if decision.choices.iter().any(|choice| choice.evacuation_left_alone) {
            let message = "an evacuation leaves the Service where it is, as no ready endpoint would be left; \
                           give it endpoints elsewhere, or evacuate with force=true";
            let port = Some(port(decision.port));
            everywhere(&mut sightings, port, Rule::NotEvacuated, message.to_owned());
        }
        direct_dials(decision, &mut sightings);
        unknown_nodes(state, decision, &mut sightings);
    }
    weights::look(state, id, &from_nowhere, node_keys, findings);
    let mut reached = BTreeSet::new();
    let kinds = match from_nowhere.iter().any(depends_on_node) {
        true => nodes.alike(service, &from_nowhere, &[]),
        false => Vec::new(),
    };
    for alike in kinds {
        let Some(&one) = alike.first() else { continue };
        for decision in decide(one) {
            for choice in &decision.choices {
                if choice.verdict == Verdict::Route {
                    reached.insert((port(decision.port), choice.family));
                }
                from_node(state, &decision, choice, &alike, &mut sightings);
            }
        }
    }
    let is_intended = first.policy.refusal_intended;
    findings.extend(sightings.into_iter().filter_map(|(sighting, nodes)| {
        let is_reached = match (&sighting.port, sighting.family) {
            (Some(port), Some(family)) => reached.contains(&(port.clone(), family)),
            _ => true,
        };
        // An `intended` refusal is meant for some nodes, not for all.
        if is_intended && is_reached && sighting.rule == Rule::Refused {
            return None;
        }
        let (severity, message) = match sighting.rule {
            Rule::Refused if !is_reached => {
                (Severity::Error, format!("{}; no node at all is served", sighting.message))
            }
            Rule::Refused if sighting.severity == Severity::Info => {
                let meant = "or say with topo-lb.io/refusal: intended that it is meant";
                (Severity::Info, format!("{}; {meant}", sighting.message))
            }
            _ => (sighting.severity, sighting.message),
        };
        Some(Finding {
            namespace: id.namespace.to_string(),
            name: id.name.to_string(),
            port: sighting.port,
            rule: sighting.rule,
            severity,
            message,
            nodes: nodes.into_iter().flatten().collect(),
        })
    }));
}

/// Why `topo-lb.io/direct` has no effect: too many endpoints, where the policy passes over all; or session
/// affinity, if the Service itself asks for both.
fn direct_dials(decision: &Decision<'_>, sightings: &mut Sightings) {
    let mut all = decision.choices.iter().filter_map(|choice| choice.direct.as_ref());
    let Some(direct) = all.clone().next().map(|it| it.direct) else { return };
    let value = direct.value();
    let message = match all.clone().find(|it| !it.holds()) {
        Some(too_many) => format!(
            "topo-lb.io/direct: {value} has no effect on nodes whose policy passes over more than {MOST} \
             endpoints of a family, and it has {}",
            too_many.endpoints.len()
        ),
        None if steers_itself(decision) && all.any(|it| it.nobody.is_some()) => {
            "topo-lb.io/direct: steer has no effect, as the Service has session affinity: remove one of \
             them"
                .to_owned()
        }
        None => return,
    };
    everywhere(sightings, Some(port(decision.port)), Rule::Exposed, message);
}

/// Whether the Service itself asks that Pods be steered, and that is in force.
fn steers_itself(decision: &Decision<'_>) -> bool {
    let mut all = decision.choices.iter().filter_map(|choice| choice.direct.as_ref());
    decision.service.policy.steers() && all.any(|it| it.direct == Direct::Steer)
}

/// Whether findings can differ between nodes.
fn depends_on_node(decision: &Decision<'_>) -> bool {
    let keys = &decision.policy.keys;
    decision.service.internal_local
        || steers_itself(decision)
        || match decision.policy.kind {
            PolicyKind::Keys => {
                let tiers = decision.choices.iter().flat_map(|choice| &choice.tiers);
                keys.last() != Some(&ANY) || tiers.into_iter().any(|tier| tier.min_endpoints > 1)
            }
            PolicyKind::OpenYurt | PolicyKind::Hints => true,
            PolicyKind::None => false,
        }
}

fn everywhere(sightings: &mut Sightings, port: Option<String>, rule: Rule, message: String) {
    let severity = rule.severity();
    sightings.insert(Sighting { port, rule, severity, family: None, message }, None);
}

fn unknown_keys(decision: &Decision<'_>, known: &BTreeSet<&str>, sightings: &mut Sightings) {
    for key in decision.policy.keys.iter().filter(|key| **key != ANY && !known.contains(*key)) {
        let message = format!(
            "no Node carries the label {key} of {}: the key never matches; label the Nodes, or \
             remove the key",
            decision.policy.source,
        );
        everywhere(sightings, None, Rule::UnknownKey, message);
    }
}

/// Whether the policy can leave a node without an endpoint.
fn is_strict(decision: &Decision<'_>) -> bool {
    match decision.policy.kind {
        PolicyKind::Keys => decision.policy.keys.last() != Some(&ANY),
        PolicyKind::OpenYurt => true,
        PolicyKind::Hints | PolicyKind::None => false,
    }
}

/// A policy that is strict for ClusterIPs does not bind kube-proxy, which serves the other addresses. With
/// `externalTrafficPolicy: Local` it gives clients outside the endpoints of the node that they dial, which
/// every strict policy allows there.
fn exposed(service: &Service, sightings: &mut Sightings) {
    let Some(exposure) = service.exposure.as_ref().filter(|_| !service.external_local) else {
        return;
    };
    let bound_to = match service.policy.external_topology_keys {
        Some(_) => Annotation::ExternalTopologyKeys.name(),
        None => "the policy, too",
    };
    for (place, own) in service.ports.iter().enumerate() {
        let node_port = exposure.node_port(place).map(|port| format!("node port {port}"));
        let of = |kind: &'static str| move |address: &IpAddr| format!("{kind} {address}");
        let ways: Vec<String> = node_port
            .into_iter()
            .chain(exposure.load_balancer_ips.iter().map(of("load balancer IP")))
            .chain(exposure.external_ips.iter().map(of("external IP")))
            .collect();
        if ways.is_empty() {
            continue;
        }
        let message = format!(
            "the policy is strict, but on nodes without {KUBE_PROXY_REPLACEMENT} clients from outside get \
             in by {}, to any endpoint; that flag binds them to {bound_to}",
            ways.join(", ")
        );
        everywhere(sightings, Some(port(own)), Rule::Exposed, message);
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

/// For policies that read labels, an endpoint of an unknown Node matches little or nothing.
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
        let [has, is] = if on_it == 1 { [" has", " is"] } else { ["s have", "s are"] };
        let lacks = match decision.policy.kind {
            PolicyKind::OpenYurt => format!("{is} in no node pool"),
            _ => format!("{has} no labels: only {HOSTNAME} and `*` can match"),
        };
        let message = format!("there is no Node {}, so its {on_it} endpoint{lacks}", shown(node));
        let port = Some(port(decision.port));
        everywhere(sightings, port, Rule::UnknownNode, message);
    }
}

/// Findings for the nodes in `alike`; `decision` is for the first of them.
fn from_node(
    state: &State,
    decision: &Decision<'_>,
    choice: &Choice<'_>,
    alike: &[&str],
    sightings: &mut Sightings,
) {
    let endpoint = match decision.choices.len() {
        1 => "endpoint".to_owned(),
        _ => format!("{} endpoint", choice.family),
    };
    let mut saw = |rule: Rule, severity: Severity, message| {
        let (port, family) = (Some(port(decision.port)), Some(choice.family));
        let sighting = Sighting { port, rule, severity, family, message };
        let nodes = sightings.entry(sighting).or_insert_with(|| Some(BTreeSet::new()));
        nodes.get_or_insert_default().extend(alike.iter().map(|&node| node.to_owned()));
    };

    let left = choice.direct.as_ref().is_some_and(|it| it.left > 0 && it.nobody.is_none());
    if left && steers_itself(decision) {
        let message = "topo-lb.io/direct: steer leaves endpoints alone that other Service ports have, too, or \
                       that have a hostname";
        saw(Rule::Exposed, Rule::Exposed.severity(), message.to_owned());
    }
    if let Some(why) = refused(choice, &endpoint) {
        let this_node = alike.first().copied().unwrap_or_default();
        let is_idle = idle(state, decision, choice, this_node);
        let too_few = choice.tiers.iter().any(|tier| tier.endpoints > 0);
        let severity = if is_idle || too_few { Severity::Warning } else { Severity::Info };
        let why = match is_idle {
            true => "the endpoints that the policy allows here cannot be used now".to_owned(),
            false => why,
        };
        saw(Rule::Refused, severity, format!("connections are refused: {why}"));
    }
    for tier in &choice.tiers {
        if tier.endpoints > 0 && tier.endpoints < tier.min_endpoints {
            saw(
                Rule::TooFew,
                Rule::TooFew.severity(),
                format!(
                    "the tier {} has fewer than the {} {endpoint}s of topo-lb.io/min-endpoints, \
                     and is passed over",
                    tier.key, tier.min_endpoints
                ),
            );
        }
    }
    if let Cause::HintsOff(why) = choice.cause {
        let message = match why {
            HintsOff::Unhinted(address) => Some(format!(
                "hints are off: {address} is ready and has no zone hint, which switches them off \
                 for all {} {endpoint}s",
                choice.usable
            )),
            HintsOff::NoZone => Some(format!("hints are off: the node has no label {ZONE}")),
            HintsOff::NoneReady | HintsOff::OtherZones(_) => None,
        };
        message.into_iter().for_each(|it| saw(Rule::HintsOff, Rule::HintsOff.severity(), it));
    }
}

/// Whether the policy allows endpoints here that cannot be used now. If not, a refused node is only
/// outside of a closed loop.
fn idle(state: &State, decision: &Decision<'_>, choice: &Choice<'_>, this_node: &str) -> bool {
    let value = |node: &str, key: &str| {
        let own = state.node(node).and_then(|labels| labels.get(key));
        own.map(|value| value.to_string()).or_else(|| (key == HOSTNAME).then(|| node.to_owned()))
    };
    let pool = |node: &str| value(node, NODEPOOL).or_else(|| value(node, DESIRED_NODEPOOL));
    let near = |node: &str| match choice.cause {
        Cause::NoKey => decision
            .policy
            .keys
            .iter()
            .any(|&key| value(this_node, key).is_some_and(|own| value(node, key) == Some(own))),
        cause => match cause.value() {
            Some(own) => pool(node).as_deref() == Some(own),
            None => node == this_node,
        },
    };
    let is_unusable = |status: &Status<'_>| {
        matches!(status, Status::NotReady | Status::Draining | Status::Stopped)
    };
    let mut endpoints = decision.endpoints.iter();
    endpoints.any(|one| {
        Family::of(one.address.ip()) == choice.family
            && is_unusable(&one.status)
            && one.node.is_some_and(near)
    })
}

/// Why the topology refuses connections; `None` if other nodes cannot use endpoints either.
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
        Cause::Pool { .. } => Some(format!(
            "no {endpoint} is in the node's pool, and OpenYurt's policy has no fall-back"
        )),
        Cause::NoneHere => Some(format!(
            "no {endpoint} is on the node, and internalTrafficPolicy: Local allows no other"
        )),
        Cause::Unconstrained
        | Cause::Key { .. }
        | Cause::Any { .. }
        | Cause::HintedNode
        | Cause::HintedZone(_)
        | Cause::HintsOff(_)
        | Cause::NoEndpoint(_)
        | Cause::NoneUsable => None,
    }
}

/// The port's name, else its number.
pub(super) fn port(port: &Port) -> String {
    match &*port.name {
        "" => port.port.to_string(),
        name => name.to_owned(),
    }
}
