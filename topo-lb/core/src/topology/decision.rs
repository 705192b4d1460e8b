//! A decision with everything that explains it. [`Route`](super::Route) is the datapath's view.

mod status;

use std::net::SocketAddr;

use topo_lb_common::backend::Locality;

use crate::cluster::{Clients, Port, Service, State};

use super::candidate::{self, Candidate, Stock};
use super::cause::Cause;
use super::crowding::Crowding;
use super::direct::DirectDials;
use super::direct_return;
use super::ejection::Setting;
use super::evacuation::{Evacuating, label_of};
use super::evaluation::{By, CandidateStatus, Evaluation};
use super::homeward;
use super::keys;
use super::label::{Here, ZONE};
use super::min_endpoints::Least;
use super::origin::Origin;
use super::policy::Policy;
use super::policy_source::PolicySource;
use super::rules::{PolicyKind, Rules};
use super::scope::{self, Bypass};
use super::slow_start::{self, Young};
use super::spill::{Share, Spill};
use super::trial::Trial;
use super::validation::Ignored;
use super::verdict::Verdict;
use super::weights::{Part, Portion, Weighs, Weights};
use crate::cluster::Family;
pub use status::Status;
use status::{dead, ejected, endpoint_status};

/// What a Service port's connections do, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Its port.
    pub port: &'a Port,
    /// The policy in force.
    pub policy: InForce<'a>,
    /// The field that says `Local`: only endpoints on this node count. `None`: all do.
    pub only_local: Option<&'static str>,
    /// One per address family with a ClusterIP, in the order of the ClusterIPs; at least one.
    pub choices: Vec<Choice<'a>>,
    /// Every endpoint that the port's slices list, sorted by address and port.
    pub endpoints: Vec<Endpoint<'a>>,
}

/// The policy in force, and what was ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce<'a> {
    /// Where it comes from.
    pub source: PolicySource,
    /// The object that says it.
    pub origin: Origin,
    /// Weaker objects that say keys, too, the strongest first.
    pub passed_over: Vec<Origin>,
    /// Objects on trial, whether they hold here or not.
    pub trials: Vec<Trial>,
    /// What it does.
    pub kind: PolicyKind,
    /// Its keys; empty for *hints* and *none*.
    pub keys: Vec<&'a str>,
    /// What annotation `topo-lb.io/spill` asks for; `None`: nothing spills.
    pub spill: Option<Spill>,
    /// Annotations and fields that broke a rule.
    pub ignored: Vec<Ignored>,
    /// When endpoints are ejected; `None`: never.
    pub ejection: Option<Setting>,
    /// What is evacuated on some nodes.
    pub evacuating: Evacuating<'a>,
    /// When idle connections to a wider tier end; `None`: never.
    pub return_after: Option<homeward::Setting>,
    /// How the share of an endpoint grows after it became Ready; `None`: not.
    pub slow_start: Option<slow_start::Setting>,
    /// Annotation `topo-lb.io/refusal: intended`: no report of refusals is needed.
    pub refusal_intended: bool,
    /// False with annotation `topo-lb.io/direct-return: "false"`.
    pub direct_return: bool,
    /// What annotation `topo-lb.io/choice` says.
    pub choice: Option<direct_return::Choice>,
    /// What annotation `topo-lb.io/weights` weighs, if it is valid.
    pub weighs: Option<Weighs<'a>>,
}

/// One topology key, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier<'a> {
    /// The key.
    pub key: &'a str,
    /// This node's value for it; `None` if it has none, and for `*`.
    pub own: Option<&'a str>,
    /// How many usable endpoints it matches.
    pub endpoints: usize,
    /// How many it needs to be chosen.
    pub min_endpoints: usize,
}

/// The tier that takes a share of new connections while the chosen one is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wider<'a> {
    /// The next wider key that matches further endpoints.
    pub key: &'a str,
    /// How many endpoints it adds.
    pub endpoints: usize,
    /// The share.
    pub share: Share,
}

/// The decision for one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The family.
    pub family: Family,
    /// Route, refuse or bypass.
    pub verdict: Verdict,
    /// Refused connections get no answer.
    pub drops: bool,
    /// Why, if the verdict is bypass.
    pub bypass: Option<Bypass<'a>>,
    /// Why these endpoints are chosen, or would be without the bypass.
    pub cause: Cause<'a>,
    /// How many endpoints of this family there are.
    pub total: usize,
    /// How many of these count: all, or this node's with [`Decision::only_local`].
    pub near: usize,
    /// How many of these the policy can choose from.
    pub usable: usize,
    /// The state of the usable endpoints.
    pub stock: Stock,
    /// What the Service says of clients that dial its endpoints, if anything.
    pub direct: Option<DirectDials>,
    /// How many leave: evacuated.
    pub evacuated: usize,
    /// An evacuation leaves all endpoints where they are, as no Ready one would be left.
    pub evacuation_left_alone: bool,
    /// How many the policy chose, without those that are ejected.
    pub chosen: usize,
    /// How many of the chosen tier are ejected.
    pub ejected: usize,
    /// How many more the policy could choose from if they answered: this node is an island.
    pub dead: usize,
    /// Every key and what it would match; empty for policies without keys.
    pub tiers: Vec<Tier<'a>>,
    /// Where connections spill to.
    pub wider: Option<Wider<'a>>,
    /// What the share that spills follows from, with `spill: auto`.
    pub crowding: Option<Crowding>,
    /// How new connections divide; empty without weights, or if they have no effect.
    pub parts: Vec<Portion<'a>>,
}

