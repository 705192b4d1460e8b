//! The label `tier`: by what the endpoint of a connection was chosen.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// By what the endpoint of a connection was chosen, when it was made. `Display` gives the label's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The topology key with this index.
    Key(u8),
    /// No topology key: none matched, or there is no policy.
    None,
    /// Another proxy: topo-lb did not translate the connection.
    Left,
    /// The client: it dialled the endpoint by its own address.
    Direct,
}

impl Tier {
    /// The same in words, for people.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Key(_) | Self::None => self.to_string(),
            Self::Left => "left to another proxy".to_owned(),
            Self::Direct => "dialled directly".to_owned(),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(index) => index.fmt(f),
            Self::None => f.write_str("none"),
            Self::Left => f.write_str("left"),
            Self::Direct => f.write_str("direct"),
        }
    }
}

impl FromStr for Tier {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "left" => Ok(Self::Left),
            "direct" => Ok(Self::Direct),
            index => index.parse().map(Self::Key),
        }
    }
}

/// The same text, also as a key of a map.
impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
