//! What would be without the endpoints at certain values of labels: the rehearsal of an evacuation, on one page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;

use super::table::foot;
use super::{Both, Proxied, Report, ServicePort, TOPO_LB};
use crate::cluster::{
    Change, ClusterTopologyPolicy, PolicyId, ServiceId, State, TopologyPolicy, Update,
};
use crate::explain::{empty, port_text, shown, shown_id, some};
use crate::topology::decision::Status;
use crate::topology::evacuation::{Evacuation, object_name};
use crate::topology::label::HOSTNAME;
use crate::topology::validation::Rule;
use crate::topology::{Decision, NodesByLabel, Scope, decide};

/// Most rows of each list on the page. JSON has all.
const ROWS: usize = 10;
/// An endpoint that gets so many times as much is told.
const MUCH: f64 = 1.2;

/// What an evacuation would do. Its JSON is a fixed interface.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsal {
    /// `LABEL=VALUE`.
    pub without: Vec<String>,
    /// How many Nodes are there.
    pub nodes: usize,
    /// How many endpoints of Services leave.
    pub endpoints: usize,
    /// How many Services have some there.
    pub services: usize,
    /// Service ports that refuse nodes which they served.
    pub refused: Vec<Refused>,
    /// Services that stay where they are, as no ready endpoint would be left.
    pub left_alone: Vec<String>,
    /// Nodes for which a nearer tier runs empty.
    pub tiers: Vec<Emptied>,
    /// Clients of what changes, by the value of the label that groups nodes: how many each value's endpoints serve.
    pub carried: BTreeMap<String, Both<f64>>,
    /// Endpoints that get much more, the most first.
    pub busier: Vec<Busier>,
}

/// A Service port that refuses nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// `NAMESPACE/NAME PORT`.
    pub port: String,
    /// The nodes, by name.
    pub nodes: Vec<String>,
    /// The Service says that refusals are meant.
    pub intended: bool,
}

/// A tier that runs empty for some nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Emptied {
    /// `NAMESPACE/NAME PORT`.
    pub port: String,
    /// How many nodes.
    pub nodes: usize,
    /// The key that decided, and the key that decides then.
    pub key: Both<String>,
}

/// An endpoint that gets more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Busier {
    /// `NAMESPACE/NAME PORT`.
    pub port: String,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Its node.
    pub node: Option<String>,
    /// How many clients it serves.
    pub load: Both<f64>,
    /// The load after, divided by the load before; `None` if it had none.
    pub times: Option<f64>,
}

/// Evacuates the cluster of `state` by policies that select all Services, one for each label, as `topo-lb evacuate`
/// writes them; one that is there is replaced. `text`: as in `topo-lb.io/evacuate`.
///
/// # Errors
/// The rule that the text breaks.
pub fn evacuate(state: &mut State, text: &str) -> Result<(), Rule> {
    let options = text.split_once(';').map_or("", |(_, options)| options);
    for (key, value) in Evacuation::read(text)?.labels {
        let mut policy = TopologyPolicy {
            id: PolicyId { name: object_name(key, value).into(), ..PolicyId::default() },
            ..TopologyPolicy::default()
        };
        let text = format!("{key}={value};{options}");
        Arc::make_mut(&mut policy.policy).evacuate = Some(text.into());
        let change = Change::Applied(ClusterTopologyPolicy(policy));
        let _ = state.apply(Update::ClusterTopologyPolicy(change), "");
    }
    Ok(())
}

/// Rehearses what `evacuation` does, from the report of the same change.
#[must_use]
pub fn rehearse(
    before: &Proxied,
    after: &Proxied,
    evacuation: &Evacuation<'_>,
    report: &Report<'_>,
) -> Rehearsal {
    let is_there = |(name, labels): &(&str, &crate::cluster::Labels)| {
        evacuation.labels.iter().any(|(key, value)| {
            let own = labels.get(key).map(|own| &**own);
            own.or((*key == HOSTNAME).then_some(name)) == Some(*value)
        })
    };
    let nodes = NodesByLabel::of(&after.state);
    let ids: Vec<&ServiceId> = after.state.services().collect();
    let of_each: Vec<_> = ids
        .par_iter()
        .filter(|id| !after.by_kube_proxy.contains(**id))
        .map(|id| of_service([&before.state, &after.state], &nodes, id, evacuation))
        .collect();
    let mut rehearsal = Rehearsal {
        without: evacuation.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        nodes: after.state.nodes().filter(is_there).count(),
        endpoints: of_each.iter().map(|it| it.endpoints.len()).sum(),
        services: of_each.iter().filter(|it| !it.endpoints.is_empty()).count(),
        refused: report.services.iter().filter(is_ours).filter_map(refused).collect(),
        left_alone: of_each.iter().filter_map(|it| it.left_alone.clone()).collect(),
        tiers: of_each.into_iter().flat_map(|it| it.tiers).collect(),
        carried: carried(report),
        busier: busier(report),
    };
    rehearsal.tiers.sort_by_key(|it| std::cmp::Reverse(it.nodes));
    rehearsal
}

