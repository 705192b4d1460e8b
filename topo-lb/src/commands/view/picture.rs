//! What one page shows, as JSON. A page that was away gets the newest state, not what it missed; of the
//! history it gets the points that it has not seen.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use super::cluster::{Cluster, id};
use super::groups::ungrouped;
use super::histories::BUSIEST;
use super::history::Point;
use super::lens::{Flows, Lens, PageGroups};
use super::look::Looks;
use super::newest::Newest;
use super::treatment::Treatment;
use super::waterfall::Waterfall;
use crate::commands::top::{Column, Rate, Row, order};
use topo_lb_core::cluster::State;
use topo_lb_core::metrics::Tier;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::label::ZONE;

/// Most rows of the list of Services.
const SERVICES: usize = 60;
/// Most nodes of a Service with rates of their own.
const NODES: usize = 200;
/// Most sentences about nodes.
const TROUBLES: usize = 20;
/// Most pictures that are made at the same time; the others wait.
const MAKING: usize = 4;
/// Labels whose groups are remembered; each page uses one.
const LENSES: usize = 4;

/// What a page asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    /// The label that groups nodes.
    by: String,
    /// The picked Service, `namespace/name`.
    service: String,
    /// Only Services whose names contain this.
    filter: String,
    /// The column that sorts Services, as `--sort` of `top` takes it.
    sort: String,
}

/// What a page has already.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// The revision of the cluster, and the groups, which agents of unknown Nodes also change.
    groups: Option<(u64, Arc<super::groups::Groups>)>,
    /// From when on history is missing.
    since: u64,
}

/// What the page is told.
#[derive(Debug, Serialize)]
struct Picture<'a> {
    /// Only if they have changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<PageGroups<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<Waterfall>,
    now: Now<'a>,
}

#[derive(Debug, Serialize)]
struct Now<'a> {
    look: u64,
    /// Seconds since 1970.
    at: u64,
    /// Seconds between two looks.
    interval: f64,
    /// How many agents were asked, how many answered both times, and how many of these only observe.
    asked: usize,
    answered: usize,
    observing: usize,
    /// How many nodes there are, with and without an agent.
    nodes: usize,
    /// How many Services nobody counts, as they have no policy.
    uncounted: usize,
    /// How many Services with most traffic have a time line.
    busiest: usize,
    flows: &'a Flows,
    services: Vec<Listed>,
    /// How many Services match the filter.
    matching: usize,
    /// The rates of the picked Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    picked: Option<Picked<'a>>,
    /// Sentences about the agents.
    troubles: Vec<String>,
    /// How many agents have troubles.
    all_troubles: usize,
    /// Of the picked Service, or of all.
    history: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Listed {
    name: Arc<str>,
    treatment: Treatment,
    #[serde(flatten)]
    past: Past,
    #[serde(flatten)]
    rate: Rate,
}

/// Of a Service's bytes a second, those that topo-lb did not translate; `None` if no agent counts such.
#[derive(Debug, Serialize)]
struct Past {
    /// Left to another proxy.
    left: Option<f64>,
    /// Dialled directly.
    direct: Option<f64>,
}

impl Past {
    fn of(row: Option<&Row>, counts_all: bool) -> Self {
        let bytes = |tier| row.and_then(|row| row.tiers.get(&tier)).map_or(0.0, |it| it.bytes);
        let [left, direct] = [Tier::Left, Tier::Direct].map(|it| counts_all.then(|| bytes(it)));
        Self { left, direct }
    }
}

#[derive(Debug, Serialize)]
struct Picked<'a> {
    name: &'a str,
    treatment: Treatment,
    #[serde(flatten)]
    past: Past,
    #[serde(flatten)]
    rate: Rate,
    /// Those with most connections.
    nodes: BTreeMap<&'a str, &'a Rate>,
}

/// A lens, and what it showed last.
#[derive(Debug)]
struct Shown {
    lens: Lens,
    /// By the look and the revision of the cluster.
    flows: Option<(u64, u64, Arc<Flows>)>,
}

/// Makes pictures for all pages.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(super) cluster: watch::Receiver<Arc<Cluster>>,
    pub(super) looks: Looks,
    by: String,
    /// Which Services are handled; `None`: as agents say.
    scope: Option<Scope>,
    /// Permits of pictures that are made at the same time.
    pub(super) making: Arc<Semaphore>,
    /// By label; the one that was used last comes last.
    lenses: Mutex<Vec<(String, Arc<Mutex<Shown>>)>>,
}

impl Viewer {
    pub(super) fn new(
        cluster: watch::Receiver<Arc<Cluster>>,
        looks: Looks,
        by: String,
        scope: Option<Scope>,
    ) -> Self {
        let making = Arc::new(Semaphore::new(MAKING));
        Self { cluster, looks, by, scope, making, lenses: Mutex::default() }
    }

    fn lens(&self, label: &str) -> Arc<Mutex<Shown>> {
        let mut lenses = self.lenses.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lenses.iter().position(|(name, _)| name == label);
        let one = match known {
            Some(place) => lenses.remove(place),
            None => {
                let lens = Lens::new(label);
                (label.to_owned(), Arc::new(Mutex::new(Shown { lens, flows: None })))
            }
        };
        if lenses.len() == LENSES {
            lenses.remove(0);
        }
        let shown = Arc::clone(&one.1);
        lenses.push(one);
        shown
    }

