//! Pods that are left alone, where flags ask for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tracing::warn;

use crate::exclusion::{Keeper, PodReport, Rules};
use crate::metrics::Figures;
use crate::source::Event;

/// What a source says of this node's Pods.
pub(super) type Pods = BoxStream<'static, PodReport>;

/// How long the programs wait for the first listing of Pods before they are attached.
const PATIENCE: Duration = Duration::from_secs(2);

/// What files say, and what they say of Pods by itself.
pub(super) fn split(
    files: impl Stream<Item = Event> + Send + 'static,
) -> (impl Stream<Item = Event> + Send, Pods) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let files = files.inspect(move |event| {
        // Nobody listens where no Pod can be excluded.
        let _ = match event {
            Event::Pods(pods) => sender.send(PodReport::All(pods.clone())),
            Event::Synced => sender.send(PodReport::Listed),
            _ => Ok(()),
        };
    });
    (files, stream::poll_fn(move |context| receiver.poll_recv(context)).boxed())
}

/// Has the maps in `maps` say which Pods are left alone, from now on. Returns when the Pods that are
/// there are left alone, or when that takes long.
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
             excluded are handled like all others",
            PATIENCE.as_secs()
        );
    }
    Ok(())
}
