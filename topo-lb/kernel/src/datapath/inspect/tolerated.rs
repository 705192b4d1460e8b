//! Foreign programs that the user declared harmless (`--tolerate-programs`). Pure.

use std::str::FromStr;

use crate::device::{Pattern, PatternError};
use topo_lb_core::flag::TOLERATE_PROGRAMS;

/// Foreign programs that the user declared harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tolerated {
    /// Programs with a matching name.
    Name(Pattern),
    /// The program with this id, until it is removed.
    Id(u32),
}

/// Why a text does not name tolerated programs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ToleratedError {
    /// `id:` without a number.
    #[error("{0:?} is no id of a program: `id:42` is one, a number above 0")]
    Id(String),
    /// Neither an id nor a name.
    #[error(transparent)]
    Name(#[from] PatternError),
}

impl FromStr for Tolerated {
    type Err = ToleratedError;

    fn from_str(text: &str) -> Result<Self, ToleratedError> {
        // A name has no colon.
        let Some(id) = text.strip_prefix("id:") else { return Ok(Self::Name(text.parse()?)) };
        match id.parse() {
            Ok(id) if id > 0 => Ok(Self::Id(id)),
            _ => Err(ToleratedError::Id(id.to_owned())),
        }
    }
}

/// Whether the user declared a program harmless. A program without a known name is matched only by
/// its id or by a pattern that matches every name.
#[must_use]
pub fn is_tolerated(tolerated: &[Tolerated], program: u32, name: Option<&str>) -> bool {
    tolerated.iter().any(|one| match one {
        Tolerated::Name(pattern) => pattern.matches(name.unwrap_or_default()),
        Tolerated::Id(id) => *id == program,
    })
}

/// A warning about patterns that have no effect because the kernel hides names; `None` if all have.
#[must_use]
pub fn without_effect(tolerated: &[Tolerated]) -> Option<String> {
    let names = tolerated.iter().filter_map(|one| match one {
        Tolerated::Name(pattern) if !pattern.matches("") => Some(pattern.to_string()),
        Tolerated::Name(_) | Tolerated::Id(_) => None,
    });
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| {
        format!(
            "{TOLERATE_PROGRAMS} {} has no effect: the kernel tells the names of programs only to a \
             process with CAP_SYS_ADMIN, and this one does not have it; name programs by their ids, \
             as id:N, or all of them by *",
            names.join(",")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerated(texts: &[&str]) -> Vec<Tolerated> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_program_is_tolerated_by_a_pattern_of_its_name_or_by_its_id() {
        for (texts, program, name, wanted) in [
            (&["sd_*"][..], 42, Some("sd_fw_connect"), true),
            (&["sd_*"], 42, Some("cil_sock4"), false),
            (&[], 42, Some("cil_sock4"), false),
            // The kernel shows no names.
            (&["sd_*"], 42, None, false),
            (&["sd_*", "*"], 42, None, true),
            (&["sd_*", "id:42"], 42, None, true),
            (&["sd_*", "id:42"], 42, Some("cil_sock4"), true),
            (&["sd_*", "id:42"], 421, None, false),
        ] {
            let is = is_tolerated(&tolerated(texts), program, name);
            assert_eq!(is, wanted, "{texts:?} {program} {name:?}");
        }
        for text in ["id:", "id:0", "id:-1", "id:4294967296", "id:42*", "id:x"] {
            let error = text.parse::<Tolerated>().unwrap_err();
            assert_eq!(error, ToleratedError::Id(text[3..].to_owned()));
        }
        assert!(matches!("ID:42".parse::<Tolerated>(), Err(ToleratedError::Name(_))));
    }

    #[test]
    fn names_that_cannot_match_are_named_and_ids_are_not() {
        for all in [&[][..], &["id:42"], &["*"], &["**", "id:7"]] {
            assert_eq!(without_effect(&tolerated(all)), None, "{all:?}");
        }
        let text = without_effect(&tolerated(&["my_fire*", "*", "id:42", "sd_fw"])).unwrap();
        assert!(text.starts_with("--tolerate-programs my_fire*,sd_fw has no effect: "), "{text}");
        assert!(text.contains("CAP_SYS_ADMIN") && text.contains("id:N"), "{text}");
    }
}
