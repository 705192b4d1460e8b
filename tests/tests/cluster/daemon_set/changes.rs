//! Connections of real pods while pods, a kubelet, an agent and the API server come and go.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use topo_lb_tests::deployment::NAME;
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::wait::until;

use super::answers::{POOLS, SERVICE, answers, answers_on, client_of, cluster_ip, only_from};
use super::island::Victim;
use super::load::Stage;
use super::{SOON, limit, rolled_out};

/// How long the API server is away.
pub(crate) const AWAY: Duration = Duration::from_secs(60);

pub(crate) fn processes_of_a_node_stay_in_its_pool(stage: &mut Stage<'_>) -> Result<()> {
    let address = cluster_ip(&stage.kubernetes)?;
    for (pool, node) in POOLS {
        only_from(pool, &answers_on(stage, node, &address)?).context("from the node")?;
    }
    let kubernetes = &stage.kubernetes;
    for (_, node) in POOLS {
        let spec = serde_json::json!({"spec": {
            "nodeName": node, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
        }});
        let spec = format!("--overrides={spec}");
        let name = format!("host-{node}");
        let image = "--image=k8s.gcr.io/e2e-test-images/agnhost:2.21";
        kubernetes.kubectl(&["run", &name, image, "--restart=Never", &spec, "--", "pause"])?;
    }
    for (pool, node) in POOLS {
        let name = format!("host-{node}");
        kubernetes.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &limit()])?;
        only_from(pool, &answers(kubernetes, &name, &address)?)
            .context("from the host's network")?;
        kubernetes.kubectl(&["delete", "pod", &name, "--wait=false"])?;
    }
    stage.nothing_failed()
}

pub(crate) fn a_pool_without_pods_is_refused(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let address = cluster_ip(kubernetes)?;
    let servers = "deployment/united-deployment1-hangzhou";
    // curl's exit code 7: refused. A packet that is lost would be 28.
    let script = format!("curl -s -m 5 http://{address}/hostname; echo code $?");
    let once = |kubernetes: &Kubernetes<'_>, pool: &str| {
        kubernetes.kubectl(&["exec", &client_of(pool), "--", "sh", "-c", &script])
    };
    kubernetes.kubectl(&["scale", servers, "--replicas=0"])?;
    until("refusal in a pool without pods", SOON, || {
        let said = once(kubernetes, "hangzhou")?;
        Ok(if said.contains("code 7") { Ok(()) } else { Err(said) })
    })?;
    only_from("shanghai", &answers(kubernetes, &client_of("shanghai"), SERVICE)?)?;
    kubernetes.kubectl(&["scale", servers, "--replicas=2"])?;
    rolled_out(kubernetes, servers)?;
    until("answers in a pool with pods again", SOON, || {
        let said = once(kubernetes, "hangzhou")?;
        Ok(if said.contains("code 0") { Ok(()) } else { Err(said) })
    })?;
    stage.nothing_failed_but_in("hangzhou")
}

