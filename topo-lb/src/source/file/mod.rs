//! Objects from a file or a folder of YAML or JSON: read once, or followed as they change.

mod document;
mod follow;
mod listing;
mod reading;

use std::io;
use std::path::{Path, PathBuf};

pub use follow::{Following, follow};

use super::Listing;
use super::object::{Names, ObjectError};
use reading::{Place, Reading};

/// Why manifests could not be read, in one sentence each.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Nothing is there.
    #[error(
        "there is no file or folder {0}: create it, or name another one to read manifests from"
    )]
    Missing(PathBuf),
    /// The system does not let it be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A pipe or a device: it can be read once, but not followed.
    #[error("cannot follow {0}: it is neither a regular file nor a folder")]
    NotFollowable(PathBuf),
    /// Nothing is in it: most likely somebody is about to write it.
    #[error("{0} is empty: remove it, or write a List without items to say that nothing is there")]
    Empty(PathBuf),
    /// It is no text.
    #[error("{path}: is not UTF-8 text (byte {byte})")]
    Encoding {
        /// Which file.
        path: PathBuf,
        /// Offset of the first byte that is wrong.
        byte: usize,
    },
    /// It is neither YAML nor JSON.
    #[error("{path}: {reason}")]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where in it, and why.
        reason: String,
    },
    /// A document is no Kubernetes object, or does not say which one it is: it may be half of
    /// one.
    #[error("{place}: {error}")]
    Object {
        /// Which document of which file.
        place: Place,
        /// Which field, and why.
        error: Box<ObjectError>,
    },
    /// The system refuses a thread.
    #[error("cannot start a thread to follow manifests: {0}")]
    Thread(io::Error),
}

/// Reads all objects of a file, or of a folder's `*.yaml`, `*.yml` and `*.json`. Folders in the
/// folder, hidden files and editors' backups are skipped. JSON is read many times faster than
/// YAML.
///
/// An object of which a field is wrong costs itself alone, and is among the faults. So is the
/// second of two of the same name.
///
/// # Errors
/// When a file cannot be read, is broken, or holds something that does not say what it is.
pub fn read(path: &Path) -> Result<Listing, FileError> {
    Ok(Reading::of(&listing::files(path)?, &mut Names::default())?.into())
}

/// Reads the content of a file as [`read`] does. Its name says how it is written, and where an
/// error is.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &Path, content: &[u8]) -> Result<Listing, FileError> {
    Ok(Reading::of_bytes(name.to_owned(), content)?.into())
}

#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod tests;
