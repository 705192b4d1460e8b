//! Policies for many Services, and endpoints that are ejected, as real pods see them.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::manifest::{endpoint, slice};
use topo_lb_tests::wait::until;

use super::SOON;
use super::answers::{
    ANYWHERE, Answers, FAILED, POOLS, SERVICE, answers, client_of, is_from_anywhere, is_of_servers,
    only_from,
};
use super::load::Stage;

/// Waits until clients of both pools get answers of which `is_right` holds.
fn wait_for(
    kubernetes: &Kubernetes<'_>,
    what: &str,
    is_right: impl Fn(&str, &Answers) -> bool,
) -> Result<()> {
    until(what, SOON, || {
        for (pool, _) in POOLS {
            let answers = answers(kubernetes, &client_of(pool), ANYWHERE)?;
            if !is_right(pool, &answers) {
                return Ok(Err(format!("in {pool}: {answers:?}")));
            }
        }
        Ok(Ok(()))
    })
    .map(drop)
}

pub(crate) fn a_namespace_has_a_default(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let annotate = |what| kubernetes.kubectl(&["annotate", "namespace", "default", what]);
    annotate("topo-lb.io/topology-keys=apps.openyurt.io/nodepool")?;
    wait_for(kubernetes, "answers of the own pool alone", |pool, answers| {
        only_from(pool, answers).is_ok()
    })?;
    annotate("topo-lb.io/topology-keys-")?;
    wait_for(kubernetes, "answers of both pools", |_, answers| is_from_anywhere(answers))?;
    stage.nothing_failed()
}

/// By their names, node-a is at 28.11 % of all nodes, and node-b at 79.69 %.
pub(crate) fn a_ramp_holds_on_one_node_and_then_on_all(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let annotate = |what: &[&str]| {
        let words = ["annotate", "--overwrite", "namespace", "default"];
        kubernetes.kubectl(&[&words[..], what].concat())
    };
    annotate(&["topo-lb.io/topology-keys=apps.openyurt.io/nodepool", "topo-lb.io/ramp=50%"])?;
    wait_for(kubernetes, "answers of the own pool on node-a alone", |pool, answers| {
        if pool == POOLS[0].0 {
            only_from(pool, answers).is_ok()
        } else {
            is_from_anywhere(answers)
        }
    })?;
    annotate(&["topo-lb.io/ramp=100%"])?;
    wait_for(kubernetes, "answers of the own pool alone", |pool, answers| {
        only_from(pool, answers).is_ok()
    })?;
    annotate(&["topo-lb.io/topology-keys-", "topo-lb.io/ramp-"])?;
    wait_for(kubernetes, "answers of both pools", |_, answers| is_from_anywhere(answers))?;
    stage.nothing_failed()
}

/// Strict policies may take any endpoint while the first pool is empty.
pub(crate) fn a_pool_is_emptied_and_comes_back(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let [(emptied, _), (other, _)] = POOLS;
    let annotate = |what: &str| kubernetes.kubectl(&["annotate", "namespace", "default", what]);
    let evacuate = "topo-lb.io/evacuate=apps.openyurt.io/nodepool";
    annotate(&format!("{evacuate}={emptied}; allow-strict=*"))?;
    wait_for(kubernetes, "answers of the other pool alone", |_, answers| {
        only_from(other, answers).is_ok()
    })?;
    only_from(other, &answers(kubernetes, &client_of(emptied), SERVICE)?)?;
    annotate("topo-lb.io/evacuate-")?;
    wait_for(kubernetes, "answers of both pools", |_, answers| is_from_anywhere(answers))?;
    only_from(emptied, &answers(kubernetes, &client_of(emptied), SERVICE)?)?;
    stage.none_failed()
}

/// The address of a pod of this application in the first pool.
fn address_of(kubernetes: &Kubernetes<'_>, app: &str) -> Result<String> {
    let selector = format!("app={app},pool={}", POOLS[0].0);
    let pods = kubernetes.kubectl(&["get", "pods", "-l", &selector, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    let mut pods = pods["items"].as_array().into_iter().flatten();
    let pod = pods.find(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let address = pod.and_then(|pod| pod["status"]["podIP"].as_str());
    Ok(address.with_context(|| format!("no pod of {app} has an address"))?.to_owned())
}

/// Two endpoints: a server, and a ready pod in which nobody listens.
pub(crate) fn an_endpoint_that_refuses_is_left_out(stage: &mut Stage<'_>) -> Result<()> {
    const HALF: &str = "half";
    let kubernetes = &stage.kubernetes;
    let mut endpoints = Vec::new();
    for app in ["united-deployment1", "united-deployment2"] {
        endpoints.push(endpoint(&address_of(kubernetes, app)?, POOLS[0].1, app));
    }
    let ports = [("http", 9_376, "TCP")];
    kubernetes.plane().create([
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": HALF},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 9_376}]},
        }),
        slice(HALF, "IPv4", &ports, &endpoints),
    ])?;
    let client = client_of(POOLS[0].0);
    until("refusals of the pod without a server", SOON, || {
        let answers = answers(kubernetes, &client, HALF)?;
        let is_half = answers.len() == 2 && answers.contains_key(FAILED);
        Ok(if is_half { Ok(()) } else { Err(format!("{answers:?}")) })
    })?;
    kubernetes.kubectl(&["annotate", "service", HALF, "topo-lb.io/ejection=2, 10m"])?;
    until("answers of the server alone", SOON, || {
        let answers = answers(kubernetes, &client, HALF)?;
        Ok(if is_of_servers(&answers) { Ok(()) } else { Err(format!("{answers:?}")) })
    })?;
    kubernetes.kubectl(&["delete", "service/half", "endpointslice/half-ipv4"])?;
    stage.nothing_failed()
}
