//! Network devices: which of them are chosen, when they come and go, and their addresses.

pub mod address;
mod follow;
mod pattern;
mod unmatched;

pub use follow::{Changes, chosen};
pub use pattern::{Pattern, PatternError};
pub use unmatched::Unmatched;

/// A network device of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's index; another device may get it after this one is gone.
    pub index: u32,
    /// As `ip link` shows it.
    pub name: String,
}
