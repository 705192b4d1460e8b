//! Namespaces and policy objects: what gives a policy to more than one Service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::namespace::Namespace;
use super::service::{PolicySources, Service, ServiceId};
use super::topology_policy::{PolicyId, Strength, TopologyPolicy};
use super::update::Change;

/// Most TopologyPolicies of a namespace that count: its strongest. Each is looked at in every decision for a
/// Service of the namespace, so thousands would hold up the changes of other namespaces.
pub const MOST_POLICIES: usize = 64;

/// The last good Namespaces and policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Policies {
    pub(super) namespaces: BTreeMap<Arc<str>, Arc<Namespace>>,
    /// Those of both kinds; ClusterTopologyPolicies have no namespace.
    pub(super) all: BTreeMap<PolicyId, Arc<TopologyPolicy>>,
    /// The same by namespace.
    by_strength: BTreeMap<Arc<str>, BTreeMap<Strength, Arc<TopologyPolicy>>>,
    /// Services of which they say nothing.
    pub(super) spared: BTreeSet<ServiceId>,
}

/// What says a policy for a Service besides the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above<'a> {
    /// A TopologyPolicy or ClusterTopologyPolicy that selects it.
    Policy(&'a TopologyPolicy),
    /// Its Namespace.
    Namespace(&'a Namespace),
}

impl<'a> Above<'a> {
    /// What it says.
    #[must_use]
    pub fn policy(&self) -> &'a PolicySources {
        match self {
            Self::Policy(policy) => &policy.policy,
            Self::Namespace(namespace) => &namespace.policy,
        }
    }
}

impl Policies {
    /// Applies a change. Returns the Namespaces whose Services it may change.
    pub(super) fn change_namespaces(&mut self, change: Change<Namespace>) -> Vec<Arc<str>> {
        let has_selectors = self.all.first_key_value().is_some_and(|(id, _)| id.is_of_cluster());
        let mut touched = Vec::new();
        for name in change.gone(self.namespaces.keys()) {
            let before = self.namespaces.remove(&name);
            if before.is_some_and(|it| it.has_policy() || has_selectors) {
                touched.push(name);
            }
        }
        for new in change.into_objects() {
            let before = self.namespaces.get(&new.name);
            let is_relabelled = before.is_none_or(|before| before.labels != new.labels);
            let none = Arc::default();
            if *before.map_or(&none, |before| &before.policy) != new.policy
                || has_selectors && is_relabelled
            {
                touched.push(Arc::clone(&new.name));
            }
            self.namespaces.insert(Arc::clone(&new.name), Arc::new(new));
        }
        touched
    }

    /// Applies a change to the policies of one kind, those with an id that `is_of_kind`. Returns the old and
    /// the new ones whose Services it may change.
    pub(super) fn change(
        &mut self,
        change: Change<TopologyPolicy>,
        is_of_kind: impl Fn(&PolicyId) -> bool,
    ) -> Vec<Arc<TopologyPolicy>> {
        let gone = change.gone(self.all.keys().filter(|id| is_of_kind(id)));
        let new =
            change.into_objects().into_iter().map(|new| (new.id.clone(), Some(Arc::new(new))));
        // With one policy, another one may begin or cease to count.
        let mut before: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
        for (id, new) in gone.into_iter().map(|id| (id, None)).chain(new) {
            let counted = || self.counted(&id.namespace).cloned().collect();
            before.entry(Arc::clone(&id.namespace)).or_insert_with(counted);
            self.put(id, new);
        }
        let touched = before.into_iter().flat_map(|(namespace, before)| {
            let after: Vec<_> = self.counted(&namespace).cloned().collect();
            let of: [HashMap<_, _>; 2] =
                [&before, &after].map(|all| all.iter().map(|it| (&it.id, it)).collect());
            let differs = |it: &&Arc<TopologyPolicy>| of[0].get(&it.id) != of[1].get(&it.id);
            before.iter().chain(&after).filter(differs).cloned().collect::<Vec<_>>()
        });
        touched.collect()
    }

    /// Sets or removes a policy.
    fn put(&mut self, id: PolicyId, new: Option<Arc<TopologyPolicy>>) {
        let own = self.by_strength.entry(Arc::clone(&id.namespace)).or_default();
        if let Some(before) = self.all.remove(&id) {
            own.remove(&before.strength());
        }
        match new {
            Some(new) => {
                own.insert(new.strength(), Arc::clone(&new));
                self.all.insert(id, new);
            }
            None if own.is_empty() => drop(self.by_strength.remove(&id.namespace)),
            None => {}
        }
    }

