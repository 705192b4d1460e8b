//! Objects in the form of Kubernetes 1.20, the last minor version but one with Service Topology.

use serde_json::{Value, json};

use crate::scene::{KEYS, ZONE};

/// An object with the fields of 1.20: topology keys in a Service's `spec`, and slices of [`slice()`].
#[must_use]
pub fn form(mut object: Value) -> Value {
    if object["kind"] == "Service"
        && let Some(keys) = object["metadata"]["annotations"][KEYS].as_str()
    {
        object["spec"]["topologyKeys"] = keys.split(',').collect();
    }
    slice(object)
}

/// An EndpointSlice of `discovery.k8s.io/v1beta1`: a map has an endpoint's node and zone. Returns
/// other objects unchanged.
#[must_use]
pub fn slice(mut object: Value) -> Value {
    if object["kind"] == "EndpointSlice" {
        object["apiVersion"] = "discovery.k8s.io/v1beta1".into();
        for endpoint in object["endpoints"].as_array_mut().into_iter().flatten() {
            let mut topology = json!({});
            for (field, label) in [("nodeName", "kubernetes.io/hostname"), ("zone", ZONE)] {
                if let Some(place) = endpoint[field].as_str() {
                    topology[label] = place.into();
                }
            }
            endpoint["topology"] = topology;
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::Population;

    #[test]
    fn policies_and_places_are_where_1_20_has_them() {
        let mut population = Population::new("here", 3, 2, 1);
        population.addresses = vec![[10, 244, 1, 3].into()];
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
