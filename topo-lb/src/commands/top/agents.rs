//! The agents of a cluster: which Pods are asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use clap::ValueEnum as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::time::timeout;

use super::agent::{Agent, LIMIT};
use super::moment::Doubts;
use topo_lb_core::topology::Scope;
use topo_lb_kube::source::kube::{Server, in_words};

/// The label of the agents' Pods, as the manifests set it.
const LABEL: &str = "app.kubernetes.io/name=topo-lb";

/// The agents of a cluster, as their Pods say.
#[derive(Default)]
pub(super) struct Agents {
    /// One of each node.
    pub(super) all: Vec<Agent>,
    pub(super) doubts: Doubts,
    /// Which Services they handle; `None`: their Pods do not say.
    pub(super) scope: Option<Scope>,
}

/// The agents of a cluster. Each is reached through the API server, at its Pod. Only Pods of `namespace`
/// count: whoever may create Pods elsewhere can give them any label.
///
/// # Errors
/// The Pods cannot be listed, or there are none.
pub(super) async fn list(server: &Server, namespace: &str, port: u16) -> anyhow::Result<Agents> {
    let pods: Api<Pod> = Api::namespaced(server.client(), namespace);
    let params = ListParams::default().labels(LABEL).fields("status.phase=Running");
    let list = timeout(LIMIT, pods.list(&params)).await;
    let pods = match list {
        Ok(Ok(pods)) => Ok(pods),
        Ok(Err(error)) => {
            Err(format!("{}; this takes `list` on pods and `get` on pods/proxy", in_words(&error)))
        }
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    };
    let pods = pods.map_err(|reason| {
        anyhow!(
            "cannot list the Pods of the namespace {namespace} with the label {LABEL}: {reason}"
        )
    })?;
    let scope = scope(&pods.items);
    let (chosen, doubts) = choose(pods.items);
    let agent = |(node, pod): (Arc<str>, String)| {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics");
        Agent { name: node, server: server.clone(), path }
    };
    let all: Vec<_> = chosen.into_iter().map(agent).collect();
    anyhow::ensure!(
        !all.is_empty(),
        "no running Pod of the namespace {namespace} has the label {LABEL}: is topo-lb installed there? \
         --agents-namespace names another one"
    );
    Ok(Agents { all, doubts, scope })
}

/// Which Services agents handle whose Pods set `TOPO_LB_SCOPE`, as the manifests do; or `--scope`, which is
/// stronger.
fn scope(pods: &[Pod]) -> Option<Scope> {
    let mut containers =
        pods.iter().filter_map(|pod| pod.spec.as_ref()).flat_map(|it| &it.containers);
    containers.find_map(|container| {
        let mut flags = container.args.iter().flatten();
        let flag = flags.find_map(|it| it.strip_prefix("--scope="));
        let mut variables = container.env.iter().flatten();
        let variable = variables.find(|it| it.name == "TOPO_LB_SCOPE");
        let text = flag.or_else(|| variable?.value.as_deref())?;
        Scope::from_str(text, false).ok()
    })
}

