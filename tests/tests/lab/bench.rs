//! The bench works. Its figures matter only on a quiet machine (`cargo xtask bench`).

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::folder::Folder;
use topo_lb_tests::prefix::{self, Prefix};
use topo_lb_tests::requirements::walks;
use topo_lb_tests::residue;

#[test]
fn a_quick_run_finds_every_figure_and_its_report_alone_makes_the_page() -> Result<()> {
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
        // Only these may be zero; the first one is of differences of times, which noise can turn around,
        // and no Service is to be narrowed.
        let may_be_none = matches!(
            name,
            "dns_added_us"
                | "consistent_narrowed"
                | "restart_writes"
                | "policy_failures"
                | "services_added_cpu_seconds"
                | "services_deleted_cpu_seconds"
        ) || name.starts_with("cpu_")
            || name.starts_with("status_cpu");
        ensure!(value("median")? > 0.0 || may_be_none, "{result}");
        ensure!(value("p99")? >= value("median")?, "{result}");
        ensure!(result["unit"].is_string() && result["params"].is_object(), "{result}");
    }
    for name in [
        "connect_ratio",
        "other_traffic_ratio",
        "accounting_processor_ratio",
        "accounting_exchange_ratio",
        "untranslated_processor_ratio",
        "untranslated_exchange_ratio",
        "missed_endpoint_ratio",
        "advise_seconds",
        "advise_mb",
        "walk_100k_ms",
        "dns_added_us",
        "dns_kqps",
        "external_local_ratio",
        "external_remote_ratio",
        "external_other_ratio",
        "external_udp_pps_ratio",
        "external_serial_kcps",
        "external_serial_pause_ms",
        "xdp_drop_ratio",
        "xdp_forward_ratio",
        "xdp_oneway_ratio",
        "xdp_swap_ratio",
        "connect4_hit_ns",
        "connect4_hit_x",
        "connect4_hit_reverse_ns",
        "connect4_hit_reverse_x",
        "connect4_any_x",
        "connect4_weights_ratio",
        "connect4_weights_reverse_ratio",
        "recvmsg_miss_x",
        "program_seconds",
        "event_to_map_p99_ms",
        "policy_seconds",
        "evacuation_seconds",
        "policy_failures",
        "services_added_cpu_seconds",
        "services_deleted_cpu_seconds",
        "probe_ms",
        "scrape_ms",
        "rss_mb",
        "restart_writes",
        "tc_established_ns",
        "tc_established_x",
        "tc_other_ns",
        "tc_other_x",
        "services_write_ms",
        "services_memory_mb",
        "view_first_paint_ms",
        "view_longest_frame_ms",
        "view_updates_per_second",
    ] {
        let has_it = name != "walk_100k_ms" || walks();
        ensure!(names.contains(name) == has_it, "{name} among {names:?}");
    }
    // kube-proxy takes minutes to compile: without one the bench leaves it out, and prints that.
    let is_given = env::var_os("TOPO_LB_KUBE_PROXY").is_some_and(|path| !path.is_empty());
    let is_measured =
        results.iter().any(|result| result["params"]["proxy"] == "kube-proxy 1.20 iptables");
    ensure!(is_measured == is_given, "kube-proxy is measured: {is_measured}, given: {is_given}");
    ensure!(said.contains("kube-proxy is left out") != is_given, "{said}");
    let writes = results.iter().filter(|result| result["name"] == "restart_writes");
    for result in writes {
        ensure!(result["median"] == 0.0, "a restart without differences writes: {result}");
    }
    let left = residue::find(|name| prefix::owner(name) == Some(pid))?;
    ensure!(left.is_empty(), "{left:?}");
    let folder = Folder::make(Prefix::new().folder())?;
    the_page_is_made_from_the_report_alone(folder.path(), &output.stdout)
}

fn the_page_is_made_from_the_report_alone(folder: &Path, printed: &[u8]) -> Result<()> {
    let printed_to = folder.join("printed.json");
    fs::write(&printed_to, printed)?;
    let first = documents(&folder.join("first"), &printed_to)?;
    let kept = Path::new("performance/report.json");
    ensure!(first[kept] == printed, "what is kept is not what was printed");
    let page = String::from_utf8_lossy(&first[Path::new("performance.md")]);
    ensure!(page.contains("`cargo xtask bench --quick`"), "{page}");
    ensure!(page.contains("| restart_writes | "), "{page}");
    for (name, content) in &first {
        let is_shown = name.extension().is_none_or(|extension| extension != "svg")
            || page.contains(&format!("({})", name.display()));
        ensure!(is_shown && !content.is_empty(), "{} is not on the page", name.display());
    }
    let again = documents(&folder.join("again"), &folder.join("first").join(kept))?;
    ensure!(first == again, "another page from the same report");

    let mut part: Value = serde_json::from_slice(printed)?;
    let results = part["results"].as_array_mut().context("no results")?;
    results.retain(|result| result["name"] != "connect_ratio");
    results.retain(|result| result["name"] != "other_traffic_ratio");
    results.retain(|result| result["name"] != "exchange_us");
    fs::write(&printed_to, part.to_string())?;
    let refused = format!("{:#}", documents(&folder.join("part"), &printed_to).unwrap_err());
    ensure!(refused.contains("nothing for *Connect path*"), "{refused}");
    ensure!(!folder.join("part").join("performance.md").exists());
    Ok(())
}

/// The files that the bench makes from a report, by their paths in the folder.
fn documents(folder: &Path, report: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    fs::create_dir(folder)?;
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    let output = bench.arg("--from").arg(report).arg("--write-docs").arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut files = BTreeMap::new();
    for place in [folder.to_owned(), folder.join("performance")] {
        for entry in fs::read_dir(place)? {
            let path = entry?.path();
            if path.is_file() {
                files.insert(path.strip_prefix(folder)?.to_owned(), fs::read(&path)?);
            }
        }
    }
    Ok(files)
}
