//! Who tells the names of Pods where no folder of logs does: standard input, or the API server of this Pod.

use std::env;
use std::io::{BufRead as _, stdin};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Options, Told};
use topo_lb_kube::source::kube::{KubeTarget, Server, connect, in_words};

/// How long the first names may take.
const FIRST: Duration = Duration::from_secs(5);
/// The kubelet names the cgroup of a static Pod by this, and not by its UID.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Fills `told`, and returns what ends when the trace is to end, and a sentence if names are not known.
pub(super) async fn learn(
    options: &Options,
    told: &Told,
) -> (impl Future<Output = ()> + use<>, Option<String>) {
    let (sender, mut first) = watch::channel(false);
    let mut end = None;
    let mut note = None;
    if options.names_from_stdin {
        let (told, over) = (Arc::clone(told), watch::Sender::new(false));
        end = Some(over.subscribe());
        // A thread that waits for standard input ends with the process.
        let reader = thread::Builder::new().name("names".to_owned()).spawn(move || {
            for line in stdin().lock().lines().map_while(Result::ok) {
                match line.split_once(' ') {
                    Some((uid, name)) => tell(&told, uid, name),
                    None => drop(sender.send_replace(true)),
                }
            }
            over.send_replace(true);
        });
        if reader.is_ok() {
            let _ = timeout(FIRST, first.wait_for(|is_told| *is_told)).await;
        }
    } else if !options.pod_logs.is_dir() {
        let why = match env::var("NODE_NAME") {
            Ok(node) if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                let asked = timeout(FIRST, from_own_server(&node, told)).await;
                asked.unwrap_or_else(|_| Err("the API server does not answer".to_owned())).err()
            }
            _ => Some(format!("{} is no folder", options.pod_logs.display())),
        };
        note = why.map(|why| {
            format!(
                "names of Pods are not known here ({why}), so Pods are shown by the beginning of their UIDs; \
                 `kubectl topo trace --pod NAMESPACE/NAME` knows them"
            )
        });
    }
    let end = async move {
        match &mut end {
            Some(end) => drop(end.wait_for(|is_over| *is_over).await),
            None => std::future::pending().await,
        }
    };
    (end, note)
}

fn tell(told: &Told, uid: &str, name: &str) {
    told.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.into(), name.into());
}

async fn from_own_server(node: &str, told: &Told) -> Result<(), String> {
    let server = connect(&KubeTarget::Inferred).await.map_err(|error| error.to_string())?;
    for (uid, name) in on(&server, node).await.map_err(|error| in_words(&error))? {
        tell(told, &uid, &name);
    }
    Ok(())
}

/// UID and `namespace/name` of the Pods of a node.
///
/// # Errors
/// They cannot be listed.
pub(super) async fn on(server: &Server, node: &str) -> kube::Result<Vec<(String, String)>> {
    let api: Api<Pod> = Api::all(server.client());
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let named = |pod: &PartialObjectMeta<Pod>| {
        let hash = pod.annotations().get(CONFIG_HASH).cloned();
        let uid = hash.or_else(|| pod.uid())?;
        Some((uid, format!("{}/{}", pod.namespace()?, pod.name_any())))
    };
    Ok(api.list_metadata(&params).await?.iter().filter_map(named).collect())
}
