//! The cluster's DNS server, on the fabric; the Service `kube-system/kube-dns` leads there.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fs_err as fs;
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Metadata, ResponseCode};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UdpSocket};

use crate::cluster::Cluster;
use crate::control_plane::{ADMINISTRATOR, ControlPlane, client};
use crate::deployment::kubectl;
use crate::wiring::fabric4;

use self::directory::Directory;
use super::background::Background;
use super::{APPLY, Proxy};

pub mod directory;
mod follow;

/// The usual ClusterIP of `kube-system/kube-dns`.
const CLUSTER_IP: &str = "10.96.0.10";

/// How long a TCP connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// The size of the buffer for answers over TCP, in answers.
const ANSWERS: usize = 32;

/// Where pods find the server: its Service, or, if nothing handles Services, the server itself.
pub(crate) fn address(proxy: Proxy) -> String {
    match proxy {
        Proxy::None => fabric4().to_string(),
        _ => CLUSTER_IP.to_owned(),
    }
}

/// The server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Dns {
    _server: Background,
}

impl Dns {
    pub(crate) fn start(cluster: &Cluster, plane: &ControlPlane<'_>) -> Result<Self> {
        let objects = cluster.folder().join("dns.json");
        fs::write(&objects, objects_of_service().to_string())?;
        let file = objects.display().to_string();
        plane.administer(&kubectl()?, &[&APPLY[..], &["-f", &file]].concat())?;
        let kubeconfig = plane.kubeconfig(ADMINISTRATOR)?;
        let server = Background::start("dns", cluster, async move {
            let directory = Arc::new(RwLock::new(Directory::default()));
            let mut server = Server::new(Handler(directory.clone()));
            let at = SocketAddr::from((fabric4(), 53));
            let socket = UdpSocket::bind(at).await;
            server.register_socket(socket.with_context(|| format!("cannot listen on {at}"))?);
            let listener = TcpListener::bind(at).await;
            let listener = listener.with_context(|| format!("cannot listen on {at}"))?;
            server.register_listener(listener, IDLE, ANSWERS);
            let client: Client = client(&kubeconfig).await?;
            Ok(async move {
                let publish =
                    |new| *directory.write().unwrap_or_else(PoisonError::into_inner) = new;
                follow::follow(&client, publish).await;
                drop(server);
            })
        })?;
        Ok(Self { _server: server })
    }
}

fn objects_of_service() -> Value {
    let metadata = json!({
        "name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"},
    });
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]);
    let subsets = json!([{"addresses": [{"ip": fabric4()}], "ports": ports}]);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"clusterIP": CLUSTER_IP, "ports": ports}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets},
    ]})
}

struct Handler(Arc<RwLock<Directory>>);

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response: R,
    ) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.authoritative = true;
        // Clients that ask a server without recursion may look for another one.
        metadata.recursion_available = true;
        let records = match request.request_info() {
            Ok(info) => {
                let directory = self.0.read().unwrap_or_else(PoisonError::into_inner);
                let found =
                    directory.look_up(&info.query.name().to_string(), info.query.query_type());
                if found.is_none() {
                    metadata.response_code = ResponseCode::NXDomain;
                }
                found.unwrap_or_default()
            }
            Err(_) => {
                metadata.response_code = ResponseCode::FormErr;
                Vec::new()
            }
        };
        let answer = MessageResponseBuilder::from_message_request(request).build(
            metadata,
            &records,
            [],
            [],
            [],
        );
        // A client that is gone asks again.
        response.send_response(answer).await.unwrap_or_else(|_| {
            hickory_server::proto::op::Header { metadata, counts: Default::default() }.into()
        })
    }
}
