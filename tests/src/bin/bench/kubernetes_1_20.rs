//! Objects as Kubernetes 1.20 serves them: the last version with Service Topology in kube-proxy.

use serde_json::{Value, json};

/// topo-lb's annotation for what was `spec.topologyKeys`.
const TOPOLOGY_KEYS: &str = "topo-lb.io/topology-keys";

/// Says the same by the fields of 1.20: the keys of a Service in its `spec`, where an endpoint is in a
/// map (`discovery.k8s.io/v1beta1`). Other objects are what they were.
pub(crate) fn form(mut object: Value) -> Value {
    if object["kind"] == "Service" {
        if let Some(keys) = object["metadata"]["annotations"][TOPOLOGY_KEYS].as_str() {
            let keys: Vec<&str> = keys.split(',').collect();
            object["spec"]["topologyKeys"] = json!(keys);
        }
    } else if object["kind"] == "EndpointSlice" {
        object["apiVersion"] = "discovery.k8s.io/v1beta1".into();
        for endpoint in object["endpoints"].as_array_mut().into_iter().flatten() {
            let zone = endpoint.as_object_mut().and_then(|fields| fields.remove("zone"));
            endpoint["topology"] = json!({
                "kubernetes.io/hostname": endpoint["nodeName"],
                "topology.kubernetes.io/zone": zone,
            });
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use topo_lb_tests::population::Population;

    use super::*;

    #[test]
    fn policies_and_places_are_where_1_20_has_them() {
        let population = Population {
            services: 2,
            endpoints: 1,
            here: "here".into(),
            nodes: 3,
            addresses: vec![[10, 244, 1, 3].into()],
            port: 80,
        };
        let keys = json!(["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]);
        assert_eq!(form(population.service(0))["spec"]["topologyKeys"], keys);
        assert_eq!(form(population.service(1)), population.service(1));
        let slice = form(population.slices(0, |_| true).swap_remove(0));
        assert_eq!(slice["apiVersion"], "discovery.k8s.io/v1beta1");
        let topology =
            json!({"kubernetes.io/hostname": "here", "topology.kubernetes.io/zone": "zone-0"});
        assert_eq!(slice["endpoints"][0]["topology"], topology);
        assert_eq!(form(population.node(0)), population.node(0));
    }
}
