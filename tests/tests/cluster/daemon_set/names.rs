//! The name of a headless Service, as programs in real pods look it up.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::deployment::NAME;
use topo_lb_tests::kind::POOL;
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::scene::KEYS;
use topo_lb_tests::wait::until;

use super::SOON;
use super::answers::{ANYWHERE, POOLS, client_of};
use super::load::Stage;

/// The headless Service.
const SERVERS: &str = "servers";
/// What a name stands for, as addresses.
type Addresses = BTreeSet<String>;

/// A shell's command that prints the IPv4 addresses of a name in a line: none if it has none.
fn look_up(name: &str) -> String {
    format!("echo $(getent ahostsv4 {name} | cut -d ' ' -f 1 | sort -u)")
}

fn addresses(line: &str) -> Addresses {
    line.split_whitespace().map(str::to_owned).collect()
}

/// What a client of this pool finds.
fn found(kubernetes: &Kubernetes<'_>, pool: &str, name: &str) -> Result<Addresses> {
    let script = look_up(name);
    let said = kubernetes.kubectl(&["exec", &client_of(pool), "--", "sh", "-c", &script])?;
    Ok(addresses(&said))
}

/// The addresses of the servers of each pool.
fn servers(kubernetes: &Kubernetes<'_>) -> Result<[Addresses; 2]> {
    let pods = ["get", "pods", "-l", "app=united-deployment1", "-o", "json"];
    let pods: Value = serde_json::from_str(&kubernetes.kubectl(&pods)?)?;
    Ok(POOLS.map(|(pool, _)| {
        let all = pods["items"].as_array().into_iter().flatten();
        let own = all.filter(|pod| {
            let metadata = &pod["metadata"];
            metadata["labels"]["pool"] == pool && metadata["deletionTimestamp"].is_null()
        });
        own.filter_map(|pod| pod["status"]["podIP"].as_str()).map(str::to_owned).collect()
    }))
}

fn wait_for(kubernetes: &Kubernetes<'_>, pool: &str, wanted: &Addresses) -> Result<()> {
    until(&format!("the name with {wanted:?} in {pool}"), SOON, || {
        let found = found(kubernetes, pool, SERVERS)?;
        Ok(if found == *wanted { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .map(drop)
}

/// Needs agents with the component `dns`.
pub(crate) fn a_headless_name_has_the_own_pool_alone(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let own = servers(kubernetes)?;
    ensure!(own.iter().all(|own| !own.is_empty()), "{own:?}");
    kubernetes.plane().create([json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVERS, "annotations": {"topo-lb.io/dns": "true", KEYS: POOL}},
        "spec": {
            "clusterIP": "None", "selector": {"app": "united-deployment1"},
            "ports": [{"name": "http", "port": 9_376}],
        },
    })])?;
    for ((pool, _), own) in POOLS.into_iter().zip(&own) {
        wait_for(kubernetes, pool, own)?;
    }
    // Names that are not the agent's: of pods of the other pool too, and of a Service.
    let path = "jsonpath={.spec.clusterIP}";
    let address = kubernetes.kubectl(&["get", "service", ANYWHERE, "-o", path])?;
    for (pool, _) in POOLS {
        for pod in own.iter().flatten() {
            let name = format!("{}.{SERVERS}", pod.replace('.', "-"));
            let found = found(kubernetes, pool, &name)?;
            ensure!(found == [pod.clone()].into(), "{name} in {pool}: {found:?}");
        }
        let found = found(kubernetes, pool, ANYWHERE)?;
        ensure!(found == addresses(&address), "{ANYWHERE} in {pool}: {found:?}");
    }
    names_resolve_while_an_agent_is_replaced(kubernetes, &own)?;
    kubernetes.kubectl(&["delete", "service", SERVERS])?;
    stage.nothing_failed()
}

/// Looks the name up again and again in a pod, while the agent of its node ends and another one begins:
/// meanwhile the cluster DNS answers, with the servers of both pools.
fn names_resolve_while_an_agent_is_replaced(
    kubernetes: &Kubernetes<'_>,
    own: &[Addresses; 2],
) -> Result<()> {
    let (pool, node) = POOLS[0];
    let every: Addresses = own.iter().flatten().cloned().collect();
    let client = client_of(pool);
    let shell = |script: &str| kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", script]);
    shell(&format!(
        "(while [ ! -e /tmp/enough ]; do {}; sleep 0.05; done) < /dev/null > /tmp/names 2>&1 &",
        look_up(SERVERS)
    ))?;
    let of_the_node = format!("--field-selector=spec.nodeName={node}");
    kubernetes.kubectl(&["-n", NAME, "delete", "pod", &of_the_node, "--wait=false"])?;
    let lines = || -> Result<Vec<Addresses>> {
        Ok(shell("cat /tmp/names")?.lines().map(addresses).collect())
    };
    until("an answer of the cluster DNS", SOON, || {
        let lines = lines()?;
        Ok(if lines.contains(&every) { Ok(()) } else { Err(format!("{lines:?}")) })
    })?;
    kubernetes.wait_for_agents()?;
    wait_for(kubernetes, pool, &own[0])?;
    shell("touch /tmp/enough")?;
    let lines = lines()?;
    let wrong: Vec<_> = lines.iter().filter(|line| **line != own[0] && **line != every).collect();
    eprintln!("    {} look-ups while an agent was replaced", lines.len());
    ensure!(wrong.is_empty(), "of {}: {wrong:?}", lines.len());
    Ok(())
}
