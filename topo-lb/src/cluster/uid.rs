//! The UID of an object, in 16 bytes to save memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `metadata.uid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Uid([u8; 16]);

impl Uid {
    /// Reads a UUID as Kubernetes writes it; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.split('-').collect::<String>();
        if digits.len() != 32 || digits.starts_with('+') {
            return None;
        }
        let uid = Self(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes());
        (uid.to_string() == text).then_some(uid)
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.to_string()
    }
}

impl TryFrom<String> for Uid {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a UUID")
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_written_as_it_was_read() {
        let text = "0f2a5f0e-9d2b-4a7c-8f1e-00000000abcd";
        assert_eq!(Uid::parse(text).map(|uid| uid.to_string()).as_deref(), Some(text));
    }

    #[test]
    fn what_kubernetes_does_not_write_is_no_uid() {
        for text in [
            "",
            "web",
            "0f2a5f0e9d2b4a7c8f1e00000000abcd",
            "0F2A5F0E-9D2B-4A7C-8F1E-00000000ABCD",
            "0f2a5f0e-9d2b-4a7c-8f1e-00000000abcdef",
            "+f2a5f0e-9d2b-4a7c-8f1e-00000000abcd",
            "ü-ü-ü",
        ] {
            assert_eq!(Uid::parse(text), None, "{text:?}");
        }
    }
}
