//! The Kubernetes source against a real API server, in the version in `KUBEBUILDER_ASSETS`.

use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use kube::api::DeleteParams;
use serde_json::json;
use tokio::sync::watch;
use topo_lb_core::cluster::{KnownNodes, Service, ServiceId, State};
use topo_lb_kube::source::Event;
use topo_lb_kube::source::kube::{KubeTarget, Nodes, Server, connect, follow, read};
use topo_lb_tests::api::{self, create};
use topo_lb_tests::control_plane::{ADMINISTRATOR, ControlPlane, NOBODY};

const PATIENCE: Duration = Duration::from_secs(60);

/// The state that an agent would have.
struct ObservedCluster {
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    state: State,
    synced: bool,
    troubles: Vec<String>,
}

impl ObservedCluster {
    fn of(server: Server) -> Self {
        let (_, wanted) = watch::channel(KnownNodes::All);
        let events = Box::pin(follow(server, Nodes::new("n1".into(), wanted)));
        Self { events, state: State::default(), synced: false, troubles: Vec::new() }
    }

    /// Applies events until `so` is true.
    async fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let left = PATIENCE.saturating_sub(start.elapsed());
            match tokio::time::timeout(left, self.events.next()).await {
                Ok(Some(Event::Update(update))) => {
                    let _ = self.state.apply(update, "n1");
                }
                Ok(Some(Event::Synced)) => self.synced = true,
                Ok(Some(
                    Event::Freshness(_) | Event::Pods(_) | Event::Mended(_) | Event::Kept(..),
                )) => {}
                Ok(Some(Event::Trouble(trouble) | Event::Unserved(trouble))) => {
                    self.troubles.push(trouble);
                }
                Ok(None) => panic!("the stream has ended"),
                Err(_) => panic!("{what} was not heard of; troubles: {:#?}", self.troubles),
            }
        }
    }

    fn pool(&self) -> Option<&str> {
        self.state.node("n1").and_then(|labels| labels.get("pool")).map(|pool| &**pool)
    }

    fn service(&self) -> Option<&Service> {
        self.state.service(&web())
    }
}

fn web() -> ServiceId {
    ServiceId { namespace: "default".into(), name: "web".into() }
}

async fn connected(plane: &ControlPlane<'_>, token: &str) -> Server {
    connect(&KubeTarget::Kubeconfig(plane.kubeconfig(token).unwrap())).await.unwrap()
}

#[tokio::test]
async fn a_real_api_server_is_read_followed_and_met_again() {
    let mut plane = ControlPlane::on_loopback().unwrap();
    let old = plane.has_topology_keys().unwrap();

    // A user without permissions gets the permissions to grant.
    let error = read(&connected(&plane, NOBODY).await).await.unwrap_err().to_string();
    assert!(error.contains("does not let topo-lb list"), "{error}");
    assert!(error.contains("User \"nobody\" cannot list resource"), "{error}");

    let server = connected(&plane, ADMINISTRATOR).await;
    let client = server.client();
    let mut known = ObservedCluster::of(server);
    known.until("the first listing", |known| known.synced).await;

    create(
        &client,
        &json!({"apiVersion": "v1", "kind": "Node",
               "metadata": {"name": "n1", "labels": {"pool": "beijing"}}}),
    )
    .await
    .unwrap();
    known.until("the node", |known| known.pool() == Some("beijing")).await;

    let mut spec = json!({"clusterIP": "10.96.0.55", "ports": [{"name": "http", "port": 80}]});
    if old {
        spec["topologyKeys"] = json!(["kubernetes.io/hostname", "*"]);
    }
    create(
        &client,
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web",
               "annotations": {"topo-lb.io/topology-keys": "rack,*"}}, "spec": spec}),
    )
    .await
    .unwrap();
    known.until("the Service", |known| known.service().is_some()).await;
    let service = known.service().unwrap();
    assert_eq!(service.cluster_ips, ["10.96.0.55".parse::<IpAddr>().unwrap()]);
    assert_eq!(service.policy.topology_keys.as_deref(), Some("rack,*"));
    let keys: Vec<_> = service.policy.spec_topology_keys.iter().map(|key| &**key).collect();
    assert_eq!(keys, if old { vec!["kubernetes.io/hostname", "*"] } else { vec![] });

    let version = if old { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" };
    let mut endpoint = json!({"addresses": ["10.1.1.1"], "conditions": {"ready": true}});
    if old {
        endpoint["topology"] = json!({"kubernetes.io/hostname": "n1"});
    } else {
        endpoint["nodeName"] = "n1".into();
    }
    create(
        &client,
        &json!({"apiVersion": version, "kind": "EndpointSlice", "addressType": "IPv4",
               "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
               "endpoints": [endpoint], "ports": [{"name": "http", "port": 8080}]}),
    )
    .await
    .unwrap();
    known.until("the slice", |known| known.state.slices(&web()).next().is_some()).await;
    let (_, slice) = known.state.slices(&web()).next().unwrap();
    assert_eq!(slice.endpoints[0].node().map(|name| &**name), Some("n1"));

    let mut fastest = PATIENCE;
    for pool in ["hangzhou", "shanghai", "beijing"] {
        let start = Instant::now();
        api::relabel(&client, "n1", "pool", pool).await.unwrap();
        known.until("the relabelled node", |known| known.pool() == Some(pool)).await;
        fastest = fastest.min(start.elapsed());
    }
    println!("a relabelled node, request included: {fastest:?}");
    assert_eq!(known.troubles, [""; 0]);

    // A crash is reported once; later changes arrive after the restart.
    plane.kill_api_server();
    known.until("the crash", |known| !known.troubles.is_empty()).await;
    plane.start_api_server().unwrap();
    let start = Instant::now();
    let server = connected(&plane, ADMINISTRATOR).await;
    let client = server.client();
    api::relabel(&client, "n1", "pool", "hangzhou").await.unwrap();
    api::of(&client, "v1", "Service").delete("web", &DeleteParams::default()).await.unwrap();
    known
        .until("what changed after the return", |known| {
            known.pool() == Some("hangzhou") && known.service().is_none()
        })
        .await;
    println!("recovered after {:?}", start.elapsed());
    let [trouble] = &*known.troubles else { panic!("{:#?}", known.troubles) };
    assert!(trouble.starts_with("cannot reach the API server at https://127.0.0.1:"), "{trouble}");

    // A new listing gives the same state.
    let mut fresh = State::default();
    for update in read(&server).await.unwrap().updates {
        let _ = fresh.apply(update, "n1");
    }
    known.until("all of it", |known| known.state == fresh).await;
}
