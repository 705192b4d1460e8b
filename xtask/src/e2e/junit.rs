//! Reads the JUnit report of e2e.test: every spec of the suite, skipped unless it has run.

use anyhow::{Context as _, Result, bail};
use regex::Regex;
use serde::Deserialize;

use super::results::{Spec, Verdict};

/// The report, as far as it is read.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(default)]
    testcase: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@time")]
    seconds: f64,
    skipped: Option<Empty>,
    failure: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Empty {}

#[derive(Debug, Deserialize)]
struct Failure {
    #[serde(rename = "$text", default)]
    message: String,
}

/// The specs whose names match `focus`, by name.
///
/// # Errors
/// This is no such report, the suite could not begin, or no spec matches.
pub(super) fn read(xml: &str, focus: &Regex) -> Result<Vec<Spec>> {
    let report: Report =
        quick_xml::de::from_str(xml).context("e2e.test has written no JUnit report")?;
    let mut specs = Vec::new();
    for case in report.testcase {
        if let ("BeforeSuite", Some(failure)) = (case.name.as_str(), &case.failure) {
            bail!("the tests could not begin: {}", failure.sentence());
        }
        if focus.is_match(&case.name) {
            specs.push(case.spec());
        }
    }
    if specs.is_empty() {
        bail!("no spec's name matches {focus}");
    }
    specs.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(specs)
}

impl Case {
    fn spec(&self) -> Spec {
        let (result, why) = match (&self.failure, &self.skipped) {
            (Some(failure), _) => (Verdict::Failed, failure.sentence()),
            (None, Some(Empty {})) => (Verdict::Skipped, String::new()),
            (None, None) => (Verdict::Passed, String::new()),
        };
        // Names are put together of parts, with a blank too many in the middle of some.
        let name = self.name.split_whitespace().collect::<Vec<_>>().join(" ");
        Spec { name, result, seconds: self.seconds, why }
    }
}

impl Failure {
    /// What went wrong, without the places in the source, which are on lines of their own.
    fn sentence(&self) -> String {
        let is_place = |line: &&str| !line.is_empty() && !line.contains(".go:");
        let lines: Vec<&str> = self.message.lines().map(str::trim).filter(is_place).collect();
        lines.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
  <testsuite name="Kubernetes e2e suite" tests="2" failures="1" errors="0" time="81.3">
      <testcase name="[sig-apps] Deployment should run" classname="Kubernetes e2e suite" time="0">
          <skipped></skipped>
      </testcase>
      <testcase name="[sig-network] Services should serve  [Conformance]" classname="Kubernetes e2e suite" time="14.26"></testcase>
      <testcase name="[sig-network] Services should balance" classname="Kubernetes e2e suite" time="0"><skipped></skipped></testcase>
      <testcase name="[sig-network] Services should fail" classname="Kubernetes e2e suite" time="67.001">
          <failure type="Failure">/go/src/k8s.io/service.go:1&#xA;Unexpected error:&#xA;    &lt;*errors&gt;: &#34;refused&#34;&#xA;/go/src/k8s.io/service.go:9</failure>
          <system-out>STEP: one&#xA;</system-out>
      </testcase>
  </testsuite>"#;

    #[test]
    fn a_report_gives_the_verdicts_of_the_specs_in_focus() {
        let specs = read(XML, &Regex::new(r"\[sig-network\] Services").unwrap()).unwrap();
        let seen: Vec<_> =
            specs.iter().map(|it| (it.name.as_str(), it.result, it.seconds)).collect();
        assert_eq!(
            seen,
            [
                ("[sig-network] Services should balance", Verdict::Skipped, 0.0),
                ("[sig-network] Services should fail", Verdict::Failed, 67.001),
                ("[sig-network] Services should serve [Conformance]", Verdict::Passed, 14.26),
            ]
        );
        assert_eq!(specs[1].why, r#"Unexpected error: <*errors>: "refused""#);
    }

    #[test]
    fn a_report_without_what_is_asked_for_is_no_success() {
        let focus = Regex::new("no such spec").unwrap();
        assert!(read(XML, &focus).unwrap_err().to_string().contains("no such spec"));
        let broken = XML
            .replace("[sig-apps] Deployment should run", "BeforeSuite")
            .replace("<skipped></skipped>\n", r#"<failure type="Failure">no nodes</failure>"#);
        let error = read(&broken, &focus).unwrap_err().to_string();
        assert_eq!(error, "the tests could not begin: no nodes");
        assert!(read("", &focus).is_err());
    }
}
