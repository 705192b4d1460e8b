//! What every Service port's connections do on one node, and why; as text and as JSON.

mod actual;
mod asked;
mod contest;
mod endpoint;
mod evacuated;
mod onward;
mod outside;
mod quoted;
mod reason;
mod spread;
mod table;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;
use topo_lb_common::backend::Locality;

use crate::cluster::{self, Clients, Service, ServiceId, State};
use crate::flag::DNS;
use crate::peers::status::Status;
use crate::plan::Lack;
use crate::topology::cause::Cause;
use crate::topology::claim;
use crate::topology::direct::{self, Direct, DirectDials};
use crate::topology::exposed::Exposing;
use crate::topology::label::{REGION, ZONE};
use crate::topology::named;
use crate::topology::{self, Decision, Origin, Scope, decide_for_some, decide_in_full, waits_for};

use actual::{ActualOutcome, WAIT};
pub use asked::Asked;
use contest::Own;
pub use onward::Onward;
use onward::Peers;
pub use outside::{Exposed, ExposedFrontend};
pub(crate) use quoted::label;
pub use quoted::{shown, shown_id, some};
pub use reason::decision as sentence;
pub use spread::{
    Localities, OnNode, Spread, TierOnNode, WiderOnNode, spread, spread_on, spread_table,
};
pub use table::{empty, table};
pub(crate) use table::{policy_text, port_text};

/// The answer to `explain`. Its JSON is a fixed interface; skipped fields are for the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The node.
    pub node: String,
    /// One entry per Service port, sorted by namespace, name, port.
    pub services: Vec<ServicePort>,
    /// Requested Services that do not exist.
    #[serde(skip)]
    pub unknown: Vec<ServiceId>,
    /// Services without a ClusterIP to translate, and why; of all, or of the requested ones.
    #[serde(skip)]
    pub skipped: Vec<(ServiceId, Cow<'static, str>)>,
    /// What is known of the node, in one line.
    #[serde(skip)]
    pub about: String,
}

/// One Service port.
#[derive(Clone, Debug, Serialize)]
pub struct ServicePort {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The port.
    pub port: Port,
    /// `spec.clusterIPs`.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    /// The policy in force.
    pub policy: Policy,
    /// What happens to connections.
    pub decision: Outcome,
    /// What would happen if all objects on trial held here; `None` if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would: Option<Outcome>,
    /// The other addresses by which clients dial it, and what those outside of the node get there, with
    /// `--kube-proxy-replacement`. `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed: Option<Exposed>,
    /// What clients get that dial its endpoints by address, if the Service says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<String>,
    /// How many endpoints each key matches: a line per family, if the policy is keys.
    #[serde(skip)]
    pub tiers: Vec<String>,
    /// Every endpoint, by address, then port.
    pub endpoints: Vec<Endpoint>,
}

/// A Service port's name and number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Empty if it has none.
    pub name: String,
    /// 1–65535.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'static str,
}

/// The source of a policy, and its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The annotation's key, `spec.topologyKeys`, `TopologyPolicy`, `Namespace`, `ClusterTopologyPolicy`,
    /// `hints` or `none`.
    pub source: &'static str,
    /// The policy or Namespace that says it; `None` for the Service itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Weaker objects that say keys, too, the strongest first.
    #[serde(rename = "passedOver", skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<String>,
    /// Objects on trial (`mode: observe`, `ramp`), and whether they hold here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<String>,
    /// `keys`, `openyurt`, `hints` or `none`.
    pub kind: &'static str,
    /// Its keys.
    pub keys: Vec<String>,
    /// What may leave the tier in force: a share such as `20%`, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<String>,
    /// When endpoints are ejected, because connects to them fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<String>,
    /// What is evacuated on some nodes, by which object, and until when.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evacuations: Vec<String>,
    /// When idle connections to a wider tier end.
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    pub return_after: Option<String>,
    /// How the share of an endpoint grows after it became Ready.
    #[serde(rename = "slowStart", skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<String>,
    /// The rules that ignored annotations and fields break, and how to fix them.
    pub error: Option<String>,
    /// The same, as a list.
    #[serde(skip)]
    pub errors: Vec<String>,
}

/// A decision. Where IPv4 and IPv6 differ, tier, key and value are those of the first family that
/// is routed, and the reason names both.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// `route`, `refuse`, `bypass`, or `wait` while labels of other Nodes are unknown.
    pub verdict: &'static str,
    /// Index of the key that matched.
    pub tier: Option<u8>,
    /// That key.
    pub key: Option<String>,
    /// This node's value for it; `None` for `*`.
    pub value: Option<String>,
    /// Why.
    pub reason: String,
}

