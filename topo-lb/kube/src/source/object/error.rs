//! What is wrong with an object, and which object it is.

use std::fmt;
use std::sync::Arc;

use super::kind::Kind;
use super::plain::plain;

/// Identifies an object of a [`Kind`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for Nodes.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = (self.kind, plain(&self.name));
        match kind.is_namespaced() {
            true => write!(f, "{kind} {}/{name}", plain(&self.namespace)),
            false => write!(f, "{kind} {name}"),
        }
    }
}

/// What is wrong with an object: the object, the field and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectError {
    object: String,
    identity: Option<Identity>,
    field: String,
    reason: String,
}

impl ObjectError {
    pub(super) fn at(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { object: String::new(), identity: None, field: field.into(), reason: reason.into() }
    }

    /// For an object that is not UTF-8.
    pub(in crate::source) fn unreadable(kind: &str) -> Self {
        Self::at("", "it is not UTF-8").of(kind)
    }

    pub(super) fn of(mut self, object: impl Into<String>) -> Self {
        self.object = object.into();
        self
    }

    pub(super) fn of_known(mut self, identity: Identity) -> Self {
        self.object = identity.to_string();
        self.identity = Some(identity);
        self
    }

    /// The object, if it identifies itself. Then the error affects only this object.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{}: ", plain(part))?;
            }
        }
        f.write_str(&plain(&self.reason))
    }
}

impl std::error::Error for ObjectError {}

/// Endpoints of a slice that are skipped for their addresses. Its other endpoints are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedEndpoints {
    /// Why the first of them is skipped.
    pub first: ObjectError,
    /// How many others are skipped.
    pub more: usize,
}

impl fmt::Display for SkippedEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.more {
            0 => write!(f, "{}; this endpoint is left out", self.first),
            more => write!(f, "{}; this endpoint and {more} more are left out", self.first),
        }
    }
}
