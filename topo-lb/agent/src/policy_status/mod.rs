//! The status of policies: how many Services each selects, for how many it decides, and what it lost to.

mod publish;

use std::collections::BTreeMap;

use topo_lb_core::cluster::{Above, PolicyId, State, TopologyPolicy};
use topo_lb_core::topology::{Origin, decider, faults};
use topo_lb_kube::crd::{Lost, PolicyStatus};

pub use publish::start;

/// Most lost Services that a status names.
const NAMED: usize = 10;

/// The status that each policy should have. Pure; the same on every node. Decides for each Service once.
#[must_use]
pub fn statuses(state: &State) -> BTreeMap<PolicyId, PolicyStatus> {
    let status = |policy: &TopologyPolicy| {
        let (observed_generation, faults) = (policy.generation, faults(state, policy));
        let status = PolicyStatus { observed_generation, faults, ..PolicyStatus::default() };
        (policy.id.clone(), status)
    };
    let mut all: BTreeMap<_, _> = state.policies().map(status).collect();
    if all.is_empty() {
        return all;
    }
    for service in state.services().filter_map(|id| state.service(id)) {
        let mut selecting = state.above(service).into_iter().filter_map(|above| match above {
            Above::Policy(policy) => Some(policy),
            Above::Namespace(_) => None,
        });
        let Some(strongest) = selecting.next() else { continue };
        let decider = decider(state, service);
        for policy in [strongest].into_iter().chain(selecting) {
            let Some(status) = all.get_mut(&policy.id) else { continue };
            status.services += 1;
            match &decider {
                Some(Origin::Policy(id)) if *id == policy.id => status.in_force += 1,
                Some(decider) if policy.policy.has_keys() && status.lost.len() < NAMED => {
                    let (service, to) = (service.id.to_string(), decider.to_string());
                    status.lost.push(Lost { service, to });
                }
                _ => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counted;
    use topo_lb_core::cluster::service::PolicySources;
    use topo_lb_core::cluster::{Change, MOST_POLICIES, Service, ServiceId, Update};
    use topo_lb_kube::source::file::parse;

    #[test]
    fn a_status_counts_what_is_selected_and_names_what_is_lost() {
        let manifest = b"
{apiVersion: v1, kind: Service, metadata: {name: free}, spec: {clusterIP: 10.96.0.1}}
---
{apiVersion: v1, kind: Service, spec: {clusterIP: 10.96.0.2},
 metadata: {name: own, annotations: {topo-lb.io/topology-keys: '*'}}}
---
{apiVersion: v1, kind: Service, spec: {clusterIP: 10.96.0.3}, metadata: {namespace: other, name: far}}
---
{apiVersion: topo-lb.io/v1alpha1, kind: TopologyPolicy, metadata: {name: near, generation: 7},
 spec: {topologyKeys: [rack]}}
---
{apiVersion: topo-lb.io/v1alpha1, kind: ClusterTopologyPolicy, metadata: {name: all},
 spec: {topologyKeys: ['*'], spill: much}}
";
        let mut state = State::default();
        for update in parse("policies.yaml".as_ref(), manifest).unwrap().updates {
            let _ = state.apply(update, "n1");
        }
        let all = statuses(&state);
        let [(_, of_all), (_, near)] = &all.iter().collect::<Vec<_>>()[..] else {
            panic!("{all:?}")
        };
        let lost = |service: &str, to: &str| Lost { service: service.into(), to: to.into() };
        let own = || lost("default/own", "the Service");
        let expected = PolicyStatus {
            observed_generation: 7,
            services: 2,
            in_force: 1,
            lost: vec![own()],
            ..Default::default()
        };
        assert_eq!(**near, expected);
        assert_eq!((of_all.services, of_all.in_force), (3, 1));
        assert_eq!(of_all.lost, [lost("default/free", "TopologyPolicy default/near"), own()]);
        assert_eq!(of_all.faults.len(), 1, "{:?}", of_all.faults);
    }

    fn policy(at: usize) -> TopologyPolicy {
        let said = PolicySources { spec_topology_keys: vec!["rack".into()], ..Default::default() };
        TopologyPolicy {
            id: PolicyId { namespace: "shop".into(), name: format!("p{at:03}").into() },
            policy: said.into(),
            ..TopologyPolicy::default()
        }
    }

    #[test]
    fn each_service_is_decided_once_however_many_policies_select_it() {
        let mut state = State::default();
        for at in 0..60 {
            let id = ServiceId { namespace: "shop".into(), name: format!("s{at}").into() };
            let service = Service { id, ..Service::default() };
            let _ = state.apply(Update::Service(Change::Applied(service)), "n1");
            let _ = state.apply(Update::TopologyPolicy(Change::Applied(policy(at))), "n1");
        }
        let services: Vec<_> = state.services().filter_map(|id| state.service(id)).collect();
        let decide = || services.iter().map(|it| decider(&state, it)).collect::<Vec<_>>();
        let (deciders, once) = counted::during(decide);
        let (statuses, all) = counted::during(|| statuses(&state));
        let in_force: u32 = statuses.values().map(|it| it.in_force).sum();
        assert_eq!((deciders.len(), statuses.len(), in_force), (60, 60, 60));
        assert!(all.total < 4 * once.total, "{} bytes, and {} once", all.total, once.total);
    }

    #[test]
    fn a_policy_that_does_not_count_says_so() {
        let mut state = State::default();
        for at in 0..=MOST_POLICIES {
            let _ = state.apply(Update::TopologyPolicy(Change::Applied(policy(at))), "n1");
        }
        let all = statuses(&state);
        let says = |at| all[&policy(at).id].faults.concat();
        assert_eq!(says(MOST_POLICIES - 1), "");
        assert!(says(MOST_POLICIES).contains("p064 is ignored: 64 TopologyPolicies"), "{all:?}");
    }
}
