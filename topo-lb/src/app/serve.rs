//! Starts what reports about the agent: HTTP, Events, metrics.

use std::sync::Arc;

use anyhow::Context as _;

use super::config::{Config, Source};
use crate::admin;
use crate::events::publish::EventPublisher;
use crate::events::{self, counted};
use crate::metrics::Figures;
use crate::source::kube::KubeTarget;
use crate::telemetry::Telemetry;

/// Returns the telemetry, and the file of the probes' socket.
pub(super) fn serve(config: &Config) -> anyhow::Result<(Telemetry, admin::SocketFile)> {
    let figures = Arc::<Figures>::default();
    let mut has_listener = false;
    let publisher = match &config.source {
        // Without credentials, nobody may write Events.
        Source::Manifests(_) | Source::Kube(KubeTarget::Server(_)) => {
            EventPublisher::silent(Arc::clone(&figures))
        }
        Source::Kube(target) => {
            has_listener = true;
            EventPublisher::start(target.clone(), Arc::clone(&config.node), Arc::clone(&figures))
        }
    };
    let telemetry = Telemetry::new(Arc::clone(&figures), publisher);
    if has_listener {
        let pin_dir = config.datapath.pin_dir.clone();
        tokio::spawn(counted::follow(telemetry.state_query(), pin_dir));
    }
    if let Source::Kube(target @ (KubeTarget::Kubeconfig(_) | KubeTarget::Inferred)) =
        &config.source
    {
        let (target, node) = (target.clone(), Arc::clone(&config.node));
        events::node::start(target, node, telemetry.readiness(), Arc::clone(&figures));
    }
    let sources = admin::Sources {
        node: Arc::clone(&config.node),
        scope: config.scope,
        pin_dir: config.datapath.pin_dir.clone(),
        figures,
        readiness: telemetry.readiness(),
        state_query: telemetry.state_query(),
    };
    let socket_file = admin::start(&config.admin, sources).context("cannot serve HTTP")?;
    Ok((telemetry, socket_file))
}