#[derive(Default)]
struct OfService {
    endpoints: BTreeSet<SocketAddr>,
    left_alone: Option<String>,
    tiers: Vec<Emptied>,
}

fn of_service(
    [before, after]: [&State; 2],
    nodes: &NodesByLabel<'_>,
    id: &ServiceId,
    evacuation: &Evacuation<'_>,
) -> OfService {
    let mut found = OfService::default();
    let Some(service) = after.service(id) else { return found };
    let decisions = decide(after, "", Scope::All, id);
    for decision in &decisions {
        // What others evacuate, or leave alone, is not told here.
        let is_own = |status: &Status<'_>| match status {
            Status::Evacuated { key, value } => evacuation.labels.contains(&(*key, *value)),
            _ => false,
        };
        let left = decision.endpoints.iter().filter(|it| is_own(&it.status));
        found.endpoints.extend(left.map(|it| it.address));
        let is_alone = |of: &Decision<'_>| of.choices.iter().any(|it| it.evacuation_left_alone);
        let was_alone = || decide(before, "", Scope::All, id).iter().any(is_alone);
        if is_alone(decision) && !was_alone() {
            found.left_alone = Some(shown_id(id));
        }
    }
    let mut moved: BTreeMap<(usize, String, String), usize> = BTreeMap::new();
    for alike in nodes.alike(service, &decisions, &[]) {
        let Some(node) = alike.first() else { continue };
        let [old, new] = [before, after].map(|state| decide(state, node, Scope::All, id));
        for (place, (old, new)) in old.iter().zip(&new).enumerate() {
            if let (Some(old), Some(new)) = (key(old), key(new))
                && old != new
            {
                *moved.entry((place, old, new)).or_default() += alike.len();
            }
        }
    }
    found.tiers.extend(moved.into_iter().map(|((place, before, after), nodes)| {
        let port = crate::topology::port_name(service, &service.ports[place]);
        Emptied { port: shown(&port), nodes, key: Both { before, after } }
    }));
    found
}

/// The key that decides; `None` if none does.
fn key(decision: &Decision<'_>) -> Option<String> {
    let choice = decision.leading()?;
    let tier = usize::from(choice.tier()?);
    let allowed = || decision.policy.evacuating.all.iter().find_map(|(_, it, _)| it.allow_strict);
    let key = decision.policy.keys.get(tier).copied().or_else(allowed)?;
    Some(key.to_owned())
}

/// `NAMESPACE/NAME PORT`.
fn name(port: &ServicePort<'_>) -> String {
    format!("{}/{} {}", shown(&port.namespace), shown(&port.name), port_text(&port.port))
}

/// Whether topo-lb serves it: kube-proxy evacuates nothing.
fn is_ours(port: &&ServicePort<'_>) -> bool {
    port.served.after.as_ref().is_some_and(|it| it.by == TOPO_LB)
}

fn refused(port: &ServicePort<'_>) -> Option<Refused> {
    let nodes = port.groups.iter().flat_map(|group| &group.newly_refused);
    let nodes: Vec<String> = nodes.map(|node| (*node).to_owned()).collect();
    let intended = port.served.after.as_ref().is_some_and(|it| it.refusal_intended);
    (!nodes.is_empty()).then(|| Refused { port: name(port), nodes, intended })
}

fn carried(report: &Report<'_>) -> BTreeMap<String, Both<f64>> {
    let mut carried: BTreeMap<String, Both<f64>> = BTreeMap::new();
    let changed = report.services.iter().filter(is_ours).filter(|it| it.changes);
    for endpoint in changed.flat_map(|it| &it.endpoints) {
        let sum = carried.entry(endpoint.value.unwrap_or_default().to_owned()).or_default();
        sum.before += endpoint.load.before;
        sum.after += endpoint.load.after;
    }
    carried
}

