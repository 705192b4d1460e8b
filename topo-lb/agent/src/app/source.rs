//! Opens the configured source.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _, future, stream};
use tracing::{info, warn};

use super::config::{Config, Source};
use super::exclusions::{self, Pods};
use super::wanted::WantedNodes;
use topo_lb_core::cluster::Update;
use topo_lb_kernel::device::address;
use topo_lb_kube::source::saved::{self, Saver};
use topo_lb_kube::source::{self, Event};

pub(super) type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Opens the source. Returns its events, the Nodes that it watches, the saver, and Pod reports.
pub(super) async fn open(config: &Config) -> anyhow::Result<(Events, WantedNodes, Saver, Pods)> {
    let mut wanted = WantedNodes::default();
    let (events, saver, pods): (Events, _, _) = match &config.source {
        Source::Manifests(path) => {
            // Read once here: an error in a file then stops the agent before anything is attached.
            // Errors of single objects are reported when the files are followed.
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
            // The last agent needed the saved other Nodes; this one may, too.
            if let Some(saved) = &saved {
                wanted.begin_with(saved.known_nodes());
            }
            let nodes = source::kube::Nodes::new(Arc::clone(&config.node), wanted.subscribe());
            let live = source::beside(source::kube::follow(server, nodes));
            (Box::pin(saved::before(saved, live)), Saver::new(folder), pods)
        }
    };
    Ok((Box::pin(with_local_addresses(events)), wanted, saver, pods))
}

/// Adds this host's addresses: the first before the source can be complete. Ends with the source.
fn with_local_addresses(
    source: impl Stream<Item = Event> + Send + 'static,
) -> impl Stream<Item = Event> + Send {
    let mut addresses = Box::pin(address::follow());
    stream::once(async move {
        let first = addresses.next().await.unwrap_or_default();
        let said = |all| Event::Update(Update::LocalAddresses(all));
        let source = source.map(Some).chain(stream::once(future::ready(None)));
        stream::iter([said(first)]).chain(
            stream::select(source, addresses.map(move |all| Some(said(all))))
                .take_while(|event| future::ready(event.is_some()))
                .filter_map(future::ready),
        )
    })
    .flatten()
}

/// The saved state, if it is usable.
fn last_known(
    folder: &saved::Folder,
    server: &source::kube::Server,
    config: &Config,
) -> Option<saved::Saved> {
    // The API server's address may be known only from the saved state.
    folder.load(&config.node, |update| server.observe(update)).unwrap_or_else(|error| {
        warn!("{error}");
        None
    })
}
