//! A trace on another machine: `kubectl exec` into the agent of that node, which is told the names of its Pods.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};

use super::names;
use crate::aside::say;
use crate::commands::top::{AgentPod, agent_on};
use topo_lb_kube::source::kube::{KubeTarget, Server, connect, in_words};

/// The time between two looks whether the trace has ended.
const LOOK: Duration = Duration::from_millis(100);
/// The time between two listings of the node's Pods.
const NAMES: Duration = Duration::from_secs(10);

/// Whose connections are shown.
#[derive(Clone, Debug)]
pub struct Place {
    /// The API server.
    pub target: KubeTarget,
    /// For kubectl; `None`: as it finds one.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the agents' Pods.
    pub namespace: String,
    /// The node; `None`: that of the Pod.
    pub node: Option<String>,
    /// `namespace/name` of the only Pod to show.
    pub pod: Option<String>,
}

/// Runs `topo-lb trace` with these arguments at the agent of a node.
///
/// # Errors
/// The Pod, its node or the agent there is not to be found, or kubectl cannot be started.
pub async fn trace_there(place: &Place, arguments: &[String]) -> anyhow::Result<ExitStatus> {
    let server = connect(&place.target).await?;
    let node = node(&server, place).await?;
    let agent = agent_on(&server, &place.namespace, &node).await?;
    let mut child = start(place, &agent, arguments)?;
    let mut names = child.stdin.take();
    let mut told = None::<Instant>;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for kubectl")? {
            return Ok(status);
        }
        if told.is_none_or(|told| told.elapsed() > NAMES) {
            match names::on(&server, &node).await {
                Ok(pods) => tell(&mut names, &pods),
                Err(error) if told.is_none() => {
                    let why = in_words(&error);
                    say(format_args!("the names of Pods cannot be read: {why}"));
                    tell(&mut names, &[]);
                }
                // Those that are known stay.
                Err(_) => {}
            }
            told = Some(Instant::now());
        }
        sleep(LOOK).await;
    }
}

/// The node whose connections are shown.
async fn node(server: &Server, place: &Place) -> anyhow::Result<String> {
    if let Some(node) = &place.node {
        return Ok(node.clone());
    }
    let Some(pod) = &place.pod else {
        bail!(
            "a trace is of one node: name a Pod of it, as --pod NAMESPACE/NAME, or the node, as --node NAME"
        );
    };
    let Some((namespace, name)) = pod.split_once('/') else {
        bail!("{pod:?} is no Pod: write it as NAMESPACE/NAME, for example default/{pod}");
    };
    let api: Api<Pod> = Api::namespaced(server.client(), namespace);
    // Names of Pods are listed, too: one right for both.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = api.list(&named).await;
    let found = found.map_err(|error| anyhow::anyhow!("the Pod {pod}: {}", in_words(&error)))?;
    let found = found.items.into_iter().next();
    let found = found.with_context(|| format!("there is no Pod {pod}"))?;
    found
        .spec
        .and_then(|spec| spec.node_name)
        .with_context(|| format!("the Pod {pod} is on no node yet"))
}

fn start(place: &Place, agent: &AgentPod, arguments: &[String]) -> anyhow::Result<Child> {
    let mut kubectl = Command::new("kubectl");
    if let Some(path) = &place.kubeconfig {
        kubectl.arg("--kubeconfig").arg(path);
    }
    kubectl
        .args(["exec", "--stdin", "--namespace", &place.namespace, &agent.pod])
        .args([
            "--container",
            &agent.container,
            "--",
            &agent.program,
            "trace",
            "--names-from-stdin",
        ])
        .args(arguments)
        .stdin(Stdio::piped());
    kubectl.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "kubectl is not in the PATH, and a trace of another machine goes through `kubectl exec`"
        ),
        _ => anyhow::Error::new(error).context("cannot start kubectl"),
    })
}

/// A line for each Pod, and an empty one.
fn tell(names: &mut Option<ChildStdin>, pods: &[(String, String)]) {
    let lines: String = pods.iter().map(|(uid, name)| format!("{uid} {name}\n")).collect();
    // kubectl has ended: the next look says so.
    if names.as_mut().is_some_and(|to| to.write_all(format!("{lines}\n").as_bytes()).is_err()) {
        *names = None;
    }
}
