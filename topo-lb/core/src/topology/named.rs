//! What the cluster DNS answers for a headless Service on this node, by the decision that a ClusterIP
//! would get.

use std::net::IpAddr;

use crate::cluster::service::TOO_LONG;
use crate::cluster::{Family, Service, ServiceId, State};

use super::evaluation::Evaluation;
use super::label::Here;
use super::policy::{self, Policy};
use super::route::of_evaluation;
use super::rules::Rules;
use super::scope::{Scope, is_headless};
use super::trial::Seen;
use super::validation::{Rule, quoted};
use super::verdict::Chosen;

/// The value of `topo-lb.io/dns`.
const ASKED: &str = "true";

/// Addresses that answer together, and their share of all answers, of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// More than 0, up to 1.
    pub share: f64,
    /// Sorted; at least one.
    pub addresses: Vec<IpAddr>,
}

/// What a name stands for in one family. Without a group no endpoint may be used: an answer without
/// addresses.
pub type Groups = Vec<Group>;

/// What the name of a headless Service stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// `None`: the Service has no endpoint of this family, or no policy: the cluster DNS answers.
    pub v4: Option<Groups>,
    /// The same for IPv6.
    pub v6: Option<Groups>,
}

impl Named {
    /// What the name stands for in this family.
    #[must_use]
    pub const fn of(&self, family: Family) -> Option<&Groups> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }
}

/// Whether a Service asks for its name to be answered by its policy.
#[must_use]
pub fn is_asked(service: &Service) -> bool {
    service.policy.dns.as_deref().is_some_and(|text| text.trim() == ASKED)
}

/// What is wrong with a Service's `topo-lb.io/dns`, and what to do; `None` if nothing is.
#[must_use]
pub fn fault(state: &State, service: &Service) -> Option<String> {
    let text = service.policy.dns.as_deref()?.trim();
    let policy = policy::of(state, Seen::InFull, service);
    let without_effect =
        |why: &str| Some(format!("annotation topo-lb.io/dns has no effect: {why}"));
    match text {
        "false" => None,
        ASKED if !has_name(service) => without_effect(
            "the Service is not headless (`clusterIP: None`); connections to a ClusterIP follow the policy \
             without it",
        ),
        ASKED if service.ports.is_empty() => without_effect(
            "the Service has no ports, so its EndpointSlices say no endpoints; add a port",
        ),
        ASKED
            if policy.rules == Rules::None
                && policy.weights.is_none()
                && !service.policy.hints_asked =>
        {
            without_effect("the Service has no policy; add one, such as topo-lb.io/topology-keys")
        }
        ASKED => None,
        TOO_LONG => Some(format!("annotation topo-lb.io/dns is ignored: {}", Rule::TooLong)),
        text => Some(format!(
            "annotation topo-lb.io/dns is ignored: {} is neither `true` nor `false`",
            quoted(text)
        )),
    }
}

/// Whether the name of a Service can be answered: it asks for it, and is headless. A Service whose pods
/// are dialled by a ClusterIP keeps it.
pub(crate) fn has_name(service: &Service) -> bool {
    is_headless(service) && is_asked(service)
}

/// What the name of a Service stands for on this node; `None` if the cluster DNS answers for it. A name
/// has no port: the first port that has endpoints of a family decides for it.
#[must_use]
pub fn named(state: &State, this_node: &str, scope: Scope, id: &ServiceId) -> Option<Named> {
    let service = state.service(id).filter(|service| has_name(service))?;
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(scope, service).is_some() {
        return None;
    }
    let here = Here::of(state, this_node);
    let [v4, v6] = Family::BOTH.map(|family| groups(state, here, service, &policy, family));
    (v4.is_some() || v6.is_some()).then_some(Named { v4, v6 })
}

fn groups(
    state: &State,
    here: Here<'_>,
    service: &Service,
    policy: &Policy<'_>,
    family: Family,
) -> Option<Groups> {
    let decide = |port| {
        // `internalTrafficPolicy` is about ClusterIPs.
        let by = policy.inside(false);
        (port, Evaluation::of(state, here, (service, port), by, family).weighed(by, here))
    };
    let mut all = service.ports.iter().map(decide);
    let (port, done) = all.find(|(_, done)| !done.candidates.is_empty())?;
    if policy.rules == Rules::None && policy.weights.is_none() && !done.hinted {
        return None;
    }
    let route = of_evaluation(service, port, &policy.rules, &done, here);
    let group = |(chosen, share): (&[Chosen], f64)| {
        let mut addresses: Vec<_> = chosen.iter().map(|one| one.address().ip()).collect();
        addresses.dedup();
        (share > 0.0 && !addresses.is_empty()).then_some(Group { share, addresses })
    };
    Some(route.shares().into_iter().filter_map(group).collect())
}
