//! Patterns of device names: `*` stands for any text, everything else for itself.

use std::fmt;
use std::str::FromStr;

use wildmatch::WildMatchPattern;

/// A pattern of device names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// Longest name of a device in bytes, without the final zero (`IFNAMSIZ`, include/uapi/linux/if.h).
const LONGEST: usize = 15;

/// Why a text is no pattern of device names.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatternError {
    /// The text is empty.
    #[error("an empty pattern matches no name")]
    Empty,
    /// A character that no device name has.
    #[error("{0:?} is in no such name: a pattern is a name, with * for any text")]
    Character(char),
    /// Longer than any name.
    #[error("no such name is longer than 15 bytes")]
    Long,
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        // dev_valid_name, net/core/dev.c.
        if let Some(wrong) = text.chars().find(|c| c.is_whitespace() || matches!(c, '/' | ':')) {
            return Err(PatternError::Character(wrong));
        }
        if text.bytes().filter(|byte| *byte != b'*').count() > LONGEST {
            return Err(PatternError::Long);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// Whether the pattern matches this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        // No name has a zero, so no character of a pattern stands for a single one.
        WildMatchPattern::<'*', '\0'>::new(&self.0).matches(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_the_rest_for_itself() {
        let table = [
            ("tap*", "tap0", true),
            ("tap*", "tap", true),
            ("tap*", "mytap0", false),
            ("*", "eth0", true),
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("tap?", "tap0", false),
        ];
        for (pattern, name, wanted) in table {
            let parsed: Pattern = pattern.parse().expect("a pattern");
            assert_eq!(parsed.matches(name), wanted, "{pattern} and {name}");
        }
    }

    #[test]
    fn what_no_device_can_be_called_is_no_pattern() {
        assert_eq!("".parse::<Pattern>(), Err(PatternError::Empty));
        assert_eq!("a b".parse::<Pattern>(), Err(PatternError::Character(' ')));
        assert_eq!("a/b".parse::<Pattern>(), Err(PatternError::Character('/')));
        assert_eq!("a-name-of-16-chr".parse::<Pattern>(), Err(PatternError::Long));
    }
}
