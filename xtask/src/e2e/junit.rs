//! Reads the JUnit report of e2e.test: every spec of the suite, skipped unless it has run.
//!
//! Ginkgo 1 writes one suite, and names of specs alone. Ginkgo 2 writes a list of suites, the kind of a node of
//! its tree before each name (`[It] …`), a `status`, and also what is no spec, such as
//! `[SynchronizedBeforeSuite]`; a spec that panicked or was interrupted has an `error`
//! (ginkgo/reporters/junit_report.go).

use anyhow::{Context as _, Result, bail};
use regex::Regex;
use serde::Deserialize;

use super::results::{Spec, Verdict};

/// The report or one of its suites, as far as it is read.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(default)]
    testsuite: Vec<Report>,
    #[serde(default)]
    testcase: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@time")]
    seconds: f64,
    /// Only Ginkgo 2 writes it.
    #[serde(rename = "@status")]
    status: Option<String>,
    skipped: Option<Empty>,
    failure: Option<Failure>,
    error: Option<Failure>,
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
    for case in report.cases() {
        if let (true, Some(failure)) = (case.is_before_all(), case.failed()) {
            bail!("the tests could not begin: {}", failure.sentence());
        }
        if let Some(name) = case.spec().filter(|name| focus.is_match(name)) {
            specs.push(case.result(name));
        }
    }
    if specs.is_empty() {
        bail!("no spec's name matches {focus}");
    }
    specs.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(specs)
}

impl Report {
    fn cases(&self) -> Vec<&Case> {
        self.testsuite.iter().flat_map(Self::cases).chain(&self.testcase).collect()
    }
}

impl Case {
    fn is_before_all(&self) -> bool {
        matches!(
            self.name.trim_matches(['[', ']']),
            "BeforeSuite" | "SynchronizedBeforeSuite" | "ReportBeforeSuite"
        )
    }

    /// The name, if it is a spec.
    fn spec(&self) -> Option<&str> {
        match self.status {
            Some(_) => self.name.strip_prefix("[It] "),
            None => Some(&self.name),
        }
    }

    fn failed(&self) -> Option<&Failure> {
        self.failure.as_ref().or(self.error.as_ref())
    }

