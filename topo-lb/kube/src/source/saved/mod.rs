//! The last known state of the cluster, saved in a folder for starts without an API server.

mod entry;
mod error;
mod file;
mod folder;
mod format;
mod saver;
mod start;

#[cfg(test)]
mod tests;

pub use error::StateError;
pub use folder::{Folder, Saved};
pub use saver::Saver;
pub use start::before;
