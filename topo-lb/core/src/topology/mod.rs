//! Which endpoints this node may use, and why: pure functions without I/O, clock or memory. The door is
//! [`decide()`] for people and [`routes`] for the datapath; both find the policy and evaluate it.
//!
//! | file | what it decides |
//! |---|---|
//! | `scope` | whether topo-lb handles a Service, or leaves it to others |
//! | `policy` | which policy is in force, of those of the Service and of objects above it |
//! | `origin`, `policy_source` | the objects, and their fields, that can say one |
//! | `trial` | whether an object holds on this node, while it is on trial |
//! | `field`, `validation` | what of a policy breaks a rule, and does not count |
//! | `faults` | what is reported of that |
//! | `rules` | what a policy asks for: `keys`, `openyurt`, or `hints` of slices |
//! | `candidate` | which endpoints a Service port has, and which of them can be used |
//! | `evaluation` | **whether this node may use an endpoint**: one Service port, one address family |
//! | `label`, `label_name`, `zone` | how far an endpoint is; whether a label or a zone is valid |
//! | `min_endpoints` | whether a tier has enough endpoints to be chosen |
//! | `spill`, `crowding` | which share of connections goes to the next wider tier |
//! | `weights` | how new connections divide among endpoints |
//! | `homeward` | which connections return to a nearer tier, and when |
//! | `slow_start` | which share an endpoint gets that became Ready lately |
//! | `ejection`, `ejected` | which endpoints of a tier are ejected, because connects to them failed |
//! | `evacuation` | which endpoints leave every choice for a while |
//! | `evacuated` | which of them empty a node of a Service's endpoints, for figures |
//! | `dead`, `watched` | which endpoints do not answer an island, and which it is to watch |
//! | `decide`, `decision`, `cause` | all of it for a Service, with what explains it |
//! | `route`, `verdict` | what of it the datapath does |
//! | `direct` | what becomes of clients that dial an endpoint by its address |
//! | `shared` | which endpoints are not a Service port's alone |
//! | `exposed`, `claim` | which frontends there are besides ClusterIPs, and who gets one that two claim |
//! | `size` | how much a Service asks for, before anything is made of it |
//! | `named` | what the name of a headless Service stands for |
//! | `reached` | how much of a Service a load balancer reaches through this node |
//! | `node_labels` | whether a decision reads labels of other Nodes, and waits for them |
//! | `alike` | which nodes a Service treats alike, so that one of them is evaluated |

mod alike;
pub mod candidate;
pub mod cause;
pub mod claim;
pub mod crowding;
mod dead;
mod decide;
pub mod decision;
pub mod direct;
pub mod direct_return;
pub mod ejected;
pub mod ejection;
pub mod evacuated;
pub mod evacuation;
mod evaluation;
pub mod exposed;
mod faults;
pub mod field;
mod hints;
pub mod homeward;
mod keys;
pub mod label;
pub mod label_name;
mod min_endpoints;
pub mod named;
mod node_labels;
mod openyurt;
mod origin;
mod policy;
mod policy_source;
mod reached;
mod route;
mod rules;
mod scope;
mod shared;
pub mod size;
pub mod slow_start;
pub mod spill;
pub mod trial;
pub mod validation;
mod verdict;
pub mod watched;
pub mod weights;
pub mod zone;

pub use alike::NodesByLabel;
pub use candidate::{distance, locality, serving, sites};
pub use decide::{decide, decide_for, decide_for_some, decide_in_full, without_policy};
pub use decision::Decision;
pub use faults::{faults, ignored};
pub use node_labels::{counts_nodes, reads_other_nodes, waits_for};
pub use origin::Origin;
pub use policy::{broken, bypass, decider};
pub use policy_source::PolicySource;
pub use reached::{is_left, reached};
pub use route::{
    Part, Route, headless_dials, next_step, port_name, returning_routes, returns_directly, routes,
};
pub use rules::PolicyKind;
pub use scope::{Bypass, Scope, has_direct};
pub use verdict::{Chosen, Verdict};
