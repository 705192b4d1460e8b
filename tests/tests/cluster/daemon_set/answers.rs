//! Who answers a client of the cluster, by the names of servers.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Result, ensure};
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::kubernetes::worker::Worker;

use super::load::Stage;

/// The pools, each with a node, servers and a client.
pub(crate) const POOLS: [(&str, &str); 2] = [("hangzhou", "node-a"), ("shanghai", "node-b")];

/// The Service that stays in its pool.
pub(crate) const SERVICE: &str = "svc-ud1";

/// The Service without a policy.
pub(crate) const ANYWHERE: &str = "svc-ud1-without-topology";

/// How many requests a check of places makes.
pub(crate) const REQUESTS: usize = 20;

/// In place of a server's name: nobody answered.
pub(crate) const FAILED: &str = "failed";

/// Answers, each with its number: the names of servers, or `failed`.
pub(crate) type Answers = BTreeMap<String, usize>;

/// A shell's command that asks the Service, and prints who answers in a line.
pub(crate) fn ask(address: &str) -> String {
    format!(
        "answer=$(curl -sf -m 15 http://{address}/hostname) && echo ${{answer:-empty}} || echo {FAILED}"
    )
}

/// A shell's loop of [`ask`].
pub(crate) fn asking(address: &str) -> String {
    format!("for i in $(seq {REQUESTS}); do {}; done", ask(address))
}

pub(crate) fn count(text: &str) -> Answers {
    let mut all = Answers::new();
    for line in text.lines() {
        *all.entry(line.to_owned()).or_default() += 1;
    }
    all
}

/// Who answers the client of a pool.
pub(crate) fn answers(kubernetes: &Kubernetes<'_>, client: &str, service: &str) -> Result<Answers> {
    let script = asking(service);
    Ok(count(&kubernetes.kubectl(&["exec", client, "--", "sh", "-c", &script])?))
}

/// Who answers a program on a node itself.
pub(crate) fn answers_on(stage: &mut Stage<'_>, node: &str, address: &str) -> Result<Answers> {
    shell_on(stage.kubernetes.worker(node)?, &asking(address)).map(|text| count(&text))
}

pub(crate) fn shell_on(worker: &Worker<'_>, script: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    worker.run(shell)
}

pub(crate) fn client_of(pool: &str) -> String {
    format!("deploy/united-deployment2-{pool}")
}

/// Checks that only servers of the pool have answered.
pub(crate) fn only_from(pool: &str, answers: &Answers) -> Result<()> {
    let prefix = format!("united-deployment1-{pool}-");
    let wrong: Vec<_> = answers.keys().filter(|name| !name.starts_with(&prefix)).collect();
    ensure!(wrong.is_empty() && !answers.is_empty(), "in {pool}: {answers:?}");
    Ok(())
}

/// Whether servers have answered, of any pool, and nothing failed.
pub(crate) fn is_of_servers(answers: &Answers) -> bool {
    !answers.is_empty() && answers.keys().all(|name| name.starts_with("united-deployment1-"))
}

/// Whether servers of every pool have answered, and nothing failed.
pub(crate) fn is_from_anywhere(answers: &Answers) -> bool {
    let answered = |pool: &str| answers.keys().any(|name| name.contains(pool));
    is_of_servers(answers) && POOLS.iter().all(|(pool, _)| answered(pool))
}

pub(crate) fn cluster_ip(kubernetes: &Kubernetes<'_>) -> Result<String> {
    kubernetes.kubectl(&["get", "service", SERVICE, "-o", "jsonpath={.spec.clusterIP}"])
}

pub(crate) fn pods_stay_in_their_pool(kubernetes: &Kubernetes<'_>) -> Result<()> {
    for (pool, _) in POOLS {
        only_from(pool, &answers(kubernetes, &client_of(pool), SERVICE)?)?;
    }
    // Without the policy, the servers of both pools answer.
    let anywhere = answers(kubernetes, &client_of("hangzhou"), ANYWHERE)?;
    ensure!(is_from_anywhere(&anywhere), "{anywhere:?}");
    Ok(())
}
