//! What is wrong with a policy: what does not count, and the rules that it breaks.

use crate::cluster::{MOST_POLICIES, ServiceId, State, TopologyPolicy};

use super::origin::Origin;
use super::scope::is_served;
use super::trial::Seen;
use super::{ejected, policy};

/// The ignored annotations and fields of a Service, each with the rule that it broke; `None` if
/// there are none, or the Service is not served. Without those of policies and of its
/// Namespace: they are of many Services. As if no object were on trial.
#[must_use]
pub fn ignored(state: &State, id: &ServiceId) -> Option<String> {
    let service = state.service(id).filter(|service| is_served(service))?;
    let mut policy = policy::of(state, Seen::InFull, service);
    policy.ignored.extend(ejected::unseen(state, &policy));
    let own = policy.ignored.iter().filter(|one| one.origin == Origin::Service);
    let sentences: Vec<_> = own.map(ToString::to_string).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// What is wrong with a policy by itself: it does not count, or breaks rules.
#[must_use]
pub fn faults(state: &State, policy: &TopologyPolicy) -> Vec<String> {
    let origin = Origin::Policy(policy.id.clone());
    if state.counts(policy) {
        return policy::broken(&origin, &policy.policy).iter().map(ToString::to_string).collect();
    }
    vec![format!(
        "{origin} is ignored: {MOST_POLICIES} TopologyPolicies of its namespace are stronger, and no more \
         than these count; remove some, or give it a greater precedence"
    )]
}
