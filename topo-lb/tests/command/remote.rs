//! Commands from a workstation: what they learn of the agents by the API server, and how they reach one.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::run::text;
use serde_json::{Value, json};
use topo_lb_fake_api::{ALL, FakeApi, NODES, SERVICES, SLICES};
use topo_lb_tests::counting::PODS;

const EVERY_POD: &str = "/api/v1/pods";
const OF_DEFAULT: &str = "/api/v1/namespaces/default/pods";

fn agent(scope: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"namespace": "topo-lb", "labels": {"app.kubernetes.io/name": "topo-lb"}, "name": "agent-n1"},
           "spec": {"nodeName": "n1", "containers": [
               {"name": "agent", "args": ["agent"], "env": [{"name": "TOPO_LB_SCOPE", "value": scope}]}]}})
}

/// A cluster with a Service without a policy, a client, and an agent of this scope.
fn cluster(scope: &str) -> FakeApi {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let paths = [&ALL[..], &[PODS, EVERY_POD, OF_DEFAULT]].concat();
    let api = FakeApi::start(listener, &paths).unwrap();
    api.fill(NODES, [json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})]);
    let meta = |name: &str| json!({"namespace": "default", "name": name});
    api.fill(
        SERVICES,
        [json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("web"),
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}})],
    );
    let mut slice = meta("web-1");
    slice["labels"] = json!({"kubernetes.io/service-name": "web"});
    api.fill(
        SLICES,
        [json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice,
                "addressType": "IPv4", "ports": [{"name": "", "port": 80}],
                "endpoints": [{"addresses": ["10.1.1.1"], "nodeName": "n1"}]})],
    );
    let mut client = meta("client");
    client["uid"] = "0a1b2c3d-0000-4000-8000-000000000001".into();
    let client = json!({"apiVersion": "v1", "kind": "Pod", "metadata": client, "spec": {"nodeName": "n1", "containers": []}});
    api.fill(EVERY_POD, [client.clone()]);
    api.fill(OF_DEFAULT, [client]);
    api.fill(PODS, [agent(scope)]);
    api
}

/// Runs the command with this kubeconfig and this folder as its whole PATH.
fn run(api: &FakeApi, path: &Path, arguments: &[&str]) -> Output {
    let kubeconfig = path.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": api.url()}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    // As kubectl finds it.
    let plugin = path.join("kubectl-topo");
    let _ = symlink(env!("CARGO_BIN_EXE_topo-lb"), &plugin);
    let mut command = Command::new(plugin);
    command.arg(arguments[0]).arg("--kubeconfig").arg(&kubeconfig).args(&arguments[1..]);
    command.env_clear().env("PATH", path).output().unwrap()
}

#[test]
fn commands_decide_as_the_agents_of_the_cluster_do() {
    let folder = tempfile::tempdir().unwrap();
    let explained = |scope, more: &[&str]| {
        let arguments = [&["explain", "--node", "n1", "-o", "json"], more].concat();
        let done = run(&cluster(scope), folder.path(), &arguments);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let json: Value = serde_json::from_slice(&done.stdout).unwrap();
        let service = json["services"][0].clone();
        (
            service["decision"]["verdict"].as_str().unwrap_or_default().to_owned(),
            text(&done.stderr).to_owned(),
        )
    };
    let (verdict, said) = explained("opt-in", &[]);
    assert_eq!(verdict, "bypass");
    assert!(said.contains("as the cluster's agents decide, whose scope is opt-in"), "{said}");
    assert_eq!(explained("all", &[]), ("route".to_owned(), String::new()));
    // The flag comes first, and Pods elsewhere are no agents.
    assert_eq!(explained("opt-in", &["--scope", "all"]), ("route".to_owned(), String::new()));
    let (verdict, said) = explained("opt-in", &["--agents-namespace", "other"]);
    assert_eq!(verdict, "route");
    assert!(said.contains("shown as agents with --scope all decide"), "{said}");
    // Who calls kubectl is on no node.
    let everywhere = run(&cluster("all"), folder.path(), &["explain", "-o", "json"]);
    let json: Value = serde_json::from_slice(&everywhere.stdout).unwrap();
    assert!(json[0]["nodes"].is_array(), "{json:#}");
}

#[test]
fn a_trace_of_a_pod_goes_through_the_agent_of_its_node_and_gets_names() {
    let folder = tempfile::tempdir().unwrap();
    let (api, path) = (cluster("all"), folder.path());
    let trace = |more: &[&str]| {
        run(&api, path, &[&["trace", "--pin-dir", "/nowhere", "default/web"], more].concat())
    };

    let done = trace(&["--pod", "default/client"]);
    assert!(text(&done.stderr).contains("kubectl is not in the PATH"), "{}", text(&done.stderr));

    let kubectl = path.join("kubectl");
    let script = "#!/bin/sh\necho \"$@\" >&2\nread -r line\necho \"$line\"\nexit 3\n";
    fs::write(&kubectl, script).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    let done = trace(&["--pod", "default/client", "--count", "2"]);
    assert_eq!(done.status.code(), Some(1), "kubectl's failure is one");
    let said = text(&done.stderr);
    let wanted = "exec --stdin --namespace topo-lb agent-n1 --container agent -- /topo-lb trace --names-from-stdin \
                  default/web --pod=default/client --count=2 --buffer=256";
    assert!(said.contains(wanted), "{said}");
    assert_eq!(text(&done.stdout), "0a1b2c3d-0000-4000-8000-000000000001 default/client\n");

    for (more, sentence) in [
        (&["--node", "n2"][..], "no agent runs on the node n2"),
        (&["--pod", "default/gone"], "there is no Pod default/gone"),
        (&["--pod", "client"], "write it as NAMESPACE/NAME"),
        (&[], "a trace is of one node: name a Pod of it"),
        (&["--node", "n1", "--agents-namespace", "other"], "the agents' Pods"),
    ] {
        let done = trace(more);
        assert!(!done.status.success());
        assert!(text(&done.stderr).contains(sentence), "{more:?}: {}", text(&done.stderr));
    }
}
