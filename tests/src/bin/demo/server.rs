//! A world at a real API server: etcd, kube-apiserver, and kube-controller-manager, which makes
//! EndpointSlices from Pods. The demo sets their readiness.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use topo_lb_tests::api::{create, installed, run_pod};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::kind::{NEIGHBOUR, SERVERS, SVC_RACK, SVC_UD1, SVC_UD1_WITHOUT_TOPOLOGY};
use topo_lb_tests::manifest::KUBERNETES_1_36;

use crate::story::SVC_UD1_IPV6;
use crate::world::World;

/// How long controllers may take to write slices, and agents to program them.
const PATIENCE: Duration = Duration::from_secs(60);

/// The label of pods that serve `svc-rack`; the rack's neighbour serves no other Service.
const SERVES_RACK: &str = "example.com/serves-rack";

/// The control plane.
pub(crate) struct Server<'a> {
    cluster: &'a Cluster,
    plane: ControlPlane<'a>,
}

impl<'a> Server<'a> {
    /// Starts the control plane, and creates the nodes, pods and Services of the story.
    ///
    /// # Errors
    /// A program is missing or does not get ready, or a server refuses an object.
    pub(crate) fn start(cluster: &'a Cluster) -> Result<Self> {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers()?;
        let server = Self { cluster, plane };
        server.plane.allow("topo-lb", &installed())?;
        server.plane.ask(async |client| server.describe(&client).await)?;
        Ok(server)
    }

    /// Nodes and Services as in the fixture.
    async fn describe(&self, client: &Client) -> Result<()> {
        let list: Value = serde_json::from_str(KUBERNETES_1_36).context("a list that is JSON")?;
        let services = [SVC_UD1.0, SVC_UD1_WITHOUT_TOPOLOGY.0, SVC_RACK.0];
        for item in list["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let mut metadata = json!({"name": name});
            for part in ["labels", "annotations"] {
                metadata[part] = item["metadata"][part].clone();
            }
            let mut object = json!({"apiVersion": "v1", "kind": item["kind"]});
            object["metadata"] = metadata;
            match item["kind"].as_str() {
                Some("Node") => {}
                Some("Service") if services.contains(&name) => {
                    for part in ["clusterIP", "ports", "selector"] {
                        object["spec"][part] = item["spec"][part].clone();
                    }
                    if name == SVC_RACK.0 {
                        object["spec"]["selector"] = json!({SERVES_RACK: "yes"});
                    }
                }
                _ => continue,
            }
            create(client, &object).await?;
        }
        for name in SERVERS {
            let labels = json!({"app": "united-deployment1", SERVES_RACK: "yes"});
            run_pod(client, self.cluster.pod(name)?, &labels).await?;
        }
        run_pod(client, self.cluster.pod(NEIGHBOUR)?, &json!({"app": "neighbour"})).await
    }
}

impl World for Server<'_> {
    fn source(&self) -> Result<(&'static str, PathBuf)> {
        Ok(("--kubeconfig", self.plane.kubeconfig(AGENT)?))
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn widen(&mut self) -> Result<()> {
        let spec = json!({
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "clusterIPs": [SVC_UD1.1, SVC_UD1_IPV6],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 9376},
                {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 9376},
            ],
        });
        self.plane.change("Service", SVC_UD1.0, &json!({"spec": spec}))
    }

    fn expose(&mut self, node_port: u16) -> Result<()> {
        // A change replaces a whole list.
        let ports = json!([
            {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 9376, "nodePort": node_port},
            {"name": "udp", "port": 80, "protocol": "UDP", "targetPort": 9376},
        ]);
        let spec = json!({"type": "NodePort", "ports": ports});
        self.plane.change("Service", SVC_UD1.0, &json!({"spec": spec}))
    }

    fn balance(&mut self, ip: &str) -> Result<()> {
        let name = SVC_UD1_WITHOUT_TOPOLOGY.0;
        self.plane.change("Service", name, &json!({"spec": {"type": "LoadBalancer"}}))?;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        self.plane.ask(async |client| {
            let services: Api<Service> = Api::default_namespaced(client);
            services.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
            Ok(())
        })
    }

    fn add_neighbour(&mut self) -> Result<()> {
        let labels = json!({"metadata": {"labels": {SERVES_RACK: "yes"}}});
        self.plane.change("Pod", NEIGHBOUR, &labels)
    }

    fn set_ready(&mut self, pods: &[&str], ready: bool) -> Result<()> {
        self.plane.set_ready(pods, ready)
    }

    fn relabel(&mut self, node: &str, labels: &[(&str, &str)]) -> Result<()> {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        self.plane.change("Node", node, &json!({"metadata": {"labels": labels}}))
    }

    fn annotate_namespace(&mut self, key: &str, value: Option<&str>) -> Result<()> {
        let annotations = json!({"metadata": {"annotations": {key: value}}});
        self.plane.change("Namespace", "default", &annotations)
    }
}
