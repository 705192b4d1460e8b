//! One Service as every node sees it: the tier in use, and which nodes refuse or cross a zone.

use std::fmt::Write;

use comfy_table::{Cell, Color};
use serde::Serialize;
use topo_lb_common::backend::Locality;

use super::quoted::shown;
use super::{Policy, Port, policy, port, table};
use crate::cluster::{Family, ServiceId, State};
use crate::topology::decision::{Choice, Endpoint};
use crate::topology::label::ZONE;
use crate::topology::{Decision, PolicyKind, Scope, Verdict, decide};

/// A Service port in one address family, on every node.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The port.
    pub port: Port,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// The policy in force.
    pub policy: Policy,
    /// Every Node that was asked for, by name.
    pub nodes: Vec<OnNode>,
}

/// What a node's connections do.
#[derive(Clone, Debug, Serialize)]
pub struct OnNode {
    /// The Node's name.
    pub node: String,
    /// Its zone.
    pub zone: Option<String>,
    /// What every key would match; empty for hints and none.
    pub tiers: Vec<TierOnNode>,
    /// `route`, `refuse` or `bypass`.
    pub verdict: &'static str,
    /// Index of the key that decides.
    pub tier: Option<u8>,
    /// Where the chosen endpoints are, or all that have a share by weight.
    pub endpoints: Localities,
    /// The share of new connections that goes to the next wider tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wider: Option<WiderOnNode>,
}

/// What leaves the chosen tier, by `topo-lb.io/spill`.
#[derive(Clone, Debug, Serialize)]
pub struct WiderOnNode {
    /// The share of new connections, such as `20%`.
    pub share: String,
    /// The key of the wider tier.
    pub key: String,
    /// Where the endpoints are that the wider tier adds.
    pub endpoints: Localities,
}

impl OnNode {
    /// Whether new connections may leave the node's zone.
    #[must_use]
    pub fn leaves_zone(&self) -> bool {
        let wider = self.wider.as_ref().map_or(0, |wider| wider.endpoints.outside());
        self.endpoints.outside() + wider > 0
    }
}

/// What a key would match on a node.
#[derive(Clone, Debug, Serialize)]
pub struct TierOnNode {
    /// The key.
    pub key: String,
    /// The node's value for it; `None` if it has none, and for `*`.
    pub value: Option<String>,
    /// Number of usable endpoints that it matches.
    pub endpoints: usize,
    /// Number of endpoints that it needs.
    pub needed: usize,
}

/// Number of endpoints by distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Localities {
    /// On the node.
    pub node: usize,
    /// In its zone.
    pub zone: usize,
    /// In its region.
    pub region: usize,
    /// Elsewhere, or unknown.
    pub elsewhere: usize,
}

impl Localities {
    fn add(&mut self, locality: Locality) {
        *match locality {
            Locality::Node => &mut self.node,
            Locality::Zone => &mut self.zone,
            Locality::Region => &mut self.region,
            Locality::Elsewhere => &mut self.elsewhere,
        } += 1;
    }

    /// Endpoints that are not known to be in the node's zone.
    #[must_use]
    pub const fn outside(self) -> usize {
        self.region + self.elsewhere
    }

    /// All of them.
    #[must_use]
    pub const fn total(self) -> usize {
        self.node + self.zone + self.outside()
    }
}

/// How every node sees the ports of a Service. Empty if the Service does not exist or has no
/// ClusterIP, or if the cluster has no Nodes.
#[must_use]
pub fn spread(state: &State, scope: Scope, id: &ServiceId) -> Vec<Spread> {
    spread_on(state, scope, id, state.nodes().map(|(node, _)| node))
}

/// How these nodes see them. Empty without nodes, too.
#[must_use]
pub fn spread_on<'a>(
    state: &'a State,
    scope: Scope,
    id: &ServiceId,
    nodes: impl IntoIterator<Item = &'a str>,
) -> Vec<Spread> {
    let mut spreads: Vec<Spread> = Vec::new();
    for node in nodes {
        let labels = state.node(node);
        let zone = labels.and_then(|labels| labels.get(ZONE)).map(ToString::to_string);
        let decisions = decide(state, node, scope, id);
        let each = decisions
            .iter()
            .flat_map(|decision| decision.choices.iter().map(move |choice| (decision, choice)));
        for (decision, choice) in each {
            // Each node has a place of its own in ramps.
            let policy = Policy { trials: Vec::new(), ..policy(decision) };
            let (port, family) = (port(decision.port), choice.family.into());
            let is_it = |it: &Spread| (&it.port, it.family, &it.policy) == (&port, family, &policy);
            let index = spreads.iter().position(is_it).unwrap_or(spreads.len());
            if spreads.len() == index {
                let (namespace, name) = (id.namespace.to_string(), id.name.to_string());
                spreads.push(Spread { namespace, name, port, family, policy, nodes: Vec::new() });
            }
            spreads[index].nodes.push(OnNode {
                node: node.to_owned(),
                zone: zone.clone(),
                tiers: tiers(decision, choice),
                verdict: choice.verdict.into(),
                tier: choice.tier(),
                endpoints: localities(decision, choice, |one| {
                    one.is_chosen() || one.part.is_some()
                }),
                wider: choice.wider.as_ref().map(|wider| WiderOnNode {
                    share: wider.share.to_string(),
                    key: wider.key.to_owned(),
                    endpoints: localities(decision, choice, |one| {
                        one.selected() && !one.is_chosen()
                    }),
                }),
            });
        }
    }
    spreads
}

