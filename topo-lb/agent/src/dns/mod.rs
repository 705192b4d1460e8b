//! The resolver in the agent: it answers for headless Services that ask for it by this node's decision,
//! and hands everything else to the cluster DNS, byte for byte.
//!
//! | file | idea |
//! |---|---|
//! | `names` | what this node answers, and where everything else goes |
//! | `answer` | a query becomes an answer, or is not ours |
//! | `framing` | messages in a stream |
//! | `lead` | the cluster DNS Service leads to the resolver while that lives |
//! | `listen` | sockets that hear this node, and nobody else |
//! | `transport` | how a query came |
//! | `datagrams`, `streams` | UDP and TCP |
//! | `shared` | what all tasks use |
//! | `server` | the thread that serves, and that renews the lease |
//!
//! `names`, `answer`, `framing` and `lead` are pure.

pub mod answer;
mod datagrams;
pub mod framing;
mod listen;
pub mod server;
mod shared;
mod streams;

use topo_lb_core::cluster::ServiceId;

/// How the resolver is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Service of the cluster DNS.
    pub service: ServiceId,
    /// The domain of the cluster, such as `cluster.local`: lower case, without a dot at its end.
    pub domain: String,
    /// The port of this node at which the resolver listens.
    pub port: u16,
}
