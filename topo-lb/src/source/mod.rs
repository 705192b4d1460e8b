//! Where the cluster's objects come from: files, or a Kubernetes API server. Both are streams of
//! [`Event`]s.

pub mod file;
pub mod kube;
pub mod object;

use crate::cluster::Update;

/// What a source says.
#[derive(Clone, Debug)]
pub enum Event {
    /// Something in the cluster is so from now on.
    Update(Update),
    /// Services, EndpointSlices and Nodes have all been listed once: what was said so far is a
    /// whole cluster. Said once.
    Synced,
    /// One sentence about something that is wrong with the source or with an object of it. What
    /// was good before stays in force.
    Trouble(String),
}
