//! What the agent measures, and how Prometheus reads it.
//!
//! | file | idea |
//! |---|---|
//! | `figures` | what the agent's tasks count |
//! | `refusals` | why connections were refused |
//! | `scrape` | all of these and the kernel's counters, as text |

pub mod figures;
pub mod refusals;
pub mod scrape;

pub use figures::{Figures, count};
