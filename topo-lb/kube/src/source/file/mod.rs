//! Objects from a file or a folder of YAML or JSON, read once or followed.

mod document;
mod error;
mod follow;
mod listing;
mod reading;

use std::path::Path;

pub use error::FileError;
pub use follow::{Following, follow};

use super::Listing;
use super::object::Names;
use reading::Reading;

/// Reads all objects of a file, or of a folder's `*.yaml`, `*.yml` and `*.json`. Skips subfolders,
/// hidden files and editors' backups. JSON is many times faster to read than YAML.
///
/// An object with a wrong field becomes a fault, and so does the second of two objects with the
/// same identity. The other objects are read.
///
/// # Errors
/// A file cannot be read, is broken, or has an object that does not identify itself.
pub fn read(path: &Path) -> Result<Listing, FileError> {
    Ok(Reading::of(&listing::files(path)?, &mut Names::default(), true)?.into())
}

/// Parses a file's content like [`read`]. `name` determines the syntax, and appears in errors.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &Path, content: &[u8]) -> Result<Listing, FileError> {
    Ok(Reading::of_bytes(name, content)?.into())
}

pub mod example;
#[cfg(test)]
mod tests;