/// An endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port, 1–65535.
    pub port: u16,
    /// The node that it is on.
    pub node: Option<String>,
    /// That node's zone.
    pub zone: Option<String>,
    /// How far it is from the report's node.
    #[serde(skip)]
    pub locality: Locality,
    /// Whether new connections go there.
    pub selected: bool,
    /// The share of new connections that goes there, in percent, if `topo-lb.io/weights` says so.
    #[serde(rename = "sharePercent", skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<f64>,
    /// Why, or why not.
    pub reason: String,
}

/// Explains the Services `ids`, or all if `ids` is empty, as `this_node` sees them with room for all
/// in its maps. An unknown node is no error, but every reason says so.
#[must_use]
pub fn report(state: &State, this_node: &str, scope: Scope, ids: &[ServiceId]) -> Report {
    report_of(state, this_node, scope, ids, &BTreeMap::new(), None, &[])
}

/// The same for an agent with maps that lack room for the Services `unprogrammed`, which serves these frontends besides
/// ClusterIPs, and which says this of other nodes.
#[must_use]
pub fn report_of_agent(
    state: &State,
    this_node: &str,
    scope: Scope,
    ids: &[ServiceId],
    unprogrammed: &BTreeMap<ServiceId, Lack>,
    exposing: &Exposing,
    peers: &[Status],
) -> Report {
    report_of(state, this_node, scope, ids, unprogrammed, Some(exposing), peers)
}

fn report_of(
    state: &State,
    this_node: &str,
    scope: Scope,
    ids: &[ServiceId],
    unprogrammed: &BTreeMap<ServiceId, Lack>,
    exposing: Option<&Exposing>,
    peers: &[Status],
) -> Report {
    let peers = Peers::new(peers);
    let known = state.node(this_node).is_some();
    let asked: BTreeSet<&ServiceId> =
        if ids.is_empty() { state.services().collect() } else { ids.iter().collect() };
    let mut report = Report {
        node: this_node.to_owned(),
        services: Vec::new(),
        unknown: Vec::new(),
        skipped: Vec::new(),
        about: about(state, this_node),
    };
    // What is too large is not made here either: it is explained by its first port.
    let is_too_large = |id: &ServiceId| unprogrammed.get(id).is_some_and(|it| it.of.is_too_large());
    let contested = claim::contested(state, scope, is_too_large);
    for id in asked {
        let Some(service) = state.service(id) else {
            report.unknown.push(id.clone());
            continue;
        };
        let most_ports = if is_too_large(id) { 1 } else { usize::MAX };
        let decide = |clients| decide_for_some(clients, state, this_node, scope, id, most_ports);
        let decisions = decide(Clients::Anywhere);
        if decisions.is_empty() {
            let has_room = !unprogrammed.contains_key(id);
            report.skipped.push((id.clone(), skipped(state, this_node, scope, service, has_room)));
        }
        let for_outside = match service.exposure {
            Some(_) if !is_too_large(id) => decide(Clients::Outside),
            _ => Vec::new(),
        };
        let waits_for = waits_for(state, this_node, scope, id);
        let lack = unprogrammed.get(id);
        let port = |(place, decision): (usize, &Decision<'_>)| {
            let own = Own { contested: &contested, service, place };
            let contest = own.cluster_ips();
            let by_policy = outcome(decision, this_node, known, &contest);
            let actual = match (waits_for, lack) {
                (Some(label), _) if decision.is_ours() => ActualOutcome::waits(label, &contest),
                (_, Some(lack)) => ActualOutcome::without_room(decision.verdict(), by_policy, lack),
                (_, None) => ActualOutcome::of(by_policy),
            };
            let exposed = for_outside.get(place).and_then(|decision| {
                Exposed::of(own, decision, this_node, known, exposing, &peers)
            });
            let limited =
                !is_too_large(id) && decision.policy.trials.iter().any(|trial| !trial.holds());
            let in_full = limited.then(|| decide_in_full(state, this_node, scope, id)).flatten();
            let would = in_full.as_ref().and_then(|all| all.get(place));
            let would = would.map(|decision| outcome(decision, this_node, known, ""));
            let shown = service_port(decision, actual, exposed);
            let direct = shown.direct.filter(|_| lack.is_none());
            ServicePort { would, direct, ..shown }
        };
        let mut ports: Vec<_> = decisions.iter().enumerate().map(port).collect();
        ports.sort_by(|a, b| {
            let key = |one: &Port| (one.port, one.protocol);
            key(&a.port).cmp(&key(&b.port)).then_with(|| a.port.name.cmp(&b.port.name))
        });
        report.services.append(&mut ports);
    }
    report
}

