//! `topo-lb view`: a web page that shows where traffic goes. Only reads.
//!
//! ```text
//! cluster ─▶ State ──┐                        ┌─▶ waterfall ─┐
//! look ─▶ rates ─────┴─▶ lens: groups, leads ─┴──────────────┴─▶ picture ─▶ http ─▶ page
//!   └─▶ history ─────────────────────────────────────────────────┘
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `cluster` | what the cluster looks like now |
//! | `look` | what nodes have counted between two looks |
//! | `history`, `histories` | the last hour; of all Services, the busiest and the picked |
//! | `groups` | nodes by their value of a label |
//! | `leads` | where connections lead, by the decisions |
//! | `lines` | traffic between groups, measured or estimated |
//! | `lens` | traffic by groups |
//! | `waterfall` | how the nodes see one Service |
//! | `picture` | what one page shows, as JSON |
//! | `host` | which names this server answers to |
//! | `http` | the server |
//! | `page/` | the page itself |

mod cluster;
mod groups;
mod histories;
mod history;
mod host;
mod http;
mod leads;
mod lens;
mod lines;
mod look;
mod picture;
mod waterfall;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::admin::listen;
use crate::top::From;
use crate::topology::Scope;
pub use cluster::Described;
use picture::Viewer;

/// What to show, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the cluster is described.
    pub described: Described,
    /// Where the counts come from; `None`: nowhere.
    pub from: Option<From>,
    /// The time between two looks.
    pub interval: Duration,
    /// Which Services topo-lb handles.
    pub scope: Scope,
    /// The label that groups nodes unless the reader picks another one.
    pub by: String,
    /// Where to serve the page.
    pub listen: SocketAddr,
    /// Further names that the server answers to.
    pub hosts: Vec<String>,
}

/// Serves the page for ever. Calls `ready` with its address.
///
/// # Errors
/// The address or a source cannot be used.
pub async fn serve(options: Options, ready: impl FnOnce(SocketAddr)) -> anyhow::Result<()> {
    let Options { described, from, interval, scope, by, listen, hosts } = options;
    let listener = listen::listen(listen).map_err(|error| {
        let reason = listen::reason(&error);
        anyhow::anyhow!("cannot listen on {listen}: {reason}; --listen names another address")
    })?;
    let cluster = beside("cluster", async move |ready| cluster::follow(described, ready).await);
    let looks = beside("look", async move |ready| look::follow(from, interval, ready).await);
    let (cluster, looks) = tokio::try_join!(cluster, looks)?;
    ready(listener.local_addr()?);
    let viewer = Viewer::new(cluster, looks, by, scope);
    http::serve(listener, viewer, hosts).await;
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
