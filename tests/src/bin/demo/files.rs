//! A world of manifests in a folder, recorded from a real control plane.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::kind::{CONTROL_PLANE, NEIGHBOUR, SVC_UD1, SVC_UD1_WITHOUT_TOPOLOGY};
use topo_lb_tests::manifest::{KUBERNETES_1_36, Manifests, endpoint, slice};

use crate::stage::FOLLOWS;
use crate::story::SVC_UD1_IPV6;
use crate::world::World;

/// The manifests.
pub(crate) struct Files(Manifests);

impl Files {
    /// Writes the recorded objects of Kubernetes 1.36.
    pub(crate) fn write(cluster: &Cluster) -> Result<Self> {
        let mut manifests = Manifests::new(cluster.folder())?;
        manifests.add_list(KUBERNETES_1_36)?;
        manifests.write()?;
        Ok(Self(manifests))
    }
}

impl World for Files {
    fn source(&self) -> Result<(&'static str, PathBuf)> {
        Ok(("--manifests", self.0.folder().to_path_buf()))
    }

    fn patience(&self) -> Duration {
        FOLLOWS
    }

    fn widen(&mut self) -> Result<()> {
        let ports = [("http", 9376, "TCP"), ("udp", 9376, "UDP")];
        let spec = &mut self.0.get("Service", SVC_UD1.0)?["spec"];
        spec["clusterIPs"] = json!([SVC_UD1.1, SVC_UD1_IPV6]);
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        spec["ipFamilyPolicy"] = json!("PreferDualStack");
        spec["ports"] = json!([
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 9376},
            {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 9376},
        ]);
        let four = self.0.get("EndpointSlice", "svc-ud1-9t779")?;
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
        self.0.put(six);
        self.0.write()
    }

    fn expose(&mut self, node_port: u16) -> Result<()> {
        let spec = &mut self.0.get("Service", SVC_UD1.0)?["spec"];
        spec["type"] = json!("NodePort");
        spec["ports"][0]["nodePort"] = json!(node_port);
        self.0.write()
    }

    fn balance(&mut self, ip: &str) -> Result<()> {
        let service = self.0.get("Service", SVC_UD1_WITHOUT_TOPOLOGY.0)?;
        service["spec"]["type"] = json!("LoadBalancer");
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
        self.0.write()
    }

    fn add_neighbour(&mut self) -> Result<()> {
        let endpoints = self.0.get("EndpointSlice", "svc-rack-9fcws")?;
        let neighbour = endpoint("10.244.0.3", CONTROL_PLANE, NEIGHBOUR);
        let endpoints = endpoints["endpoints"].as_array_mut();
        endpoints.context("a slice without endpoints")?.push(neighbour);
        self.0.write()
    }

    fn set_ready(&mut self, pods: &[&str], ready: bool) -> Result<()> {
        pods.iter().for_each(|pod| self.0.set_ready(pod, ready));
        self.0.write()
    }

    fn relabel(&mut self, node: &str, labels: &[(&str, &str)]) -> Result<()> {
        for (key, value) in labels {
            self.0.relabel(node, key, value)?;
        }
        self.0.write()
    }

    fn annotate_namespace(&mut self, key: &str, value: Option<&str>) -> Result<()> {
        let annotations = value.map(|value| json!({key: value}));
        self.0.put(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "default", "annotations": annotations},
        }));
        self.0.write()
    }
}
