//! How a release was made: an in-toto statement with a provenance of SLSA (slsa.dev/spec/v1.0/provenance).
//! It has no times, so the same commit gives the same statement.

use anyhow::Result;
use fs_err as fs;
use serde_json::json;

use super::Release;
use super::source::Source;
use crate::archive::digest;
use crate::image::VERSION;
use crate::workspace::PLACE;

/// Who builds, as a URL: a workflow of the forge says it here.
const BUILDER: &str = "TOPO_LB_BUILDER";

/// Writes the statement on all files that are there.
pub(super) fn write(release: &Release<'_>, source: &Source) -> Result<()> {
    let subjects = release.digests()?.into_iter();
    let subjects: Vec<_> =
        subjects.map(|(name, sum)| json!({ "name": name, "digest": { "sha256": sum } })).collect();
    let commit = source
        .commit
        .iter()
        .map(|commit| json!({ "uri": format!("git+{PLACE}"), "digest": { "gitCommit": commit } }));
    let lock = digest(&release.workspace.root.join("Cargo.lock"))?;
    let lock = json!({ "name": "Cargo.lock", "digest": { "sha256": lock } });
    let builder = std::env::var(BUILDER).unwrap_or_else(|_| format!("{PLACE}/builders/local"));
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{PLACE}/builds/xtask-release/v1"),
                "externalParameters": { "version": VERSION },
                "internalParameters": { "SOURCE_DATE_EPOCH": release.time },
                "resolvedDependencies": commit.chain([lock]).collect::<Vec<_>>(),
            },
            "runDetails": { "builder": { "id": builder } },
        },
    });
    let name = format!("topo-lb-{VERSION}.intoto.json");
    Ok(fs::write(release.place(&name), serde_json::to_string_pretty(&statement)? + "\n")?)
}