    /// The policies of a namespace that count, the strongest first; if it is empty, the
    /// ClusterTopologyPolicies, which all do.
    pub(super) fn counted(&self, namespace: &str) -> impl Iterator<Item = &Arc<TopologyPolicy>> {
        let most = if namespace.is_empty() { usize::MAX } else { MOST_POLICIES };
        self.by_strength.get(namespace).into_iter().flat_map(BTreeMap::values).take(most)
    }

    pub(super) fn namespace_of(&self, service: &Service) -> Option<&Namespace> {
        self.namespaces.get(&service.id.namespace).map(|namespace| &**namespace)
    }

    /// Everything that Namespaces and policies say.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PolicySources> {
        let of_namespaces = self.namespaces.values().map(|it| &*it.policy);
        of_namespaces.chain(self.all.values().map(|it| &*it.policy))
    }

    /// What says a policy for `service`, the strongest first: TopologyPolicies, the Namespace,
    /// ClusterTopologyPolicies.
    pub(super) fn above<'a>(&'a self, service: &Service) -> Vec<Above<'a>> {
        if self.spared.contains(&service.id) {
            return Vec::new();
        }
        let namespace = self.namespace_of(service);
        let with_policy = namespace.filter(|it| it.has_policy());
        if self.all.is_empty() {
            return with_policy.map(Above::Namespace).into_iter().collect();
        }
        let mut above: Vec<_> =
            self.selecting(&service.id.namespace, service, namespace).map(Above::Policy).collect();
        above.extend(with_policy.map(Above::Namespace));
        above.extend(self.selecting("", service, namespace).map(Above::Policy));
        above
    }

    fn selecting<'a>(
        &'a self,
        of: &str,
        service: &Service,
        namespace: Option<&Namespace>,
    ) -> impl Iterator<Item = &'a TopologyPolicy> {
        let own = self.counted(of).map(|policy| &**policy);
        own.filter(move |policy| policy.selects(service, namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClusterTopologyPolicy, ServiceId, State, Update};
    use super::*;

    fn policy(namespace: &str, at: usize, precedence: i32) -> TopologyPolicy {
        let id = PolicyId { namespace: namespace.into(), name: format!("p{at:04}").into() };
        TopologyPolicy { id, precedence, ..TopologyPolicy::default() }
    }

    #[test]
    fn only_the_strongest_policies_of_a_namespace_count() {
        let id = ServiceId { namespace: "shop".into(), name: "web".into() };
        let mut state = State::default();
        let apply = |state: &mut State, update| !state.apply(update, "n1").services.is_empty();
        let service = Service { id: id.clone(), ..Service::default() };
        apply(&mut state, Update::Service(Change::Applied(service)));
        let names = |state: &State| -> Vec<_> {
            let service = state.service(&id).expect("a Service");
            let of = |above: Above<'_>| match above {
                Above::Policy(policy) => policy.id.to_string(),
                Above::Namespace(_) => panic!("there is none"),
            };
            state.above(service).into_iter().map(of).collect()
        };
        let put = |policy| Update::TopologyPolicy(Change::Applied(policy));
        let of = |range: std::ops::Range<usize>| -> Vec<_> {
            range.map(|at| policy("shop", at, 0).id.to_string()).collect()
        };
        for at in (0..200).rev() {
            apply(&mut state, put(policy("shop", at, 0)));
        }
        assert_eq!(names(&state), of(0..64));
        let counts = |state: &State, at| state.counts(&policy("shop", at, 0));
        assert!(counts(&state, 63) && !counts(&state, 64));
        // One that does not count changes nothing, until it counts.
        let last = TopologyPolicy { generation: 2, ..policy("shop", 199, 0) };
        assert!(!apply(&mut state, put(last)));
        assert!(apply(&mut state, put(policy("shop", 199, 1))));
        assert_eq!(names(&state)[0], of(199..200)[0]);
        assert_eq!(names(&state)[1..], of(0..63));
        let gone = Change::Deleted(policy("shop", 5, 0).id);
        assert!(apply(&mut state, Update::TopologyPolicy(gone)));
        assert_eq!(names(&state)[1..], [of(0..5), of(6..64)].concat());
        // There is no limit for policies of the cluster: tenants may not write them.
        for at in 0..100 {
            let policy = ClusterTopologyPolicy(policy("", at, 0));
            apply(&mut state, Update::ClusterTopologyPolicy(Change::Applied(policy)));
        }
        assert_eq!(names(&state).len(), 164);
    }
}
