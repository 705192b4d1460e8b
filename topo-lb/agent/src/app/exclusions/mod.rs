//! Starts the exclusion and the steering of Pods, if flags ask for it.

mod keeper;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tracing::warn;

use self::keeper::Keeper;
use crate::metrics::Figures;
use topo_lb_core::exclusion::{PodReport, Rules};
use topo_lb_kube::source::Event;

pub(super) type Pods = BoxStream<'static, PodReport>;

/// How long the agent waits for the first listing of Pods before it attaches the programs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns all events of files, and the reports about Pods.
pub(super) fn split(
    files: impl Stream<Item = Event> + Send + 'static,
) -> (impl Stream<Item = Event> + Send, Pods) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let files = files.inspect(move |event| {
        // Without rules, nothing receives.
        let _ = match event {
            Event::Pods(pods) => sender.send(PodReport::All(pods.clone())),
            Event::Synced => sender.send(PodReport::Listed),
            _ => Ok(()),
        };
    });
    (files, stream::poll_fn(move |context| receiver.poll_recv(context)).boxed())
}

/// Keeps the maps in the folder `maps` up to date with the Pods that these rules name. Returns when existing
/// Pods are in them, or after [`PATIENCE`].
pub(super) async fn begin(
    rules: Rules,
    pods: Pods,
    cgroup_root: &Path,
    maps: &Path,
    figures: &Arc<Figures>,
) -> anyhow::Result<()> {
    if rules.is_empty() {
        return Ok(());
    }
    let keeper = Keeper::open(rules, cgroup_root, maps, Arc::clone(figures))?;
    if tokio::time::timeout(PATIENCE, keeper.start(pods)).await.is_err() {
        warn!(
            "the Pods of this node were not listed within {} s: until they are, Pods that are to be \
             excluded or steered are handled like all others",
            PATIENCE.as_secs()
        );
    }
    Ok(())
}
