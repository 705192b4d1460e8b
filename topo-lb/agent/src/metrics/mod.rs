//! What the agent measures, and how Prometheus reads it.
//!
//! | file | idea |
//! |---|---|
//! | `bounded` | which Service ports have series of their own |
//! | `dns` | figures of the resolver |
//! | `ejections` | figures of endpoints that are ejected |
//! | `evacuations` | figures of evacuations |
//! | `families` | how they are written, by declaration |
//! | `figures` | what the agent's tasks count |
//! | `island` | figures of a node without its API server |
//! | `peers` | figures of direct return |
//! | `refusals` | why connections were refused |
//! | `services` | connections to Service ports |
//! | `tcp` | what TCP connections moved |
//! | `zones` | what they moved to each zone |
//! | `scrape` | all of these and the kernel's counters, as text |

pub mod bounded;
pub mod dns;
pub mod ejections;
pub mod evacuations;
mod families;
pub mod figures;
pub mod island;
pub mod peers;
pub mod refusals;
pub mod scrape;
pub mod services;
mod tcp;
pub mod zones;

pub use figures::{Figures, count};
