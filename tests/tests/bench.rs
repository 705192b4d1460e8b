//! The bench works; what it measures is for `cargo xtask bench` on a quiet machine to say.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::{prefix, residue};

#[test]
fn a_quick_run_finds_every_figure_that_has_a_target() -> Result<()> {
    let child = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--quick", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let pid = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).context("not JSON alone")?;
    ensure!(report["machine"]["cores"].as_u64() > Some(0), "{}", report["machine"]);
    let results = report["results"].as_array().context("no results")?;
    let mut names = BTreeSet::new();
    for result in results {
        let name = result["name"].as_str().context("a result has a name")?;
        names.insert(name);
        let value = |key: &str| result[key].as_f64().with_context(|| format!("{key} of {result}"));
        // Only of these may there be none.
        let may_be_none = matches!(name, "restart_writes" | "cpu_idle_percent")
            || name.starts_with("cpu_")
            || name.starts_with("status_cpu");
        ensure!(value("median")? > 0.0 || may_be_none, "{result}");
        ensure!(value("p99")? >= value("median")?, "{result}");
        ensure!(result["unit"].is_string() && result["params"].is_object(), "{result}");
    }
    for name in [
        "connect_ratio",
        "other_traffic_ratio",
        "connect4_hit_ns",
        "connect4_hit_reverse_ns",
        "program_seconds",
        "event_to_map_p99_ms",
        "rss_mb",
        "restart_writes",
        "tc_established_ns",
        "tc_other_ns",
    ] {
        ensure!(names.contains(name), "no {name} among {names:?}");
    }
    let writes = results.iter().filter(|result| result["name"] == "restart_writes");
    for result in writes {
        ensure!(result["median"] == 0.0, "a restart without differences writes: {result}");
    }
    let left = residue::find(|name| prefix::owner(name) == Some(pid))?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
