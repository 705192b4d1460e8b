//! The objects that the agents read, the same in files and at an API server, and their changes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

/// The objects of the cluster. A method that changes them returns when the change is made.
pub(crate) trait World {
    /// The agents' flag for this source, and its value.
    fn source(&self) -> Result<(&'static str, PathBuf)>;

    /// How long traffic may take to follow a change, controllers included.
    fn patience(&self) -> Duration;

    /// Gives `svc-ud1` a UDP port and an IPv6 address, as one `kubectl apply` would.
    fn widen(&mut self) -> Result<()>;

    /// Gives `svc-ud1` this node port.
    fn expose(&mut self, node_port: u16) -> Result<()>;

    /// Gives `svc-ud1-without-topology` this load balancer IP.
    fn balance(&mut self, ip: &str) -> Result<()>;

    /// Makes the neighbour of the rack an endpoint of `svc-rack`.
    fn add_neighbour(&mut self) -> Result<()>;

    /// Sets whether pods are ready.
    fn set_ready(&mut self, pods: &[&str], ready: bool) -> Result<()>;

    /// Sets labels of a node.
    fn relabel(&mut self, node: &str, labels: &[(&str, &str)]) -> Result<()>;

    /// Gives the namespace this annotation, which holds for all of its Services, or takes it away.
    fn annotate_namespace(&mut self, key: &str, value: Option<&str>) -> Result<()>;
}
