//! A cluster as it would be without the evacuations that are in force.

use std::sync::Arc;

use crate::cluster::{Change, ClusterTopologyPolicy, State, Update};
use crate::topology::evacuation::Evacuation;

/// The same cluster in which nothing evacuates; `None` if nothing does now.
#[must_use]
pub fn restored(state: &State) -> Option<State> {
    let is_in_force =
        |text| Evacuation::read(text).is_ok_and(|it| !it.share(state.now()).is_none());
    if !state.evacuations().any(is_in_force) {
        return None;
    }
    let mut updates = Vec::new();
    for id in state.asking(|said| said.evacuate.is_some()) {
        if let Some(mut service) =
            state.service(&id).filter(|it| it.policy.evacuate.is_some()).cloned()
        {
            Arc::make_mut(&mut service.policy).evacuate = None;
            updates.push(Update::Service(Change::Applied(service)));
        }
    }
    for namespace in state.namespaces().filter(|it| it.policy.evacuate.is_some()) {
        let mut namespace = namespace.clone();
        Arc::make_mut(&mut namespace.policy).evacuate = None;
        updates.push(Update::Namespace(Change::Applied(namespace)));
    }
    for policy in state.policies().filter(|it| it.policy.evacuate.is_some()) {
        let mut policy = policy.clone();
        Arc::make_mut(&mut policy.policy).evacuate = None;
        updates.push(match policy.id.is_of_cluster() {
            true => Update::ClusterTopologyPolicy(Change::Applied(ClusterTopologyPolicy(policy))),
            false => Update::TopologyPolicy(Change::Applied(policy)),
        });
    }
    let mut restored = state.clone();
    for update in updates {
        let _ = restored.apply(update, "");
    }
    Some(restored)
}
