//! The status of policies: how many Services each selects, for how many it decides, and what it lost to.

mod publish;

use std::collections::BTreeMap;

use topo_lb_core::cluster::{PolicyId, State, TopologyPolicy};
use topo_lb_core::topology::{Origin, broken, decider};
use topo_lb_kube::crd::{Lost, PolicyStatus};

pub use publish::start;

/// Most lost Services that a status names.
const NAMED: usize = 10;

/// The status that each policy should have. Pure; the same on every node.
#[must_use]
pub fn statuses(state: &State) -> BTreeMap<PolicyId, PolicyStatus> {
    let status = |policy: &TopologyPolicy| {
        let TopologyPolicy { id, generation, policy: said, .. } = policy;
        let origin = Origin::Policy(id.clone());
        let faults = broken(&origin, said).iter().map(ToString::to_string).collect();
        let observed_generation = *generation;
        let mut status = PolicyStatus { observed_generation, faults, ..PolicyStatus::default() };
        for service in state.selected(policy) {
            status.services += 1;
            match decider(state, service) {
                Some(decider) if decider == origin => status.in_force += 1,
                Some(decider) if said.has_keys() && status.lost.len() < NAMED => {
                    let (service, to) = (service.id.to_string(), decider.to_string());
                    status.lost.push(Lost { service, to });
                }
                _ => {}
            }
        }
        (id.clone(), status)
    };
    state.policies().map(status).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
