//! The decision for one Service port in one address family.

use crate::cluster::{Port, Protocol, Service, State};

use super::candidate::{self, Candidate, Stock};
use super::cause::{Cause, HintsOff, Missing};
use super::crowding::Crowding;
use super::ejection::leave_out;
use super::evacuation::{Evacuation, Leaving};
use super::keys::{Keys, Wider};
use super::label::Here;
use super::rules::Rules;
use super::spill::Share;
use super::validation::ANY;
use super::weights::{Part, Weights};
use super::{dead, hints, openyurt};
use crate::cluster::Family;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CandidateStatus {
    /// New connections go there.
    Chosen,
    /// Spilled new connections go there, or a share of all by the weight of a later tier.
    Wider,
    /// Chosen by the policy, but without a weight, while others have one.
    Weightless,
    /// Of one of these tiers, but ejected.
    Ejected,
    /// Usable, but evacuated.
    Evacuated,
    /// Ready, but this node has found that it does not answer, while it hears nothing from the API server.
    Dead,
    /// Usable, but not chosen by the policy.
    Passed,
    /// Not ready, and not a draining endpoint that stands in.
    Unusable,
    /// Excluded by `internalTrafficPolicy: Local`: not on this node.
    Remote,
}

/// What decides for some clients.
#[derive(Clone, Copy)]
pub(super) struct By<'p, 'a> {
    pub(super) rules: &'p Rules<'a>,
    pub(super) weights: Option<&'p Weights<'a>>,
    /// Those that hold on this node.
    pub(super) evacuations: &'p [Evacuation<'a>],
    /// Only endpoints on this node count: `internalTrafficPolicy: Local`, or for clients outside
    /// `externalTrafficPolicy: Local`. Then nothing is evacuated.
    pub(super) only_local: bool,
}

impl By<'static, '_> {
    /// Any endpoint on this node.
    pub(super) const ON_THIS_NODE: Self =
        Self { rules: &Rules::None, weights: None, evacuations: &[], only_local: true };
}

pub(super) struct Evaluation<'a> {
    /// Sorted by address and port.
    pub(super) candidates: Vec<Candidate<'a>>,
    /// One per candidate.
    pub(super) statuses: Vec<CandidateStatus>,
    /// Policy *hints* applies: no other policy is in force, `internalTrafficPolicy` is not `Local`,
    /// and a candidate has hints.
    pub(super) hinted: bool,
    pub(super) stock: Stock,
    /// How many candidates `internalTrafficPolicy` leaves: all, or those on this node.
    pub(super) near: usize,
    /// How many of these the policy can choose from.
    pub(super) usable: usize,
    /// What is evacuated.
    pub(super) leaving: Leaving,
    /// How many it chose; 0: refuse.
    pub(super) chosen: usize,
    /// Index of the key for spilled connections, how many endpoints it adds, and the share that spills.
    pub(super) wider: Option<(usize, usize, Share)>,
    /// How crowded the chosen tier is, with `spill: auto`.
    pub(super) crowding: Option<Crowding>,
    /// How new connections divide; empty without weights, or if they have no effect.
    pub(super) parts: Vec<Part<'a>>,
    /// How many were ejected.
    pub(super) ejected: Ejected,
    pub(super) cause: Cause<'a>,
}

/// How many endpoints were ejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ejected {
    /// Of the chosen tier.
    pub(super) chosen: usize,
    /// Of the tier for spilled connections.
    pub(super) wider: usize,
}

impl<'a> Evaluation<'a> {
    /// As [`of`](Self::of), with weights, and without what this node ejects.
    pub(super) fn whole(
        state: &'a State,
        here: Here<'a>,
        (service, port): (&Service, &Port),
        by: By<'_, 'a>,
        family: Family,
    ) -> Self {
        let done = Self::of(state, here, (service, port), by, family);
        done.weighed(by, here).leaving_out(state, service, port)
    }

