//! Where the cluster's objects come from: files, a Kubernetes API server, or what was saved of one.
//! All are streams of [`Event`]s.

mod beside;
pub mod file;
pub mod kube;
pub mod object;
pub mod saved;

use std::time::SystemTime;

use futures::{Stream, StreamExt as _, future, stream};

use crate::cluster::Update;
use crate::device::address;
use crate::exclusion::Pod;
pub use beside::beside;
use object::{Clients, Identity, ObjectError, SkippedEndpoints};

/// A whole cluster as it is described at one moment.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// All Nodes, all EndpointSlices, all Services.
    pub updates: Vec<Update>,
    /// What of it cannot be used.
    pub faults: Vec<Fault>,
    /// What Namespaces and Pods say of clients; `None` where none of them is described.
    pub clients: Option<Clients>,
}

/// An object that cannot be used as it is, as a whole or in part. It costs no other object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub object: Identity,
    /// Where it is, what is wrong with it, and what follows from that, in one sentence.
    pub sentence: String,
}

impl Fault {
    /// Of an object that cannot be read; `None` where it does not say which one it is.
    fn unread(error: &ObjectError) -> Option<Self> {
        let object = error.identity()?.clone();
        Some(Self { object, sentence: format!("{error}; this version of the object is ignored") })
    }

    /// Of a slice some endpoints of which cannot be used.
    fn skipped(skipped: &SkippedEndpoints) -> Option<Self> {
        let object = skipped.first.identity()?.clone();
        Some(Self { object, sentence: skipped.to_string() })
    }

    /// With the place of the object before it.
    fn at(self, place: impl std::fmt::Display) -> Self {
        Self { sentence: format!("{place}: {}", self.sentence), ..self }
    }
}

/// What a source says.
#[derive(Clone, Debug)]
pub enum Event {
    /// Something in the cluster is so from now on.
    Update(Update),
    /// Services, EndpointSlices and Nodes have all been listed once: what was said so far is a
    /// whole cluster. Said once.
    Synced,
    /// All Pods that files describe. Said where there are any, or have been.
    Pods(Vec<Pod>),
    /// How fresh what is said is, from now on. Without it a source is [`Live`](Freshness::Live).
    Freshness(Freshness),
    /// One sentence about something that is wrong with the source or with an object of it. What
    /// was good before stays in force.
    Trouble(String),
}

/// How fresh what a source says is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Every change is heard of as it happens.
    #[default]
    Live,
    /// It is as it was at that moment: when it was saved, or when the API server was heard of last.
    AsOf(SystemTime),
}

/// What a source says, and the addresses of this host: those that are there now come first, before
/// the source can be complete. Ends with the source.
pub fn with_local_addresses(
    source: impl Stream<Item = Event> + Send + 'static,
) -> impl Stream<Item = Event> + Send {
    let mut addresses = Box::pin(address::follow());
    stream::once(async move {
        let first = addresses.next().await.unwrap_or_default();
        let said = |all| Event::Update(Update::LocalAddresses(all));
        let source = source.map(Some).chain(stream::once(future::ready(None)));
        stream::iter([said(first)]).chain(
            stream::select(source, addresses.map(move |all| Some(said(all))))
                .take_while(|event| future::ready(event.is_some()))
                .filter_map(future::ready),
        )
    })
    .flatten()
}
