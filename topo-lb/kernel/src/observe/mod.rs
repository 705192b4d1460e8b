//! What happens to connections that another proxy translates: the kernel's connection tracking tells where to. While
//! topo-lb only observes (`--observe`), of each connection when it begins; with `--count all` of those that topo-lb
//! did not translate, when they end.
//!
//! | file | idea |
//! |---|---|
//! | `conntrack` | a connection, as the kernel tells of it |
//! | `listener` | the thread that hears of new connections |
//! | `attribution` | the Service port and the locality of a connection |
//! | `known_addresses` | which Service ports addresses are of, and how far endpoints are |
//! | `query` | to which endpoint a connection went that has ended |
//! | `untranslated` | what connections moved that topo-lb did not translate, by Service port |

mod attribution;
mod conntrack;
mod known_addresses;
mod listener;
mod query;
mod untranslated;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use attribution::attribute;
pub use conntrack::Connection;
pub use known_addresses::KnownAddresses;
pub use listener::{ListenError, Listener};
pub use query::Query;
pub use untranslated::{Other, Untranslated};

use topo_lb_common::backend::Locality;

/// Connections by Service port, as `namespace/name:port`, and by locality of their endpoint.
pub type ByServicePort = BTreeMap<(Arc<str>, Locality), u64>;

/// What the agent has observed since it started. Written by the agent task once a second, read by scrapes.
#[derive(Debug, Default)]
pub struct Observed {
    connections: Mutex<ByServicePort>,
}

impl Observed {
    /// Adds to it.
    pub fn add(&self, more: ByServicePort) {
        let mut connections = self.lock();
        for (key, count) in more {
            *connections.entry(key).or_default() += count;
        }
    }

    /// All.
    #[must_use]
    pub fn connections(&self) -> ByServicePort {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, ByServicePort> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
