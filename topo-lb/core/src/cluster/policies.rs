//! Namespaces and policy objects: what gives a policy to more than one Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Change;
use super::namespace::Namespace;
use super::service::{PolicySources, Service};
use super::topology_policy::{PolicyId, TopologyPolicy};

/// The last good Namespaces and policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Policies {
    pub(super) namespaces: BTreeMap<Arc<str>, Arc<Namespace>>,
    /// Those of both kinds; ClusterTopologyPolicies have no namespace.
    pub(super) all: BTreeMap<PolicyId, Arc<TopologyPolicy>>,
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
        let mut touched: Vec<_> = gone.iter().filter_map(|id| self.all.remove(id)).collect();
        for new in change.into_objects() {
            let new = Arc::new(new);
            let before = self.all.insert(new.id.clone(), Arc::clone(&new));
            if before.as_ref() != Some(&new) {
                touched.extend(before);
                touched.push(new);
            }
        }
        touched
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
        let first = PolicyId { namespace: of.into(), name: Arc::default() };
        let own = self.all.range(first..).map(|(_, policy)| &**policy);
        let own = own.take_while(|policy| *policy.id.namespace == *of);
        let mut selecting: Vec<_> =
            own.filter(|policy| policy.selects(service, namespace)).collect();
        selecting.sort_by(|a, b| a.strength().cmp(&b.strength()));
        selecting.into_iter()
    }
}
