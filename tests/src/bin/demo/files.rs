//! A world of manifests in a folder, recorded from a real control plane.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::kind::{CONTROL_PLANE, NEIGHBOUR, SVC_UD1};
use topo_lb_tests::manifest::{KUBERNETES_1_36, Manifests, endpoint, slice};

use crate::stage::FOLLOWS;
use crate::story::SVC_UD1_IPV6;
use crate::world::World;

/// The manifests, and the binary that explains them.
pub(crate) struct Files<'a> {
    binary: &'a Binary,
    manifests: Manifests,
}

impl<'a> Files<'a> {
    /// Writes the recorded objects of Kubernetes 1.36.
    pub(crate) fn write(binary: &'a Binary, cluster: &Cluster) -> Result<Self> {
        let mut manifests = Manifests::new(cluster.folder())?;
        manifests.add_list(KUBERNETES_1_36)?;
        manifests.write()?;
        Ok(Self { binary, manifests })
    }
}

impl World for Files<'_> {
    fn source(&self) -> Result<(&'static str, PathBuf)> {
        Ok(("--manifests", self.manifests.folder().to_path_buf()))
    }

    fn patience(&self) -> Duration {
        FOLLOWS
    }

    fn explain(&self, node: &str) -> Result<Value> {
        self.binary.explain(self.manifests.folder(), node)
    }

    fn widen(&mut self) -> Result<()> {
        let ports = [("http", 9376, "TCP"), ("udp", 9376, "UDP")];
        let spec = &mut self.manifests.get("Service", SVC_UD1.0)?["spec"];
        spec["clusterIPs"] = json!([SVC_UD1.1, SVC_UD1_IPV6]);
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        spec["ipFamilyPolicy"] = json!("PreferDualStack");
        spec["ports"] = json!([
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 9376},
            {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 9376},
        ]);
        let four = self.manifests.get("EndpointSlice", "svc-ud1-9t779")?;
        let endpoints: Vec<Value> = four["endpoints"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|found| {
                // The pod with 10.244.1.2 also has fd00:244:1::2.
                let address = found["addresses"][0].as_str().unwrap_or_default();
                let mut numbers = address.split('.').skip(2);
                let (node, host) = (numbers.next().unwrap_or("0"), numbers.next().unwrap_or("0"));
                let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                endpoint(
                    &format!("fd00:244:{node}::{host}"),
                    &name(&found["nodeName"]),
                    &name(&found["targetRef"]["name"]),
                )
            })
            .collect();
        let six = slice(SVC_UD1.0, "IPv6", &ports, &endpoints);
        four["ports"] = six["ports"].clone();
        self.manifests.put(six);
        self.manifests.write()
    }

    fn add_neighbour(&mut self) -> Result<()> {
        let endpoints = self.manifests.get("EndpointSlice", "svc-rack-9fcws")?;
        let neighbour = endpoint("10.244.0.3", CONTROL_PLANE, NEIGHBOUR);
        let endpoints = endpoints["endpoints"].as_array_mut();
        endpoints.context("a slice without endpoints")?.push(neighbour);
        self.manifests.write()
    }

    fn set_ready(&mut self, pods: &[&str], ready: bool) -> Result<()> {
        pods.iter().for_each(|pod| self.manifests.set_ready(pod, ready));
        self.manifests.write()
    }

    fn relabel(&mut self, node: &str, labels: &[(&str, &str)]) -> Result<()> {
        for (key, value) in labels {
            self.manifests.relabel(node, key, value)?;
        }
        self.manifests.write()
    }
}
