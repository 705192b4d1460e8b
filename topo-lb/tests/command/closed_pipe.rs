//! Commands whose reader has gone, as in `topo-lb … | head -1`: nobody hears of it, and what is to be written to a
//! cluster is written.

use std::io::{Write as _, pipe};
use std::process::{Command, Stdio};

use crate::evacuate::{ZONES, cluster};
use topo_lb_fake_api::CLUSTER_POLICIES;

/// Runs `topo-lb` with both outputs on pipes that nobody reads. Returns the exit code; 101 is a panic.
fn code(arguments: &[&str], input: &str) -> Option<i32> {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut child = Command::new(env!("CARGO_BIN_EXE_topo-lb"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait().unwrap().code()
}

#[test]
fn what_reads_ends_quietly() {
    let url = &*cluster().url();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("service.yaml");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n\
                   spec: {clusterIP: 10.96.0.1, topologyKeys: ['*'], ports: [{port: 80}]}\n";
    std::fs::write(&path, service).unwrap();
    let strict = "default/web=topology-keys:topology.kubernetes.io/zon,*";
    let api = cluster();
    let server = &*api.url();
    for (arguments, wanted) in [
        (&["crds"][..], 0),
        (&["migrate", "--all", path.to_str().unwrap()], 0),
        (&["explain", "--all-nodes", "--api-server", server], 0),
        // Each says something beside its result.
        (&["plan", "--api-server", server, "--set", strict], 1),
        (&["explain", "--api-server", server, "default/none"], 1),
        (&["top", "--once", "--agent", url], 1),
        (&["evacuate", "--api-server", server], 0),
    ] {
        assert_eq!(code(arguments, ""), Some(wanted), "{arguments:?}");
    }
}

#[test]
fn what_writes_goes_on() {
    let api = cluster();
    let server = &*api.url();
    let [a, b] = ZONES;
    assert_eq!(code(&["evacuate", "--api-server", server, "--force", a, b], ""), Some(0));
    let named = |zone: &str| format!("{CLUSTER_POLICIES}/evacuate-zone-{zone}-");
    assert_eq!(["a", "b"].map(|zone| api.requested(&named(zone))), [1, 1]);
    for zone in ZONES {
        let (key, value) = zone.split_once('=').unwrap();
        let name = topo_lb_core::topology::evacuation::object_name(key, value);
        api.fill(
            CLUSTER_POLICIES,
            [serde_json::json!({"apiVersion": "topo-lb.io/v1alpha1", "kind": "ClusterTopologyPolicy",
                                "metadata": {"name": name}, "spec": {"evacuate": zone}})],
        );
    }
    assert_eq!(code(&["restore", "--api-server", server, a, b], ""), Some(0));
    assert_eq!(["a", "b"].map(|zone| api.requested(&named(zone))), [2, 2]);
}