    /// The newest picture. Takes long if the cluster is large: call it where that is no harm.
    pub(super) fn picture(
        &self,
        asked: &Asked,
        sent: &mut Sent,
    ) -> Result<String, serde_json::Error> {
        let label = if asked.by.is_empty() { &self.by } else { &asked.by };
        let newest = Arc::clone(&self.looks.newest.borrow());
        let cluster = Arc::clone(&self.cluster.borrow());
        // Whatever labels are asked for, those that group nothing share what is computed for one.
        let ungrouped = ungrouped(&cluster.state, label).filter(|_| label != ZONE);
        let shown = self.lens(if ungrouped.is_some() { "" } else { label });
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = self.scope.or(newest.scope).unwrap_or_default();
        shown.lens.take(&cluster, &newest.agents, scope);
        let picked = (!asked.service.is_empty()).then_some(&*asked.service);
        let flows = shown.flows(&newest, cluster.revision, picked);
        let state = &cluster.state;

        let groups = &shown.lens.groups;
        let is_same = sent.groups.as_ref().is_some_and(|(revision, known)| {
            *revision == cluster.revision && Arc::ptr_eq(known, groups)
        });
        sent.groups = Some((cluster.revision, Arc::clone(groups)));
        let service = picked.and_then(id).filter(|_| !is_same);
        let (services, matching) = services(&newest, &cluster, scope, asked);
        let history = {
            let histories = self.looks.histories.lock();
            let mut histories = histories.unwrap_or_else(PoisonError::into_inner);
            // Only what exists gets a time line, whatever a request names.
            if let Some(row) = picked.and_then(|name| row(&newest, name)) {
                histories.want(&row.service);
            }
            histories.since(picked, sent.since)
        };
        // The last point still changes.
        sent.since = history.last().map_or(sent.since, |point| point.at);
        let troubles = newest.troubles.iter().take(TROUBLES);
        let troubles = troubles.map(|(node, why)| format!("node {node}: {why}"));
        let picture = Picture {
            cluster: (!is_same).then(|| shown.lens.page(label, ungrouped.as_deref())),
            service: service.map(|id| Waterfall::of(state, label, scope, &id)),
            now: Now {
                look: newest.look,
                at: newest.at,
                interval: self.looks.interval.as_secs_f64(),
                asked: newest.agents.len(),
                answered: newest.answered.len(),
                observing: newest.observing,
                nodes: groups.nodes(),
                uncounted: if newest.all_count_all() { 0 } else { shown.lens.uncounted },
                busiest: BUSIEST,
                flows: &flows,
                services,
                matching,
                picked: picked.map(|name| of_picked(&newest, state, scope, name)),
                troubles: newest.sentence.iter().cloned().chain(troubles).collect(),
                all_troubles: newest.troubles.len(),
                history,
            },
        };
        serde_json::to_string(&picture)
    }
}

impl Shown {
    fn flows(&mut self, newest: &Newest, revision: u64, picked: Option<&str>) -> Arc<Flows> {
        let Newest { rows, answered, look, .. } = newest;
        if let Some(name) = picked {
            return Arc::new(self.lens.flows_of(row(newest, name), answered));
        }
        match &self.flows {
            Some((of_look, of_revision, flows))
                if (*of_look, *of_revision) == (*look, revision) =>
            {
                Arc::clone(flows)
            }
            _ => {
                let flows = Arc::new(self.lens.all_flows(rows, &newest.zones, answered));
                self.flows = Some((*look, revision, Arc::clone(&flows)));
                flows
            }
        }
    }
}

/// The first Services by the order that was asked for, and how many match. Those that nobody has used yet
/// are among them.
fn services(
    newest: &Newest,
    cluster: &Cluster,
    scope: Scope,
    asked: &Asked,
) -> (Vec<Listed>, usize) {
    let by = Column::from_str(&asked.sort, true).unwrap_or_default();
    let used: HashSet<&str> = newest.rows.iter().map(|row| &*row.service).collect();
    let unused = cluster.state.services().map(ToString::to_string);
    let unused: Vec<_> = unused
        .filter(|name| !used.contains(&**name))
        .map(|name| Row { service: name.into(), ..Row::default() })
        .collect();
    let mut rows: Vec<_> = newest.rows.iter().chain(&unused).collect();
    // Names of Services are in lower case.
    let filter = asked.filter.to_lowercase();
    rows.retain(|row| row.service.contains(&filter));
    let before = |a: &&Row, b: &&Row| order(by, a, b).then_with(|| a.service.cmp(&b.service));
    let matching = rows.len();
    if matching > SERVICES {
        rows.select_nth_unstable_by(SERVICES, before);
        rows.truncate(SERVICES);
    }
    rows.sort_by(before);
    let counts_all = newest.counting_all > 0;
    let listed = |row: &Row| Listed {
        name: Arc::clone(&row.service),
        treatment: Treatment::of(&cluster.state, scope, counts_all, &row.service),
        past: Past::of(Some(row), counts_all),
        rate: row.rate.clone(),
    };
    (rows.into_iter().map(listed).collect(), matching)
}

/// The rates of a Service that has counted anything.
fn row<'a>(newest: &'a Newest, name: &str) -> Option<&'a Row> {
    let place = newest.rows.binary_search_by(|row| (*row.service).cmp(name)).ok()?;
    Some(&newest.rows[place])
}

fn of_picked<'a>(newest: &'a Newest, state: &State, scope: Scope, name: &'a str) -> Picked<'a> {
    let counts_all = newest.counting_all > 0;
    let treatment = Treatment::of(state, scope, counts_all, name);
    let row = row(newest, name);
    let past = Past::of(row, counts_all);
    let Some(row) = row else {
        return Picked { name, treatment, past, rate: Rate::default(), nodes: BTreeMap::new() };
    };
    let mut nodes: Vec<_> = row.nodes.iter().map(|(node, rate)| (&**node, rate)).collect();
    nodes.sort_by(|(_, a), (_, b)| b.all().total_cmp(&a.all()));
    nodes.truncate(NODES);
    let nodes = nodes.into_iter().collect();
    Picked { name, treatment, past, rate: row.rate.clone(), nodes }
}
