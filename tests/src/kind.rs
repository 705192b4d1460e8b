//! The cluster of the OpenYurt tutorial, as in the Kubernetes fixture: three nodes in three pools,
//! and the pods of two united deployments.

use crate::node::NodePlan;

/// The node in pool beijing; it has no pod of the first deployment.
pub const CONTROL_PLANE: &str = "kind-control-plane";
/// The node in pool hangzhou.
pub const WORKER: &str = "kind-worker";
/// The node in pool shanghai.
pub const WORKER2: &str = "kind-worker2";

/// The first deployment's pods in hangzhou.
pub const HANGZHOU: [&str; 2] = [
    "united-deployment1-hangzhou-fv6th-66ff6fd958-f2694",
    "united-deployment1-hangzhou-fv6th-66ff6fd958-twf95",
];
/// The first deployment's pods in shanghai.
pub const SHANGHAI: [&str; 2] = [
    "united-deployment1-shanghai-5p8zk-84bdd476b6-hr6xt",
    "united-deployment1-shanghai-5p8zk-84bdd476b6-wjck2",
];
/// All pods of the first deployment.
pub const SERVERS: [&str; 4] = [HANGZHOU[0], HANGZHOU[1], SHANGHAI[0], SHANGHAI[1]];
/// The second deployment's pod in hangzhou.
pub const HANGZHOU_CLIENT: &str = "united-deployment2-hangzhou-lpkzg-6d958b67b6-gf847";
/// The second deployment's pod in shanghai.
pub const SHANGHAI_CLIENT: &str = "united-deployment2-shanghai-tqgd4-57f7555494-9jvjb";
/// A pod in beijing that the tutorial does not have: a client on a node without a server.
pub const BEIJING_CLIENT: &str = "client-beijing";
/// A pod in beijing that the tutorial does not have: a server in the rack of the custom keys.
pub const NEIGHBOUR: &str = "rack-neighbour";

/// The label for a node's pool.
pub const POOL: &str = "apps.openyurt.io/nodepool";
/// The label for the pool that a node is to join.
pub const DESIRED_POOL: &str = "apps.openyurt.io/desired-nodepool";
/// The label that the custom keys use.
pub const RACK: &str = "example.com/rack";

/// The tutorial's Service, restricted to a node's pool, and its ClusterIP.
pub const SVC_UD1: (&str, &str) = ("svc-ud1", "10.109.250.163");
/// The same Service without a policy.
pub const SVC_UD1_WITHOUT_TOPOLOGY: (&str, &str) = ("svc-ud1-without-topology", "10.102.28.88");
/// The same Service with custom keys: node, rack, anywhere.
pub const SVC_RACK: (&str, &str) = ("svc-rack", "10.100.208.213");

/// Nodes and pods with the names and addresses of the fixture.
#[must_use]
pub fn plan() -> Vec<NodePlan<'static>> {
    let [f2694, twf95] = HANGZHOU;
    let [hr6xt, wjck2] = SHANGHAI;
    vec![
        NodePlan {
            name: CONTROL_PLANE,
            number: 0,
            pods: vec![(NEIGHBOUR, 3), (BEIJING_CLIENT, 4)],
        },
        NodePlan {
            name: WORKER,
            number: 1,
            pods: vec![(f2694, 2), (twf95, 3), (HANGZHOU_CLIENT, 4)],
        },
        NodePlan {
            name: WORKER2,
            number: 2,
            pods: vec![(hr6xt, 2), (wjck2, 3), (SHANGHAI_CLIENT, 4)],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::KUBERNETES_1_36;
    use crate::wiring::pod4;

    #[test]
    fn names_and_addresses_are_the_fixtures() {
        let fixture: serde_json::Value =
            serde_json::from_str(KUBERNETES_1_36).expect("the fixture is JSON");
        let items = fixture["items"].as_array().expect("the fixture is a List");
        for node in plan() {
            let found = items.iter().find(|item| item["metadata"]["name"] == node.name);
            assert_eq!(found.expect("a node of the fixture")["kind"], "Node", "{}", node.name);
            for (pod, host) in &node.pods {
                let slices = items.iter().filter(|item| item["addressType"] == "IPv4");
                let mut endpoints =
                    slices.filter_map(|item| item["endpoints"].as_array()).flatten();
                if let Some(endpoint) = endpoints.find(|it| it["targetRef"]["name"] == *pod) {
                    assert_eq!(endpoint["addresses"][0], pod4(node.number, *host).to_string());
                    assert_eq!(endpoint["nodeName"], node.name);
                } else {
                    assert!([BEIJING_CLIENT, NEIGHBOUR].contains(pod), "{pod}");
                }
            }
        }
        for (name, address) in [SVC_UD1, SVC_UD1_WITHOUT_TOPOLOGY, SVC_RACK] {
            let service = items
                .iter()
                .find(|item| item["kind"] == "Service" && item["metadata"]["name"] == name);
            assert_eq!(service.expect("a Service of the fixture")["spec"]["clusterIP"], address);
        }
    }
}
