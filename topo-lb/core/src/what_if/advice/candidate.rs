//! The policies that are tried for a Service, and the Services that are left as they are.

use crate::cluster::{Annotation, ServiceId, State};
use crate::topology::decision::InForce;
use crate::topology::label::{REGION, ZONE};
use crate::topology::label_name::is_dns_name;
use crate::topology::validation::ANY;
use crate::topology::{Bypass, PolicyKind, Scope, decide};
use crate::what_if::Setting;

/// The shares that may leave the zone, so that no endpoint gets too much; the first one is tried first.
const SPILLS: [&str; 14] =
    ["", "auto", "5%", "10%", "15%", "20%", "25%", "30%", "35%", "40%", "50%", "60%", "70%", "80%"];
/// The first of them that only make sense if less is too much load.
const PLAIN: usize = 2;

/// The keys that are tried: the second one saves nothing in one region.
const KEYS: [&[&str]; 2] = [&[ZONE, ANY], &[ZONE, REGION, ANY]];

/// A soft policy: what finds no endpoint near goes anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place in [`KEYS`].
    keys: usize,
    /// Its place in [`SPILLS`].
    spill: usize,
}

impl Candidate {
    /// All, in the order in which they are tried.
    pub(super) fn all(has_regions: bool) -> Vec<Self> {
        let keys = if has_regions { KEYS.len() } else { 1 };
        (0..SPILLS.len())
            .flat_map(|spill| (0..keys).map(move |keys| Self { keys, spill }))
            .collect()
    }

    /// Whether it saves less than what is within the bound: the same keys without spill.
    pub(super) const fn is_needless(self, enough: &Enough) -> bool {
        self.spill >= PLAIN && enough.0[self.keys]
    }

    /// What to set.
    pub(super) fn settings(self, state: &State, id: &ServiceId) -> Vec<Setting> {
        let of = |annotation, value| Setting::new(id.clone(), annotation, value);
        let keys = of(Annotation::TopologyKeys, Some(KEYS[self.keys].join(",").into()));
        let own = state.service(id).and_then(|service| service.policy.spill.as_ref());
        let spill = match SPILLS[self.spill] {
            // `apply --server-side` removes no annotation.
            "" => own.map(|_| of(Annotation::Spill, Some("0%".into()))),
            share => Some(of(Annotation::Spill, Some(share.into()))),
        };
        [keys].into_iter().chain(spill).collect()
    }
}

/// Which keys are within the bound without spill.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Enough([bool; KEYS.len()]);

impl Enough {
    /// Takes in a policy within the bound.
    pub(super) const fn meet(&mut self, candidate: Candidate) {
        if candidate.spill == 0 {
            self.0[candidate.keys] = true;
        }
    }
}

/// Why a Service is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Name,
    Skipped,
    Handle,
    Local,
    Strict,
    OpenYurt,
}

impl Kept {
    /// `None`: its policy may be changed.
    pub(super) fn of(state: &State, id: &ServiceId) -> Option<Self> {
        // It becomes a command.
        if ![&id.namespace, &id.name].into_iter().all(|part| is_dns_name(part)) {
            return Some(Self::Name);
        }
        let decisions = decide(state, "", Scope::All, id);
        let Some(first) = decisions.first() else { return Some(Self::Skipped) };
        if first.choices.iter().any(|choice| choice.bypass == Some(Bypass::Annotation)) {
            return Some(Self::Handle);
        }
        if first.service.internal_local {
            return Some(Self::Local);
        }
        let is_strict = |policy: &InForce<'_>| policy.keys.last() != Some(&ANY);
        decisions.iter().find_map(|decision| match decision.policy.kind {
            PolicyKind::OpenYurt => Some(Self::OpenYurt),
            PolicyKind::Keys if is_strict(&decision.policy) => Some(Self::Strict),
            PolicyKind::Keys | PolicyKind::Hints | PolicyKind::None => None,
        })
    }

    pub(super) const fn why(self) -> &'static str {
        match self {
            Self::Name => "its name is none of Kubernetes",
            Self::Skipped => "it has no ClusterIP to translate",
            Self::Handle => "topo-lb.io/handle: \"false\" leaves it alone",
            Self::Local => "internalTrafficPolicy: Local decides",
            Self::Strict => "its policy is strict, and is kept",
            Self::OpenYurt => "it follows OpenYurt's annotation",
        }
    }
}
