//! Fuzzing with any bytes as manifests, starting from parts of the fixtures.
//!
//! The stable compiler is enough: libFuzzer needs only LLVM's coverage pass. The address sanitizer
//! would need a nightly, and find little, as the code under test has no `unsafe`.

use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lanes::Suite;
use crate::process::{output_of, run_logged};
use crate::workspace::Workspace;

/// Below the root; a separate workspace.
pub(crate) const FOLDER: &str = "topo-lb/fuzz";

const TARGET: &str = "manifests";
/// cargo-fuzz's flags: they count the edges and comparisons that an input reaches.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    --cfg fuzzing";
/// Duration of fuzzing, in seconds.
const SECONDS: u64 = 25;
/// The limit for one input, in seconds.
const SECONDS_EACH: u64 = 10;
/// The fuzzer's memory limit, in megabytes. Inputs have some kilobytes.
const MEGABYTES: u64 = 1024;

/// The suite's name.
pub(crate) const SUITE: &str = "any bytes as manifests";

/// Compiles the target.
pub(crate) fn compile(workspace: &Workspace) -> Result<()> {
    let log = workspace.log("build-fuzz");
    run_logged("compiling the fuzz target", &mut cargo(workspace, "build")?, &log)
}

/// `cargo SUBCOMMAND` for the target.
fn cargo(workspace: &Workspace, subcommand: &str) -> Result<Command> {
    let host = host().context("`rustc` does not say which machine it compiles for")?;
    let mut command = workspace.cargo(subcommand);
    command
        .args(["--locked", "--manifest-path", &format!("{FOLDER}/Cargo.toml")])
        // With a named target, the flags do not apply to build scripts and macros.
        .args(["--target", &host])
        .env("CARGO_TARGET_DIR", folder(workspace))
        .env("RUSTFLAGS", COVERAGE)
        .env("TOPO_LB_EBPF_OBJECT", workspace.object());
    Ok(command)
}

/// The folder of Cargo's output and the fuzzer's findings.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fuzz")
}

/// The suite compiles the target, while others run, and fuzzes for a while.
pub(crate) fn suite(workspace: &Workspace) -> Result<Suite> {
    let target = folder(workspace);
    // Starts from what earlier runs have found.
    let (corpus, seeds) = (target.join("corpus"), target.join("seeds"));
    let artifacts = workspace.root.join(FOLDER).join("artifacts").join(TARGET);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder)?;
    }
    sow(workspace, &seeds)?;
    let mut command = cargo(workspace, "run")?;
    command.arg("--").args([&corpus, &seeds]).arg(workspace.root.join(FOLDER).join("seeds"));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    let dictionary = workspace.root.join(FOLDER).join("manifests.dict");
    command
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-timeout={SECONDS_EACH}"))
        .arg(format!("-rss_limit_mb={MEGABYTES}"))
        .arg(format!("-dict={}", dictionary.display()))
        .args(["-max_len=16384", "-print_final_stats=1", "-verbosity=0"]);
    Ok(Suite { name: SUITE.to_owned(), command, log: workspace.log("fuzz") })
}

/// The target triple of Cargo's compiler.
fn host() -> Option<String> {
    let host = output_of(Command::new("rustc").args(["--print", "host-tuple"]))?;
    Some(host.trim_end().to_owned())
}

/// Writes parts of the fixtures as seeds.
fn sow(workspace: &Workspace, seeds: &Path) -> Result<()> {
    fs::create_dir_all(seeds)?;
    for fixture in ["kubernetes-1.36", "kubernetes-1.20"] {
        let path = workspace.root.join("tests/fixtures").join(format!("{fixture}.json"));
        let text = fs::read_to_string(&path)?;
        let list = serde_json::from_str(&text)
            .with_context(|| format!("{} is no JSON", path.display()))?;
        for (name, cutting) in cuttings(&list) {
            // The first byte selects the file's extension. JSON is also valid YAML.
            for (first, extension) in [("0", "yaml"), ("1", "json")] {
                let path = seeds.join(format!("{fixture}-{name}.{extension}"));
                fs::write(&path, format!("{first}{cutting}"))?;
            }
        }
    }
    Ok(())
}

/// For each Service of a list: its name, and the Service with its slices and all Nodes.
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

/// The object without fields that topo-lb does not read.
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