    pub(super) fn of(
        state: &'a State,
        here: Here<'a>,
        (service, port): (&Service, &Port),
        by: By<'_, 'a>,
        family: Family,
    ) -> Self {
        let By { rules, only_local, .. } = by;
        let candidates = candidate::of(state, service, port, family);
        let near: Vec<usize> = (0..candidates.len())
            .filter(|&index| !only_local || candidates[index].site.is_on(here.name))
            .collect();
        let evacuations = if only_local { &[] } else { by.evacuations };
        // Who answers, of all.
        let mut alive = near.clone();
        let leaving = match evacuations.is_empty() {
            true => Leaving::default(),
            false => {
                let usable = candidate::usable(&candidates, &near).1;
                let dead = dead::divide(state, (service, port), &candidates, usable).1;
                alive.retain(|one| !dead.contains(one));
                Leaving::of(evacuations, &candidates, &alive)
            }
        };
        let staying: Vec<usize> = near.iter().copied().filter(|&one| !leaving.has(one)).collect();
        let (stock, usable) = candidate::usable(&candidates, &staying);
        let (usable, dead) = dead::divide(state, (service, port), &candidates, usable);
        let hinted =
            *rules == Rules::None && !only_local && candidates.iter().any(Candidate::is_hinted);
        let picked = if candidates.is_empty() {
            Picked::nothing(Cause::NoEndpoint(Missing::of(state, service, port)))
        } else if near.is_empty() {
            Picked::nothing(Cause::NoneHere)
        } else if usable.is_empty() {
            Picked::nothing(Cause::NoneUsable)
        } else {
            choose(state, rules, hinted, here, &candidates, &usable, stock)
        };
        let picked = match leaving.is_any() {
            true => picked.or_allowed(state, by, here, &candidates, [&alive, &usable]),
            false => picked,
        };

        let mut statuses = vec![CandidateStatus::Remote; candidates.len()];
        let mut mark = |indices: &[usize], status| {
            indices.iter().for_each(|&index| statuses[index] = status);
        };
        mark(&near, CandidateStatus::Unusable);
        if leaving.is_any() {
            let would_be = candidate::usable(&candidates, &near).1.into_iter();
            let leave = would_be.filter(|&one| leaving.has(one)).collect::<Vec<_>>();
            mark(&leave, CandidateStatus::Evacuated);
        }
        mark(&dead, CandidateStatus::Dead);
        mark(&usable, CandidateStatus::Passed);
        mark(&picked.chosen, CandidateStatus::Chosen);
        if let Some(wider) = &picked.wider {
            mark(&wider.members, CandidateStatus::Wider);
        }
        Self {
            candidates,
            statuses,
            hinted,
            stock,
            near: near.len(),
            usable: usable.len(),
            leaving,
            chosen: picked.chosen.len(),
            wider: picked.wider.map(|it| (it.index, it.members.len(), it.share)),
            crowding: picked.crowding,
            parts: Vec::new(),
            ejected: Ejected::default(),
            cause: picked.cause,
        }
    }

    /// The same with weights, under the rules that it was made with.
    pub(super) fn weighed(mut self, by: By<'_, 'a>, here: Here<'a>) -> Self {
        let Some(weights) = by.weights.filter(|_| self.chosen > 0) else { return self };
        let chosen = self.of_status(|status| status == CandidateStatus::Chosen);
        let usable = self.usable();
        self.parts = weights.divide(by.rules, here, &self.candidates, &usable, &chosen);
        if self.parts.is_empty() {
            return self;
        }
        chosen.iter().for_each(|&one| self.statuses[one] = CandidateStatus::Weightless);
        for (at, part) in self.parts.iter().enumerate() {
            let is_first = at == 0 || weights.label().is_some();
            let status = if is_first { CandidateStatus::Chosen } else { CandidateStatus::Wider };
            part.members.iter().for_each(|&one| self.statuses[one] = status);
        }
        self
    }

    /// The same without the endpoints that this node ejects; made after weights.
    fn leaving_out(mut self, state: &State, service: &Service, port: &Port) -> Self {
        let ejections = state.ejections().services.get(&service.id);
        // Only TCP connects are seen to fail.
        let Some(ejections) = ejections.filter(|_| port.protocol == Protocol::Tcp) else {
            return self;
        };
        let mut leave = |status| {
            let out = leave_out(ejections, &self.candidates, self.of_status(|one| one == status));
            for &index in &out {
                self.statuses[index] = CandidateStatus::Ejected;
                self.parts.iter_mut().for_each(|part| part.members.retain(|&one| one != index));
            }
            out.len()
        };
        let (chosen, wider) = (leave(CandidateStatus::Chosen), leave(CandidateStatus::Wider));
        self.ejected = Ejected { chosen, wider };
        self.chosen -= chosen;
        self.wider = self.wider.map(|(tier, members, share)| (tier, members - wider, share));
        self.parts.retain(|part| !part.members.is_empty());
        self
    }
}

