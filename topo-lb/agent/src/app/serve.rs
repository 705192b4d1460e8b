//! Starts what reports about the agent: HTTP, Events, metrics.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;

use super::config::{Config, Source};
use crate::admin;
use crate::events::publish::EventPublisher;
use crate::events::{self, counted};
use crate::health;
use crate::metrics::Figures;
use crate::policy_status;
use crate::telemetry::Telemetry;
use topo_lb_kernel::datapath::attach::hooks;
use topo_lb_kernel::observe::Observed;
use topo_lb_kube::source::kube::{self, KubeTarget};

/// Returns the telemetry, and the file of the probes' socket. `observed`: see [`admin::Sources`].
pub(super) fn serve(
    config: &Config,
    observed: Option<Arc<Observed>>,
) -> anyhow::Result<(Telemetry, admin::SocketFile)> {
    let figures = Arc::<Figures>::default();
    let mut has_listener = false;
    let publisher = match &config.source {
        // Nobody is refused.
        _ if observed.is_some() => EventPublisher::silent(Arc::clone(&figures)),
        // Without credentials, nobody may write Events.
        source => match written_to(source) {
            None => EventPublisher::silent(Arc::clone(&figures)),
            Some(target) => {
                has_listener = true;
                EventPublisher::start(target, Arc::clone(&config.node), Arc::clone(&figures))
            }
        },
    };
    let mut telemetry = Telemetry::new(Arc::clone(&figures), publisher.clone());
    if observed.is_some() {
        telemetry.observe();
    }
    if let Some(options) = &config.health {
        let leaving = match &config.source {
            // Manifests do not tell of a Node that leaves.
            Source::Manifests(_) => watch::Sender::new(false).subscribe(),
            Source::Kube(target) => kube::leaving(target.clone(), config.node.to_string()),
        };
        let sources = health::Sources {
            node: Arc::clone(&config.node),
            figures: Arc::clone(&figures),
            readiness: telemetry.readiness(),
            forwards_before: hooks::is_attached(&config.datapath.pin_dir),
            leaving,
            publisher,
        };
        telemetry.check_health(health::start(options, sources).context("cannot create a thread")?);
    }
    if has_listener {
        let pin_dir = config.datapath.pin_dir.clone();
        tokio::spawn(counted::follow(telemetry.state_query(), pin_dir));
    }
    if let Some(target) = written_to(&config.source) {
        let node = Arc::clone(&config.node);
        policy_status::start(target.clone(), Arc::clone(&node), telemetry.state_query());
        events::node::start(target, node, telemetry.readiness(), Arc::clone(&figures));
    }
    let sources = admin::Sources {
        node: Arc::clone(&config.node),
        scope: config.scope,
        pin_dir: config.datapath.pin_dir.clone(),
        figures,
        observed,
        readiness: telemetry.readiness(),
        state_query: telemetry.state_query(),
    };
    let socket_file = admin::start(&config.admin, sources).context("cannot serve HTTP")?;
    Ok((telemetry, socket_file))
}

/// The API server that may be written to, if there is one.
fn written_to(source: &Source) -> Option<KubeTarget> {
    match source {
        Source::Manifests(_) => None,
        Source::Kube(target) => target.with_credentials(),
    }
}
