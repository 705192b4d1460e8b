//! Findings as text for a terminal or a bug report.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Finding, Severity, name};
use crate::explain::{shown, some};

/// Most nodes that a line names.
const NODES: usize = 5;

/// The findings by Service; `colour` adds terminal colours.
#[must_use]
pub fn table(findings: &[Finding], colour: bool) -> String {
    let paint = |code: &str, text: &str| match colour {
        true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        false => text.to_owned(),
    };
    if findings.is_empty() {
        return "Nothing found.\n".to_owned();
    }
    let width = findings.iter().map(|one| name(&one.rule).len()).max().unwrap_or_default();
    let mut text = String::new();
    let mut last = None;
    let mut services = BTreeSet::new();
    for finding in findings {
        let service = (&finding.namespace, &finding.name);
        if last != Some(service) {
            if last.is_some() {
                text.push('\n');
            }
            let title = match &**service.0 {
                "" => shown(service.1),
                namespace => format!("{}/{}", shown(namespace), shown(service.1)),
            };
            let _ = writeln!(text, "{}", paint("1", &title));
            last = Some(service);
            services.insert(service);
        }
        let rule = format!("{:width$}", name(&finding.rule));
        let severity = format!("{:7}", name(&finding.severity));
        let severity = match finding.severity {
            Severity::Error => paint("31", &severity),
            Severity::Warning => paint("33", &severity),
            Severity::Info => severity,
        };
        let port =
            finding.port.as_deref().map_or_else(String::new, |port| format!("{}: ", shown(port)));
        let _ = writeln!(text, "  {severity}  {rule}  {port}{}{}", finding.message, nodes(finding));
    }
    let _ = writeln!(
        text,
        "\n{} finding{} in {} object{}",
        findings.len(),
        plural(findings.len()),
        services.len(),
        plural(services.len()),
    );
    text
}

fn nodes(finding: &Finding) -> String {
    let names = finding.nodes.iter().map(String::as_str);
    match names.len() {
        0 => String::new(),
        count => format!("; on {count} node{}: {}", plural(count), some(names, NODES)),
    }
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
