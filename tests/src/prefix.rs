//! The names of labs: they tell the lab and the process that own something.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The prefix of all names of one lab: `tl<process id>-<number>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prefix(String);

impl Prefix {
    /// A prefix that is unique among all labs and processes.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("tl{}-{number}", process::id()))
    }

    /// The name of a part of this lab.
    #[must_use]
    pub fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.0)
    }

    /// Whether [`name`](Self::name) of this prefix made `name`.
    #[must_use]
    pub fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.0).is_some_and(|rest| rest.starts_with('-'))
    }

    /// The folder of this lab's manifests, saved states and logs.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        std::env::temp_dir().join(self.name("files"))
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The process id in a lab's name; `None` for other names.
#[must_use]
pub fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("tl")?.split_once('-')?;
    let (number, _) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Whether the lab process with this id is gone.
#[must_use]
pub fn is_dead(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_owns_its_names_and_no_other_labs() {
        let (one, other) = (Prefix::new(), Prefix::new());
        assert!(one.owns(&one.name("kind-worker")));
        assert!(!one.owns(&other.name("kind-worker")));
        assert_eq!(owner(&one.name("kind-worker")), Some(process::id()));
    }

    #[test]
    fn a_prefix_is_not_mistaken_for_a_longer_one() {
        let one = Prefix("tl1-1".into());
        assert!(!one.owns("tl1-10-kind-worker"));
    }

    #[test]
    fn names_that_no_lab_makes_have_no_owner() {
        for name in ["tl", "tl12", "tl12-", "tl12-net", "tlx-1-net", "cni-1-2", "tl-1-net"] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