/// The Pod to ask on each node: the oldest that is not being deleted. A sentence for each node with
/// another one.
fn choose(mut pods: Vec<Pod>) -> (BTreeMap<Arc<str>, String>, Doubts) {
    pods.sort_by_cached_key(|Pod { metadata, .. }| {
        let created = metadata.creation_timestamp.as_ref().map(|it| it.0);
        (metadata.deletion_timestamp.is_some(), created, metadata.name.clone())
    });
    let (mut chosen, mut doubts) = (BTreeMap::<Arc<str>, String>::new(), Doubts::new());
    for Pod { metadata, spec, .. } in pods {
        let node = spec.and_then(|spec| spec.node_name);
        let (Some(node), Some(name)) = (node, metadata.name) else { continue };
        let node: Arc<str> = node.into();
        match chosen.get(&node) {
            None => drop(chosen.insert(node, name)),
            // Its successor runs already.
            Some(_) if metadata.deletion_timestamp.is_some() => {}
            Some(first) => {
                let doubt = format!("a second agent, {name}, is not asked; {first} is older");
                doubts.insert(node, doubt);
            }
        }
    }
    (chosen, doubts)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use serde_json::{Value, json};
    use topo_lb_fake_api::FakeApi;

    use super::*;
    use topo_lb_kube::source::kube::{KubeTarget, connect};

    const PODS: &str = "/api/v1/namespaces/topo-lb/pods";

    fn pod(name: &str, node: &str, created: &str, is_deleted: bool) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
            "metadata": {"namespace": "topo-lb", "name": name, "creationTimestamp": created}});
        if is_deleted {
            pod["metadata"]["deletionTimestamp"] = "2026-01-09T00:00:00Z".into();
        }
        pod
    }

    #[tokio::test]
    async fn only_running_pods_of_the_agents_namespace_are_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let api = FakeApi::start(listener, &["/api/v1/pods", PODS]).expect("a server");
        api.fill("/api/v1/pods", [pod("evil", "n1", "2020-01-01T00:00:00Z", false)]);
        let server = connect(&KubeTarget::Server(api.url())).await.expect("a server");
        let error = list(&server, "topo-lb", 1).await.err().expect("nobody").to_string();
        assert!(error.contains("--agents-namespace"), "{error}");

        api.fill(PODS, [pod("agent", "n1", "2026-01-01T00:00:00Z", false)]);
        let Agents { all, doubts, .. } = list(&server, "topo-lb", 7).await.expect("an agent");
        let paths: Vec<_> = all.iter().map(|it| (&*it.name, &*it.path)).collect();
        let path = "/api/v1/namespaces/topo-lb/pods/agent:7/proxy/metrics";
        assert_eq!((paths, doubts), (vec![("n1", path)], Doubts::new()));
        let asked = api.requested("status.phase%3DRunning");
        assert_eq!((asked, api.requested("/api/v1/pods")), (2, 0));
    }

    #[test]
    fn pods_say_which_services_their_agents_handle() {
        let of = |container: Value| {
            let mut pod = pod("agent", "n1", "2026-01-01T00:00:00Z", false);
            pod["spec"]["containers"] = json!([{"name": "sidecar"}, container]);
            scope(&[serde_json::from_value(pod).expect("a Pod")])
        };
        let variable = json!([{"name": "TOPO_LB_SCOPE", "value": "opt-in"}]);
        assert_eq!(of(json!({"name": "agent"})), None);
        assert_eq!(of(json!({"name": "agent", "env": variable})), Some(Scope::OptIn));
        let flags = json!(["agent", "--scope=all"]);
        assert_eq!(of(json!({"name": "agent", "env": variable, "args": flags})), Some(Scope::All));
    }

    #[test]
    fn a_second_agent_of_a_node_replaces_nobody_and_is_told() {
        let pods = [
            pod("late", "n1", "2026-01-03T00:00:00Z", false),
            pod("early", "n1", "2026-01-02T00:00:00Z", false),
            pod("leaving", "n1", "2026-01-01T00:00:00Z", true),
            pod("successor", "n2", "2026-01-02T00:00:00Z", false),
            pod("leaving", "n2", "2026-01-01T00:00:00Z", true),
            pod("leaving", "n3", "2026-01-01T00:00:00Z", true),
        ];
        let pods = pods.map(|pod| serde_json::from_value(pod).expect("a Pod"));
        let (chosen, doubts) = choose(pods.into());
        let wanted = [("n1", "early"), ("n2", "successor"), ("n3", "leaving")];
        assert_eq!(chosen, wanted.map(|(node, pod)| (node.into(), pod.to_owned())).into());
        let told = "a second agent, late, is not asked; early is older";
        assert_eq!(doubts, [("n1".into(), told.to_owned())].into());
    }
}
