//! A pod dies on a node that hears nothing from its API server: its slice goes on to list it as ready.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::kubernetes::Kubernetes;
use topo_lb_tests::wait::until;

use super::SOON;
use super::answers::{Answers, FAILED, REQUESTS, count, only_from, shell_on};
use super::load::Stage;

/// A server of a pool, whose packets can be lost.
pub(crate) struct Victim {
    name: String,
    address: String,
    pool: &'static str,
    node: &'static str,
}

impl Victim {
    /// While there is an API server.
    pub(crate) fn of(
        kubernetes: &Kubernetes<'_>,
        (pool, node): (&'static str, &'static str),
    ) -> Result<Self> {
        let selector = format!("app=united-deployment1,pool={pool}");
        let pods = kubernetes.kubectl(&["get", "pods", "-l", &selector, "-o", "json"])?;
        let pods: Value = serde_json::from_str(&pods)?;
        let pods = pods["items"].as_array().context("pods are a list")?;
        let pod = pods.iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let pod = pod.context("a pool has servers")?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a pod has it");
        let (name, address) = (text(&pod["metadata"]["name"])?, text(&pod["status"]["podIP"])?);
        Ok(Self { name, address, pool, node })
    }

    pub(crate) fn is_in(&self, answers: &Answers) -> bool {
        answers.contains_key(&self.name)
    }

    /// Nobody hears of the pod any more, and the node is an island: its clients get the other one alone.
    pub(crate) fn dies(&self, stage: &mut Stage<'_>, service: &str) -> Result<()> {
        let Self { name, address, pool, node } = self;
        let worker = stage.kubernetes.worker(node)?;
        let lose = format!(
            "nft -f - << END\n\
             table inet lost {{\n\
             chain forwarded {{ type filter hook forward priority -5; ip daddr {address} drop; }}\n\
             chain own {{ type filter hook output priority -5; ip daddr {address} drop; }}\n\
             }}\nEND"
        );
        shell_on(worker, &lose)?;
        let ask = format!(
            "for i in $(seq {REQUESTS}); do \
             answer=$(curl -sf -m 2 http://{service}/hostname) && echo $answer || echo {FAILED}; done"
        );
        let found = until("answers of the living pod alone", SOON, || {
            let answers = count(&shell_on(worker, &ask)?);
            let is_right = only_from(pool, &answers).is_ok() && !answers.contains_key(name);
            Ok(if is_right { Ok(()) } else { Err(format!("{answers:?} without {name}")) })
        });
        let again = found.and_then(|_| Ok(count(&shell_on(worker, &ask)?)));
        shell_on(worker, "nft delete table inet lost")?;
        let again = again?;
        ensure!(only_from(pool, &again).is_ok() && !again.contains_key(name), "{again:?}");
        Ok(())
    }
}
