//! Objects from a Kubernetes API server, read once or watched. Services and EndpointSlices have
//! types of this project, because the generated ones lack `spec.topologyKeys` and
//! `discovery.k8s.io/v1beta1`. Of Nodes only the metadata is requested, because their status
//! changes all the time.
//!
//! | file | what it decides |
//! |---|---|
//! | `target`, `connect` | where the API server is, by flags, kubeconfig or the Pod's own account |
//! | `bootstrap`, `dial`, `upstream` | by which route it is reached while its ClusterIP is not translated |
//! | `order`, `session` | which of several API servers is asked |
//! | `resource` | which kinds are watched, and how they are requested |
//! | `listing`, `items` | how all objects are read once, and a long list as it arrives |
//! | `reflect` | **when a kind is listed again, and what a watch tells** |
//! | `watch`, `watch_aggregator` | how the watches of all kinds become one source, and which kind may be absent |
//! | `watch_health` | how fresh the state is |
//! | `reach`, `own_node`, `pods` | which Nodes and which Pods are watched |
//! | `zone_regions` | in which region a zone is, while only the own Node is watched |
//! | `backoff`, `timing` | how long to wait before the next attempt, and for an answer |
//! | `error` | what is said of a failed request |

mod backoff;
mod bootstrap;
mod connect;
mod dial;
mod error;
mod items;
mod listing;
mod order;
mod own_node;
mod pods;
mod reach;
mod reflect;
mod resource;
mod session;
mod target;
mod timing;
mod upstream;
mod watch;
mod watch_aggregator;
mod watch_health;
mod zone_regions;

pub use connect::{Identity, Server, connect, connect_to_show};
pub use error::KubeError;
pub use error::{in_words, refusal};
pub use error::{innermost, is_insecure};
pub use listing::{add_metadata, read};
pub use own_node::leaving;
pub use pods::pods;
pub use reach::Nodes;
pub use target::KubeTarget;
pub use watch::{follow, follow_all};

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