/// Why no connection to a Service is translated, what DNS says instead, and what clients get that dial its endpoints.
/// `has_room`: the agent's maps have room for what these get.
fn skipped(
    state: &State,
    this_node: &str,
    scope: Scope,
    service: &Service,
    has_room: bool,
) -> Cow<'static, str> {
    let why = not_translated(state, this_node, scope, service);
    let waits = waits_for(state, this_node, scope, &service.id).is_some();
    let dials = topology::headless_dials(state, this_node, scope, &service.id);
    match direct(&dials).filter(|_| has_room && !waits) {
        Some(direct) => Cow::Owned(format!("{why}; {direct}")),
        None => match topology::ignored(state, &service.id) {
            Some(broken) => Cow::Owned(format!("{why}; {broken}")),
            None => why,
        },
    }
}

fn not_translated(
    state: &State,
    this_node: &str,
    scope: Scope,
    service: &Service,
) -> Cow<'static, str> {
    let Some(named) = named::named(state, this_node, scope, &service.id) else {
        return Cow::Borrowed(service.skipped.map_or("it has no ports", Into::into));
    };
    let of_family = |family| {
        let groups = named.of(family)?;
        let shown = |group: &named::Group| {
            let all: Vec<_> = group.addresses.iter().map(ToString::to_string).collect();
            let share = (group.share * 1e4).round() / 1e2;
            let share = if groups.len() > 1 {
                format!(" ({share}% of the answers)")
            } else {
                String::new()
            };
            all.join(", ") + &share
        };
        let all: Vec<_> = groups.iter().map(shown).collect();
        let all = if all.is_empty() { "no address".to_owned() } else { all.join("; ") };
        Some(format!("{family} {all}"))
    };
    let all: Vec<_> = cluster::Family::BOTH.into_iter().filter_map(of_family).collect();
    Cow::Owned(format!("headless; with `{DNS}` its name is answered here: {}", all.join(" | ")))
}

fn service_port(
    decision: &Decision<'_>,
    actual: ActualOutcome,
    exposed: Option<Exposed>,
) -> ServicePort {
    let service = decision.service;
    ServicePort {
        namespace: service.id.namespace.to_string(),
        name: service.id.name.to_string(),
        port: port(decision.port),
        cluster_ips: service.cluster_ips.clone(),
        policy: policy(decision),
        would: None,
        exposed,
        direct: direct(&direct_dials(decision)).filter(|_| actual.outcome.verdict != WAIT),
        tiers: if actual.outcome.verdict == WAIT { Vec::new() } else { tiers(decision) },
        endpoints: decision
            .endpoints
            .iter()
            .map(|one| Endpoint {
                address: one.address.ip(),
                port: one.address.port(),
                node: one.node.map(str::to_owned),
                zone: one.zone.map(str::to_owned),
                locality: one.locality,
                selected: actual.no_endpoint.is_none() && one.selected(),
                share_percent: share_percent(decision, one)
                    .filter(|_| actual.no_endpoint.is_none()),
                reason: match actual.no_endpoint {
                    Some(why) => why.to_owned(),
                    None => match one.grown.filter(|_| one.selected()) {
                        None => endpoint::reason(decision, one),
                        Some(percent) => format!(
                            "{}; gets {percent} % of what others get, as it became Ready lately",
                            endpoint::reason(decision, one)
                        ),
                    },
                },
            })
            .collect(),
        decision: actual.outcome,
    }
}

fn share_percent(
    decision: &Decision<'_>,
    endpoint: &topology::decision::Endpoint<'_>,
) -> Option<f64> {
    let family = cluster::Family::of(endpoint.address.ip());
    let choice = decision.choices.iter().find(|choice| choice.family == family)?;
    let portion = choice.parts.get(endpoint.part?)?;
    // A slow start divides it otherwise.
    if decision.endpoints.iter().any(|one| one.grown.is_some()) {
        return None;
    }
    // To a thousandth of a percent.
    Some((portion.each() * 1e5).round() / 1e3)
}

fn port(port: &cluster::Port) -> Port {
    Port { name: port.name.to_string(), port: port.port, protocol: port.protocol.into() }
}

