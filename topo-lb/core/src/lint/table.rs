//! Findings as text for a terminal or a bug report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Finding, Rule, Severity, name};
use crate::explain::{shown, some};

/// Most nodes that a line names.
const NODES: usize = 5;
/// Most ports that a line names.
const PORTS: usize = 3;

/// The findings by Service, with one line for ports of which the same is to be said; `colour` adds terminal
/// colours.
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
    let (mut services, mut lines) = (BTreeSet::new(), 0);
    let mut ports = ports(findings);
    for finding in findings {
        let Some(ports) = ports.remove(&said(finding)) else { continue };
        lines += 1;
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
        let port = match &*ports {
            [] => String::new(),
            [port] => format!("{}: ", shown(port)),
            all => format!("{} ports ({}): ", all.len(), some(all.iter().copied(), PORTS)),
        };
        let _ = writeln!(text, "  {severity}  {rule}  {port}{}{}", finding.message, nodes(finding));
    }
    let _ = writeln!(
        text,
        "\n{} finding{} in {} object{}",
        lines,
        plural(lines),
        services.len(),
        plural(services.len()),
    );
    text
}

/// What a finding says, but for its port.
type Said<'a> = (&'a str, &'a str, Rule, &'a str, &'a [String]);

const fn said(finding: &Finding) -> Said<'_> {
    let Finding { namespace, name, rule, message, nodes, .. } = finding;
    (namespace.as_str(), name.as_str(), *rule, message.as_str(), nodes.as_slice())
}

/// The ports of which each is said.
fn ports(findings: &[Finding]) -> BTreeMap<Said<'_>, Vec<&str>> {
    let mut all: BTreeMap<Said<'_>, Vec<&str>> = BTreeMap::new();
    for finding in findings {
        all.entry(said(finding)).or_default().extend(finding.port.as_deref());
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_a_hundred_ports_alike_is_said_once() {
        let of = |port: u16, message: &str| Finding {
            port: Some(format!("p{port}")),
            ..Finding::of("shop", "big", Rule::TooFew, message.to_owned())
        };
        let mut all: Vec<_> = (0..100).map(|port| of(port, "alike")).collect();
        all.push(of(7, "another"));
        all.sort();
        let text = table(&all, false);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "shop/big",
                "info     too-few  100 ports (p0, p1, p10 and 97 more): alike",
                "info     too-few  p7: another",
                "",
                "2 findings in 1 object"
            ]
        );
    }
}
