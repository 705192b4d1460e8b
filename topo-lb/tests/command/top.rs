//! The command `topo-lb top` beside a cluster that does not allow everything, or whose agents differ.

use std::net::TcpListener;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::run::{run, text};
use serde_json::{Value, json};
use topo_lb_fake_api::FakeApi;
use topo_lb_tests::counting::PODS;

const OF_N1: &str = "/api/v1/namespaces/topo-lb/pods/agent-n1:19876/proxy/metrics";
const OF_N2: &str = "/api/v1/namespaces/topo-lb/pods/agent-n2:19876/proxy/metrics";
const LABELS: &str = "namespace=\"default\",service=\"web\",port=\"http\",locality=\"node\"";

/// A cluster with an agent on each of two nodes. Each answer has 100 connections more; only that of n1 has
/// what newer agents count.
fn cluster() -> FakeApi {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = FakeApi::start(listener, &[PODS]).unwrap();
    api.fill(
        PODS,
        ["n1", "n2"].map(|node| {
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
                   "metadata": {"namespace": "topo-lb", "labels": {"app.kubernetes.io/name": "topo-lb"}, "name": format!("agent-{node}")}})
        }),
    );
    let answers = AtomicU32::new(0);
    api.answer_texts(move |path| {
        let is_new = path.contains("agent-n1:19876");
        let count = 100 * answers.fetch_add(1, Ordering::Relaxed);
        let old = format!("topo_lb_ready 1\ntopo_lb_connections_total{{{LABELS}}} {count}\n");
        let new = ["ended_connections", "sent_bytes"]
            .map(|name| format!("topo_lb_tcp_{name}_total{{{LABELS},tier=\"0\"}} {count}\n"));
        path.ends_with("/metrics").then(|| if is_new { old + &new.concat() } else { old })
    });
    api
}

/// Runs `topo-lb top --cluster --once -o json`.
fn top(api: &FakeApi) -> Output {
    top_as(api, "json")
}

fn top_as(api: &FakeApi, output: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": api.url()}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let flags = ["--cluster", "--once", "--interval", "1", "-o", output];
    run(&[&["top", "--kubeconfig", kubeconfig][..], &flags].concat(), "")
}

/// The row of the only Service.
fn web(output: &Output) -> Value {
    let looked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = &looked["services"];
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    rows[0].clone()
}

fn nodes(row: &Value) -> Vec<&str> {
    row["nodes"].as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn without_the_right_to_list_pods_a_sentence_names_the_rights() {
    let api = cluster();
    api.state().refuse.insert(PODS, (403, "no pods for you"));
    let done = top(&api);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    let wanted = "cannot list the Pods of the namespace topo-lb with the label \
                  app.kubernetes.io/name=topo-lb: not allowed (no pods for you); this takes `list` on pods \
                  and `get` on pods/proxy";
    assert!(text(&done.stderr).contains(wanted), "{}", text(&done.stderr));
}

#[test]
fn a_node_whose_pod_may_not_be_asked_has_a_sentence_and_the_others_are_shown() {
    let api = cluster();
    api.state().refuse.insert(OF_N2, (403, "no proxy for you"));
    let done = top(&api);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(nodes(&web(&done)), ["n1"]);
    assert_eq!(text(&done.stderr), "topo-lb: n2: not allowed (no proxy for you)\n");

    api.state().refuse.insert(OF_N1, (403, "no proxy for you"));
    let done = top(&api);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    let wanted =
        "no node answers: n1: not allowed (no proxy for you); n2: not allowed (no proxy for you)\n";
    assert!(text(&done.stderr).ends_with(wanted), "{}", text(&done.stderr));

    api.state().refuse.insert(OF_N1, (503, "connection refused"));
    let advice = "; agents answer the API server only with the chart value listen.onNode=true\n";
    let said = top(&api).stderr;
    assert!(text(&said).ends_with(advice), "{}", text(&said));
}

#[test]
fn an_agent_of_an_older_version_shows_what_it_counts() {
    let done = top(&cluster());
    assert_eq!((done.status.success(), text(&done.stderr)), (true, ""));
    let row = web(&done);
    assert_eq!(nodes(&row), ["n1", "n2"]);
    let [new, old] = ["n1", "n2"].map(|node| &row["nodes"][node]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(number(&old["connections"][0]) > 0.0, "{row}");
    assert_eq!((number(&old["bytes"][0]), number(&old["failed"])), (0.0, 0.0), "{row}");
    assert!(number(&new["bytes"][0]) > 0.0, "{row}");
    let ended = number(&row["tiers"]["0"]["ended"]);
    let both = number(&row["connections"][0]);
    assert!(ended > 0.0 && ended < both, "only n1 counts the ends: {row}");
}

/// Node n2 has chosen as before already.
#[test]
fn what_is_evacuated_is_above_the_table_and_in_json() {
    let api = cluster();
    assert!(!text(&top_as(&api, "table").stdout).contains("evacuated"));
    let evacuations = || -> Value {
        let looked: Value = serde_json::from_slice(&top(&api).stdout).unwrap();
        looked["evacuations"].clone()
    };
    assert_eq!(evacuations(), json!([]));
    api.answer_texts(|path| {
        let labels =
            "key=\"topology.kubernetes.io/zone\",value=\"b\",until=\"2044-11-06T10:49:00Z\"";
        let evacuated = format!(
            "# TYPE topo_lb_evacuated_services gauge\ntopo_lb_evacuated_services{{{labels}}} 3\n"
        );
        let rest = if path.contains("agent-n1:19876") { &*evacuated } else { "" };
        path.ends_with("/metrics").then(|| format!("topo_lb_ready 1\n{rest}"))
    });
    let said = top_as(&api, "table");
    let wanted = "evacuated: topology.kubernetes.io/zone=b, 3 Services, until 2044-11-06 10:49 UTC, on 1 of 2 nodes";
    assert_eq!(text(&said.stdout).lines().next(), Some(wanted), "{}", text(&said.stderr));
    let wanted = json!([{"key": "topology.kubernetes.io/zone", "value": "b", "until": "2044-11-06T10:49:00Z",
                         "services": 3, "nodes": 1}]);
    assert_eq!(evacuations(), wanted);
}
