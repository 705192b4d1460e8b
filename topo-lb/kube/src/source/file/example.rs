//! A cluster for tests: Node `here`, Service `default/a` keyed by `rack`, its endpoint on `there`.

use topo_lb_core::cluster::Update;

/// Its manifests.
pub const CLUSTER: &str = "\
apiVersion: v1
kind: Node
metadata: {name: here, labels: {rack: '1'}}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: default, annotations: {topo-lb.io/topology-keys: rack}}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, namespace: default, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: '', port: 80}]
endpoints: [{addresses: [10.1.1.1], nodeName: there}]
";

/// The updates of a source with this cluster.
///
/// # Panics
/// The manifests are wrong.
#[must_use]
pub fn updates(cluster: &str) -> Vec<Update> {
    super::parse("a.yaml".as_ref(), cluster.as_bytes()).unwrap().updates
}
