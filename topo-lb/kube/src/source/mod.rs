//! Sources of objects, as streams of [`Event`]s: files, an API server, or the saved state.
//!
//! | folder | what it decides |
//! |---|---|
//! | `object` | what of an object is kept, and whether it can be used |
//! | `kube` | which API server is asked, what is watched, and when it is listed again |
//! | `file` | which files are read, and when they are at rest |
//! | `saved` | when the state is saved, and when an agent starts from it |
//! | `beside` | nothing: it reads a source in a task of its own |

mod beside;
pub mod clock;
pub mod file;
pub mod kube;
pub mod object;
pub mod saved;

pub use beside::beside;
use object::{Identity, Kind, ObjectError, SkippedEndpoints};
use topo_lb_core::cluster::client::Clients;
use topo_lb_core::cluster::unread::Unread;
use topo_lb_core::cluster::{Freshness, Update};
use topo_lb_core::exclusion::Pod;

/// A whole cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// All Nodes, all EndpointSlices, all Services.
    pub updates: Vec<Update>,
    /// Objects that cannot be used.
    pub faults: Vec<Fault>,
    /// Facts about clients in Namespaces and Pods; `None` if there are no such objects.
    pub clients: Option<Clients>,
    /// What nobody reads in these objects.
    pub unread: Vec<Unread>,
}

/// An object that cannot be used, as a whole or in part. It does not affect other objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its identity.
    pub object: Identity,
    /// One sentence: place, fault and consequence.
    pub sentence: String,
}

impl Fault {
    /// For an unreadable object; `None` if it does not identify itself.
    fn unread(error: &ObjectError) -> Option<Self> {
        let object = error.identity()?.clone();
        Some(Self { object, sentence: format!("{error}; this version of the object is ignored") })
    }

    /// For a slice with unusable endpoints.
    fn skipped(skipped: &SkippedEndpoints) -> Option<Self> {
        let object = skipped.first.identity()?.clone();
        Some(Self { object, sentence: skipped.to_string() })
    }

    /// The object's namespace and name, and the sentence.
    #[must_use]
    pub fn parts(&self) -> (&str, &str, &str) {
        (&self.object.namespace, &self.object.name, &self.sentence)
    }

    /// Adds the place of the object in front.
    fn at(self, place: impl std::fmt::Display) -> Self {
        Self { sentence: format!("{place}: {}", self.sentence), ..self }
    }
}

/// An event of a source.
#[derive(Clone, Debug)]
pub enum Event {
    /// A change of the cluster.
    Update(Update),
    /// Services, EndpointSlices and Nodes were all listed: the cluster is complete. Sent once.
    Synced,
    /// All Pods in the files. Sent if there are or were any.
    Pods(Vec<Pod>),
    /// The freshness from now on. Without it a source is [`Live`](Freshness::Live).
    Freshness(Freshness),
    /// One sentence about a fault of files or of an object. The last good state stays.
    Trouble(String),
    /// Such a sentence about files is over.
    Mended(String),
    /// The API server does not serve this kind of policies any more, and the last ones stay in force; `false`: it
    /// does again.
    Kept(Kind, bool),
    /// One sentence about an API server that does not serve. The last good state stays. It is over when all
    /// is listed, or [`Live`](Freshness::Live) again.
    Unserved(String),
}
