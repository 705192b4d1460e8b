//! The metrics of the agent: what they are called and what they mean. The agent writes them, `top`, `plan` and
//! docs/metrics.md read the same names.

pub mod declared;
#[cfg(test)]
mod tests;
mod tier;

pub use tier::Tier;

use topo_lb_common::backend::Locality;

/// The value of a label `locality`; `None` for an unknown one: an agent of another version may have more.
#[must_use]
pub fn locality(name: &str) -> Option<Locality> {
    Locality::ALL.into_iter().find(|it| it.name() == name)
}
