//! A cluster in which kube-proxy serves what topo-lb leaves to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::service::PolicySources;
use crate::cluster::{Change, Service, ServiceId, State, Update};
use crate::topology::{Scope, Verdict, decide};

/// A cluster, and who serves its Services.
#[derive(Clone, Debug)]
pub struct Proxied {
    pub(super) state: State,
    /// Services that topo-lb leaves to kube-proxy. In `state` they have no policy, and nothing evacuates them:
    /// kube-proxy reads no annotation or policy of topo-lb or OpenYurt, and since Kubernetes 1.22 no
    /// `spec.topologyKeys`. It follows hints and `internalTrafficPolicy` as topo-lb does.
    pub(super) by_kube_proxy: BTreeSet<ServiceId>,
}

impl Proxied {
    /// The cluster of `state` with agents of this scope.
    #[must_use]
    pub fn of(mut state: State, scope: Scope) -> Self {
        let is_left = |id: &&ServiceId| {
            let decisions = decide(&state, "", scope, id);
            decisions.first().is_some_and(|one| one.verdict() == Verdict::Bypass)
        };
        let by_kube_proxy: BTreeSet<ServiceId> =
            state.services().filter(is_left).cloned().collect();
        for id in &by_kube_proxy {
            let Some(service) = state.service(id) else { continue };
            let hints_asked = service.policy.hints_asked;
            let policy = Arc::new(PolicySources { hints_asked, ..PolicySources::default() });
            let service = Service { policy, ..service.clone() };
            let _ = state.apply(Update::Service(Change::Applied(service)), "");
            state.spare(id.clone());
        }
        Self { state, by_kube_proxy }
    }

    /// The cluster. Services that kube-proxy serves have no policy.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }
}
