//! `cargo xtask pictures`: the pictures of `topo-lb view`, `topo-lb top` and the dashboard in the documentation.

use anyhow::Result;
use fs_err as fs;

use crate::build_ebpf;
use crate::cluster_tools;
use crate::control_plane;
use crate::needs::Need;
use crate::process::run_logged;
use crate::prometheus;
use crate::suites;
use crate::workspace::Workspace;

/// The tests of the suites `view` and `prometheus` that take pictures.
const TESTS: [&str; 3] =
    ["pictures_for_the_documentation", "a_thousand_nodes", "every_query_of_the_dashboard"];

/// Takes the pictures of docs/pictures: with a real browser, a terminal and a real Prometheus, of real agents
/// that count real connections in the lab. Only for the picture of a thousand nodes the counts are made up.
///
/// Takes about five minutes once everything is compiled.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask pictures")]
pub(crate) struct Args {}

pub(crate) fn run(workspace: &Workspace, Args {}: &Args) -> Result<()> {
    let needs = [
        Need::Kernel,
        Need::Lab,
        Need::Root,
        Need::Browser,
        Need::ControlPlane,
        Need::ClusterTools,
        Need::Prometheus,
    ];
    build_ebpf::ready(workspace, &needs)?;
    let agent = suites::agent(workspace)?;
    let folder = workspace.root.join("docs/pictures");
    fs::create_dir_all(&folder)?;
    let mut tests = suites::cargo_for(workspace, "test", ["lab", suites::CONTROL_PLANE]);
    tests.args(["--", "--test-threads=1"]).args(TESTS);
    tests.env("TOPO_LB_AGENT", agent).env("TOPO_LB_PATIENCE", "3");
    tests.env(control_plane::VARIABLE, control_plane::programs(workspace)?);
    tests.env(prometheus::VARIABLE, prometheus::programs(workspace)?);
    tests.envs(cluster_tools::programs(workspace)?);
    tests.env("TOPO_LB_WRITE_PICTURES", folder);
    run_logged("taking pictures", &mut tests, &workspace.log("pictures"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_shows_pictures_that_exist() {
        let root = Workspace::find().unwrap().root;
        let text = fs::read_to_string(root.join("README.md")).unwrap();
        let shown = text.split("](docs/pictures/").skip(1).filter_map(|it| it.split(')').next());
        let shown: Vec<_> = shown.collect();
        for wanted in ["top.svg", "view-light.png"] {
            assert!(shown.contains(&wanted), "README.md does not show docs/pictures/{wanted}");
        }
        for name in shown {
            let file = root.join("docs/pictures").join(name);
            assert!(file.is_file(), "README.md shows docs/pictures/{name}, which is not there");
        }
    }
}
