//! Decisions as sentences that a person can act on.

use super::quoted::shown;
use crate::cluster::Family;
use crate::topology::candidate::Stock;
use crate::topology::cause::{Cause, Lack};
use crate::topology::decision::{Choice, Endpoint, Status};
use crate::topology::hints::Off;
use crate::topology::label::{Absent, ZONE};
use crate::topology::validation::ANY;
use crate::topology::{Bypass, Decision, Verdict};

fn key_name(key: &str) -> String {
    if key == ANY { format!("`{ANY}`") } else { shown(key) }
}

fn label(key: &str, value: &str) -> String {
    format!("{}={}", shown(key), shown(value))
}

/// Why connections to this Service port do what they do.
pub(crate) fn decision(decision: &Decision<'_>, this_node: &str, known: bool) -> String {
    let sentences: Vec<_> =
        decision.choices.iter().map(|choice| (choice.family, family(decision, choice))).collect();
    let mut text = match &sentences[..] {
        [(_, only)] => only.clone(),
        [(_, first), (_, second)] if first == second => format!("IPv4 and IPv6 alike: {first}"),
        _ => {
            let each = |(family, text): &(Family, String)| format!("{}: {text}", family.name());
            sentences.iter().map(each).collect::<Vec<_>>().join("; ")
        }
    };
    if !known && decision.verdict() != Verdict::Bypass {
        let name = shown(this_node);
        text += &format!(" (node {name} is unknown to the cluster, so it has no labels)");
    }
    text
}

/// Why nothing is decided, and what connections do meanwhile.
pub(super) fn waits_for(label: &str) -> String {
    format!(
        "waits for the labels of other Nodes: its policy needs their {}, and this agent has not listed \
         all Nodes; until then, connections go by what the maps had before, and are left to \
         kube-proxy if the maps had nothing",
        shown(label)
    )
}

fn family(decision: &Decision<'_>, choice: &Choice<'_>) -> String {
    if let Some(bypass) = choice.bypass {
        return left_alone(bypass);
    }
    let mut text = match choice.cause {
        Cause::NoEndpoint(lack) => no_endpoint(decision, choice, lack),
        Cause::NoneHere => format!(
            "{} on this node, and internalTrafficPolicy: Local allows no other",
            share(0, choice.total, "endpoint", IS),
        ),
        Cause::NoneUsable => {
            let usable = share(0, choice.near, "endpoint", IS);
            let place = if decision.service.internal_local { " of this node" } else { "" };
            format!("{usable} ready{place}, and none is terminating but still serves")
        }
        cause if decision.service.internal_local => format!(
            "{} on this node, and internalTrafficPolicy: Local allows no other{}",
            share(choice.near, choice.total, "endpoint", IS),
            among_local(decision, choice, cause),
        ),
        cause => chosen(decision, choice, cause),
    };
    if let Some(wider) = choice.wider {
        text += &format!(
            "; {} of new connections spill to {} more by key {}",
            wider.share,
            wider.endpoints,
            key_name(wider.key),
        );
    }
    if choice.stock == Stock::Draining && choice.usable > 0 {
        text += "; no endpoint is ready, so those that are terminating but still serve stand in";
    }
    text
}

fn left_alone(bypass: Bypass<'_>) -> String {
    match bypass {
        Bypass::OutOfScope => {
            "left to kube-proxy: it carries no topology policy, and only Services \
                               that do are handled (--scope opt-in)"
                .to_owned()
        }
        Bypass::Annotation => {
            "left to kube-proxy: annotation topo-lb.io/handle says `false`".to_owned()
        }
        Bypass::Local { address, device } => format!(
            "left alone: device {} of this node has {address}, so a process of the node serves it",
            shown(device)
        ),
    }
}

/// What was chosen among the endpoints on this node, if that must be said.
fn among_local(decision: &Decision<'_>, choice: &Choice<'_>, cause: Cause<'_>) -> String {
    match cause {
        Cause::Unconstrained if choice.usable == choice.near => String::new(),
        Cause::Unconstrained if choice.stock == Stock::Ready => {
            format!(
                "; {} of them {} ready",
                choice.usable,
                IS[usize::from(choice.usable > 1)].trim()
            )
        }
        Cause::Unconstrained => String::new(),
        cause => format!("; of these, {}", chosen(decision, choice, cause)),
    }
}

