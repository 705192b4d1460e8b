//! Which policies save most of what clients pay for bytes that leave their zone: pure. A policy is tried as `plan
//! --set` would, by the same functions, so what is advised is what `plan` then predicts.

mod candidate;
mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;

use super::cost::{has_regions, of_ports};
use super::load::{self, Load};
use super::{
    ASSUMPTION, BYTES_ASSUMPTION, Both, Bytes, Chosen, Figures, Prices, Proxied, compare, months,
};
use crate::cluster::{ServiceId, State};
use crate::explain::shown_id;
use crate::topology::label::{REGION, ZONE};
use crate::topology::{NodesByLabel, Scope};
use candidate::{Candidate, Enough, Kept};
pub use shown::table;

/// Savings below this, in money of the counted time, are what floating-point numbers lose.
const NOTHING: f64 = 1e-9;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Which Services agents handle.
    pub scope: Scope,
    /// What agents have counted.
    pub figures: &'a Figures,
    /// What bytes cost.
    pub prices: Prices,
    /// Most that the busiest endpoint may get, in shares that all would get if all had the same; at least 1.
    pub max_load: f64,
    /// Least that a policy saves, in money of a month; of the counted time where that is not known.
    pub min_saving: f64,
    /// Of which Services; of all if it is empty.
    pub chosen: &'a [Chosen],
}

/// The advice. Its JSON is a fixed interface.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// How clients are counted.
    pub assumption: &'static str,
    /// How bytes are attributed.
    pub bytes_assumption: &'static str,
    /// The time that the bytes are of, such as `7d`; `None`: since the agents' counters began.
    pub over: Option<String>,
    /// How many times that is in a month of 30 days; `None` if it is not known.
    pub months: Option<f64>,
    /// What a GB costs.
    pub prices: Prices,
    /// Most load of the busiest endpoint.
    pub max_load: f64,
    /// Least that a policy is to save, in money of a month; of the counted time where that is not known.
    pub min_saving: f64,
    /// What to annotate, what saves most first.
    pub services: Vec<Advised>,
    /// Services that pay and are left as they are, what costs most first.
    pub left: Vec<Left>,
    /// What all Services with bytes cost, in money of the counted time: now, and after all that is advised.
    pub money: Both<f64>,
    /// Bytes that left the zone of clients that dialled endpoints by their own addresses: no policy moves them.
    pub direct: f64,
    /// The Services of these endpoints, those with most bytes first.
    pub direct_services: Vec<String>,
    /// Services of which no bytes are known.
    pub uncounted: usize,
}

/// A policy for a Service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advised {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// What to set, as `plan --set` takes it.
    pub settings: Vec<String>,
    /// The annotations with their values.
    pub annotations: BTreeMap<&'static str, String>,
    /// The same as a command.
    pub command: String,
    /// The bytes of its TCP ports, as `plan` has them.
    pub bytes: Bytes,
    /// What these cost: now, by what left its zone; and after.
    pub money: Both<f64>,
    /// The busiest endpoint's load, in shares that all would get if all had the same.
    pub load: Both<Option<f64>>,
    /// How many nodes would be refused that are not now.
    pub refused: usize,
}

/// A Service that pays, and is left as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Left {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// What it costs, in money of the counted time.
    pub money: f64,
    /// Why.
    pub why: String,
}

/// A Service as it is, and the best of what was tried.
#[derive(Debug, Default)]
struct Tried {
    /// `None` if it may be changed.
    kept: Option<Kept>,
    /// Of the policies that it has now.
    now: Option<Outcome>,
    best: Option<(Candidate, Outcome)>,
    enough: Enough,
    /// The least load of what would save something, if that is too much.
    least_load: Option<f64>,
}

/// What a change of one Service does.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    bytes: Bytes,
    money: Both<f64>,
    load: Both<Option<f64>>,
    refused: usize,
    /// Whether the bytes are of before the policy that it has now.
    is_outdated: bool,
}

