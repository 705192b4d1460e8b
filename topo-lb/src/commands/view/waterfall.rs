//! How the nodes see one Service: which tier is in force where, and who is refused. Pure.

use serde::Serialize;

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain::{OnNode, Policy, Port, spread_on};
use topo_lb_core::topology::label::{REGION, ZONE};
use topo_lb_core::topology::{NodesByLabel, Scope, decide};

/// Most rows of a Service port.
const ROWS: usize = 200;
/// Most names of a row.
const NAMES: usize = 8;

/// One Service.
#[derive(Debug, Serialize)]
pub(super) struct Waterfall {
    name: String,
    /// Whether the cluster has it, with a ClusterIP.
    is_known: bool,
    ports: Vec<OfPort>,
}

/// A Service port in one address family.
#[derive(Debug, Serialize)]
struct OfPort {
    port: Port,
    family: &'static str,
    policy: Policy,
    /// What is ignored, and why.
    ignored: Vec<String>,
    /// How many nodes are refused.
    refused: usize,
    /// How many nodes' connections may leave their zone.
    crossing: usize,
    /// Nodes that it treats alike; refused ones first, then those that leave their zone.
    rows: Vec<Alike>,
    /// How many rows there are.
    all_rows: usize,
}

/// Nodes that a Service treats alike.
#[derive(Debug, Serialize)]
struct Alike {
    /// The first names.
    nodes: Vec<String>,
    count: usize,
    /// Their value of the label.
    group: Option<String>,
    #[serde(flatten)]
    on: OnNode,
}

impl Waterfall {
    pub(super) fn of(state: &State, label: &str, scope: Scope, id: &ServiceId) -> Self {
        let decisions = decide(state, "", scope, id);
        let alike = match decisions.first() {
            Some(one) => {
                NodesByLabel::of(state).alike(one.service, &decisions, &[label, ZONE, REGION])
            }
            None => Vec::new(),
        };
        let firsts = alike.iter().filter_map(|nodes| nodes.first().copied());
        let spreads = spread_on(state, scope, id, firsts);
        let ports = spreads.into_iter().map(|spread| {
            let mut rows: Vec<_> = spread
                .nodes
                .into_iter()
                .filter_map(|on| {
                    let nodes = alike.iter().find(|nodes| nodes.first() == Some(&&*on.node));
                    Some((on, nodes?))
                })
                .map(|(on, nodes)| Alike {
                    nodes: nodes.iter().take(NAMES).map(|&name| name.to_owned()).collect(),
                    count: nodes.len(),
                    group: state
                        .node(&on.node)
                        .and_then(|labels| labels.get(label))
                        .map(ToString::to_string),
                    on,
                })
                .collect();
            let is_refused = |row: &&Alike| row.on.verdict == "refuse";
            let crosses = |row: &&Alike| row.on.leaves_zone();
            let refused = rows.iter().filter(is_refused).map(|row| row.count).sum();
            let crossing = rows.iter().filter(crosses).map(|row| row.count).sum();
            rows.sort_by_key(|row| (!is_refused(&row), !crosses(&row), row.group.clone()));
            let all_rows = rows.len();
            rows.truncate(ROWS);
            let ignored = spread.policy.errors.clone();
            let (port, family, policy) = (spread.port, spread.family, spread.policy);
            OfPort { port, family, policy, ignored, refused, crossing, rows, all_rows }
        });
        Self { name: id.to_string(), is_known: !decisions.is_empty(), ports: ports.collect() }
    }
}