fn no_endpoint(decision: &Decision<'_>, choice: &Choice<'_>, lack: Lack) -> String {
    let port = decision.port;
    match lack {
        Lack::Slices => "it has no endpoint: no EndpointSlice belongs to it".to_owned(),
        Lack::Endpoints => "it has no endpoint: its EndpointSlices are empty, no pod that can be \
                            used matches its selector"
            .to_owned(),
        Lack::Port if port.name.is_empty() => format!(
            "it has no endpoint: its EndpointSlices have no port without a name of protocol {}",
            port.protocol.name(),
        ),
        Lack::Port => format!(
            "it has no endpoint: its EndpointSlices have no port named {} of protocol {}",
            shown(&port.name),
            port.protocol.name(),
        ),
        Lack::Family => format!("it has no {} endpoint", choice.family.name()),
    }
}

/// A verb in singular and plural.
type Verb = [&'static str; 2];
const IS: Verb = [" is", " are"];
const SHARES: Verb = [" shares", " share"];
const NOTHING: Verb = ["", ""];

/// `2 of 4 endpoints share`, `all 4 endpoints share`, `the only endpoint shares`.
fn share(some: usize, of: usize, noun: &str, [one, many]: Verb) -> String {
    match (some, of) {
        (1, 1) => format!("the only {noun}{one}"),
        (_, 1) => format!("{some} of 1 {noun}{many}"),
        (1, _) => format!("1 of {of} {noun}s{one}"),
        (2, 2) => format!("both {noun}s{many}"),
        _ if some == of => format!("all {of} {noun}s{many}"),
        _ => format!("{some} of {of} {noun}s{many}"),
    }
}

/// What the policy chose among the usable endpoints.
fn chosen(decision: &Decision<'_>, choice: &Choice<'_>, cause: Cause<'_>) -> String {
    let noun = match choice.stock {
        Stock::Draining => "terminating endpoint",
        Stock::Ready if choice.usable < choice.near => "ready endpoint",
        Stock::Ready => "endpoint",
    };
    let some = |verb| share(choice.chosen, choice.usable, noun, verb);
    let no_other = match choice.chosen {
        0 => {
            "; OpenYurt's policy has no fall-back, annotation topo-lb.io/topology-keys can have one"
        }
        _ => "",
    };
    match cause {
        Cause::Unconstrained if decision.service.policy.hints_asked => format!(
            "{}, hints were asked for (spec.trafficDistribution or topology-mode), but no endpoint \
             carries any",
            some(NOTHING)
        ),
        Cause::Unconstrained => format!("{}, there is no topology policy", some(NOTHING)),
        Cause::Key { tier, key, value } => {
            let before = before(choice, tier, "none shares its");
            format!("{} this node's {}{before}", some(SHARES), label(key, value))
        }
        Cause::Any { tier } => {
            let before = before(choice, tier, "none shares this node's");
            format!("{}, by `*`{before}", some(NOTHING))
        }
        Cause::NoKey => no_key(choice, &some(SHARES)),
        Cause::Node => format!("{} on this node{no_other}", some(IS)),
        Cause::Pool(pool) => {
            let key = decision.policy.keys.first().copied().unwrap_or_default();
            format!("{} this node's {}{no_other}", some(SHARES), label(key, pool))
        }
        Cause::NodeForLackOfPool => format!(
            "{} on this node, and nothing else counts, as this node is in no node pool{no_other}",
            some(IS),
        ),
        Cause::HintedNode => format!("{} hinted for this node", some(IS)),
        Cause::HintedZone(zone) => {
            format!("{} hinted for this node's zone {}", some(IS), shown(zone))
        }
        Cause::HintsOff(why) => format!("{}, hints are off: {}", some(NOTHING), off(why)),
        Cause::NoEndpoint(_) | Cause::NoneHere | Cause::NoneUsable => String::new(),
    }
}

fn off(why: Off<'_>) -> String {
    match why {
        Off::NoneReady => "no endpoint is ready".to_owned(),
        Off::Unhinted(address) => format!("{address} is ready and has no zone hint"),
        Off::NoZone => format!("this node has no {ZONE}"),
        Off::OtherZones(zone) => {
            format!("no endpoint is hinted for this node or its zone {}", shown(zone))
        }
    }
}

/// Why keys did not decide.
#[derive(Default)]
struct Failed {
    /// No endpoint shares this node's value.
    none: Vec<String>,
    /// Some do, but too few.
    few: Vec<String>,
    /// This node has no value.
    lacking: Vec<String>,
}

impl Failed {
    /// The keys before the one at `index`.
    fn before(choice: &Choice<'_>, index: usize) -> Self {
        let mut failed = Self::default();
        for tier in choice.tiers.iter().take(index) {
            match (tier.own, tier.endpoints) {
                (Some(value), 0) => failed.none.push(label(tier.key, value)),
                (Some(value), some) => failed.few.push(format!(
                    "{some} {} this node's {}, fewer than the {} of topo-lb.io/min-endpoints",
                    SHARES[usize::from(some > 1)].trim(),
                    label(tier.key, value),
                    tier.min_endpoints,
                )),
                (None, _) => failed.lacking.push(shown(tier.key)),
            }
        }
        failed
    }

    /// The failures as parts of a sentence; `none` begins the first.
    fn parts(self, none: &str) -> Vec<String> {
        let mut parts = Vec::new();
        if !self.none.is_empty() {
            parts.push(format!("{none} {}", self.none.join(" or ")));
        }
        parts.extend(self.few);
        if !self.lacking.is_empty() {
            parts.push(format!("this node has no {}", self.lacking.join(" and no ")));
        }
        parts
    }
}

/// Why the keys before `tier` did not decide.
fn before(choice: &Choice<'_>, tier: u8, none: &str) -> String {
    let parts = Failed::before(choice, usize::from(tier)).parts(none);
    parts.iter().map(|part| format!("; {part}")).collect()
}

/// Why no key decided; `shares` is the subject and the verb.
fn no_key(choice: &Choice<'_>, shares: &str) -> String {
    let failed = Failed::before(choice, choice.tiers.len());
    let mut parts = failed.parts(&format!("{shares} this node's"));
    parts.push("a last key `*` would allow every endpoint".to_owned());
    parts.join("; ")
}

/// How many endpoints each key matches, in one line; `None` if the policy is not keys.
pub(super) fn tiers(choice: &Choice<'_>) -> Option<String> {
    let each: Vec<_> = choice
        .tiers
        .iter()
        .map(|tier| match (tier.key, tier.own, tier.min_endpoints) {
            (ANY, _, _) => format!("`{ANY}` {}", tier.endpoints),
            (key, None, _) => format!("{} - (this node has none)", shown(key)),
            (key, Some(_), 1) => format!("{} {}", shown(key), tier.endpoints),
            (key, Some(_), least) => format!("{} {} (needs {least})", shown(key), tier.endpoints),
        })
        .collect();
    (!each.is_empty()).then(|| each.join(", "))
}

/// Why an endpoint is selected, or why not.
pub(super) fn endpoint(decision: &Decision<'_>, endpoint: &Endpoint<'_>) -> String {
    let family = Family::of(endpoint.address.ip());
    let choice = decision.choices.iter().find(|choice| choice.family == family);
    match &endpoint.status {
        Status::Chosen(cause) => {
            let why = selected(decision, *cause);
            match choice.map(|choice| choice.stock) {
                Some(Stock::Draining) => format!("{why}; terminating, but still serves"),
                _ => why,
            }
        }
        Status::Wider(key) => {
            let share = choice.and_then(|choice| choice.wider).map(|wider| wider.share);
            let share = share.unwrap_or_default();
            format!("for the {share} of new connections that spill, by key {}", key_name(key))
        }
        Status::LeftAlone => "left to kube-proxy".to_owned(),
        Status::OtherFamily(family) => {
            format!("the Service has no {} ClusterIP", family.name())
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

fn selected(decision: &Decision<'_>, cause: Cause<'_>) -> String {
    match cause {
        Cause::Unconstrained if decision.service.internal_local => {
            "on this node, internalTrafficPolicy is Local".to_owned()
        }
        Cause::Unconstrained => "there is no topology policy".to_owned(),
        Cause::Key { key, value, .. } => format!("shares {}", label(key, value)),
        Cause::Any { .. } => "any endpoint, by `*`".to_owned(),
        Cause::Node | Cause::NodeForLackOfPool => "on this node".to_owned(),
        Cause::Pool(pool) => format!("in this node's pool {}", shown(pool)),
        Cause::HintedNode => "hinted for this node".to_owned(),
        Cause::HintedZone(zone) => format!("hinted for zone {}", shown(zone)),
        Cause::HintsOff(_) => "hints are off".to_owned(),
        Cause::NoKey | Cause::NoEndpoint(_) | Cause::NoneHere | Cause::NoneUsable => String::new(),
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
    const MOST: usize = 5;
    let plural = if names.len() == 1 { "" } else { "s" };
    let first: Vec<_> = names.iter().take(MOST).map(|name| shown(name)).collect();
    let more = match names.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{noun}{plural} {}{more}", first.join(", "))
}
