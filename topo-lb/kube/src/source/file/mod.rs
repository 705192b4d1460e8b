//! Objects from a file or a folder of YAML or JSON, read once or followed.

mod document;
mod follow;
mod listing;
mod reading;

use std::io;
use std::path::{Path, PathBuf};

pub use follow::{Following, follow};

use super::Listing;
use super::object::{Names, ObjectError};
use reading::{Location, Reading};

/// Why manifests could not be read. `Display` is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such file or folder.
    #[error(
        "there is no file or folder {0}: create it, or name another one to read manifests from"
    )]
    Missing(PathBuf),
    /// The system refuses to read it.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pipe or a device: it can be read once, but not followed.
    #[error("cannot follow {0}: it is neither a regular file nor a folder")]
    NotFollowable(PathBuf),
    /// An empty file, which a writer is probably about to fill.
    #[error("{0} is empty: remove it, or write a List without items to say that nothing is there")]
    Empty(PathBuf),
    /// It is not UTF-8.
    #[error("{path}: is not UTF-8 text (byte {byte})")]
    Encoding {
        /// Which file.
        path: PathBuf,
        /// Offset of the first invalid byte.
        byte: usize,
    },
    /// It is neither YAML nor JSON.
    #[error("{path}: {reason}")]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Position and cause.
        reason: String,
    },
    /// A document is not a Kubernetes object, or does not identify itself: it may be incomplete.
    #[error("{place}: {error}")]
    Object {
        /// Which document of which file.
        place: Location,
        /// The field and the cause.
        error: Box<ObjectError>,
    },
    /// The system starts no thread.
    #[error("cannot start a thread to follow manifests: {0}")]
    Thread(io::Error),
}

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
