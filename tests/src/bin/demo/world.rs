//! The objects of the cluster that the agents read, and how they change. They are the same,
//! whether files hold them or an API server does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

/// The objects of the cluster. A change is made when its method returns.
pub(crate) trait World {
    /// The flag that names this source to an agent, and the flag's value.
    fn source(&self) -> Result<(&'static str, PathBuf)>;

    /// How long traffic may take to follow a change, controllers included.
    fn patience(&self) -> Duration;

    /// What `topo-lb explain` says of it on `node`.
    fn explain(&self, node: &str) -> Result<Value>;

    /// Gives `svc-ud1` a UDP port and an IPv6 address, as one `kubectl apply` would.
    fn widen(&mut self) -> Result<()>;

    /// Makes the neighbour of the rack an endpoint of `svc-rack`.
    fn add_neighbour(&mut self) -> Result<()>;

    /// Makes pods ready, or not.
    fn set_ready(&mut self, pods: &[&str], ready: bool) -> Result<()>;

    /// Sets labels of a node.
    fn relabel(&mut self, node: &str, labels: &[(&str, &str)]) -> Result<()>;
}
