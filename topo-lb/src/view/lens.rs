//! The traffic of the newest look, by groups of nodes: what the map shows. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;
use topo_lb_common::backend::Locality;

use super::cluster::Cluster;
use super::groups::{Groups, labels};
use super::leads::Leads;
use crate::cluster::{ServiceId, State};
use crate::top::{Rate, Row};
use crate::topology::{NodesByLabel, Scope};

/// Most lines between groups that are sent: those with most traffic.
const LINES: usize = 150;

/// What one node does, a second: connections by locality, bytes by locality, refused and failed connections.
type OfNode = [f64; 2 * Locality::ALL.len() + 1];

/// Traffic from one group to another, or within one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) from: usize,
    /// `None`: no endpoint that the decisions name is that far away.
    pub(super) to: Option<usize>,
    /// A second.
    pub(super) connections: f64,
    /// A second.
    pub(super) bytes: f64,
    /// The share of both, 0–1, that endpoints of more than one group may have got. Zero: `to` follows
    /// from the measured distance and the decision.
    pub(super) estimated: f64,
    /// The share of both, 0–1, that left the zone of its client.
    pub(super) far: f64,
}

/// Rates by group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Flows {
    /// One for each group.
    groups: Vec<Rate>,
    /// For each group one for each node: `None` without an answer of its agent.
    nodes: Vec<Vec<Option<OfNode>>>,
    lines: Vec<Line>,
    /// How many lines there are.
    all_lines: usize,
    total: Rate,
}

/// The cluster by one label. Remembers where Services lead until that changes.
#[derive(Debug, Default)]
pub(super) struct Lens {
    label: String,
    scope: Scope,
    cluster: Arc<Cluster>,
    pub(super) groups: Arc<Groups>,
    leads: HashMap<Arc<str>, Arc<Leads>>,
}

/// The groups, as the page gets them once.
#[derive(Debug, Serialize)]
pub(super) struct Told<'a> {
    label: &'a str,
    labels: Vec<super::groups::Label>,
    groups: &'a [super::groups::Group],
    services: usize,
    sentences: &'a [String],
}

impl Lens {
    pub(super) fn new(label: &str, scope: Scope) -> Self {
        Self { label: label.to_owned(), scope, ..Self::default() }
    }

    /// Takes a newer cluster, and forgets what has changed.
    pub(super) fn take(&mut self, cluster: &Arc<Cluster>, agents: &[Arc<str>]) {
        let is_new = self.cluster.revision != cluster.revision;
        let is_placed = agents.iter().all(|agent| self.groups.place(agent).is_some());
        if !is_new && is_placed {
            return;
        }
        let (old, new) = (&self.cluster.state, &cluster.state);
        if old.nodes().eq(new.nodes()) && is_placed {
            self.leads.retain(|service, _| {
                id(service).is_some_and(|id| is_same(old, new, &id))
            });
        } else {
            self.groups = Arc::new(Groups::of(new, &self.label, agents.iter()));
            self.leads.clear();
        }
        self.cluster = Arc::clone(cluster);
    }

