//! Direct return: which nodes are proved to take packets of clients outside that another node sends on unchanged
//! ([`topo_lb_common::hop`]). Agents prove it to each other, before any client's packet depends on it:
//!
//! ```text
//! A: hello(nonce of A, name of A)                              a frame like a client's: from a documentation
//! B: answer(that nonce, name of B, cookie of B, knows: no)     address, to a load balancer IP, to the Ethernet
//! A: hello(nonce of A, name of A, cookie of B)                 address that leads to an endpoint on B; the answer
//!    B takes A's Ethernet address into `peers`                 comes from the load balancer IP
//! B: answer(that nonce, name of B, cookie of B, knows: yes)
//!    A: B is proved
//! ```
//!
//! A nonce proves the way to and fro, a name that it is that node, a cookie to B that A gets frames at that Ethernet
//! address. Pure: callers pass the time, look ways up, send frames and write the map.
//!
//! | file | idea |
//! |---|---|
//! | `message` | what agents say, as bytes |
//! | `frame` | the frame around it |
//! | `targets` | which nodes have endpoints, and which frontends there are |
//! | `prover` | who is asked when, what an answer means, what the map holds |
//! | `status` | why a node is not proved |

pub mod frame;
pub mod message;
pub mod prover;
pub mod status;
pub mod targets;
