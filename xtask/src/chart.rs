//! `cargo xtask chart`: writes the table of values into the README of the Helm chart.
//!
//! values.yaml has each value with a comment and its default, values.schema.json what is allowed.

use std::fmt::Write as _;
use std::mem::take;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::progress;
use crate::workspace::Workspace;

/// Writes the table of values into deploy/helm/topo-lb/README.md, from values.yaml and values.schema.json.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask chart     after a change of the chart's values; commit the README with it")]
pub(crate) struct Args {}

/// The chart, below the root of the workspace.
const CHART: &str = "deploy/helm/topo-lb";
/// What stands before the table in the README. The table goes on to its end.
const MARK: &str = "## Values\n\n";

pub(crate) fn run(workspace: &Workspace, _: &Args) -> Result<()> {
    let file = workspace.root.join(CHART).join("README.md");
    fs::write(&file, readme(workspace)?)?;
    progress::note(&format!("{CHART}/README.md is written"));
    Ok(())
}

/// The README with the table of today's values.
fn readme(workspace: &Workspace) -> Result<String> {
    let read = |name| fs::read_to_string(workspace.root.join(CHART).join(name));
    let text = read("README.md")?;
    let (before, _) = text.split_once(MARK).context("README.md has no section `Values`")?;
    let schema = serde_json::from_str(&read("values.schema.json")?)?;
    Ok(format!("{before}{MARK}{}", table(&read("values.yaml")?, &schema)?))
}

/// A row for each value: its path, what it may be, its default, and its comment.
///
/// # Errors
/// A value is not in the schema or has no comment, or the schema has a value that is not there.
fn table(values: &str, schema: &Value) -> Result<String> {
    let mut table = "| value | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    let mut rows = 0;
    let mut comment = Vec::new();
    // The keys around this line, with their indentation and schemas.
    let mut path: Vec<(usize, &str, &Value)> = Vec::new();
    for line in values.lines() {
        let text = line.trim_start();
        let indentation = line.len() - text.len();
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let Some((key, default)) = text.split_once(':') else {
            comment.clear();
            continue;
        };
        path.retain(|(outer, ..)| *outer < indentation);
        let parent = path.last().map_or(schema, |(_, _, schema)| schema);
        // Lines of a default that is longer than one line.
        let Some(properties) = parent.get("properties") else { continue };
        let allowed = properties.get(key).with_context(|| format!("the schema has no {key}"))?;
        path.push((indentation, key, allowed));
        let words = take(&mut comment).join(" ").replace('|', "\\|");
        if allowed.get("properties").is_none() || default.trim() == "{}" {
            let keys: Vec<_> = path.iter().map(|(_, key, _)| *key).collect();
            let name = keys.join(".");
            ensure!(!words.is_empty(), "values.yaml says nothing about {name}");
            let default = Some(default.trim()).filter(|it| !it.is_empty());
            let default = default.map_or_else(|| "see values.yaml".into(), |it| format!("`{it}`"));
            writeln!(table, "| `{name}` | {} | {default} | {words} |", kind(allowed))?;
            rows += 1;
        }
    }
    ensure!(
        rows == leaves(schema, values),
        "the schema has a value that values.yaml does not have"
    );
    Ok(table)
}

/// What a value may be.
fn kind(schema: &Value) -> String {
    let list = |all: &Value| {
        let all = all.as_array().into_iter().flatten().filter_map(Value::as_str);
        all.filter(|one| !one.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    match (&schema["enum"], &schema["type"]) {
        (Value::Array(_), _) => format!("`{}`", list(&schema["enum"]).join("`, `")),
        (_, Value::String(one)) => one.clone(),
        (_, many) => list(many).join(" or "),
    }
}

/// How many values the schema has. An object that is empty by default is one.
fn leaves(schema: &Value, values: &str) -> usize {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let count = |(name, schema): (&String, &Value)| match schema.get("properties") {
        Some(_) if !values.contains(&format!("\n{name}: {{}}\n")) => leaves(schema, values),
        _ => usize::from(name != "global"),
    };
    properties.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::VERSION;
    use crate::workspace::PLACE;

    #[test]
    fn the_readme_of_the_chart_has_its_values() {
        let workspace = Workspace::find().unwrap();
        let text = fs::read_to_string(workspace.root.join(CHART).join("README.md")).unwrap();
        assert!(text == readme(&workspace).unwrap(), "out of date: cargo xtask chart");
    }

    #[test]
    fn the_chart_has_the_version_of_this_source_and_what_a_registry_shows() {
        let path = Workspace::find().unwrap().root.join(CHART).join("Chart.yaml");
        let chart: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!([&chart["version"], &chart["appVersion"]], [VERSION, VERSION]);
        assert_eq!(chart["home"], PLACE);
        assert!(chart["maintainers"][0]["name"].is_string(), "{chart}");
        assert_eq!(chart["kubeVersion"], ">=1.20.0-0", "docs/releases.md says so, too");
    }

    #[test]
    fn a_value_is_documented_and_in_the_schema() {
        let schema = serde_json::json!({"properties": {
            "one": {"type": "object", "properties": {"inner": {"enum": ["", "a", "b"]}}},
            "many": {"type": ["string", "integer"]},
        }});
        let values =
            "one:\n  # An inner\n  # value.\n  inner: a\n# This | that.\nmany:\n  - x: 1\n";
        let rows = table(values, &schema).unwrap();
        assert!(rows.contains("| `one.inner` | `a`, `b` | `a` | An inner value. |\n"), "{rows}");
        assert!(rows.contains("| `many` | string or integer | see values.yaml | This \\| that. |"));
        for wrong in [&values[4..], &values.replace("# ", ""), &values.replace("many", "few"), ""] {
            assert!(table(wrong, &schema).is_err(), "{wrong}");
        }
    }
}
