//! What a program is made of: a software bill of materials in SPDX 2.3 (spdx.github.io/spdx-spec/v2.3).
//! Only packages whose code is in the program: no build scripts, procedural macros or tests.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::archive_name;
use super::source::Source;
use crate::architecture::Architecture;
use crate::archive::digest;
use crate::image::VERSION;
use crate::process::{display, output_of};
use crate::workspace::{PLACE, Workspace};

/// The document for a program.
pub(super) fn of(
    workspace: &Workspace,
    architecture: Architecture,
    program: &Path,
    source: &Source,
) -> Result<String> {
    let mut tree = workspace.cargo("tree");
    tree.args(["--locked", "--package", "topo-lb", "--edges", "normal,no-proc-macro"]);
    tree.args(["--target", architecture.target(), "--prefix", "none", "--format", "{p}|{l}"]);
    let said = output_of(&mut tree).with_context(|| format!("`{}` failed", display(&tree)))?;
    let name = archive_name(architecture);
    let document = document(&name, &packages(&said), &digest(program)?, &source.date()?);
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// A package in a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    is_ours: bool,
}

/// Parses `cargo tree --format '{p}|{l}'`: `serde v1.0.0|MIT OR Apache-2.0`; a package of the workspace
/// has its folder in parentheses, one that was shown before ` (*)`.
fn packages(said: &str) -> Vec<Package> {
    let package = |line: &str| {
        let (what, licence) = line.trim_end_matches(" (*)").split_once('|')?;
        let mut words = what.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some(Package {
            name: name.to_owned(),
            version: version.to_owned(),
            // As Cargo wrote it before SPDX had expressions.
            licence: licence.replace('/', " OR "),
            is_ours: words.any(|word| word.starts_with("(/")),
        })
    };
    let mut packages: Vec<_> = said.lines().filter_map(package).collect();
    packages.sort();
    packages.dedup();
    packages
}

fn document(name: &str, packages: &[Package], program: &str, date: &str) -> Value {
    let id = |package: &Package| {
        let text = format!("{}-{}", package.name, package.version);
        let plain =
            |it: char| if it.is_ascii_alphanumeric() || "-.".contains(it) { it } else { '-' };
        format!("SPDXRef-{}", text.chars().map(plain).collect::<String>())
    };
    let entry = |package: &Package| {
        let licence = if package.licence.is_empty() { "NOASSERTION" } else { &package.licence };
        let mut entry = json!({
            "SPDXID": id(package),
            "name": package.name,
            "versionInfo": package.version,
            "downloadLocation": PLACE,
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": licence,
            "copyrightText": "NOASSERTION",
        });
        if !package.is_ours {
            let Package { name, version, .. } = package;
            entry["downloadLocation"] =
                json!(format!("https://crates.io/api/v1/crates/{name}/{version}/download"));
            entry["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }]);
        }
        entry
    };
    let mut entries: Vec<Value> = packages.iter().map(entry).collect();
    let ours = format!("SPDXRef-topo-lb-{VERSION}");
    for entry in &mut entries {
        if entry["SPDXID"] == ours {
            entry["packageFileName"] = json!("topo-lb");
            entry["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": program }]);
        }
    }
    let relation = |from: &str, kind: &str, to: &str| json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to });
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", &ours)];
    let others = packages.iter().map(id).filter(|it| *it != ours);
    relations.extend(others.map(|it| relation(&ours, "STATIC_LINK", &it)));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        // Unique for what it describes.
        "documentNamespace": format!("{PLACE}/spdx/{name}-{program}"),
        "creationInfo": {
            "created": date,
            "creators": ["Organization: topo-lb", format!("Tool: topo-lb-xtask-{VERSION}")],
        },
        "packages": entries,
        "relationships": relations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_describes_the_program_and_names_each_package_once() {
        let said = format!(
            "topo-lb v{VERSION} (/a folder/topo-lb)|MIT OR Apache-2.0\n\
             serde v1.0.228|MIT/Apache-2.0\n\
             serde v1.0.228|MIT/Apache-2.0 (*)\n\
             odd_name v2.0.0+build.1|\n\n"
        );
        let packages = packages(&said);
        assert_eq!(packages.len(), 3, "{packages:?}");
        let document = document("it", &packages, "5a5a", "2026-01-02T03:04:05Z");
        let found = |name: &str| {
            let all = document["packages"].as_array().unwrap();
            all.iter().find(|it| it["name"] == name).unwrap().clone()
        };
        assert_eq!(found("topo-lb")["checksums"][0]["checksumValue"], "5a5a");
        assert_eq!(found("topo-lb")["externalRefs"], Value::Null, "it is not on crates.io");
        assert_eq!(found("serde")["licenseDeclared"], "MIT OR Apache-2.0");
        let purl = &found("serde")["externalRefs"][0]["referenceLocator"];
        assert_eq!(purl, "pkg:cargo/serde@1.0.228");
        assert_eq!(found("odd_name")["SPDXID"], "SPDXRef-odd-name-2.0.0-build.1");
        assert_eq!(found("odd_name")["licenseDeclared"], "NOASSERTION");
        assert_eq!(document["relationships"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn the_real_tree_is_read_without_what_only_compiles() {
        let workspace = Workspace::find().unwrap();
        let program = workspace.root.join("Cargo.toml");
        let source = Source { commit: None, why_no_commit: "", time: 0 };
        for architecture in Architecture::ALL {
            let text = of(&workspace, architecture, &program, &source).unwrap();
            assert!(text.contains("\"pkg:cargo/kube@") && text.contains("1970-01-01T00:00:00Z"));
            for absent in ["cargo/clap_derive@", "cargo/proptest@", "cargo/cc@"] {
                assert!(!text.contains(absent), "{absent}");
            }
        }
    }
}