    /// The groups.
    pub(super) fn told(&self) -> Told<'_> {
        Told {
            label: &self.label,
            labels: labels(&self.cluster.state),
            groups: &self.groups.all,
            services: self.cluster.state.services().len(),
            sentences: &self.cluster.sentences,
        }
    }

    /// Where the traffic of `rows` goes. `answered`: nodes whose agents have answered.
    pub(super) fn flows<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a Row> + Clone,
        answered: &HashSet<Arc<str>>,
    ) -> Flows {
        self.learn(rows.clone());
        let groups = &self.groups.all;
        let node = |node| answered.contains(node).then(OfNode::default);
        let mut flows = Flows {
            groups: vec![Rate::default(); groups.len()],
            nodes: groups.iter().map(|group| group.nodes.iter().map(node).collect()).collect(),
            ..Flows::default()
        };
        let mut lines: HashMap<(usize, Option<usize>), Line> = HashMap::new();
        for row in rows {
            let leads = self.leads.get(&row.service);
            flows.total.add(&row.rate);
            for (node, rate) in &row.nodes {
                let Some((group, place)) = self.groups.place(node) else { continue };
                flows.groups[group].add(rate);
                if let Some(sums) = &mut flows.nodes[group][place] {
                    let more = rate.connections.into_iter().chain(rate.bytes);
                    let more = more.chain([rate.refused + rate.failed]);
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
                for locality in Locality::ALL {
                    let [connections, bytes] =
                        [rate.connections, rate.bytes].map(|it| it[locality as usize]);
                    if connections + bytes == 0.0 {
                        continue;
                    }
                    let to = destinations(leads.map(|it| it.from(node, locality)), locality, group);
                    let estimated = if to.len() > 1 { 1.0 } else { 0.0 };
                    let far = if locality >= Locality::Region { 1.0 } else { 0.0 };
                    for (to, share) in to {
                        let line = lines.entry((group, to)).or_default();
                        (line.from, line.to) = (group, to);
                        line.connections += connections * share;
                        line.bytes += bytes * share;
                        let weight = share * weight(connections, bytes);
                        line.estimated += estimated * weight;
                        line.far += far * weight;
                    }
                }
            }
        }
        // A thousand nodes with 17 digits each would be most of the picture.
        let sums = flows.nodes.iter_mut().flatten().flatten().flatten();
        sums.for_each(|sum| *sum = (*sum * 100.0).round() / 100.0);
        flows.all_lines = lines.len();
        flows.lines = lines.into_values().collect();
        for line in &mut flows.lines {
            let all = weight(line.connections, line.bytes);
            line.estimated = (line.estimated / all).min(1.0);
            line.far = (line.far / all).min(1.0);
        }
        flows.lines.sort_by(|a, b| {
            let size = |line: &Line| weight(line.connections, line.bytes);
            size(b).total_cmp(&size(a)).then((a.from, a.to).cmp(&(b.from, b.to)))
        });
        flows.lines.truncate(LINES);
        flows
    }

    /// Computes where Services with traffic lead, on all CPUs.
    fn learn<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) {
        let busy = rows.filter(|row| !row.nodes.is_empty());
        let new: Vec<_> = busy.filter(|row| !self.leads.contains_key(&row.service)).collect();
        if new.is_empty() {
            return;
        }
        let state = &self.cluster.state;
        let nodes = NodesByLabel::of(state);
        let group = |value: Option<&str>| self.groups.with(value);
        let leads = new.par_iter().map(|row| {
            let leads = id(&row.service)
                .map(|id| Leads::of(state, &nodes, &self.label, &group, self.scope, &id))
                .unwrap_or_default();
            (Arc::clone(&row.service), Arc::new(leads))
        });
        let leads: Vec<_> = leads.collect();
        self.leads.extend(leads);
    }
}

/// One number for connections and bytes together: lines of either kind are kept.
fn weight(connections: f64, bytes: f64) -> f64 {
    connections + bytes / 1e3
}

/// Where connections at this distance lead, with shares. Only this place would change if agents counted
/// by the zone of the endpoint.
fn destinations(
    leads: Option<&[(usize, f64)]>,
    locality: Locality,
    own: usize,
) -> Vec<(Option<usize>, f64)> {
    match leads {
        // Whatever the decision is by now, that is where they went.
        _ if locality == Locality::Node => vec![(Some(own), 1.0)],
        Some(shares) if !shares.is_empty() => {
            shares.iter().map(|&(group, share)| (Some(group), share)).collect()
        }
        _ => vec![(None, 1.0)],
    }
}

/// The Service of `namespace/name`.
pub(super) fn id(name: &str) -> Option<ServiceId> {
    let (namespace, name) = name.split_once('/')?;
    Some(ServiceId { namespace: namespace.into(), name: name.into() })
}

/// Whether nothing that a decision for this Service reads has changed, given the same Nodes. States share
/// objects that are the same.
fn is_same(old: &State, new: &State, id: &ServiceId) -> bool {
    let same_service = match (old.service(id), new.service(id)) {
        (Some(old), Some(new)) => std::ptr::eq(old, new) || old == new,
        (None, None) => true,
        _ => false,
    };
    let same = |((a, old), (b, new)): ((_, &_), (_, &_))| a == b && (std::ptr::eq(old, new) || old == new);
    same_service
        && old.slices(id).count() == new.slices(id).count()
        && old.slices(id).zip(new.slices(id)).all(same)
}
