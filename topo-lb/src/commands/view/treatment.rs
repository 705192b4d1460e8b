//! What becomes of a Service's connections, whether it has any or not. Pure.

use serde::Serialize;

use super::cluster::id;
use topo_lb_core::cluster::State;
use topo_lb_core::cluster::service::Skipped;
use topo_lb_core::topology::{Bypass, Scope, bypass, decider, has_direct};

/// What becomes of a Service's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Treatment {
    /// A policy or the hints of Kubernetes decide.
    Policy,
    /// They go to every usable endpoint.
    NoPolicy,
    /// They are left to another proxy, and counted.
    Left,
    /// There is no ClusterIP: clients dial endpoints directly, and are counted.
    Direct,
    /// They are left to kube-proxy, as the Service has no policy: nobody counts them.
    NotCounted,
    /// They are left alone, as the Service says so: nobody counts them.
    NotHandled,
    /// The cluster has no such Service with a ClusterIP.
    Unknown,
}

impl Treatment {
    /// Of a Service by its `namespace/name`. `counts_all`: some agent counts also what topo-lb leaves alone.
    pub(super) fn of(state: &State, scope: Scope, counts_all: bool, name: &str) -> Self {
        let service = id(name).and_then(|id| state.service(&id));
        let Some(service) = service else { return Self::Unknown };
        let decides = decider(state, service).is_some();
        if has_direct(service) && decides && bypass(state, scope, service).is_none() {
            return Self::Policy;
        }
        if !has_address(service) {
            return match service.skipped {
                Some(Skipped::Headless) if counts_all => Self::Direct,
                Some(Skipped::OtherProxy) if counts_all => Self::Left,
                _ => Self::Unknown,
            };
        }
        match bypass(state, scope, service) {
            Some(_) if counts_all => Self::Left,
            Some(Bypass::OutOfScope) => Self::NotCounted,
            Some(Bypass::Annotation | Bypass::Local { .. }) => Self::NotHandled,
            None if service.policy.hints_asked => Self::Policy,
            None if decides => Self::Policy,
            None => Self::NoPolicy,
        }
    }
}

fn has_address(service: &topo_lb_core::cluster::Service) -> bool {
    service.skipped.is_none() && !service.cluster_ips.is_empty()
}

/// How many Services with a ClusterIP nobody counts, as they have no policy.
pub(super) fn uncounted(state: &State, scope: Scope) -> usize {
    let services = state.services().filter_map(|id| state.service(id)).filter(|it| has_address(it));
    let is_left = |service: &&_| bypass(state, scope, service) == Some(Bypass::OutOfScope);
    // With the other scope nothing is left out for want of a policy.
    if scope == Scope::All { 0 } else { services.filter(is_left).count() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use topo_lb_core::cluster::{Change, Update};
    use topo_lb_kube::source::object::{Object, parse};

    #[test]
    fn a_service_without_a_policy_is_not_one_without_traffic() {
        let mut state = State::default();
        let services = [
            ("keys", json!({"topo-lb.io/topology-keys": "*"}), json!({})),
            ("hints", json!({}), json!({"trafficDistribution": "PreferClose"})),
            ("none", json!({}), json!({})),
            ("alone", json!({"topo-lb.io/handle": "false"}), json!({})),
            ("headless", json!({}), json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            (
                "refusing",
                json!({"topo-lb.io/topology-keys": "kubernetes.io/hostname", "topo-lb.io/direct": "refuse"}),
                json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            ),
        ];
        for (name, annotations, more) in services {
            let mut spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                                  "ports": [{"port": 80, "protocol": "TCP"}]});
            for (field, value) in more.as_object().expect("fields") {
                spec[field] = value.clone();
            }
            let service = json!({"kind": "Service", "apiVersion": "v1", "spec": spec,
                "metadata": {"namespace": "d", "name": name, "annotations": annotations}});
            let Ok(Object::Service(service)) = parse(service) else { panic!("{name}") };
            let _ = state.apply(Update::Service(Change::Applied(service)), "");
        }
        let all = |scope, counts_all| {
            ["keys", "hints", "none", "alone", "headless", "refusing", "gone"]
                .map(|name| Treatment::of(&state, scope, counts_all, &format!("d/{name}")))
        };
        use Treatment::{Direct, Left, NoPolicy, NotCounted, NotHandled, Policy, Unknown};
        let handled = |scope| all(scope, false);
        assert_eq!(
            handled(Scope::All),
            [Policy, Policy, NoPolicy, NotHandled, Unknown, Policy, Unknown]
        );
        let opt_in = [Policy, Policy, NotCounted, NotHandled, Unknown, Policy, Unknown];
        assert_eq!(handled(Scope::OptIn), opt_in);
        assert_eq!(all(Scope::OptIn, true), [Policy, Policy, Left, Left, Direct, Policy, Unknown]);
        assert_eq!((uncounted(&state, Scope::All), uncounted(&state, Scope::OptIn)), (0, 1));
    }
}
