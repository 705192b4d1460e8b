//! What a release is made from.

use anyhow::{Context as _, Result};

use crate::process::output_of;
use crate::workspace::Workspace;

/// The source of a release.
#[derive(Debug)]
pub(crate) struct Source {
    /// The commit, if the checkout is that commit and nothing else.
    pub(crate) commit: Option<String>,
    /// Otherwise: why.
    pub(crate) why_no_commit: &'static str,
    /// Seconds since 1970: SOURCE_DATE_EPOCH (reproducible-builds.org), or the commit's time, or 0.
    pub(crate) time: u64,
}

impl Source {
    pub(crate) fn find(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| output_of(workspace.command("git").args(arguments));
        let commit = git(&["rev-parse", "--verify", "HEAD"]);
        let changes = git(&["status", "--porcelain"]);
        let why_no_commit = match (&commit, changes.as_deref()) {
            (None, _) | (_, None) => "this is no git checkout",
            (_, Some("")) => "",
            _ => "there are changes that are not committed",
        };
        let of_commit = || git(&["log", "-1", "--format=%ct"]);
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time.parse().with_context(|| {
                format!("SOURCE_DATE_EPOCH is {time:?}, and not a number of seconds")
            })?,
            Err(_) => of_commit().and_then(|it| it.trim().parse().ok()).unwrap_or(0),
        };
        let commit = commit.map(|it| it.trim().to_owned()).filter(|_| why_no_commit.is_empty());
        Ok(Self { commit, why_no_commit, time })
    }

    /// The time as RFC 3339 writes it, in UTC.
    pub(crate) fn date(&self) -> Result<String> {
        let mut date = std::process::Command::new("date");
        date.args(["--utc", &format!("--date=@{}", self.time), "+%Y-%m-%dT%H:%M:%SZ"]);
        Ok(output_of(&mut date).context("`date` failed")?.trim().to_owned())
    }
}
