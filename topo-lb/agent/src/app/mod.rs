//! The agent: one task owns the state of the cluster and of the maps. It starts in `start`, and then loops in
//! `running`.
//!
//! | file | what it decides |
//! |---|---|
//! | `config` | what an agent is told at its start |
//! | `start`, `first_listing` | what happens before the first plan, and when the cluster is listed |
//! | `source`, `wanted` | where objects come from, and which Nodes are watched |
//! | `running`, `gather` | **what happens when a slice changes**: it is taken in, gathered with others, planned |
//! | `kernel` | how much of a plan is written before the loop takes in more |
//! | `retry`, `quarantine` | when a failed plan is tried again, and when a slot may be used again |
//! | `guard`, `precedence`, `prove` | whether our programs are in place, run first, and translate |
//! | `devices` | on which devices packets are translated |
//! | `ejector` | which endpoints are ejected for failing connects, and when they come back |
//! | `evacuations` | says in the log what is evacuated |
//! | `lookout` | which endpoints are dead, while the node is an island |
//! | `exclusions`, `observer`, `resolver` | the tasks for excluded Pods, for observing only, and for DNS |
//! | `peers` | direct return: asks other nodes, and answers them |
//! | `untranslated` | counts connections that topo-lb does not translate |
//! | `wider` | has connections to a wider tier counted |
//! | `serve` | what reports about the agent: HTTP, Events, metrics |

mod config;
mod devices;
mod ejector;
mod evacuations;
mod exclusions;
mod first_listing;
mod gather;
mod guard;
mod kernel;
mod lookout;
mod observer;
mod peers;
mod precedence;
mod prove;
mod quarantine;
mod resolver;
mod retry;
mod running;
mod serve;
mod source;
mod start;
mod untranslated;
mod wanted;
mod wider;

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