    fn result(&self, name: &str) -> Spec {
        let (result, why) = match (self.failed(), &self.skipped) {
            (Some(failure), _) => (Verdict::Failed, failure.sentence()),
            (None, Some(Empty {})) => (Verdict::Skipped, String::new()),
            (None, None) => (Verdict::Passed, String::new()),
        };
        // Names are put together of parts, with a blank too many in the middle of some.
        let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
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

    const GINKGO_1: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
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

    /// The same of Ginkgo 2, as Kubernetes writes it (test/e2e/framework/internal/junit); and specs that panicked,
    /// took too long, and are not written yet.
    const GINKGO_2: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
  <testsuites tests="7" disabled="3" errors="1" failures="1" time="81.3">
      <testsuite name="Kubernetes e2e suite" package="/" tests="7" disabled="1" skipped="2" errors="1" failures="1" time="81.3" timestamp="2026-11-26T10:00:00">
          <properties>
              <property name="SuiteSucceeded" value="false"></property>
              <property name="FocusStrings" value="Services"></property>
          </properties>
          <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.2"></testcase>
          <testcase name="[It] [sig-apps] Deployment should run" classname="Kubernetes e2e suite" status="skipped" time="0">
              <skipped message="skipped"></skipped>
          </testcase>
          <testcase name="[It] [sig-network] Services should balance" classname="Kubernetes e2e suite" status="skipped" time="0">
              <skipped message="skipped - Requires a cloud"></skipped>
          </testcase>
          <testcase name="[It] [sig-network] Services should fail" classname="Kubernetes e2e suite" status="failed" time="67.001">
              <failure type="failed">[FAILED] Unexpected error:&#xA;    &lt;*errors&gt;: &#34;refused&#34;&#xA;In [It] at: k8s.io/kubernetes/test/e2e/network/service.go:9 @ 11/26/26 10:00:00.1&#xA;</failure>
              <system-err>STEP: one - k8s.io/service.go:1 @ 11/26/26&#xA;</system-err>
          </testcase>
          <testcase name="[It] [sig-network] Services should not panic" classname="Kubernetes e2e suite" status="panicked" time="1">
              <error type="panicked">[PANICKED] Test Panicked</error>
          </testcase>
          <testcase name="[It] [sig-network] Services should not wait" classname="Kubernetes e2e suite" status="timedout" time="2" owner="sig-network">
              <failure message="" type="timedout">[TIMEDOUT] A suite timeout occurred&#xA;In [It] at: k8s.io/kubernetes/test/e2e/network/service.go:9 @ 11/26/26 10:00:00.1&#xA;</failure>
          </testcase>
          <testcase name="[It] [sig-network] Services should pend" classname="Kubernetes e2e suite" status="pending" time="0">
              <skipped message="pending"></skipped>
          </testcase>
          <testcase name="[It] [sig-network] Services should serve [Conformance]" classname="Kubernetes e2e suite" status="passed" time="14.26">
              <properties>
                  <property name="name of an entry" value="1"></property>
              </properties>
          </testcase>
          <testcase name="[ReportAfterSuite] [sig-network] Services in a report" classname="Kubernetes e2e suite" status="passed" time="0.01"></testcase>
      </testsuite>
  </testsuites>"#;

    /// Name, verdict and seconds of the specs of Services.
    fn seen(xml: &str) -> Vec<(String, Verdict, f64)> {
        let specs = read(xml, &Regex::new(r"\[sig-network\] Services").unwrap()).unwrap();
        specs.into_iter().map(|it| (it.name, it.result, it.seconds)).collect()
    }

    #[test]
    fn a_report_gives_the_verdicts_of_the_specs_in_focus() {
        let spec = |name: &str, result, seconds| {
            (format!("[sig-network] Services should {name}"), result, seconds)
        };
        let mut all = vec![
            spec("balance", Verdict::Skipped, 0.0),
            spec("fail", Verdict::Failed, 67.001),
            spec("serve [Conformance]", Verdict::Passed, 14.26),
        ];
        assert_eq!(seen(GINKGO_1), all);
        all.splice(
            2..2,
            [
                spec("not panic", Verdict::Failed, 1.0),
                spec("not wait", Verdict::Failed, 2.0),
                spec("pend", Verdict::Skipped, 0.0),
            ],
        );
        assert_eq!(seen(GINKGO_2), all);
        let why = |xml: &str| {
            let specs = read(xml, &Regex::new("Services should fail").unwrap()).unwrap();
            specs.into_iter().next().unwrap().why
        };
        assert_eq!(why(GINKGO_1), r#"Unexpected error: <*errors>: "refused""#);
        assert_eq!(why(GINKGO_2), r#"[FAILED] Unexpected error: <*errors>: "refused""#);
    }

    #[test]
    fn a_report_without_what_is_asked_for_is_no_success() {
        let focus = Regex::new("no such spec").unwrap();
        assert!(read(GINKGO_1, &focus).unwrap_err().to_string().contains("no such spec"));
        let failure = r#"<failure type="Failure">no nodes</failure>"#;
        let first = GINKGO_1
            .replace("[sig-apps] Deployment should run", "BeforeSuite")
            .replace("<skipped></skipped>\n", failure);
        let second = GINKGO_2.replace(
            r#"status="passed" time="0.2">"#,
            &format!(r#"status="failed" time="0.2">{failure}"#),
        );
        for broken in [first, second] {
            let error = read(&broken, &focus).unwrap_err().to_string();
            assert_eq!(error, "the tests could not begin: no nodes");
        }
        assert!(read("", &focus).is_err());
    }
}
