//! `topo-lb view`: a web page that shows where traffic goes. Only reads.
//!
//! ```text
//! cluster ─▶ State ──┬──────────────┐                        ┌─▶ waterfall ─┐
//! look ─▶ rates ─▶ regions ─────────┴─▶ lens: groups, leads ─┴──────────────┴─▶ picture ─▶ http ─▶ page
//!                     └─▶ gaps ─▶ history ────────────────────────────────────────┘
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `cluster` | what the cluster looks like now |
//! | `newest`, `look` | what nodes have counted between two looks |
//! | `regions` | which distances those are by the Nodes' regions |
//! | `gaps` | which looks are complete |
//! | `history`, `histories` | the last hour; of all Services, the busiest and the picked |
//! | `groups` | nodes by their value of a label |
//! | `leads` | where connections lead, by the decisions |
//! | `before` | where they would lead without the evacuations in force |
//! | `lines` | traffic between groups, measured or estimated |
//! | `lens` | traffic by groups |
//! | `treatment` | whether a Service has a policy, is left to another proxy, or is not counted |
//! | `waterfall` | how the nodes see one Service |
//! | `picture` | what one page shows, as JSON |
//! | `host` | which names this server answers to |
//! | `token` | who may read, if not everybody |
//! | `http` | the server |
//! | `page/` | the page itself |
//! | `palette` | tests of its colours |

mod before;
mod cluster;
mod gaps;
mod groups;
mod histories;
mod history;
mod host;
mod http;
mod leads;
mod lens;
mod lines;
mod look;
mod newest;
#[cfg(test)]
mod palette;
mod picture;
mod regions;
mod token;
mod treatment;
mod waterfall;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::commands::top::From;
pub use cluster::Described;
use http::Readers;
use picture::Viewer;
use token::Token;
use topo_lb_agent::serve::listen;
use topo_lb_core::topology::Scope;

/// A start that takes longer says what it waits for.
const SILENT: Duration = Duration::from_secs(2);
/// The longest start. Somebody may have to log in meanwhile.
const LONGEST: Duration = Duration::from_secs(120);

/// What to show, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the cluster is described.
    pub described: Described,
    /// Where the counts come from; `None`: nowhere.
    pub from: Option<From>,
    /// The time between two looks.
    pub interval: Duration,
    /// Which Services topo-lb handles; `None`: as the agents' Pods say, else all.
    pub scope: Option<Scope>,
    /// The label that groups nodes unless the reader picks another one.
    pub by: String,
    /// Where to serve the page.
    pub listen: SocketAddr,
    /// Further names that the server answers to.
    pub hosts: Vec<String>,
    /// The file with the token that a reader has to know; `None`: everybody may read.
    pub token_file: Option<PathBuf>,
}

/// Serves the page for ever. Calls `ready` with its address, and `say` with a sentence if that takes long.
///
/// # Errors
/// The address or a source cannot be used.
pub async fn serve(
    options: Options,
    ready: impl FnOnce(SocketAddr),
    say: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let Options { described, from, interval, scope, by, listen, hosts, token_file } = options;
    let token = token_file.map(Token::of).transpose().context("--token-file")?;
    let listener = listen::listen_as_go(listen).map_err(|error| {
        let reason = listen::reason(&error);
        anyhow::anyhow!("cannot listen on {listen}: {reason}; --listen names another address")
    })?;
    let awaited = described.awaited();
    let (sender, cluster) = watch::channel(Arc::default());
    let known = cluster.clone();
    let clusters =
        beside("cluster", async move |ready| cluster::follow(described, sender, ready).await);
    let looks = beside("look", async move |ready| look::follow(from, interval, known, ready).await);
    let mut sources = std::pin::pin!(async { tokio::try_join!(clusters, looks) });
    let opened = match timeout(SILENT, &mut sources).await {
        Ok(opened) => opened,
        Err(_) => {
            let (told, most) = (SILENT.as_secs(), LONGEST.as_secs());
            say(&format!("still waits after {told} s for {awaited}; gives up after {most} s"));
            let late = timeout(LONGEST - SILENT, sources).await;
            late.with_context(|| format!("gave up after {most} s of waiting for {awaited}"))?
        }
    };
    let ((), looks) = opened?;
    ready(listener.local_addr()?);
    let viewer = Viewer::new(cluster, looks, by, scope);
    http::serve(listener, viewer, Readers { hosts, token }).await;
    Ok(())
}

/// Runs `work` on a thread of its own, and returns what it tells first.
async fn beside<T: Send + 'static>(
    name: &str,
    work: impl AsyncFnOnce(oneshot::Sender<anyhow::Result<T>>) + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, told) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(work(sender)))
        .context("cannot start a thread")?;
    told.await.context("a thread has ended")?
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use topo_lb_kube::source::kube::KubeTarget;

    /// Time stands still until nothing else is left to wait for.
    #[tokio::test(start_paused = true)]
    async fn a_plugin_for_credentials_that_hangs_is_told_and_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = serde_json::json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["5"],
                "interactiveMode": "Never"}}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).expect("a kubeconfig");
        let options = Options {
            described: Described::By(KubeTarget::Kubeconfig(kubeconfig)),
            from: None,
            interval: Duration::from_secs(1),
            scope: None,
            by: String::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            hosts: Vec::new(),
            token_file: None,
        };
        let said = RefCell::new(String::new());
        let ready = |_| panic!("it cannot be ready");
        let served = serve(options, ready, |sentence| said.borrow_mut().push_str(sentence)).await;
        let awaited = "the credentials of the API server: does the plugin that the kubeconfig names \
                       (users, exec) hang, or ask for something?";
        assert_eq!(
            *said.borrow(),
            format!("still waits after 2 s for {awaited}; gives up after 120 s")
        );
        let error = served.expect_err("no credentials").to_string();
        assert_eq!(error, format!("gave up after 120 s of waiting for {awaited}"));
    }
}
