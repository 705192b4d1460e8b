//! Why manifests could not be read, and the place in a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::source::object::ObjectError;

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

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Which file.
    pub path: Arc<Path>,
    /// Which document, from 1; empty ones do not count.
    pub document: usize,
    /// Index in the document's `items`, from 0.
    pub item: Option<usize>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {}", self.path.display(), self.document)?;
        match self.item {
            Some(item) => write!(f, ", items[{item}]"),
            None => Ok(()),
        }
    }
}
