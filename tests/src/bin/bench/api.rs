//! An API server with any number of objects.

use std::net::TcpListener;

use anyhow::{Context as _, Result};
use serde_json::Value;
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi, NAMESPACES, NODES, POLICIES, SERVICES};
use topo_lb_tests::netns::NetNs;

/// Serves objects in a network namespace.
pub(crate) fn start(netns: &NetNs, objects: impl Iterator<Item = Value>) -> Result<FakeApi> {
    let listener = netns.run(|| TcpListener::bind("127.0.0.1:0").context("cannot listen"))?;
    // Slices have the path of their version.
    let paths = [NODES, SERVICES, NAMESPACES, POLICIES, CLUSTER_POLICIES];
    let server = FakeApi::start(listener, &paths)?;
    server.fill_all(objects);
    Ok(server)
}
