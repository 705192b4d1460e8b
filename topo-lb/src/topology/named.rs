//! What the cluster DNS answers for a headless Service on this node, by the decision that a ClusterIP
//! would get.

use std::net::IpAddr;

use crate::cluster::service::{Skipped, TOO_LONG};
use crate::cluster::{Family, Service, ServiceId, State};

use super::Scope;
use super::evaluation::Evaluation;
use super::label::Here;
use super::policy::{self, Policy};
use super::route::of_evaluation;
use super::rules::Rules;
use super::trial::Seen;
use super::validation::{Rule, quoted};

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
    let is_headless = matches!(service.skipped, Some(Skipped::Headless | Skipped::HeadlessLabel));
    is_headless && service.cluster_ips.is_empty() && is_asked(service)
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
        let rules = &policy.rules;
        // `internalTrafficPolicy` is about ClusterIPs.
        let done = Evaluation::of(state, here, service, port, rules, family, false);
        (port, done.weighed(policy.weights.as_ref(), rules, here))
    };
    let mut all = service.ports.iter().map(decide);
    let (port, done) = all.find(|(_, done)| !done.candidates.is_empty())?;
    if policy.rules == Rules::None && policy.weights.is_none() && !done.hinted {
        return None;
    }
    let route = of_evaluation(service, port, &policy.rules, &done, here);
    let group = |(chosen, share): (&[super::Chosen], f64)| {
        let mut addresses: Vec<_> = chosen.iter().map(|one| one.address().ip()).collect();
        addresses.dedup();
        (share > 0.0 && !addresses.is_empty()).then_some(Group { share, addresses })
    };
    Some(route.shares().into_iter().filter_map(group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::file::example::updates;

    /// `shop/db`, headless, with an endpoint in each of three zones; two of them also by IPv6.
    const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: here, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Service
metadata:
  name: db
  namespace: shop
  labels: {service.kubernetes.io/headless: ''}
  annotations:
    topo-lb.io/dns: 'true'
    topo-lb.io/topology-keys: topology.kubernetes.io/zone
spec: {clusterIP: None, ports: [{name: sql, port: 5432}, {name: admin, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: db-4
  namespace: shop
  labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ''}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints:
- {addresses: [10.0.0.1], zone: a}
- {addresses: [10.0.0.2], zone: b}
- {addresses: [10.0.0.3], zone: c}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv6
ports: [{name: sql, port: 5432}]
endpoints:
- {addresses: ['fd00::2'], zone: b}
- {addresses: ['fd00::3'], zone: c}
";

    fn of(cluster: &str, scope: Scope) -> Option<Named> {
        let mut state = State::default();
        for update in updates(cluster) {
            let _ = state.apply(update, "here");
        }
        let id = state.services().next().cloned().expect("a Service");
        named(&state, "here", scope, &id)
    }

    /// The last number of each address, by groups.
    fn last(groups: Option<&Groups>) -> Option<Vec<Vec<u8>>> {
        let number = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        let of = |group: &Group| group.addresses.iter().map(number).collect();
        groups.map(|groups| groups.iter().map(of).collect())
    }

    #[test]
    fn a_name_stands_for_the_chosen_tier_of_each_family() {
        for (keys, v4, v6) in [
            ("zone", vec![vec![1]], vec![]),
            ("zone,*", vec![vec![1]], vec![vec![2, 3]]),
            ("*", vec![vec![1, 2, 3]], vec![vec![2, 3]]),
        ] {
            let keys =
                format!("topology-keys: '{}'", keys.replace("zone", "topology.kubernetes.io/zone"));
            let cluster = CLUSTER.replace("topology-keys: topology.kubernetes.io/zone", &keys);
            let named = of(&cluster, Scope::OptIn).expect("ours");
            assert_eq!(last(named.v4.as_ref()), Some(v4), "{keys}");
            assert_eq!(last(named.v6.as_ref()), Some(v6), "{keys}");
        }
    }

    #[test]
    fn spilled_answers_have_their_share() {
        let spill = "topology-keys: 'topology.kubernetes.io/zone,*'\n    topo-lb.io/spill: 10%";
        let cluster = CLUSTER.replace("topology-keys: topology.kubernetes.io/zone", spill);
        let named = of(&cluster, Scope::All).expect("ours");
        let groups = named.v4.expect("IPv4");
        assert_eq!(last(Some(&groups)), Some(vec![vec![1], vec![2, 3]]));
        assert!((groups[1].share - 0.1).abs() < 1e-9, "{groups:?}");
    }

    #[test]
    fn whoever_did_not_ask_for_it_or_could_not_is_left_to_the_cluster_dns() {
        let keys = "    topo-lb.io/topology-keys: topology.kubernetes.io/zone\n";
        for (what, cluster) in [
            ("without the annotation", CLUSTER.replace("topo-lb.io/dns: 'true'", "x: y")),
            ("with another value", CLUSTER.replace("'true'", "maybe")),
            ("without a policy", CLUSTER.replace(keys, "")),
            (
                "left alone",
                CLUSTER.replace(keys, &format!("{keys}    topo-lb.io/handle: 'false'\n")),
            ),
            ("with a ClusterIP", CLUSTER.replace("clusterIP: None", "clusterIP: 10.96.0.7")),
            (
                "without ports",
                CLUSTER.replace("ports: [{name: sql, port: 5432}, {name: admin, port: 8080}]", ""),
            ),
            ("without endpoints", CLUSTER.replace("service-name: db", "service-name: other")),
        ] {
            assert_eq!(of(&cluster, Scope::All), None, "{what}");
        }
    }

    #[test]
    fn an_annotation_without_effect_is_told() {
        let keys = "    topo-lb.io/topology-keys: topology.kubernetes.io/zone\n";
        for (cluster, wanted) in [
            (CLUSTER.to_owned(), None),
            (CLUSTER.replace("'true'", "'false'"), None),
            (CLUSTER.replace("'true'", "maybe"), Some("`maybe` is neither `true` nor `false`")),
            (CLUSTER.replace("clusterIP: None", "clusterIP: 10.96.0.7"), Some("is not headless")),
            (CLUSTER.replace(keys, ""), Some("has no policy")),
        ] {
            let mut state = State::default();
            for update in updates(&cluster) {
                let _ = state.apply(update, "here");
            }
            let id = state.services().next().cloned().expect("a Service");
            let fault = state.service(&id).and_then(|service| fault(&state, service));
            let fault = fault.unwrap_or_default();
            assert!(wanted.map_or(fault.is_empty(), |wanted| fault.contains(wanted)), "{fault}");
        }
    }
}