/// The policies to set in a cluster. Each is the one that saves most of those that are tried for its Service,
/// refuses nobody, and keeps every endpoint's load within the bound: a larger bound never saves less.
#[must_use]
pub fn advise(state: &State, asked: &Asked<'_>) -> Advice {
    let before = Proxied::of(state.clone(), asked.scope);
    let nodes = NodesByLabel::of(&before.state);
    let labels: &[&str] = if has_regions(state) { &[ZONE, REGION] } else { &[ZONE] };
    let mut tried: BTreeMap<&ServiceId, Tried> = state
        .services()
        .filter(|id| asked.figures.has(id) && Chosen::any(asked.chosen, id))
        .map(|id| (id, Tried { kept: Kept::of(state, id), ..Tried::default() }))
        .collect();
    let figures = Some(asked.figures);
    // Before each change it is the same.
    let loads = |id: &&ServiceId| -> Vec<_> {
        labels.iter().map(|label| load::of(&before, &nodes, label, id, figures)).collect()
    };
    let ids: Vec<&ServiceId> = tried.keys().copied().collect();
    let old: BTreeMap<_, _> = ids.par_iter().map(|id| (*id, loads(id))).collect();
    for candidate in Candidate::all(labels.len() > 1) {
        let mut after = state.clone();
        let ids: Vec<&ServiceId> = tried
            .iter()
            .filter(|(_, one)| one.kept.is_none() && !candidate.is_needless(&one.enough))
            .map(|(id, _)| *id)
            // A rule may forbid it, such as that weights exclude spill.
            .filter(|id| super::apply(&mut after, &candidate.settings(state, id)).is_ok())
            .collect();
        let outcomes = outcomes(&old, after, &ids, labels, asked);
        for (id, outcome) in ids.into_iter().zip(outcomes) {
            if let (Some(one), Some(outcome)) = (tried.get_mut(id), outcome) {
                one.meet(candidate, outcome, asked.max_load);
            }
        }
    }
    // What those cost that were not tried.
    let ids: Vec<&ServiceId> =
        tried.iter().filter(|(_, one)| one.now.is_none()).map(|(id, _)| *id).collect();
    let same = outcomes(&old, state.clone(), &ids, labels, asked);
    for (id, outcome) in ids.into_iter().zip(same) {
        if let Some(one) = tried.get_mut(id) {
            one.now = outcome;
        }
    }
    advice(state, tried, asked)
}

/// The loads of Services before a change, for each label.
type Loads<'a> = BTreeMap<&'a ServiceId, Vec<Vec<Arc<Load<'a>>>>>;

/// What the change of each Service from its `old` loads to `after` does; `None` if no bytes of it are known.
fn outcomes(
    old: &Loads<'_>,
    after: State,
    ids: &[&ServiceId],
    labels: &[&str],
    asked: &Asked<'_>,
) -> Vec<Option<Outcome>> {
    let after = Proxied::of(after, asked.scope);
    let new_nodes = NodesByLabel::of(&after.state);
    let figures = Some(asked.figures);
    let outcome = |id: &&ServiceId| {
        let by = |(place, label): (usize, &&str)| {
            let new = load::of(&after, &new_nodes, label, id, figures);
            compare::by_loads([&old.get(id)?[place], &new], &after.state, label, id, figures).into()
        };
        let mut ports = labels.iter().enumerate().map(by);
        let (by_zone, by_region): (Vec<_>, _) = (ports.next()??, ports.next().flatten());
        let bytes = |ports: &[compare::Compared<'_>]| {
            let mut known = ports.iter().filter_map(|(port, _)| port.bytes);
            let first = known.next()?;
            Some(known.fold(first, |mut sum, more| {
                sum += more;
                sum
            }))
        };
        let bytes_by_zone = bytes(&by_zone)?;
        let money = of_ports(
            by_zone.iter().map(|(port, _)| port),
            by_region.iter().flatten().map(|(port, _)| port),
            &asked.prices,
        );
        let ports = by_zone.iter().map(|(port, _)| port);
        let load = |of: fn(Both<Option<f64>>) -> Option<f64>| {
            let loads = ports.clone().filter_map(|port| of(port.busiest()));
            loads.max_by(f64::total_cmp)
        };
        let groups = ports.clone().flat_map(|port| &port.groups);
        Some(Outcome {
            bytes: bytes_by_zone,
            money,
            load: Both { before: load(|it| it.before), after: load(|it| it.after) },
            refused: groups.map(|group| group.newly_refused.len()).sum(),
            is_outdated: by_zone.iter().any(|(port, _)| port.is_outdated()),
        })
    };
    ids.par_iter().map(outcome).collect()
}

impl Tried {
    fn meet(&mut self, candidate: Candidate, outcome: Outcome, max_load: f64) {
        self.now = self.now.or(Some(outcome));
        let saves = |it: &Outcome| it.money.before - it.money.after;
        if saves(&outcome) <= NOTHING || outcome.refused > 0 || outcome.is_outdated {
            return;
        }
        let load = outcome.load.after.unwrap_or_default();
        // What differs by a rounding error is within the bound.
        if load > max_load * (1.0 + NOTHING) {
            self.least_load = Some(self.least_load.map_or(load, |least| least.min(load)));
            return;
        }
        self.enough.meet(candidate);
        if self.best.as_ref().is_none_or(|(_, best)| saves(&outcome) > saves(best) + NOTHING) {
            self.best = Some((candidate, outcome));
        }
    }
}