/// An endpoint and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// `nodeName`.
    pub node: Option<&'a str>,
    /// Its `topology.kubernetes.io/zone`.
    pub zone: Option<&'a str>,
    /// Its distance from this node.
    pub locality: Locality,
    /// Which rule selected or excluded it.
    pub status: Status<'a>,
    /// Its place in [`Choice::parts`], if new connections divide and it gets some.
    pub part: Option<usize>,
    /// How much of its share it gets, in percent, because of a slow start; `None`: all.
    pub grown: Option<u8>,
}

impl Choice<'_> {
    /// Index of the key that decided.
    #[must_use]
    pub const fn tier(&self) -> Option<u8> {
        match self.verdict {
            Verdict::Route => self.cause.tier(self.chosen),
            Verdict::Refuse | Verdict::Bypass => None,
        }
    }
}

impl Endpoint<'_> {
    /// Whether it is in the chosen tier.
    #[must_use]
    pub const fn is_chosen(&self) -> bool {
        matches!(self.status, Status::Chosen(_))
    }

    /// Whether new connections go there, including spilled ones.
    #[must_use]
    pub const fn selected(&self) -> bool {
        matches!(self.status, Status::Chosen(_) | Status::Wider(_))
    }
}

impl Decision<'_> {
    /// [`Verdict::Route`] if any family is routed, else the first family's verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.leading().map_or(Verdict::Refuse, |choice| choice.verdict)
    }

    /// Whether topo-lb handles the Service in at least one family.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.choices.iter().any(|choice| choice.verdict != Verdict::Bypass)
    }

    /// The choice that represents all: the first routed family, else the first.
    #[must_use]
    pub fn leading(&self) -> Option<&Choice<'_>> {
        let routed = self.choices.iter().find(|choice| choice.verdict == Verdict::Route);
        routed.or(self.choices.first())
    }
}

