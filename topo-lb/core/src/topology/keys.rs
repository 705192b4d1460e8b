//! Policy *keys*: Kubernetes 1.17 Service Topology, over any node label. The first key with a match
//! decides; with `topo-lb.io/min-endpoints`, the first with enough matches. If no key has,
//! connections are refused: there is no silent fall-back.

use std::sync::Arc;

use super::candidate::Candidate;
use super::crowding::{Crowd, Crowding};
use super::label::Here;
use super::label_name::label_name;
use super::min_endpoints::Least;
use super::spill::{Share, Spill};
use super::validation::{ANY, MAX_KEYS, Rule, kept, quoted};
use crate::cluster::State;

/// The keys of annotation `topo-lb.io/topology-keys`: split at commas and trimmed.
///
/// # Errors
/// The first rule that they break.
pub(super) fn from_annotation(text: &str, external_local: bool) -> Result<Vec<&str>, Rule> {
    if text.trim().is_empty() {
        return Err(Rule::Empty);
    }
    // Counts before it splits, so that a megabyte of commas allocates no keys.
    let count = text.bytes().filter(|&byte| byte == b',').count() + 1;
    if count > MAX_KEYS {
        return Err(Rule::TooManyKeys { count });
    }
    validated(text.split(',').map(str::trim).collect(), external_local)
}

/// The keys of field `spec.topologyKeys`, which is not empty.
///
/// # Errors
/// The first rule that they break.
pub(super) fn from_field(keys: &[Arc<str>], external_local: bool) -> Result<Vec<&str>, Rule> {
    if keys.len() > MAX_KEYS {
        return Err(Rule::TooManyKeys { count: keys.len() });
    }
    let keys: Result<Vec<_>, _> = keys.iter().map(|key| kept(key)).collect();
    validated(keys?, external_local)
}

fn validated(keys: Vec<&str>, external_local: bool) -> Result<Vec<&str>, Rule> {
    let count = keys.len();
    for (index, &key) in keys.iter().enumerate() {
        let position = index + 1;
        if key.is_empty() {
            return Err(Rule::EmptyKey { position, count });
        }
        if key == ANY && position < count {
            return Err(Rule::AnyNotLast { position, count });
        }
        if key != ANY
            && let Err(fault) = label_name(key)
        {
            return Err(Rule::NotALabel { position, key: quoted(key), fault });
        }
        if let Some(first) = keys[..index].iter().position(|&other| other == key) {
            let key = quoted(key);
            return Err(Rule::Duplicate { key, first: first + 1, second: position });
        }
    }
    if external_local {
        return Err(Rule::WithExternalLocal);
    }
    Ok(keys)
}

/// Validated keys, and what refines them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys<'a> {
    /// At least one, at most [`MAX_KEYS`].
    pub(super) keys: Vec<&'a str>,
    /// How many endpoints each key needs to be chosen; 1 by default.
    pub(super) min_endpoints: Vec<Least>,
    /// Share of new connections for the next wider tier.
    pub(super) spill: Spill,
}

/// Where connections spill to; endpoints are indices of candidates.
pub(super) struct Wider {
    /// Index of a later key.
    pub(super) index: usize,
    /// The endpoints that it adds: at least one.
    pub(super) members: Vec<usize>,
    /// Not 0.
    pub(super) share: Share,
}

/// The tier that the keys choose; endpoints are indices of candidates.
pub(super) struct Tier {
    pub(super) index: usize,
    /// The endpoints that it matches.
    pub(super) members: Vec<usize>,
    pub(super) wider: Option<Wider>,
    /// With `spill: auto`, if there is a wider tier.
    pub(super) crowding: Option<Crowding>,
}

impl<'a> Keys<'a> {
    /// Keys without refinements.
    pub(super) fn of(keys: Vec<&'a str>) -> Self {
        Self { min_endpoints: vec![Least::Number(1); keys.len()], spill: Spill::NONE, keys }
    }

    /// The first key that matches enough members of `usable`.
    pub(super) fn choose(
        &self,
        state: &State,
        here: Here<'_>,
        candidates: &[Candidate<'_>],
        usable: &[usize],
    ) -> Option<Tier> {
        let matches = |key| matching(key, here, candidates, usable);
        let (index, members) = self.keys.iter().zip(&self.min_endpoints).enumerate().find_map(
            |(index, (key, &least))| {
                let members = matches(key);
                (members.len() >= least.of(usable.len())).then_some((index, members))
            },
        )?;
        let beyond = |key| {
            let mut more = matches(key);
            more.retain(|one| members.binary_search(one).is_err());
            more
        };
        let later = self.keys.iter().enumerate().skip(index + 1);
        let mut later = later.map(|(at, key)| (at, beyond(key))).filter(|(_, it)| !it.is_empty());
        let (wider, share, crowding) = match self.spill {
            Spill::NONE => (None, Share::default(), None),
            Spill::Share(share) => (later.next(), share, None),
            Spill::Auto => {
                let crowd = |at: usize| Crowd {
                    nodes: nodes(state, here, self.keys[at]),
                    endpoints: matches(self.keys[at]).len(),
                };
                let mut later: Vec<_> = later.collect();
                let all = later.last().map(|(at, _)| crowd(*at));
                let crowding = all.map(|all| Crowding { own: crowd(index), all });
                let has_room = |(at, _): &(usize, Vec<usize>)| {
                    crowding.is_some_and(|it| crowd(*at).is_at_most(it.all))
                };
                let wider = later.iter().position(has_room).map(|place| later.swap_remove(place));
                (wider, crowding.map_or_else(Share::default, Crowding::share), crowding)
            }
        };
        let wider = wider.filter(|_| !share.is_none());
        let wider = wider.map(|(index, members)| Wider { index, members, share });
        Some(Tier { index, members, wider, crowding })
    }
}

/// How many Nodes share this node's value of `key`; all for `*`.
fn nodes(state: &State, here: Here<'_>, key: &str) -> usize {
    match here.label(key) {
        _ if key == ANY => state.nodes().len(),
        Some(own) => state.nodes_with(key, own),
        None => 0,
    }
}

/// The members of `usable` that `key` matches. Both are sorted.
pub(super) fn matching(
    key: &str,
    here: Here<'_>,
    candidates: &[Candidate<'_>],
    usable: &[usize],
) -> Vec<usize> {
    if key == ANY {
        return usable.to_vec();
    }
    let Some(own) = here.label(key) else { return Vec::new() };
    let shares = |index: &usize| candidates[*index].site.label(key) == Ok(own);
    usable.iter().copied().filter(shares).collect()
}
