//! Opens the source that the configuration names.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use tracing::{info, warn};

use super::config::{Config, Source};
use super::exclusions::{self, Pods};
use super::wanted::WantedNodes;
use crate::source::saved::{self, Saver};
use crate::source::{self, Event};

/// What a source says.
pub(super) type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Opens the source: its events, which Nodes it tells of, who saves them, and what it says of Pods.
pub(super) async fn open(config: &Config) -> anyhow::Result<(Events, WantedNodes, Saver, Pods)> {
    let mut wanted = WantedNodes::default();
    let (events, saver, pods): (Events, _, _) = match &config.source {
        Source::Manifests(path) => {
            // Read once here: what is broken at start is told at once, and nothing is attached.
            // What costs single objects is told by the one who follows.
            source::file::read(path)?;
            if config.state_dir.is_some() {
                info!("nothing is saved: manifests are there without an API server");
            }
            let (events, pods) = exclusions::split(source::file::follow(path.clone())?);
            (Box::pin(events), Saver::new(None), pods)
        }
        Source::Kube(target) => {
            let server = source::kube::connect(target).await?;
            let folder = config
                .state_dir
                .as_deref()
                .map(|state| saved::Folder::new(state, server.identity().clone()));
            let saved = folder.as_ref().and_then(|folder| last_known(folder, &server, config));
            let pods = source::kube::pods(server.clone(), &config.node).boxed();
            // The last agent needed the other Nodes that are in there; this one may, too.
            if let Some(saved) = &saved {
                wanted.begin_with(saved.known_nodes());
            }
            let nodes = source::kube::Nodes::new(Arc::clone(&config.node), wanted.subscribe());
            let live = source::beside(source::kube::follow(server, nodes));
            (Box::pin(saved::before(saved, live)), Saver::new(folder), pods)
        }
    };
    Ok((Box::pin(source::with_local_addresses(events)), wanted, saver, pods))
}

/// What was saved, if it is of use.
fn last_known(
    folder: &saved::Folder,
    server: &source::kube::Server,
    config: &Config,
) -> Option<saved::Saved> {
    // Where the API server is may be known from there alone.
    folder.load(&config.node, |update| server.observe(update)).unwrap_or_else(|error| {
        warn!("{error}");
        None
    })
}
