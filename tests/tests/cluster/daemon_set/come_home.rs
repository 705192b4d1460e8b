//! A pooled connection that went far while the near pod was not ready comes home once it is.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::wait::until;

use super::SOON;
use super::answers::{POOLS, client_of, shell_on};
use super::load::Stage;

/// The Service, and what its pods are called before their pool.
const NAME: &str = "pooled";
/// What the kubelet looks for to call a pod ready.
const READY: &str = "/tmp/ready";

/// A client that keeps one connection, and opens another when that ends: every answer is a line of `/tmp/pooled`.
const POOL: &str = "(while :; do \
    { printf 'GET /hostname HTTP/1.1\\r\\nHost: pooled\\r\\n\\r\\n'; sleep 1000 & echo $! > /tmp/held; wait; } \
    | { nc ADDRESS 80 >> /tmp/pooled; echo >> /tmp/pooled; kill $(cat /tmp/held); }; \
    done) < /dev/null > /dev/null 2>&1 & echo $! > /tmp/pool";

pub(crate) fn a_pooled_connection_comes_home(stage: &mut Stage<'_>) -> Result<()> {
    let [(near, here), (far, _)] = POOLS;
    create(&stage.kubernetes)?;
    let kubernetes = &stage.kubernetes;
    let worker = kubernetes.workers().iter().find(|worker| worker.name() == here);
    let worker = worker.context("there is a node")?;
    let metrics = format!("curl -s -m 5 http://{}:19876/metrics", worker.address());
    let client = client_of(near);
    let shell = |script: &str| kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", script]);
    let make_ready = |pool: &str| {
        let pod = format!("{NAME}-{pool}");
        until("a pod that runs", SOON, || {
            let touched = kubernetes.kubectl(&["exec", &pod, "--", "touch", READY]);
            Ok(touched.map(drop).map_err(|error| format!("{error:#}")))
        })
    };
    make_ready(far)?;
    let address =
        kubernetes.kubectl(&["get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}"])?;
    // A connection from before the agent decides for the Service would be kube-proxy's for good.
    until("a connection that the agent has decided", SOON, || {
        let far = shell(&format!("curl -sf -m 2 http://{address}/hostname || true"))?;
        let said = shell_on(worker, &metrics)?;
        let counted = |line: &str| {
            line.starts_with("topo_lb_connections_total{") && line.contains("\"pooled\"")
        };
        let is_decided = !far.is_empty() && said.lines().any(counted);
        Ok(if is_decided { Ok(()) } else { Err("none") })
    })?;
    shell(&POOL.replace("ADDRESS", &address))?;
    let answered = |pool: &str| {
        let name = format!("{NAME}-{pool}");
        let what = format!("an answer of {name}");
        until(&what, SOON, || {
            let said = shell("cat /tmp/pooled")?;
            Ok(if said.contains(&name) { Ok(()) } else { Err(said) })
        })
    };
    answered(far)?;
    let said = shell("cat /tmp/pooled")?;
    ensure!(!said.contains(&format!("{NAME}-{near}")), "{said}");
    make_ready(near)?;
    answered(near)?;
    let said = shell_on(worker, &metrics)?;
    let returned =
        said.lines().find_map(|line| line.strip_prefix("topo_lb_returned_sockets_total "));
    ensure!(returned == Some("1"), "{returned:?} have returned");
    shell("kill $(cat /tmp/pool) $(cat /tmp/held)")?;
    let pods = [near, far].map(|pool| format!("pod/{NAME}-{pool}"));
    let all = ["delete", "--wait=false", "service/pooled", &pods[0], &pods[1]];
    kubernetes.kubectl(&all)?;
    stage.nothing_failed()
}

/// A Service that prefers its pool, and a server in each, which is not ready yet.
fn create(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let pod = |pool: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{NAME}-{pool}"), "labels": {"app": NAME}},
            "spec": {
                "nodeSelector": {"apps.openyurt.io/nodepool": pool},
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "server", "image": "k8s.gcr.io/e2e-test-images/agnhost:2.21",
                    "args": ["netexec", "--http-port=9376"],
                    "readinessProbe": {
                        "exec": {"command": ["cat", READY]}, "periodSeconds": 1, "failureThreshold": 1,
                    },
                }],
            },
        })
    };
    let annotations = json!({
        "topo-lb.io/topology-keys": "apps.openyurt.io/nodepool,*", "topo-lb.io/return": "5s",
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "annotations": annotations},
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "http", "port": 80, "targetPort": 9_376}]},
    });
    kubernetes.plane().create([pod(POOLS[0].0), pod(POOLS[1].0), service])
}
