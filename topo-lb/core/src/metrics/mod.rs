//! The metrics of the agent: what they are called and what they mean. The agent writes them, `top`, `plan` and
//! docs/metrics.md read the same names.

pub mod declared;
#[cfg(test)]
mod tests;
mod tier;

pub use tier::Tier;
