//! An API server with any number of objects.

use std::net::TcpListener;

use anyhow::{Context as _, Result};
use serde_json::Value;
use topo_lb_tests::fake_api::{FakeApi, NODES, OLD_SLICES, SERVICES, SLICES};
use topo_lb_tests::netns::NetNs;

/// Serves objects in a network namespace.
pub(crate) fn start(netns: &NetNs, objects: impl Iterator<Item = Value>) -> Result<FakeApi> {
    let listener = netns.run(|| TcpListener::bind("127.0.0.1:0").context("cannot listen"))?;
    let server = FakeApi::start(listener, &[NODES, SERVICES])?;
    for object in objects {
        let path = match object["kind"].as_str() {
            Some("Node") => NODES,
            Some("Service") => SERVICES,
            _ if object["apiVersion"] == "discovery.k8s.io/v1beta1" => OLD_SLICES,
            _ => SLICES,
        };
        server.fill(path, [object]);
    }
    Ok(server)
}