fn busier(report: &Report<'_>) -> Vec<Busier> {
    let of = |port: &ServicePort<'_>| -> Vec<Busier> {
        let grown = port.endpoints.iter().filter(|it| it.load.after > it.load.before * MUCH);
        let busier = |it: &super::Endpoint<'_>| Busier {
            port: name(port),
            endpoint: SocketAddr::new(it.address, it.port),
            node: it.node.map(str::to_owned),
            load: it.load,
            times: it.times,
        };
        grown.map(busier).collect()
    };
    let mut busier: Vec<Busier> = report.services.iter().filter(is_ours).flat_map(of).collect();
    let times = |it: &Busier| it.times.unwrap_or(f64::MAX);
    busier.sort_by(|one, other| times(other).total_cmp(&times(one)));
    busier
}

/// The page: who refuses, who carries more, which tiers run empty.
#[must_use]
pub fn without_table(rehearsal: &Rehearsal, report: &Report<'_>, colour: bool) -> String {
    let Rehearsal { without, nodes, endpoints, services, .. } = rehearsal;
    let count =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "Without {}: {} of {} on {} get no new connections.\n",
        without.iter().map(|it| shown(it)).collect::<Vec<_>>().join(", "),
        count(*endpoints, "endpoint"),
        count(*services, "Service"),
        count(*nodes, "node"),
    );
    let mut page = Page { text: &mut text, colour };
    page.list(
        "REFUSE: strict policies without an endpoint left",
        ["SERVICE", "NODES", "WHICH", ""],
        &rehearsal.refused,
        |it| {
            let names = some(it.nodes.iter().map(String::as_str), 5);
            let meant = if it.intended { "meant" } else { "" };
            [it.port.clone(), it.nodes.len().to_string(), names, meant.to_owned()]
        },
    );
    page.list(
        "STAY: all their ready endpoints are there",
        ["SERVICE"],
        &rehearsal.left_alone,
        |it| [it.clone()],
    );
    page.list(
        "GO FARTHER: a nearer tier runs empty",
        ["SERVICE", "NODES", "FROM", "TO"],
        &rehearsal.tiers,
        |it| [it.port.clone(), it.nodes.to_string(), shown(&it.key.before), shown(&it.key.after)],
    );
    page.list(
        "CARRY: clients of what changes",
        [&*shown(report.label), "BEFORE", "AFTER", "TIMES"],
        &rehearsal.carried,
        |(value, Both { before, after })| {
            let value = if value.is_empty() { NONE.to_owned() } else { shown(value) };
            let factor = (*before > 0.0).then(|| after / before);
            [value, format!("{before:.1}"), format!("{after:.1}"), times(factor)]
        },
    );
    page.list(
        "BUSIER: endpoints that get much more",
        ["SERVICE", "ENDPOINT", "NODE", "TIMES"],
        &rehearsal.busier,
        |it| {
            let node = it.node.as_deref().map_or_else(|| NONE.to_owned(), shown);
            [it.port.clone(), it.endpoint.to_string(), node, times(it.times)]
        },
    );
    text.push('\n');
    text + &foot(report)
}

/// What is not known, or is not there.
const NONE: &str = "–";

/// So many times as much.
fn times(factor: Option<f64>) -> String {
    factor.map_or_else(|| NONE.to_owned(), |factor| format!("×{factor:.2}"))
}

struct Page<'t> {
    text: &'t mut String,
    colour: bool,
}

impl Page<'_> {
    /// The first rows of a list; nothing of an empty one.
    fn list<const N: usize, I>(
        &mut self,
        title: &str,
        header: [&str; N],
        all: I,
        row: impl Fn(I::Item) -> [String; N],
    ) where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
    {
        let all = all.into_iter();
        let count = all.len();
        if count == 0 {
            return;
        }
        let mut table = empty(self.colour);
        table.set_header(header);
        table.add_rows(all.take(ROWS).map(row));
        let _ = writeln!(self.text, "\n{title}\n{table}");
        if count > ROWS {
            let _ = writeln!(self.text, "  and {} more; JSON has all", count - ROWS);
        }
    }
}
