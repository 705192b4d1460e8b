//! The commands `topo-lb evacuate` and `restore` beside a server that takes what they write.

use std::net::TcpListener;
use std::process::Output;

use crate::run::{run, text};
use serde_json::json;
use topo_lb_fake_api::{ALL, CLUSTER_POLICIES, FakeApi, NODES, SERVICES, SLICES};

/// `LABEL=VALUE` of both nodes.
pub(crate) const ZONES: [&str; 2] =
    ["topology.kubernetes.io/zone=a", "topology.kubernetes.io/zone=b"];

/// Two zones with a node each, and a Service with an endpoint on both. What is written is answered, and not kept.
pub(crate) fn cluster() -> FakeApi {
    let api = FakeApi::start(TcpListener::bind("127.0.0.1:0").unwrap(), &ALL).unwrap();
    let node = |name: &str, zone: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
               "labels": {"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name}}})
    };
    api.fill(NODES, [node("n1", "a"), node("n2", "b")]);
    let meta = json!({"namespace": "default", "name": "web", "labels": {"kubernetes.io/service-name": "web"}});
    api.fill(
        SERVICES,
        [json!({"apiVersion": "v1", "kind": "Service", "metadata": meta,
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}})],
    );
    api.fill(
        SLICES,
        [json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
                "addressType": "IPv4", "ports": [{"name": "", "port": 80}],
                "endpoints": [{"addresses": ["10.1.1.1"], "nodeName": "n1"},
                              {"addresses": ["10.1.1.2"], "nodeName": "n2"}]})],
    );
    api.answer_texts(|path| {
        let name = path.strip_prefix(CLUSTER_POLICIES)?.strip_prefix('/')?;
        let object = json!({"apiVersion": "topo-lb.io/v1alpha1", "kind": "ClusterTopologyPolicy",
                            "metadata": {"name": name}, "spec": {}});
        Some(object.to_string())
    });
    api
}

fn evacuate(api: &FakeApi, more: &[&str]) -> Output {
    run(&[&["evacuate", "--api-server", &api.url()], more].concat(), "")
}

#[test]
fn an_end_counts_by_the_clock_of_the_api_server_if_it_is_another_one() {
    let api = cluster();
    let until = |done: &Output| {
        assert!(done.status.success(), "{}", text(&done.stderr));
        let said = text(&done.stderr);
        let object = said.lines().find(|line| line.starts_with('{')).unwrap();
        let object: serde_json::Value = serde_json::from_str(object).unwrap();
        object["spec"]["evacuate"].as_str().unwrap().split("until=").nth(1).unwrap().to_owned()
    };
    let flags = [ZONES[1], "--for", "2h", "--dry-run"];
    // It answers `/version` with 404, and with its time all the same.
    let own = evacuate(&api, &flags);
    assert!(!text(&own.stderr).contains("clock"), "{}", text(&own.stderr));
    assert!(*until(&own) > *"2026");
    api.answer_texts(|path| (path == "/version").then(|| "{}".to_owned()));
    api.state().date = Some("Sun, 06 Nov 2044 08:49:37 GMT");
    let its = evacuate(&api, &flags);
    assert_eq!(until(&its), "2044-11-06T10:49:37Z");
    let said = text(&its.stderr);
    assert!(said.contains("topo-lb: this machine's clock is "), "{said}");
    assert!(said.contains(" behind that of the API server, which counts here\n"), "{said}");
    api.state().date = Some("some day");
    assert!(
        !text(&evacuate(&api, &flags).stderr).contains("clock"),
        "what is no time counts nothing"
    );
}

#[test]
fn what_is_restored_already_is_no_mistake_but_what_others_evacuate_is_not_ended() {
    let api = cluster();
    let restore = |more: &[&str]| {
        let done = run(&[&["restore", "--api-server", &api.url(), ZONES[1]], more].concat(), "");
        (done.status.code(), text(&done.stderr).to_owned())
    };
    for flags in [&[][..], &["--ramp", "1m"]] {
        let said = format!("topo-lb: nothing to restore: {} is not evacuated\n", ZONES[1]);
        assert_eq!(restore(flags), (Some(0), said), "{flags:?}");
    }
    let other = |name: &str, text: &str| {
        api.fill(
            CLUSTER_POLICIES,
            [json!({"apiVersion": "topo-lb.io/v1alpha1", "kind": "ClusterTopologyPolicy",
                    "metadata": {"name": name}, "spec": {"evacuate": text}})],
        );
        restore(&["--ramp", "1m"])
    };
    let ended = format!("{}; until=2020-01-01T00:00:00Z", ZONES[1]);
    assert_eq!(other("drill", &ended).0, Some(0));
    let (code, said) = other("drill", ZONES[1]);
    assert_eq!(code, Some(1));
    assert!(said.contains("zone=b is not evacuated by this command; what is: "), "{said}");
    assert!(said.contains("(ClusterTopologyPolicy drill); `kubectl delete` ends"), "{said}");
}
