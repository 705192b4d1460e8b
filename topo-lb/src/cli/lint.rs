//! Flags of `topo-lb lint`.

use clap::{Args, ValueEnum as _};

use super::{Output, ScopeArgs, SourceArgs};
use topo_lb_core::lint;

/// `topo-lb lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    /// Show findings of this severity or worse, and exit with code 1 if there are any
    #[arg(long, value_enum, default_value_t, value_name = "SEVERITY", env = "TOPO_LB_LEVEL")]
    pub level: lint::Severity,
    /// Leave out findings of these codes, separated by commas
    #[arg(long, value_parser = code, value_name = "CODE", value_delimiter = ',', env = "TOPO_LB_IGNORE")]
    pub ignore: Vec<lint::Rule>,
    /// Namespaces whose Pods the agents exclude: the value of the agent's flag of the same name
    #[arg(
        long,
        value_name = "NAMESPACE",
        value_delimiter = ',',
        env = "TOPO_LB_EXCLUDE_NAMESPACES"
    )]
    pub exclude_namespaces: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: ScopeArgs says what it is")]
    pub scope: ScopeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// A code of `lint`; spaces around it are ignored.
fn code(text: &str) -> Result<lint::Rule, String> {
    lint::Rule::from_str(text.trim(), false).map_err(|_| {
        let codes: Vec<_> = lint::Rule::value_variants().iter().map(lint::name).collect();
        format!("the codes are {}", codes.join(", "))
    })
}
