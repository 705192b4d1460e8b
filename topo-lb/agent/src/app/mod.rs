//! The agent: one task owns the state of the cluster and of the maps.

mod config;
mod devices;
mod ejector;
mod exclusions;
mod first_listing;
mod gather;
mod guard;
mod kernel;
mod observer;
mod precedence;
mod prove;
mod quarantine;
mod resolver;
mod retry;
mod running;
mod serve;
mod source;
mod start;
mod wanted;

use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

pub use config::{Config, MasqueradeBy, Replacement, Source};

/// Runs until SIGTERM or SIGINT, and then leaves the datapath in place.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut stop = pin!(async {
        let by = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!("stopping on {by}; the datapath stays in place");
    });
    match start::start(config, stop.as_mut()).await? {
        Some(agent) => agent.run(stop).await,
        None => Ok(()),
    }
}
