//! The last good objects of the cluster, and which Services a change touches. Pure: no I/O and no
//! clock. Only the fields that topology needs are kept. The door is [`State::apply`].
//!
//! | file | what it decides |
//! |---|---|
//! | `update` | what a source can say: an object came, changed or went, or a whole kind was listed |
//! | `state` | **what happens when a slice, a Service or a Node changes**: which Services are decided anew |
//! | `policies` | which policies and Namespaces are above a Service, and which Services a change of them touches |
//! | `selector` | whether a policy selects a Service |
//! | `kept` | how little memory a slice takes: equal labels, names and zones are kept once |
//! | `population` | how many Nodes carry a value of a label |
//! | `service`, `slice`, `node`, `namespace`, `topology_policy` | what is kept of an object |
//! | `exposure`, `frontend`, `port`, `protocol` | what clients can dial |
//! | `annotation` | which annotations are read, on which objects, and what may have been meant |
//! | `local_addresses` | which addresses this host has, and at which it serves node ports |
//! | `ejection` | what this node ejects, as its agent found |
//! | `client`, `mesh`, `unread` | facts for `lint` only |
//! | `created`, `labels`, `freshness`, `policy_status` | values |

pub mod annotation;
pub mod client;
pub mod created;
pub mod ejection;
pub mod exposure;
pub mod freshness;
pub mod frontend;
pub mod kept;
pub mod labels;
pub mod local_addresses;
pub mod mesh;
pub mod namespace;
pub mod node;
mod policies;
pub mod policy_status;
mod population;
pub mod port;
pub mod protocol;
pub mod selector;
pub mod service;
pub mod slice;
pub mod state;
pub mod topology_policy;
pub mod unread;
mod update;

pub use annotation::{Annotation, Doubt, On};
pub use created::Created;
pub use ejection::{Ejection, Ejections, Island, ServiceEjections};
pub use exposure::Exposure;
pub use freshness::Freshness;
pub use frontend::{Clients, Family, Frontend, FrontendKind};
pub use labels::{HOSTNAME, Labels, REGION, ZONE};
pub use local_addresses::{LocalAddresses, NodePortAddresses};
pub use namespace::Namespace;
pub use node::{KnownNodes, Leaving, Node, ZoneRegion};
pub use policies::{Above, MOST_POLICIES};
pub use port::Port;
pub use protocol::Protocol;
pub use service::{Service, ServiceId};
pub use slice::{Endpoint, Placement, Slice, SliceId};
pub use state::{Changed, LONGEST_SLOW_START, State};
pub use topology_policy::{ClusterTopologyPolicy, PolicyId, TopologyPolicy};
pub use update::{Change, ClusterObject, Update};
