//! Objects from a Kubernetes API server: read once, or watched.
//!
//! Services and EndpointSlices are read as types of this project, since the generated ones know
//! neither `spec.topologyKeys` nor `discovery.k8s.io/v1beta1`, and of Nodes only the metadata is
//! asked for: their status changes all the time.

mod backoff;
mod bootstrap;
mod connect;
mod dial;
mod error;
mod items;
mod listing;
mod pods;
mod reach;
mod reflect;
mod resource;
mod session;
mod target;
mod timing;
mod watch;
mod watch_aggregator;
mod watch_health;

pub use connect::{Identity, Server, connect};
pub use error::KubeError;
pub use listing::{clients, read};
pub use pods::pods;
pub use reach::Nodes;
pub use target::KubeTarget;
pub use watch::follow;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
