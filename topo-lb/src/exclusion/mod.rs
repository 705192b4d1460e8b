//! Clients that are left alone: Pods of chosen namespaces, and Pods with an annotation.
//!
//! | file | idea |
//! |---|---|
//! | `rules` | which Pods are excluded |
//! | `folder` | which cgroup is which Pod's |
//! | `books` | from both to what the kernel is to know; pure |
//! | `keep` | the task that keeps the kernel's maps so |

mod books;
mod folder;
mod keep;
mod rules;

pub use books::{Books, Wanted};
pub use folder::{Folder, Tree};
pub use keep::{Keeper, Ready};
pub use rules::{Namespace, NamespaceError, Rules, asks};

use std::sync::Arc;

/// A Pod of this node, as far as exclusions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`: the name of its cgroup.
    pub uid: Arc<str>,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Annotation `topo-lb.io/exclude`.
    pub exclude: Option<Arc<str>>,
}

/// The annotation that excludes a Pod.
pub const ANNOTATION: &str = "topo-lb.io/exclude";

/// What a source says of this node's Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodReport {
    /// All Pods there are.
    All(Vec<Pod>),
    /// A Pod is there, or has changed.
    Pod(Pod),
    /// The Pod of this UID is gone.
    Gone(Arc<str>),
    /// All that there is now has been said.
    Listed,
    /// One sentence about something that is wrong with the source. What was said before stays in
    /// force.
    Trouble(String),
}