pub(crate) fn killed_pods_are_replaced_without_wrong_answers(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let selector = "app=united-deployment1,pool=hangzhou";
    let pods = kubernetes.kubectl(&["get", "pods", "-l", selector, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    // Those that were scaled away may still be ending.
    let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let victim = pods["items"].as_array().into_iter().flatten().find(stays);
    let gone = victim.and_then(|pod| pod["metadata"]["name"].as_str());
    let gone = gone.context("a pool has servers")?;
    kubernetes.kubectl(&["delete", "pod", gone, "--grace-period=0", "--force"])?;
    rolled_out(kubernetes, "deployment/united-deployment1-hangzhou")?;
    until("answers without the pod that was killed", SOON, || {
        let answers = answers(kubernetes, &client_of("hangzhou"), SERVICE)?;
        let right = only_from("hangzhou", &answers).is_ok() && !answers.contains_key(gone);
        Ok(if right { Ok(()) } else { Err(format!("{answers:?}")) })
    })?;
    // A pod that is killed answers no more, before anybody can know.
    stage.nothing_failed_but_in("hangzhou")
}

/// The agent of a node as its kubelet sees it: whether it is ready, and how often it was restarted.
pub(crate) fn seen_by_the_kubelet(kubernetes: &Kubernetes<'_>, node: &str) -> Result<(bool, u64)> {
    let of_the_node = format!("--field-selector=spec.nodeName={node}");
    let pods = kubernetes.kubectl(&["-n", NAME, "get", "pods", &of_the_node, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    let agent = &pods["items"][0]["status"]["containerStatuses"][0];
    let is_ready = agent["ready"].as_bool().context("an agent has a status")?;
    Ok((is_ready, agent["restartCount"].as_u64().context("an agent has a status")?))
}

pub(crate) fn a_node_without_kubelet_keeps_its_connections(stage: &mut Stage<'_>) -> Result<()> {
    let (pool, node) = POOLS[0];
    let address = cluster_ip(&stage.kubernetes)?;
    stage.kubernetes.worker(node)?.kill_kubelet();
    let said = answers_on(stage, node, &address);
    stage.kubernetes.worker(node)?.start_kubelet()?;
    only_from(pool, &said?)?;
    until("a kubelet that serves again", SOON, || {
        let answers = answers(&stage.kubernetes, &client_of(pool), SERVICE);
        Ok(answers.map(drop).map_err(|error| format!("{error:#}")))
    })?;
    // A kubelet that starts takes its pods for unready until it has asked them (kubernetes#78733), and
    // a pool without ready pods refuses.
    stage.nothing_failed_but_in(pool)?;
    until("seconds without a failure", SOON, || {
        sleep(Duration::from_secs(3));
        let outcome = stage.nothing_failed();
        Ok(outcome.map_err(|error| format!("{error:#}")))
    })
    .map(drop)
}

/// An agent hangs: its kubelet finds out, and starts it again although the API server is away. On the other node a pod
/// dies, and its agent finds that out.
pub(crate) fn a_node_works_and_mends_itself_alone(stage: &mut Stage<'_>) -> Result<()> {
    let (_, node) = POOLS[1];
    let wait = |stage: &Stage<'_>, what: &str, wanted: (bool, u64)| {
        until(what, SOON, || {
            let seen = seen_by_the_kubelet(&stage.kubernetes, node)?;
            Ok(if seen == wanted { Ok(()) } else { Err(format!("{seen:?}")) })
        })
    };
    wait(stage, "an agent that is ready", (true, 0))?;
    let address = cluster_ip(&stage.kubernetes)?;
    let victim = Victim::of(&stage.kubernetes, POOLS[0])?;
    let begun = Instant::now();
    // Controllers end when they cannot renew their leases; these have none, so they are ended. They
    // would otherwise take the nodes for dead, and their pods for unready, when the API server is back.
    stage.kubernetes.plane_mut().kill_controllers();
    stage.kubernetes.plane_mut().kill_api_server();
    // Only now: its kubelet may start it again within seconds.
    let agent = stage.kubernetes.worker(node)?.process("topo-lb")?;
    kill_process(agent, Signal::STOP).context("cannot stop an agent")?;
    let mut alone = || {
        until("an agent that was started again", SOON, || {
            let now = stage.kubernetes.worker(node)?.process("topo-lb");
            Ok(if now.is_ok_and(|now| now != agent) { Ok(()) } else { Err("none") })
        })?;
        POOLS
            .into_iter()
            .try_for_each(|(pool, node)| only_from(pool, &answers_on(stage, node, &address)?))
    };
    let outcome = alone();
    sleep(AWAY.saturating_sub(begun.elapsed()));
    let island = victim.dies(stage, &address);
    stage.kubernetes.plane_mut().start_api_server()?;
    stage.kubernetes.plane_mut().start_all_controllers()?;
    outcome?;
    island?;
    stage.kubernetes.wait_for_nodes()?;
    stage.kubernetes.wait_for_agents()?;
    wait(stage, "an agent that was restarted", (true, 1))?;
    until("answers of the pod that is back", SOON, || {
        let answers = answers_on(stage, POOLS[0].1, &address)?;
        let is_back = only_from(POOLS[0].0, &answers).is_ok() && victim.is_in(&answers);
        Ok(if is_back { Ok(()) } else { Err(format!("{answers:?}")) })
    })?;
    // What was on its way to the pod that died.
    stage.nothing_failed_but_in(POOLS[0].0)
}
