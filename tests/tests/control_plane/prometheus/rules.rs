//! The rules of `deploy/components/prometheus`, and what each refers to.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;
use topo_lb_tests::deployment::{deploy, monitoring};
use topo_lb_tests::folder::Folder;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::prometheus::program;

/// The spec of the `PrometheusRule`: what Prometheus reads.
pub(crate) fn rules() -> Result<Value> {
    Ok(monitoring("PrometheusRule")?["spec"].take())
}

/// All alerts.
pub(crate) fn alerts(rules: &Value) -> Result<Vec<Value>> {
    let groups = rules["groups"].as_array().context("groups")?;
    Ok(groups.iter().filter_map(|group| group["rules"].as_array()).flatten().cloned().collect())
}

#[test]
fn promtool_accepts_the_rules() -> Result<()> {
    let folder = Folder::make(Prefix::new().folder())?;
    let path = folder.path().join("rules.json");
    fs::write(&path, rules()?.to_string())?;
    let mut check = Command::new(program("promtool")?);
    check.args(["check", "rules", "--lint=all", "--lint-fatal"]).arg(&path);
    printed(&mut check).map(drop)
}

#[test]
fn every_alert_says_what_is_wrong_and_links_to_its_section() -> Result<()> {
    let page = fs::read_to_string(deploy("../docs/operations.md"))?;
    for alert in alerts(&rules()?)? {
        let name = alert["alert"].as_str().context("an alert has a name")?;
        for text in ["summary", "description"] {
            let is_there = alert["annotations"][text].as_str().is_some_and(|it| it.len() > 20);
            ensure!(is_there, "{name} has no {text}");
        }
        let link = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let wanted = format!("docs/operations.md#{}", name.to_lowercase());
        ensure!(link.ends_with(&wanted), "{name} links to {link}");
        ensure!(page.contains(&format!("\n### {name}\n")), "docs/operations.md has no {name}");
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        ensure!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
    }
    Ok(())
}
