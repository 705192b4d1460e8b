//! Decisions as sentences that a person can act on.

use super::quoted::{key_name, label, shown};
use crate::cluster::Family;
use crate::flag::SCOPE;
use crate::topology::candidate::Stock;
use crate::topology::cause::{Cause, HintsOff, Missing};
use crate::topology::crowding::Crowding;
use crate::topology::decision::Choice;
use crate::topology::label::ZONE;
use crate::topology::validation::ANY;
use crate::topology::weights::{Portion, Weighs};
use crate::topology::{Bypass, Decision, Verdict};

/// Why connections to this Service port do what they do.
pub fn decision(decision: &Decision<'_>, this_node: &str, known: bool) -> String {
    let sentences: Vec<_> =
        decision.choices.iter().map(|choice| (choice.family, family(decision, choice))).collect();
    let mut text = match &sentences[..] {
        [(_, only)] => only.clone(),
        [(_, first), (_, second)] if first == second => format!("IPv4 and IPv6 alike: {first}"),
        _ => {
            let each = |(family, text): &(Family, String)| format!("{family}: {text}");
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
        Cause::NoEndpoint(missing) => no_endpoint(decision, choice, missing),
        Cause::NoneHere => format!(
            "{} on this node, and {}: Local allows no other",
            share(0, choice.total, "endpoint", IS),
            decision.only_local.unwrap_or_default(),
        ),
        Cause::NoneUsable => {
            let usable = share(0, choice.near, "endpoint", IS);
            let place = if decision.only_local.is_some() { " of this node" } else { "" };
            format!("{usable} ready{place}, and none is terminating but still serves")
        }
        cause => match decision.only_local {
            None => chosen(decision, choice, cause),
            Some(field) => format!(
                "{} on this node, and {field}: Local allows no other{}",
                share(choice.near, choice.total, "endpoint", IS),
                among_local(decision, choice, cause),
            ),
        },
    };
    if let Some(wider) = choice.wider {
        text += &format!(
            "; {} of new connections spill to {} more by key {}",
            wider.share,
            wider.endpoints,
            key_name(wider.key),
        );
    }
    if let Some(Crowding { own, all }) = choice.crowding {
        let spills = if choice.wider.is_none() { "; nothing spills" } else { "" };
        text += &format!(
            "{spills} (auto: nodes ÷ endpoints is {} ÷ {} in this tier, {} ÷ {} in all)",
            own.nodes, own.endpoints, all.nodes, all.endpoints,
        );
    }
    if let Some(weighs) = &decision.policy.weighs {
        text += &weights(choice, weighs);
    }
    if choice.evacuated > 0 {
        text += &format!("; {} evacuated", choice.evacuated);
    }
    if choice.evacuation_left_alone {
        text += "; an evacuation leaves it alone, as no ready endpoint would be left";
    }
    if choice.ejected > 0 {
        text += &format!("; {} of them ejected: connects of this node failed", choice.ejected);
    }
    match choice.dead {
        0 => {}
        1 => text += "; 1 more is ready by its slice, but does not answer",
        many => text += &format!("; {many} more are ready by their slices, but do not answer"),
    }
    if choice.stock == Stock::Draining && choice.usable > 0 {
        text += "; no endpoint is ready, so those that are terminating but still serve stand in";
    }
    text
}

/// How new connections divide.
fn weights(choice: &Choice<'_>, weighs: &Weighs<'_>) -> String {
    if choice.verdict != Verdict::Route {
        return String::new();
    }
    let whom = |portion: &Portion<'_>| match weighs {
        Weighs::Tiers => format!("by key {}", key_name(portion.name)),
        Weighs::Values { .. } if portion.name == ANY => "with any other value".to_owned(),
        Weighs::Values { label: name, .. } => format!("with {}", label(name, portion.name)),
    };
    let part = |it: &Portion<'_>| format!("{} to {} {}", it.share, it.endpoints, whom(it));
    let parts: Vec<_> = choice.parts.iter().map(part).collect();
    match parts.is_empty() {
        true => "; topo-lb.io/weights has no effect: none of them has a weight".to_owned(),
        false => format!("; by topo-lb.io/weights, new connections go {}", parts.join(", ")),
    }
}

fn left_alone(bypass: Bypass<'_>) -> String {
    match bypass {
        Bypass::OutOfScope => {
            format!(
                "left to kube-proxy: it carries no topology policy, and only Services that do are \
                 handled ({SCOPE} opt-in)"
            )
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

fn no_endpoint(decision: &Decision<'_>, choice: &Choice<'_>, missing: Missing) -> String {
    let port = decision.port;
    match missing {
        Missing::Slices => "it has no endpoint: no EndpointSlice belongs to it".to_owned(),
        Missing::Endpoints => {
            "it has no endpoint: its EndpointSlices are empty, no pod that can be \
                            used matches its selector"
                .to_owned()
        }
        Missing::Headless => "it has no endpoint for proxies: its EndpointSlices are labelled \
             service.kubernetes.io/headless"
            .to_owned(),
        Missing::Port if port.name.is_empty() => format!(
            "it has no endpoint: its EndpointSlices have no port without a name of protocol {}",
            port.protocol,
        ),
        Missing::Port => format!(
            "it has no endpoint: its EndpointSlices have no port named {} of protocol {}",
            shown(&port.name),
            port.protocol,
        ),
        Missing::Family => format!("it has no {} endpoint", choice.family),
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
    let some = |verb| share(choice.chosen + choice.ejected, choice.usable, noun, verb);
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
        Cause::Pool { label: key, pool } => {
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

fn off(why: HintsOff<'_>) -> String {
    match why {
        HintsOff::NoneReady => "no endpoint is ready".to_owned(),
        HintsOff::Unhinted(address) => format!("{address} is ready and has no zone hint"),
        HintsOff::NoZone => format!("this node has no {ZONE}"),
        HintsOff::OtherZones(zone) => {
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
