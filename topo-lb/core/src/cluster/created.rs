//! When an object was created.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `metadata.creationTimestamp` in seconds since 1970, UTC. The older of two is less. An object of
/// unknown age counts as the youngest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Cow<'_, str>", into = "String")]
pub struct Created(u32);

impl Created {
    /// Of an object whose source says nothing, or no time.
    pub const UNKNOWN: Self = Self(u32::MAX);
    /// Before every other.
    pub(crate) const FIRST: Self = Self(0);

    pub(super) fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }
}

impl Default for Created {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// Reads a time as Kubernetes writes it, by RFC 3339.
impl From<&str> for Created {
    fn from(text: &str) -> Self {
        let time = text.parse::<Timestamp>().ok();
        time.and_then(|it| u32::try_from(it.as_second()).ok()).map_or(Self::UNKNOWN, Self)
    }
}

impl From<Cow<'_, str>> for Created {
    fn from(text: Cow<'_, str>) -> Self {
        (&*text).into()
    }
}

impl From<Created> for String {
    fn from(Created(seconds): Created) -> Self {
        Timestamp::from_second(seconds.into()).map_or_else(|_| Self::new(), |it| it.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_kubernetes_is_read_and_written() {
        let text = "2026-11-01T00:00:00Z";
        assert_eq!(String::from(Created::from(text)), text);
        assert!(Created::from("2026-10-31T23:59:59Z") < Created::from(text));
    }

    #[test]
    fn an_unknown_age_is_the_youngest() {
        for text in ["", "yesterday", "1969-12-31T23:59:59Z", "9999-01-01T00:00:00Z"] {
            assert_eq!(Created::from(text), Created::UNKNOWN, "{text}");
        }
        assert!(Created::FIRST < Created::from("2100-01-01T00:00:00Z"));
        assert!(Created::from("2100-01-01T00:00:00Z") < Created::UNKNOWN);
    }
}