impl<'a> Decision<'a> {
    pub(super) fn of(
        state: &'a State,
        here: Here<'a>,
        service: &'a Service,
        port: &'a Port,
        policy: &Policy<'a>,
        clients: Clients,
        bypass: Option<Bypass<'a>>,
    ) -> Self {
        let (by, field) = match clients {
            Clients::Anywhere | Clients::Steered => {
                (policy.inside(service.internal_local), "internalTrafficPolicy")
            }
            Clients::Outside => (policy.for_outside(service), "externalTrafficPolicy"),
            // Another node has followed the policy.
            Clients::Peers => (By::ON_THIS_NODE, "direct return"),
        };
        let By { rules, weights, .. } = by;
        let only_local = by.only_local.then_some(field);
        let weighed_label = weights.and_then(Weights::label).unwrap_or_default();
        let is_external = clients == Clients::Outside && policy.external.is_some();
        let mut choices = Vec::new();
        let mut endpoints = Vec::new();
        let mut hinted = false;
        let young = policy.slow_start.and_then(|it| Young::of(it, state, service));
        let families = candidate::families(service);
        for &family in &families {
            let bypass = bypass.or_else(|| scope::local(state, service, family));
            let done = Evaluation::whole(state, here, (service, port), by, family);
            hinted |= done.hinted;
            choices.push(Choice {
                family,
                verdict: match (bypass, done.chosen) {
                    (Some(_), _) => Verdict::Bypass,
                    (None, 0) => Verdict::Refuse,
                    (None, _) => Verdict::Route,
                },
                drops: bypass.is_none() && clients == Clients::Outside && done.drops(service),
                bypass,
                cause: done.cause,
                total: done.candidates.len(),
                near: done.near,
                usable: done.usable,
                stock: done.stock,
                direct: (bypass.is_none() && clients == Clients::Anywhere)
                    .then(|| DirectDials::of(policy.direct, state, (service, port), &done, here))
                    .flatten(),
                evacuated: done.of_status(|it| it == CandidateStatus::Evacuated).len(),
                evacuation_left_alone: done.leaving.left_alone,
                chosen: done.chosen,
                ejected: done.ejected.chosen,
                dead: done.of_status(|status| status == CandidateStatus::Dead).len(),
                tiers: tiers(&done, here, rules),
                wider: wider(&done, rules),
                crowding: done.crowding,
                parts: Portion::all(&done.parts),
            });
            let divided =
                young.as_ref().filter(|_| bypass.is_none()).and_then(|it| it.divide(&done));
            let percents = divided.map(|it| Young::percents(&done, &it)).unwrap_or_default();
            for (index, (candidate, &status)) in
                done.candidates.iter().zip(&done.statuses).enumerate()
            {
                let holds = |part: &Part<'_>| part.members.binary_search(&index).is_ok();
                let part = done.parts.iter().position(holds).filter(|_| bypass.is_none());
                let site = candidate.site;
                let status = match (bypass, status, part) {
                    (Some(_), ..) => Status::LeftAlone,
                    (_, CandidateStatus::Evacuated, _) => label_of(by.evacuations, site)
                        .map_or(Status::OtherNode, |(key, value)| Status::Evacuated { key, value }),
                    (_, CandidateStatus::Ejected, _) => ejected(state, service, candidate.address),
                    (_, CandidateStatus::Dead, _) => dead(state),
                    (_, CandidateStatus::Wider, Some(part)) => Status::Wider(done.parts[part].name),
                    (_, CandidateStatus::Weightless, _) => {
                        Status::Weightless { label: weighed_label, own: site.label(weighed_label) }
                    }
                    _ => endpoint_status(site, status, &done, rules),
                };
                let grown = percents.get(index).copied().flatten();
                endpoints.push(Endpoint { part, grown, ..endpoint(candidate, here, status) });
            }
        }
        for family in Family::BOTH {
            if !families.contains(&family) {
                let strangers = candidate::of(state, service, port, family);
                let status = Status::OtherFamily(family);
                endpoints.extend(strangers.iter().map(|one| endpoint(one, here, status.clone())));
            }
        }
        for family in Family::BOTH {
            let all = candidate::not_counted(state, service, port, family);
            endpoints.extend(all.iter().map(|one| endpoint(one, here, Status::HeadlessSlice)));
        }
        // An endpoint that counts is before one at the same address that does not.
        endpoints.sort_by_key(|one| one.address);
        endpoints.dedup_by_key(|one| one.address);
        let policy = InForce {
            source: match (hinted, is_external) {
                (true, _) => PolicySource::Hints,
                (false, true) => PolicySource::ExternalTopologyKeys,
                (false, false) => policy.source,
            },
            kind: match rules {
                Rules::Keys(_) => PolicyKind::Keys,
                Rules::OpenYurt { .. } => PolicyKind::OpenYurt,
                Rules::None if hinted => PolicyKind::Hints,
                Rules::None => PolicyKind::None,
            },
            keys: match rules {
                Rules::Keys(keys) => keys.keys.clone(),
                Rules::OpenYurt { value, .. } => vec![value],
                Rules::None => Vec::new(),
            },
            spill: match rules {
                Rules::Keys(keys) => Some(keys.spill).filter(|spill| *spill != Spill::NONE),
                Rules::OpenYurt { .. } | Rules::None => None,
            },
            origin: policy.origin.clone(),
            passed_over: policy.passed_over.clone(),
            trials: policy.trials.clone(),
            ignored: policy.ignored.clone(),
            ejection: policy.ejection,
            evacuating: policy.evacuating.clone(),
            return_after: policy.return_after,
            slow_start: policy.slow_start,
            refusal_intended: policy.refusal_intended,
            direct_return: policy.direct_return,
            choice: policy.choice,
            weighs: weights.map(Weights::weighs),
        };
        Self { service, port, policy, only_local, choices, endpoints }
    }
}

fn tiers<'a>(done: &Evaluation<'a>, here: Here<'a>, rules: &Rules<'a>) -> Vec<Tier<'a>> {
    let own = match rules {
        Rules::Keys(keys) => keys,
        Rules::OpenYurt { .. } | Rules::None => return Vec::new(),
    };
    let usable = done.usable();
    let tier = |(&key, &least): (&&'a str, &Least)| Tier {
        key,
        own: here.label(key),
        endpoints: keys::matching(key, here, &done.candidates, &usable).len(),
        min_endpoints: least.of(usable.len()),
    };
    own.keys.iter().zip(&own.min_endpoints).map(tier).collect()
}

fn wider<'a>(done: &Evaluation<'a>, rules: &Rules<'a>) -> Option<Wider<'a>> {
    match rules {
        Rules::Keys(keys) => done.wider.map(|(tier, endpoints, share)| {
            let key = keys.keys[tier];
            Wider { key, endpoints, share }
        }),
        Rules::OpenYurt { .. } | Rules::None => None,
    }
}

fn endpoint<'a>(candidate: &Candidate<'a>, here: Here<'a>, status: Status<'a>) -> Endpoint<'a> {
    Endpoint {
        address: candidate.address,
        node: candidate.site.node(),
        zone: candidate.site.label(ZONE).ok(),
        locality: candidate.site.locality(here),
        status,
        part: None,
        grown: None,
    }
}
