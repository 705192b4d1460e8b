//! The test framework in e2e.test.

use anyhow::{Context as _, Result};

/// The first minor version of Kubernetes with Ginkgo 2.
const SECOND_SINCE: u32 = 25;

/// The major version of Ginkgo. Both understand the same expressions, and write a report that [`junit`](super::junit)
/// reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ginkgo {
    One,
    Two,
}

impl Ginkgo {
    /// That of a version of Kubernetes, such as `1.20.2`.
    ///
    /// # Errors
    /// This is no version.
    pub(super) fn of(kubernetes: &str) -> Result<Self> {
        let minor = kubernetes.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
        let minor = minor.with_context(|| format!("{kubernetes} is no version of Kubernetes"))?;
        Ok(if minor < SECOND_SINCE { Self::One } else { Self::Two })
    }

    /// The flag for output without colours.
    pub(super) fn no_color(self) -> &'static str {
        match self {
            Self::One => "--ginkgo.noColor",
            Self::Two => "--ginkgo.no-color",
        }
    }

    /// The flag to run nothing, and report what would run as passed.
    pub(super) fn dry_run(self) -> &'static str {
        match self {
            Self::One => "--ginkgo.dryRun",
            Self::Two => "--ginkgo.dry-run",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_kubernetes_has_its_flags() {
        let flags = |version: &str| {
            let ginkgo = Ginkgo::of(version).unwrap();
            [ginkgo.no_color(), ginkgo.dry_run()]
        };
        assert_eq!(flags("1.20.2"), ["--ginkgo.noColor", "--ginkgo.dryRun"]);
        assert_eq!(flags("1.24.17"), ["--ginkgo.noColor", "--ginkgo.dryRun"]);
        assert_eq!(flags("1.25.0-rc.1"), ["--ginkgo.no-color", "--ginkgo.dry-run"]);
        assert_eq!(flags("1.36.1"), ["--ginkgo.no-color", "--ginkgo.dry-run"]);
        assert!(Ginkgo::of("unknown").is_err());
    }
}
