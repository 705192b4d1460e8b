//! The cluster that the agents of `try` read: two zones, a Service, and the Pods that answer it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain::{self, Report};
use topo_lb_core::topology::Scope;
use topo_lb_kube::source::file;

/// The zone whose Pods become unready.
pub(super) const NEAR: &str = "zone-a";
/// The other zone.
pub(super) const FAR: &str = "zone-b";
/// The ClusterIP and port of the Service.
pub(super) const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 80);
/// The port on which Pods listen.
const PORT: u16 = 8080;
/// Pods per zone.
const PODS: u8 = 2;

/// The objects, and the servers of the Pods.
#[derive(Debug)]
pub(super) struct World {
    manifests: PathBuf,
    /// The Service's topology keys.
    pub(super) keys: Option<&'static str>,
    /// Whether the Pods of [`NEAR`] are ready.
    pub(super) is_near_ready: bool,
}

impl World {
    /// Starts the servers; each answers a connection with its zone. They end with the runtime.
    pub(super) async fn start(folder: &Path) -> anyhow::Result<Self> {
        for zone in [NEAR, FAR] {
            for pod in 0..PODS {
                let address = SocketAddr::from((address(zone, pod), PORT));
                let listener = TcpListener::bind(address).await;
                let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
                tokio::spawn(async move {
                    while let Ok((mut client, _)) = listener.accept().await {
                        // A client that has gone misses nothing.
                        let _ = client.write_all(zone.as_bytes()).await;
                    }
                });
            }
        }
        Ok(Self { manifests: folder.join("cluster.json"), keys: None, is_near_ready: true })
    }

    /// The file for the agents.
    pub(super) fn manifests(&self) -> &Path {
        &self.manifests
    }

    /// Writes the objects, in one step.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let draft = self.manifests.with_extension("new");
        fs::write(&draft, self.objects().to_string())?;
        fs::rename(&draft, &self.manifests).context("cannot write the manifests")
    }

    /// What `topo-lb explain` reports of the Service, on the node of a zone.
    pub(super) fn explained(&self, zone: &str) -> anyhow::Result<Report> {
        let listing = file::parse(&self.manifests, self.objects().to_string().as_bytes())?;
        let mut state = State::default();
        for update in listing.updates {
            // The state was empty: everything has changed.
            let _ = state.apply(update, zone);
        }
        let ids: Vec<ServiceId> = state.services().cloned().collect();
        Ok(explain::report(&state, zone, Scope::All, &ids))
    }

    fn objects(&self) -> serde_json::Value {
        let zone_label = |zone: &str| json!({ "topology.kubernetes.io/zone": zone });
        let node = |zone: &str| {
            let metadata = json!({ "name": zone, "labels": zone_label(zone) });
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
        };
        let endpoints = [NEAR, FAR].into_iter().flat_map(|zone| {
            let ready = zone != NEAR || self.is_near_ready;
            (0..PODS).map(move |pod| {
                json!({
                    "addresses": [address(zone, pod)],
                    "nodeName": zone,
                    "zone": zone,
                    "conditions": { "ready": ready, "serving": ready, "terminating": false },
                    "targetRef": { "kind": "Pod", "namespace": "default", "name": format!("web-{zone}-{pod}") },
                })
            })
        });
        let annotations: serde_json::Map<_, _> = self
            .keys
            .map(|keys| ("topo-lb.io/topology-keys".to_owned(), keys.into()))
            .into_iter()
            .collect();
        json!({ "apiVersion": "v1", "kind": "List", "items": [
            node(NEAR),
            node(FAR),
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": "web", "namespace": "default", "annotations": annotations },
                "spec": { "clusterIP": SERVICE.0, "ports": [{ "port": SERVICE.1 }] },
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "web-1",
                    "namespace": "default",
                    "labels": { "kubernetes.io/service-name": "web" },
                },
                "addressType": "IPv4",
                "ports": [{ "port": PORT }],
                "endpoints": endpoints.collect::<Vec<_>>(),
            },
        ]})
    }
}

/// The address of a Pod.
fn address(zone: &str, pod: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, if zone == NEAR { 1 } else { 2 }, pod + 2)
}
