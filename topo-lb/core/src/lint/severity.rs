//! The severity of a finding.

use serde::Serialize;

/// The severity of a finding, worst first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Something is ignored or never works.
    Error,
    /// Something works worse than it was meant to, or soon will.
    #[default]
    Warning,
    /// As the policy says. Somebody may want to know.
    Info,
}
