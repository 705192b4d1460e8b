//! What the cluster looks like: the last good objects, and which Services a change touches.
//!
//! Pure: no I/O and no clock. Only the fields that topology needs are kept.

pub mod frontend;
pub mod kept;
pub mod labels;
pub mod node;
pub mod protocol;
pub mod service;
pub mod slice;
pub mod state;
pub mod uid;

pub use frontend::{Family, Frontend};
pub use labels::Labels;
pub use node::{KnownNodes, Node};
pub use protocol::Protocol;
pub use service::{Service, ServiceId, ServicePort};
pub use slice::{Slice, SliceEndpoint, SliceId, SlicePort};
pub use state::{Changed, State};
pub use uid::Uid;

/// One thing that a source says of the cluster.
#[derive(Clone, Debug)]
pub enum Update {
    /// A Service was made or changed.
    Service(Service),
    /// A Service is gone.
    ServiceGone(ServiceId),
    /// An EndpointSlice was made or changed.
    Slice(Slice),
    /// An EndpointSlice is gone.
    SliceGone(SliceId),
    /// A Node was made or changed.
    Node(Node),
    /// The Node of this name is gone.
    NodeGone(std::sync::Arc<str>),
    /// All Services there are; what is not among them is gone, but for those that are only named:
    /// they are there, and stay as they were: they were said before, or cannot be read as they are
    /// now.
    AllServices(Vec<Service>, Vec<ServiceId>),
    /// All EndpointSlices there are, and those that are only named.
    AllSlices(Vec<Slice>, Vec<SliceId>),
    /// All Nodes there are, and those that are only named.
    AllNodes(Vec<Node>, Vec<std::sync::Arc<str>>),
    /// All addresses that devices of this host have now, each with the name of a device.
    LocalAddresses(LocalAddresses),
    /// Which Nodes the source tells of from now on. A source that never says so tells of all.
    KnownNodes(KnownNodes),
}

/// Addresses of devices of this host, each with the name of a device that has it.
pub type LocalAddresses = std::collections::BTreeMap<std::net::IpAddr, std::sync::Arc<str>>;
