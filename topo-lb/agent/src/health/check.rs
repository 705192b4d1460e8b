//! The Services with a health check, and their endpoints on this node. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use uuid::Uuid;

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::topology::{is_left, reached};

/// The health check of a Service on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Ready endpoints that clients outside get at this node.
    pub local: usize,
    /// The Service's UID, for Events.
    pub uid: Option<Uuid>,
}

impl Check {
    /// The check of a Service; `None` if it has none, or is another proxy's.
    #[must_use]
    pub fn of(state: &State, node: &str, id: &ServiceId) -> Option<Self> {
        let service = state.service(id).filter(|service| service.skipped.is_none())?;
        let port =
            service.exposure.as_ref()?.health_check_port.filter(|_| service.external_local)?;
        let local = reached(state, node, service)?;
        Some(Self { port, local, uid: service.uid })
    }
}

/// Which checks are to be answered, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// By Service.
    pub checks: BTreeMap<ServiceId, Check>,
    /// Addresses of this node; `::` is all of them.
    pub addresses: Vec<IpAddr>,
    /// Load balancers are to leave this node (`topo-lb.io/evacuate`).
    pub is_left: bool,
}

impl Wanted {
    /// Takes in changed Services, and the node's addresses. Returns whether anything differs.
    pub(super) fn look<'a>(
        &mut self,
        state: &State,
        node: &str,
        changed: impl Iterator<Item = &'a ServiceId>,
        addresses: Vec<IpAddr>,
    ) -> bool {
        let is_left = is_left(state, node);
        let mut differs = self.addresses != addresses || self.is_left != is_left;
        (self.addresses, self.is_left) = (addresses, is_left);
        for id in changed {
            let new = Check::of(state, node, id);
            let old = match new {
                Some(new) => self.checks.insert(id.clone(), new),
                None => self.checks.remove(id),
            };
            differs |= old != new;
        }
        differs
    }

    /// Where to listen, and for which Service.
    #[must_use]
    pub fn sockets(&self) -> BTreeSet<(ServiceId, SocketAddr)> {
        let of = |(id, check): (&ServiceId, &Check)| {
            let (id, port) = (id.clone(), check.port);
            self.addresses.iter().map(move |&address| (id.clone(), SocketAddr::new(address, port)))
        };
        self.checks.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_kube::source::file::example::updates;

    const CLUSTER: &str = "---
{apiVersion: v1, kind: Node, metadata: {name: here, labels: {kubernetes.io/hostname: here}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIPs: [10.96.0.1, 'fd00:96::1'],
   ports: [{port: 80}, {name: tls, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 80}, {name: tls, port: 443}]
endpoints:
- {addresses: [10.1.1.1], nodeName: here}
- {addresses: [10.1.1.2], nodeName: here, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.1.2.1], nodeName: there}
- {addresses: [10.1.1.3], nodeName: here}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-2, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 80}]
endpoints: [{addresses: [10.1.1.1], nodeName: here}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: '', port: 80}]
endpoints: [{addresses: ['fd00::1'], nodeName: here}]
";

    fn id() -> ServiceId {
        ServiceId { namespace: "default".into(), name: "web".into() }
    }

    fn check(cluster: &str) -> Option<(u16, usize)> {
        let mut state = State::default();
        for update in updates(cluster) {
            let _ = state.apply(update, "here");
        }
        Check::of(&state, "here", &id()).map(|check| (check.port, check.local))
    }

    #[test]
    fn ready_endpoints_of_this_node_count_once() {
        assert_eq!(check(CLUSTER), Some((32_000, 2)));
        assert_eq!(check(&CLUSTER.replace("nodeName: here", "nodeName: there")), Some((32_000, 0)));
    }

    #[test]
    fn with_keys_for_the_outside_the_endpoints_of_their_tier_count() {
        let with = |keys: &str| {
            let annotated = format!(
                "metadata: {{name: web, annotations: {{topo-lb.io/external-topology-keys: {keys}}}}}"
            );
            check(&CLUSTER.replacen("metadata: {name: web}", &annotated, 1))
        };
        assert_eq!(with("kubernetes.io/hostname"), Some((32_000, 2)));
        assert_eq!(with("'*'"), Some((32_000, 3)));
        assert_eq!(with("example.com/rack"), Some((32_000, 0)));
    }

    #[test]
    fn only_a_load_balancer_for_local_endpoints_has_a_check() {
        for (from, to) in [
            ("type: LoadBalancer", "type: NodePort"),
            ("externalTrafficPolicy: Local", "externalTrafficPolicy: Cluster"),
            ("healthCheckNodePort: 32000, ", ""),
            ("healthCheckNodePort: 32000", "healthCheckNodePort: 0"),
            ("healthCheckNodePort: 32000", "healthCheckNodePort: 98304"),
            (
                "metadata: {name: web}",
                "metadata: {name: web, annotations: {topo-lb.io/handle: 'false'}}",
            ),
            (
                "metadata: {name: web}",
                "metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: other}}",
            ),
        ] {
            assert_eq!(check(&CLUSTER.replacen(from, to, 1)), None, "{to}");
        }
    }

    #[test]
    fn a_change_is_told_once_and_sockets_follow_ports_and_addresses() {
        let mut state = State::default();
        for update in updates(CLUSTER) {
            let _ = state.apply(update, "here");
        }
        let (mut wanted, id) = (Wanted::default(), id());
        let addresses: Vec<IpAddr> =
            ["172.30.0.1", "fd00:30::1"].map(|it| it.parse().unwrap()).into();
        assert!(wanted.look(&state, "here", [&id].into_iter(), addresses.clone()));
        assert!(!wanted.look(&state, "here", [&id].into_iter(), addresses.clone()));
        let sockets: Vec<_> = wanted.sockets().iter().map(|(_, it)| it.to_string()).collect();
        assert_eq!(sockets, ["172.30.0.1:32000", "[fd00:30::1]:32000"]);
        assert!(wanted.look(&state, "here", [].into_iter(), Vec::new()));
        assert!(wanted.sockets().is_empty());
        assert!(wanted.look(&State::default(), "here", [&id].into_iter(), addresses));
        assert_eq!(wanted.checks.len(), 0);
    }
}
