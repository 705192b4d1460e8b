//! What the agent measures, and how Prometheus reads it.
//!
//! | file | idea |
//! |---|---|
//! | `figures` | what the agent's tasks count |
//! | `histogram` | durations, without a lock |
//! | `refusals` | why connections were refused |
//! | `scrape` | all of it, with what the kernel has counted, as text |

pub mod figures;
pub mod histogram;
pub mod refusals;
pub mod scrape;

pub use figures::{Figures, count};
