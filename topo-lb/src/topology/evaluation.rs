//! One Service port in one address family, decided.

use crate::cluster::{Port, Service, State};

use super::candidate::{self, Candidate, Stock};
use super::cause::{Cause, Lack};
use super::hints::{self, Hinted, Off};
use super::keys::Keys;
use super::label::Here;
use super::openyurt::{self, Within};
use super::policy::Rules;
use super::validation::ANY;
use crate::cluster::Family;

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CandidateStatus {
    /// New connections go there.
    Chosen,
    /// New connections that spill go there.
    Wider,
    /// Could be used, but the policy does not choose it.
    Passed,
    /// Not ready, or not as good as ready.
    Unusable,
    /// On another node, which `internalTrafficPolicy: Local` excludes.
    Remote,
}

/// The decision for one Service port in one address family.
pub(super) struct Evaluation<'a> {
    /// Sorted by address and port.
    pub(super) candidates: Vec<Candidate<'a>>,
    /// What became of each of them.
    pub(super) statuses: Vec<CandidateStatus>,
    /// The policy is hints: there are some, and nothing forbids to look at them.
    pub(super) hinted: bool,
    pub(super) stock: Stock,
    /// How many `internalTrafficPolicy` left: all, or those on this node.
    pub(super) near: usize,
    /// How many of these the policy had to choose from.
    pub(super) usable: usize,
    /// How many it chose; none: refused.
    pub(super) chosen: usize,
    /// Index of the key that spilled connections go by, and how many endpoints it adds.
    pub(super) wider: Option<(usize, usize)>,
    pub(super) cause: Cause<'a>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn of(
        state: &'a State,
        here: Here<'a>,
        service: &Service,
        port: &Port,
        rules: &Rules<'a>,
        family: Family,
    ) -> Self {
        let candidates = candidate::of(state, service, port, family);
        let near: Vec<usize> = (0..candidates.len())
            .filter(|&index| !service.internal_local || candidates[index].site.is_on(here.name))
            .collect();
        let (stock, usable) = candidate::usable(&candidates, &near);
        let hinted = *rules == Rules::None
            && !service.internal_local
            && candidates.iter().any(Candidate::is_hinted);
        let picked = if candidates.is_empty() {
            Picked::nothing(Cause::NoEndpoint(Lack::of(state, service, port)))
        } else if near.is_empty() {
            Picked::nothing(Cause::NoneHere)
        } else if usable.is_empty() {
            Picked::nothing(Cause::NoneUsable)
        } else {
            choose(rules, hinted, here, &candidates, &usable, stock)
        };

        let mut statuses = vec![CandidateStatus::Remote; candidates.len()];
        let mut mark = |indices: &[usize], status| {
            indices.iter().for_each(|&index| statuses[index] = status);
        };
        mark(&near, CandidateStatus::Unusable);
        mark(&usable, CandidateStatus::Passed);
        mark(&picked.chosen, CandidateStatus::Chosen);
        if let Some((_, members)) = &picked.wider {
            mark(members, CandidateStatus::Wider);
        }
        Self {
            candidates,
            statuses,
            hinted,
            stock,
            near: near.len(),
            usable: usable.len(),
            chosen: picked.chosen.len(),
            wider: picked.wider.map(|(tier, members)| (tier, members.len())),
            cause: picked.cause,
        }
    }
}

impl Evaluation<'_> {
    /// The candidates that the policy had to choose from, as indices.
    pub(super) fn usable(&self) -> Vec<usize> {
        let usable = |index: &usize| {
            matches!(
                self.statuses[*index],
                CandidateStatus::Chosen | CandidateStatus::Wider | CandidateStatus::Passed
            )
        };
        (0..self.statuses.len()).filter(usable).collect()
    }

    /// Index of the key that decided.
    pub(super) const fn tier(&self) -> Option<u8> {
        self.cause.tier(self.chosen)
    }
}

/// What a policy picked, as indices of candidates.
struct Picked<'a> {
    cause: Cause<'a>,
    chosen: Vec<usize>,
    /// For spilled connections: the key's index, and what it adds.
    wider: Option<(usize, Vec<usize>)>,
}

impl<'a> Picked<'a> {
    const fn nothing(cause: Cause<'a>) -> Self {
        Self::only(cause, Vec::new())
    }

    const fn only(cause: Cause<'a>, chosen: Vec<usize>) -> Self {
        Self { cause, chosen, wider: None }
    }
}

/// Applies the policy to `usable`, indices of `candidates`, of which there is at least one.
fn choose<'a>(
    rules: &Rules<'a>,
    hinted: bool,
    here: Here<'a>,
    candidates: &[Candidate<'a>],
    usable: &[usize],
    stock: Stock,
) -> Picked<'a> {
    match rules {
        Rules::Keys(keys) => match keys.choose(here, candidates, usable) {
            None => Picked::nothing(Cause::NoKey),
            Some(tier) => Picked {
                cause: key_cause(keys, tier.index, here),
                chosen: tier.members,
                wider: tier.wider,
            },
        },
        Rules::OpenYurt { reach, .. } => {
            let (within, chosen) = openyurt::choose(*reach, here, candidates, usable);
            let cause = match within {
                Within::Node => Cause::Node,
                Within::Pool(pool) => Cause::Pool(pool),
                Within::NodeForLackOfPool => Cause::NodeForLackOfPool,
            };
            Picked::only(cause, chosen)
        }
        Rules::None if !hinted => Picked::only(Cause::Unconstrained, usable.to_vec()),
        Rules::None if stock == Stock::Draining => {
            Picked::only(Cause::HintsOff(Off::NoneReady), usable.to_vec())
        }
        Rules::None => {
            let (hinted, chosen) = hints::choose(here, candidates, usable);
            let cause = match hinted {
                Hinted::Node => Cause::HintedNode,
                Hinted::Zone(zone) => Cause::HintedZone(zone),
                Hinted::Off(why) => Cause::HintsOff(why),
            };
            Picked::only(cause, chosen)
        }
    }
}

/// The cause that the key at `index` is; there are at most [`MAX_KEYS`](super::validation::MAX_KEYS).
fn key_cause<'a>(keys: &Keys<'a>, index: usize, here: Here<'a>) -> Cause<'a> {
    let tier = u8::try_from(index).unwrap_or(u8::MAX);
    let key = keys.keys[index];
    match here.label(key) {
        Some(value) if key != ANY => Cause::Key { tier, key, value },
        _ => Cause::Any { tier },
    }
}
