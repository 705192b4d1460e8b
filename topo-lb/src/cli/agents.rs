//! Flags that say which agents are asked for what they have counted.

use clap::Args;

use crate::commands::top::From;
use topo_lb_kube::source::kube::KubeTarget;

/// Where the agents' Pods are.
#[derive(Debug, Args)]
pub struct AgentsNamespace {
    /// Where agents are found through the API server: the namespace of their Pods, which takes `list` on pods there. Pods
    /// of others do not count
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "TOPO_LB_AGENTS_NAMESPACE",
        default_value = "topo-lb"
    )]
    pub agents_namespace: String,
}

/// The agents that are asked.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// Ask this agent and no other; NODE=URL says on which node it is. Give it several times for several
    /// nodes
    #[arg(long, value_name = "URL", env = "TOPO_LB_AGENT_URLS", value_delimiter = ',')]
    pub agent: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: AgentsNamespace says what it is")]
    pub pods: AgentsNamespace,
    /// Where agents are asked through the API server: the port of their --metrics-listen. This takes `list`
    /// on pods and `get` on pods/proxy
    #[arg(long, value_name = "PORT", env = "TOPO_LB_METRICS_PORT", default_value_t = 19_876)]
    pub metrics_port: u16,
}

impl AgentsArgs {
    /// The agents that are named.
    #[must_use]
    pub fn named(&self) -> Option<From> {
        (!self.agent.is_empty()).then(|| From::Agents(self.agent.clone()))
    }

    /// All agents of a cluster.
    #[must_use]
    pub fn of(&self, target: KubeTarget) -> From {
        let (namespace, port) = (self.pods.agents_namespace.clone(), self.metrics_port);
        From::Cluster { target, namespace, port }
    }
}
