//! Which evacuations empty a node of a Service's endpoints, for figures: what they evacuate, until when.

use k8s_openapi::jiff::Timestamp;

use super::evacuation::Evacuation;
use super::label::Site;
use super::policy;
use super::scope::{Scope, is_headless};
use super::trial::{Seen, place};
use crate::cluster::{ServiceId, State};

/// What is evacuated until when. What has no end comes first, then what ends first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evacuated {
    /// Seconds since 1970, UTC; `None`: without an end.
    pub until: Option<i64>,
    /// A label.
    pub key: String,
    /// Its value.
    pub value: String,
}

impl Evacuated {
    /// Each label of an evacuation.
    fn all(evacuation: &Evacuation<'_>) -> impl Iterator<Item = Self> {
        let until = evacuation.until;
        let of = move |&(key, value): &(&str, &str)| Self {
            until,
            key: key.to_owned(),
            value: value.to_owned(),
        };
        evacuation.labels.iter().map(of)
    }

    /// Its end as text; empty without one.
    #[must_use]
    pub fn end(&self) -> String {
        let end = self.until.and_then(|until| Timestamp::from_second(until).ok());
        end.map_or_else(String::new, |end| end.to_string())
    }
}

/// What a text evacuates, if that holds on a node at a time; else nothing.
#[must_use]
pub fn holding(text: &str, node: &str, now: Option<i64>) -> Vec<Evacuated> {
    let evacuation = Evacuation::read(text).ok().filter(|it| it.holds(now, place(node)));
    evacuation.iter().flat_map(Evacuated::all).collect()
}

/// What holds on a node for a Service that has endpoints there.
#[must_use]
pub fn evacuated(state: &State, this_node: &str, scope: Scope, id: &ServiceId) -> Vec<Evacuated> {
    // Most clusters evacuate nothing, and are asked at every change.
    if state.evacuations().next().is_none() {
        return Vec::new();
    }
    let Some(service) = state.service(id).filter(|it| !it.internal_local || is_headless(it)) else {
        return Vec::new();
    };
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(scope, service).is_some() {
        return Vec::new();
    }
    let has = |it: &Evacuated| {
        let mut all = state.slices(id).flat_map(|(_, slice)| &slice.endpoints);
        all.any(|endpoint| Site::of(state, endpoint).label(&it.key) == Ok(&it.value))
    };
    let mut found: Vec<_> = policy.evacuating.here.iter().flat_map(Evacuated::all).collect();
    found.sort();
    found.dedup();
    found.retain(has);
    found
}