fn advice(state: &State, tried: BTreeMap<&ServiceId, Tried>, asked: &Asked<'_>) -> Advice {
    let chosen = |id: &&ServiceId| Chosen::any(asked.chosen, id);
    let translated = state
        .services()
        .filter(chosen)
        .filter(|id| state.service(id).is_some_and(|service| service.skipped.is_none()));
    let is_unknown = |id: &&ServiceId| !asked.figures.knows(id);
    let uncounted = translated.filter(is_unknown).count();
    let over = asked.figures.over.as_deref();
    let months = over.and_then(months);
    // What differs by a rounding error is enough.
    let least = asked.min_saving / months.unwrap_or(1.0) * (1.0 - NOTHING);
    let (mut services, mut left) = (Vec::new(), Vec::new());
    let mut money = Both::default();
    for (id, Tried { kept, now, best, least_load, .. }) in tried {
        let (namespace, name) = (id.namespace.to_string(), id.name.to_string());
        let Some(now) = now else { continue };
        let saves = |(_, it): &(Candidate, Outcome)| it.money.before - it.money.after;
        let is_little = best.as_ref().is_some_and(|best| saves(best) < least);
        if let Some((candidate, outcome)) = best.filter(|_| !is_little) {
            money.before += outcome.money.before;
            money.after += outcome.money.after;
            services.push(candidate.advised(state, id, &outcome));
            continue;
        }
        money.before += now.money.before;
        money.after += now.money.before;
        if now.money.before <= NOTHING && !now.is_outdated {
            continue;
        }
        let why = match (kept, least_load) {
            (Some(kept), _) => kept.why().to_owned(),
            (None, _) if now.is_outdated => {
                "as its policy lets; most of what left its zone did so before: ask later, or for a shorter time".to_owned()
            }
            (None, _) if is_little => "its best policy saves less than was asked for".to_owned(),
            (None, Some(load)) => format!(
                "what would save something loads an endpoint ×{load:.2}; endpoints in more zones help, or a larger \
                 bound of load"
            ),
            (None, None) => {
                "no policy saves anything: endpoints are not where clients are".to_owned()
            }
        };
        left.push(Left { namespace, name, money: now.money.before, why });
    }
    let saves = |it: &Advised| it.money.before - it.money.after;
    services.sort_by(|a, b| saves(b).total_cmp(&saves(a)).then_with(|| place(a).cmp(&place(b))));
    left.sort_by(|a, b| b.money.total_cmp(&a.money));
    Advice {
        assumption: ASSUMPTION,
        bytes_assumption: BYTES_ASSUMPTION,
        over: over.map(str::to_owned),
        months,
        prices: asked.prices,
        max_load: asked.max_load,
        min_saving: asked.min_saving,
        services,
        left,
        money,
        direct: asked.figures.direct(state.services().filter(chosen)),
        direct_services: asked
            .figures
            .dialled(state)
            .into_iter()
            .filter(chosen)
            .map(shown_id)
            .collect(),
        uncounted,
    }
}

fn place(one: &Advised) -> (&str, &str) {
    (&one.namespace, &one.name)
}

impl Candidate {
    fn advised(self, state: &State, id: &ServiceId, outcome: &Outcome) -> Advised {
        let settings = self.settings(state, id);
        let annotations = settings.iter().map(super::Setting::annotation);
        let annotations: BTreeMap<_, _> =
            annotations.filter_map(|(name, value)| Some((name, value?.to_owned()))).collect();
        let words: Vec<_> =
            annotations.iter().map(|(name, value)| format!("'{name}={value}'")).collect();
        let (namespace, name) = (&*id.namespace, &*id.name);
        Advised {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            command: format!(
                "kubectl annotate service -n {namespace} {name} --overwrite {}",
                words.join(" ")
            ),
            annotations,
            settings: settings.iter().map(ToString::to_string).collect(),
            bytes: outcome.bytes,
            money: outcome.money,
            load: outcome.load,
            refused: outcome.refused,
        }
    }
}

impl Advised {
    /// The Service with these annotations and nothing else, as YAML for `kubectl apply --server-side`.
    #[must_use]
    pub fn manifest(&self) -> String {
        let Self { namespace, name, annotations, .. } = self;
        let lines: String =
            annotations.iter().map(|(key, value)| format!("    {key}: {value:?}\n")).collect();
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: {namespace}\n  name: {name:?}\n  annotations:\n{lines}"
        )
    }

    /// `namespace/name`.
    #[must_use]
    pub fn service(&self) -> String {
        shown_id(&ServiceId {
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
        })
    }
}
