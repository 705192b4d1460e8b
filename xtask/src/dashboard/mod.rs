//! `cargo xtask dashboard`: writes deploy/grafana/topo-lb.json.
//!
//! `panels` says what is shown, `grafana` how Grafana writes that.

mod grafana;
mod panels;

use anyhow::Result;
use fs_err as fs;

use crate::progress;
use crate::workspace::Workspace;

/// Writes the Grafana dashboard, deploy/grafana/topo-lb.json, from xtask/src/dashboard/panels.rs.
///
/// Its queries are tried against real agents by the suite `prometheus`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask dashboard     after a change of the panels; commit the file with it")]
pub(crate) struct Args {}

/// The file, below the root of the workspace.
const FILE: &str = "deploy/grafana/topo-lb.json";

pub(crate) fn run(workspace: &Workspace, _: &Args) -> Result<()> {
    fs::write(workspace.root.join(FILE), grafana::text())?;
    progress::note(&format!("{FILE} is written"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regex::Regex;

    use super::*;

    #[test]
    fn the_file_is_what_the_panels_make() {
        let path = Workspace::find().unwrap().root.join(FILE);
        let is_current = fs::read_to_string(path).unwrap() == grafana::text();
        assert!(is_current, "{FILE} is out of date: cargo xtask dashboard");
    }

    /// docs/metrics.md has every metric: a test of topo-lb-core writes its table.
    #[test]
    fn every_metric_of_the_dashboard_and_of_the_page_on_cost_is_documented() {
        let page = |name| fs::read_to_string(Workspace::find().unwrap().root.join(name)).unwrap();
        let metrics = page("docs/metrics.md");
        let rows = metrics.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<&str> = rows.filter(|name| name.starts_with("topo_lb_")).collect();
        let name = Regex::new("topo_lb_[a-z0-9_]+").unwrap();
        let text = grafana::text() + &page("docs/cost.md");
        for used in name.find_iter(&text).map(|it| it.as_str()) {
            let used = used.strip_suffix("_bucket").unwrap_or(used);
            assert!(documented.contains(used), "{used} is not in docs/metrics.md");
        }
    }
}