fn tiers(decision: &Decision<'_>, choice: &Choice<'_>) -> Vec<TierOnNode> {
    let tier = |key: &str, value: Option<&str>, endpoints, needed| TierOnNode {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        endpoints,
        needed,
    };
    match decision.policy.kind {
        PolicyKind::OpenYurt => {
            let keys = decision.policy.keys.iter();
            keys.map(|key| tier(key, choice.cause.value(), choice.chosen, 1)).collect()
        }
        PolicyKind::Keys | PolicyKind::Hints | PolicyKind::None => {
            let tiers = choice.tiers.iter();
            tiers.map(|it| tier(it.key, it.own, it.endpoints, it.min_endpoints)).collect()
        }
    }
}

/// Where the endpoints of a choice are for which `counts_for` holds.
fn localities(
    decision: &Decision<'_>,
    choice: &Choice<'_>,
    counts_for: impl Fn(&Endpoint<'_>) -> bool,
) -> Localities {
    let mut counts = Localities::default();
    if choice.verdict == Verdict::Route {
        let own = decision.endpoints.iter().filter(|one| counts_for(one));
        own.filter(|one| Family::of(one.address.ip()) == choice.family)
            .for_each(|one| counts.add(one.locality));
    }
    counts
}

/// The same as text: a row per node, a column per key, `[n]` for the key that decides.
#[must_use]
pub fn spread_table(spreads: &[Spread], colour: bool) -> String {
    let mut text = String::new();
    for spread in spreads {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &one(spread, colour);
    }
    text
}

fn one(spread: &Spread, colour: bool) -> String {
    let Spread { port, policy, nodes, .. } = spread;
    let mut text = format!(
        "{}/{}  {} {}  {}\n",
        shown(&spread.namespace),
        shown(&spread.name),
        port.protocol,
        table::port_text(port),
        spread.family,
    );
    let _ = writeln!(text, "  policy    {}", table::policy_text(policy));
    for error in &policy.errors {
        let _ = writeln!(text, "  error     {error}");
    }

    let mut table = table::empty(colour);
    let keys = nodes.first().map_or(&[][..], |node| &node.tiers);
    let mut header = vec![" NODE".to_owned(), "ZONE".to_owned()];
    header.extend(keys.iter().map(|tier| match tier.needed {
        1 => shown(&tier.key),
        needed => format!("{} (needs {needed})", shown(&tier.key)),
    }));
    header.extend(["GOES TO".to_owned(), "NOTE".to_owned()]);
    table.set_header(header);
    for node in nodes {
        let (note, paint) = note(node);
        let mut cells = vec![
            format!(" {}", shown(&node.node)),
            node.zone.as_deref().map_or_else(|| "-".to_owned(), shown),
        ];
        cells.extend(node.tiers.iter().zip(0..).map(|(tier, index)| {
            match (&tier.value, node.tier == Some(index)) {
                (_, true) => format!("[{}]", tier.endpoints),
                (None, _) if tier.key != "*" => "-".to_owned(),
                _ => tier.endpoints.to_string(),
            }
        }));
        let mut goes = goes_to(node.endpoints);
        if let Some(WiderOnNode { share, endpoints, .. }) = &node.wider {
            let _ = write!(goes, "; {share} spill: {}", goes_to(*endpoints));
        }
        cells.extend([goes, note]);
        table.add_row(cells.into_iter().map(|text| match paint {
            Some(colour_of) if colour => Cell::new(text).fg(colour_of),
            _ => Cell::new(text),
        }));
    }
    let _ = writeln!(text, "{}", table.trim_fmt());

    let count = |is: fn(&OnNode) -> bool| nodes.iter().filter(|node| is(node)).count();
    let (refused, crossing) = (count(|node| node.verdict == "refuse"), count(OnNode::leaves_zone));
    let of_proxy = count(|node| node.verdict == "bypass");
    let plural = if nodes.len() == 1 { "" } else { "s" };
    let _ = write!(text, "  {} node{plural}: ", nodes.len());
    let _ = match of_proxy {
        0 => writeln!(text, "{refused} refused, {crossing} that leave their zone"),
        all if all == nodes.len() => writeln!(text, "all go where kube-proxy chooses"),
        some => writeln!(
            text,
            "{refused} refused, {crossing} that leave their zone, {some} that go where kube-proxy chooses"
        ),
    };
    text
}

fn goes_to(counts: Localities) -> String {
    let parts = [
        (counts.node, "on it"),
        (counts.zone, "in its zone"),
        (counts.region, "in its region"),
        (counts.elsewhere, "elsewhere"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let text =
        parts.map(|(count, place)| format!("{count} {place}")).collect::<Vec<_>>().join(", ");
    if text.is_empty() { "-".to_owned() } else { text }
}

fn note(node: &OnNode) -> (String, Option<Color>) {
    let outside = node.endpoints.outside();
    match node.verdict {
        "refuse" => ("REFUSED".to_owned(), Some(Color::Red)),
        "bypass" => ("left to kube-proxy".to_owned(), None),
        _ if outside > 0 && node.zone.is_none() => {
            ("this node has no zone".to_owned(), Some(Color::Yellow))
        }
        _ if outside == node.endpoints.total() => {
            ("leaves its zone".to_owned(), Some(Color::Yellow))
        }
        _ if outside > 0 => {
            (format!("{outside} of {} leave its zone", node.endpoints.total()), Some(Color::Yellow))
        }
        _ if node.leaves_zone() => ("what spills leaves its zone".to_owned(), Some(Color::Yellow)),
        _ => (String::new(), None),
    }
}