pub(crate) fn policy(decision: &Decision<'_>) -> Policy {
    let policy = &decision.policy;
    let errors: Vec<_> = policy.ignored.iter().map(ToString::to_string).collect();
    Policy {
        source: policy.source.into(),
        object: (policy.origin != Origin::Service).then(|| policy.origin.to_string()),
        passed_over: policy.passed_over.iter().map(ToString::to_string).collect(),
        trials: policy.trials.iter().map(ToString::to_string).collect(),
        kind: policy.kind.into(),
        keys: policy.keys.iter().map(|&key| key.to_owned()).collect(),
        spill: policy.spill.map(|spill| spill.to_string()),
        ejection: policy.ejection.map(|setting| setting.to_string()),
        evacuations: policy.evacuating.all.iter().map(evacuated::sentence).collect(),
        return_after: policy.return_after.map(|setting| match decision.service.affinity_seconds {
            None => setting.to_string(),
            Some(_) => "never: the Service has session affinity".to_owned(),
        }),
        slow_start: policy.slow_start.map(|setting| setting.to_string()),
        error: (!errors.is_empty()).then(|| errors.join("; ")),
        errors,
    }
}

fn tiers(decision: &Decision<'_>) -> Vec<String> {
    let lines = decision.choices.iter().filter_map(|choice| {
        let line = reason::tiers(choice)?;
        Some(match decision.choices.len() {
            1 => line,
            _ => format!("{}: {line}", choice.family),
        })
    });
    lines.collect()
}

fn direct_dials(decision: &Decision<'_>) -> Vec<(cluster::Family, DirectDials)> {
    let of_family =
        |choice: &'_ topology::decision::Choice<'_>| Some((choice.family, choice.direct.clone()?));
    decision.choices.iter().filter_map(of_family).collect()
}

/// What clients get that dial endpoints by address; `None`: nothing is said of that.
fn direct(all: &[(cluster::Family, DirectDials)]) -> Option<String> {
    let (_, first) = all.first()?;
    if let Some(nobody) = first.nobody {
        return Some(<&str>::from(nobody).to_owned());
    }
    let steers = first.direct == Direct::Steer;
    if let Some((family, too_many)) = all.iter().find(|(_, direct)| !direct.holds()) {
        return Some(format!(
            "not {}: {} {family} endpoints would be, and at most {} can be",
            if steers { "steered" } else { "refused" },
            too_many.endpoints.len(),
            direct::MOST
        ));
    }
    let sum = |of: fn(&DirectDials) -> usize| all.iter().map(|(_, direct)| of(direct)).sum();
    let (count, left): (usize, usize) = (sum(|it| it.endpoints.len()), sum(|it| it.left));
    if !steers {
        return Some(match count {
            0 => "no endpoint is refused to clients that dial it by address".to_owned(),
            1 => "1 endpoint is refused to clients that dial it by address".to_owned(),
            some => format!("{some} endpoints are refused to clients that dial them by address"),
        });
    }
    let steered = match count {
        0 => "steered Pods reach every endpoint that they dial by address".to_owned(),
        1 => "steered Pods that dial 1 endpoint by address get one that the policy chooses"
            .to_owned(),
        some => format!(
            "steered Pods that dial {some} endpoints by address get those that the policy chooses"
        ),
    };
    Some(match left {
        0 => steered,
        1 => {
            steered
                + "; 1 more is left alone: another Service port has it, too, or it has a hostname"
        }
        more => format!(
            "{steered}; {more} more are left alone: other Service ports have them, too, or they have hostnames"
        ),
    })
}

/// What the policy chose.
fn outcome(decision: &Decision<'_>, this_node: &str, known: bool, contest: &str) -> Outcome {
    let leading = decision.leading();
    let tier = leading.and_then(|choice| choice.tier());
    let key = tier.and_then(|tier| decision.policy.keys.get(usize::from(tier)).copied());
    let value = tier.and(leading).and_then(|choice| match choice.cause {
        Cause::Node => Some(this_node),
        cause => cause.value(),
    });
    Outcome {
        verdict: decision.verdict().into(),
        tier,
        key: key.map(str::to_owned),
        value: value.map(str::to_owned),
        reason: reason::decision(decision, this_node, known) + contest,
    }
}

fn about(state: &State, this_node: &str) -> String {
    let name = shown(this_node);
    let Some(labels) = state.node(this_node) else {
        return match state.nodes().count() {
            0 => format!("node {name}: unknown, the cluster shows no Nodes at all"),
            1 => format!("node {name}: unknown, it is not the 1 Node of the cluster"),
            count => format!("node {name}: unknown, it is not among the cluster's {count} Nodes"),
        };
    };
    let shown = |what, key| match labels.get(key) {
        Some(value) => format!("{what} {}", shown(value)),
        None => format!("no {what}"),
    };
    format!("node {name}: {}, {}", shown("zone", ZONE), shown("region", REGION))
}
