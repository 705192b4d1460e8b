//! Network devices: which are chosen, their changes, and their addresses.

pub mod address;
mod driver;
mod follow;
mod frames;
pub(crate) mod link;
mod list;
mod pattern;
mod sole;
mod unmatched;
mod uplink;
mod way;

pub use driver::{Unfit, driver, may_run_xdp, unfit_for_xdp};
pub use follow::Changes;
pub use frames::Frames;
pub use list::{Device, chosen, name};
pub use pattern::{Pattern, PatternError};
pub use sole::{SoleUplink, sole_uplink};
pub use unmatched::Unmatched;
pub use uplink::{Uplinks, remedy, unserved, uplinks};
pub use way::Ways;
