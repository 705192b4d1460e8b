//! Clients that are treated in another way, excluded or steered: Pods of chosen namespaces, and Pods with an annotation.
//!
//! | file | idea |
//! |---|---|
//! | `rules` | which Pods are excluded, and which are steered |
//! | `books` | computes their cgroups from them and the cgroups of Pods |

mod books;
mod rules;

pub use books::{Books, PodCgroup, Wanted};
pub use rules::{Namespace, NamespaceError, Rules, Selection};

use std::sync::Arc;

/// A Pod of this node, as far as exclusions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`, which names its cgroup.
    pub uid: Arc<str>,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Annotation `topo-lb.io/exclude`.
    pub exclude: Option<Arc<str>>,
    /// Annotation `topo-lb.io/steer`.
    pub steer: Option<Arc<str>>,
}

/// A source's report about this node's Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodReport {
    /// All existing Pods.
    All(Vec<Pod>),
    /// A Pod is new, or has changed.
    Pod(Pod),
    /// The Pod with this UID is gone.
    Gone(Arc<str>),
    /// All existing Pods have been reported.
    Listed,
    /// A problem of the source, as one sentence. Earlier reports stay valid.
    Trouble(String),
}
