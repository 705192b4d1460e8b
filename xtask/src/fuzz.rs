//! The fuzzer's minute: any bytes as manifests, beginning from cuttings of the fixtures.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::process::{run_logged, run_visible};
use crate::progress::Screen;
use crate::stage::Remark;
use crate::toolchain::{self, Toolchain};
use crate::workspace::{Workspace, find_cargo_program, find_program};

/// Below the root; a workspace of its own.
pub(crate) const FOLDER: &str = "topo-lb/fuzz";

const TARGET: &str = "manifests";
/// Seconds of fuzzing.
const SECONDS: u64 = 60;
/// Seconds that one input may take. Sanitizers make everything some twenty times slower.
const SECONDS_EACH: u64 = 10;
/// Megabytes that the fuzzer may take, in which an input can be some kilobytes long.
const MEGABYTES: u64 = 1024;
/// How long it may take in all, the last input and the machine's other work included.
const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Fuzzes for a minute; says so where it cannot.
///
/// # Errors
/// The target does not compile, or an input was found that breaks it.
pub(crate) fn run(workspace: &Workspace, screen: &Screen) -> Result<Remark> {
    let Some(fuzzer) = find_cargo_program("cargo-fuzz") else {
        return Ok(not_run(screen, "there is no cargo-fuzz: cargo install cargo-fuzz"));
    };
    let nightlies = find_program("rustup").map(|rustup| toolchain::nightlies(&rustup));
    let nightly = nightlies
        .unwrap_or_default()
        .into_iter()
        .find_map(|Toolchain { rustup_name, .. }| rustup_name);
    let Some(nightly) = nightly else {
        return Ok(not_run(screen, "there is no nightly: rustup toolchain install nightly"));
    };

    let fuzz = |subcommand: &str| {
        let mut command = workspace.command(&fuzzer);
        command
            .args(["fuzz", subcommand, "--fuzz-dir", FOLDER])
            .arg("--target-dir")
            .arg(workspace.target.join("fuzz"))
            .arg(TARGET)
            // The address sanitizer's own toolchain, whatever the rest is compiled with.
            .env("RUSTUP_TOOLCHAIN", &nightly)
            .env("TOPO_LB_EBPF_OBJECT", workspace.object());
        command
    };
    run_logged(
        screen,
        "compiling the fuzz target",
        &mut fuzz("build"),
        &workspace.log("build-fuzz"),
    )?;

    // What was found in earlier runs is where this one begins.
    let corpus = workspace.target.join("fuzz/corpus");
    let seeds = workspace.target.join("fuzz/seeds");
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    sow(workspace, &seeds)?;
    let mut command = fuzz("run");
    command.args([&corpus, &seeds]).arg(workspace.root.join(FOLDER).join("seeds"));
    run_visible(limited(&mut command, workspace), LIMIT)?;
    Ok(None)
}

fn limited<'a>(command: &'a mut Command, workspace: &Workspace) -> &'a mut Command {
    let dictionary = workspace.root.join(FOLDER).join("manifests.dict");
    command
        .arg("--")
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-timeout={SECONDS_EACH}"))
        .arg(format!("-rss_limit_mb={MEGABYTES}"))
        .arg(format!("-dict={}", dictionary.display()))
        .args(["-max_len=16384", "-print_final_stats=1", "-verbosity=0"])
}

/// A person must see it: a stage that did nothing has proven nothing.
fn not_run(screen: &Screen, why: &str) -> Remark {
    let text = format!("NOT fuzzed: {why}");
    screen.warn(&text);
    Some(text)
}

/// Writes cuttings of the fixtures.
fn sow(workspace: &Workspace, seeds: &Path) -> Result<()> {
    fs::create_dir_all(seeds).with_context(|| format!("cannot make {}", seeds.display()))?;
    for fixture in ["kubernetes-1.36", "kubernetes-1.20"] {
        let path = workspace.root.join("tests/fixtures").join(format!("{fixture}.json"));
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let list = serde_json::from_str(&text)
            .with_context(|| format!("{} is no JSON", path.display()))?;
        for (name, cutting) in cuttings(&list) {
            // The target takes the first byte for the file's extension. JSON is YAML as well.
            for (first, extension) in [("0", "yaml"), ("1", "json")] {
                let path = seeds.join(format!("{fixture}-{name}.{extension}"));
                fs::write(&path, format!("{first}{cutting}"))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Each Service of a list with its slices and the list's Nodes, by the Service's name.
fn cuttings(list: &Value) -> Vec<(String, String)> {
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |kind: &'static str| items.iter().filter(move |item| item["kind"] == kind);
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let cutting = |service: &Value| {
        let slices = of("EndpointSlice").filter(|slice| {
            let owner = &slice["metadata"]["labels"]["kubernetes.io/service-name"];
            *owner == service["metadata"]["name"]
        });
        let all = of("Node").chain(slices).map(bare).chain([bare(service)]);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all.collect::<Vec<_>>()});
        (name(service), list.to_string())
    };
    of("Service").map(cutting).collect()
}

/// Without what nobody reads.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| {
            ["name", "namespace", "labels", "annotations"].contains(&field.as_str())
        });
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cutting_is_a_service_with_its_slices_and_all_nodes() {
        let slice = |name: &str, service: &str| {
            json!({"kind": "EndpointSlice", "metadata":
                {"name": name, "labels": {"kubernetes.io/service-name": service}}})
        };
        let list = json!({"items": [
            {"kind": "Node", "metadata": {"name": "n1", "uid": "1"}, "status": {"images": []}},
            {"kind": "Service", "metadata": {"name": "a"}},
            {"kind": "Service", "metadata": {"name": "b"}},
            slice("a-1", "a"), slice("b-1", "b"), slice("a-2", "a"),
        ]});
        let cuttings = cuttings(&list);
        let names: Vec<&str> = cuttings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let read: Value = serde_json::from_str(&cuttings[0].1).unwrap();
        let expected = json!([{"kind": "Node", "metadata": {"name": "n1"}},
            slice("a-1", "a"), slice("a-2", "a"), {"kind": "Service", "metadata": {"name": "a"}}]);
        assert_eq!(read["items"], expected);
    }
}