impl Evaluation<'_> {
    /// Indices of the candidates with such a status.
    pub(super) fn of_status(&self, test: impl Fn(CandidateStatus) -> bool) -> Vec<usize> {
        (0..self.statuses.len()).filter(|&index| test(self.statuses[index])).collect()
    }

    /// Indices of the candidates that the policy can choose from.
    pub(super) fn usable(&self) -> Vec<usize> {
        use CandidateStatus::{Dead, Evacuated, Remote, Unusable};
        let unusable = [Unusable, Remote, Evacuated, Dead];
        self.of_status(|status| !unusable.contains(&status))
    }

    /// Whether refused connections of clients outside get no answer: with `externalTrafficPolicy: Local`,
    /// as an endpoint on another node could be used. Without one anywhere, kube-proxy refuses them, too.
    pub(super) fn drops(&self, service: &Service) -> bool {
        let all = || (0..self.candidates.len()).collect::<Vec<_>>();
        let is_elsewhere = || !candidate::usable(&self.candidates, &all()).1.is_empty();
        service.external_local && self.chosen == 0 && is_elsewhere()
    }

    pub(super) const fn tier(&self) -> Option<u8> {
        self.cause.tier(self.chosen)
    }
}

/// A policy's choice; endpoints are indices of candidates.
struct Picked<'a> {
    cause: Cause<'a>,
    chosen: Vec<usize>,
    wider: Option<Wider>,
    crowding: Option<Crowding>,
}

impl<'a> Picked<'a> {
    const fn nothing(cause: Cause<'a>) -> Self {
        Self::only(cause, Vec::new())
    }

    /// What `allow-strict` of an evacuation allows, where the policy has an endpoint only without the evacuation.
    /// The lists are indices of candidates: all, and those that can be used.
    fn or_allowed(
        self,
        state: &State,
        by: By<'_, 'a>,
        here: Here<'a>,
        candidates: &[Candidate<'a>],
        [all, usable]: [&[usize]; 2],
    ) -> Self {
        let allowed = by.evacuations.iter().find_map(|it| it.allow_strict);
        let Some(allowed) = allowed.filter(|_| self.chosen.is_empty() && !usable.is_empty()) else {
            return self;
        };
        let (stock, before) = candidate::usable(candidates, all);
        if choose(state, by.rules, false, here, candidates, &before, stock).chosen.is_empty() {
            return self;
        }
        let own = match by.rules {
            Rules::Keys(keys) => keys.keys.len(),
            Rules::OpenYurt { .. } | Rules::None => 1,
        };
        match Keys::of(vec![allowed]).choose(state, here, candidates, usable) {
            None => self,
            Some(tier) => Self::only(cause_of(allowed, own, here), tier.members),
        }
    }

    const fn only(cause: Cause<'a>, chosen: Vec<usize>) -> Self {
        Self { cause, chosen, wider: None, crowding: None }
    }
}

/// Applies the policy to `usable`: indices of `candidates`, at least one.
fn choose<'a>(
    state: &State,
    rules: &Rules<'a>,
    hinted: bool,
    here: Here<'a>,
    candidates: &[Candidate<'a>],
    usable: &[usize],
    stock: Stock,
) -> Picked<'a> {
    match rules {
        Rules::Keys(keys) => match keys.choose(state, here, candidates, usable) {
            None => Picked::nothing(Cause::NoKey),
            Some(tier) => Picked {
                cause: key_cause(keys, tier.index, here),
                chosen: tier.members,
                wider: tier.wider,
                crowding: tier.crowding,
            },
        },
        Rules::OpenYurt { reach, .. } => {
            let (cause, chosen) = openyurt::choose(*reach, here, candidates, usable);
            Picked::only(cause, chosen)
        }
        Rules::None if !hinted => Picked::only(Cause::Unconstrained, usable.to_vec()),
        Rules::None if stock == Stock::Draining => {
            Picked::only(Cause::HintsOff(HintsOff::NoneReady), usable.to_vec())
        }
        Rules::None => {
            let (cause, chosen) = hints::choose(here, candidates, usable);
            Picked::only(cause, chosen)
        }
    }
}

/// The cause for the key at `index`, which is below [`MAX_KEYS`](super::validation::MAX_KEYS).
fn key_cause<'a>(keys: &Keys<'a>, index: usize, here: Here<'a>) -> Cause<'a> {
    cause_of(keys.keys[index], index, here)
}

fn cause_of<'a>(key: &'a str, index: usize, here: Here<'a>) -> Cause<'a> {
    let tier = u8::try_from(index).unwrap_or(u8::MAX);
    match here.label(key) {
        Some(value) if key != ANY => Cause::Key { tier, key, value },
        _ => Cause::Any { tier },
    }
}
