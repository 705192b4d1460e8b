//! Network devices: which are chosen, their changes, and their addresses.

pub mod address;
mod follow;
mod list;
mod pattern;
mod unmatched;

pub use follow::Changes;
pub use list::{Device, chosen, name};
pub use pattern::{Pattern, PatternError};
pub use unmatched::Unmatched;
