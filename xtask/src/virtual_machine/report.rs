//! Parses a machine's output on its serial port: lines of `guest`, and output of the test binaries.

use std::time::Duration;

use crate::progress::clock;

/// A verifier's counts by program and measure.
pub(super) type Verified = Vec<((String, String), u32)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) name: String,
    /// The number of tests that passed.
    pub(super) tests: usize,
    /// `None`: the suite has not ended.
    pub(super) passed: Option<bool>,
    pub(super) took: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// In the order of execution.
    pub(super) suites: Vec<Ran>,
    /// Suites with skipped tests, and the reason.
    pub(super) skipped: Vec<(String, String)>,
    /// Why the machine failed.
    pub(super) trouble: Option<String>,
    /// The machine has reported that it has run everything.
    pub(super) is_complete: bool,
    pub(super) verified: Verified,
}

impl Report {
    /// Parses a log. Ignores other lines, for example those of the firmware and the kernel.
    pub(super) fn read(log: &str) -> Self {
        let mut report = Self::default();
        for line in log.lines().map(str::trim) {
            if let Some(said) = line.strip_prefix("@guest ") {
                report.hear(said);
            } else if let Some(rest) = line.strip_prefix("test result: ") {
                report.count(rest);
            } else if let Some(rest) = line.strip_prefix("verified ")
                && let [program, measure, count] = rest.split(' ').collect::<Vec<_>>()[..]
                && let Ok(count) = count.parse()
            {
                report.verified.push(((program.to_owned(), measure.to_owned()), count));
            }
        }
        report
    }

    fn hear(&mut self, said: &str) {
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "begin" => self.suites.push(Ran {
                name: rest.to_owned(),
                tests: 0,
                passed: None,
                took: Duration::ZERO,
            }),
            "passed" | "failed" => {
                let (name, seconds) = rest.split_once(' ').unwrap_or((rest, ""));
                if let Some(ran) = self.suites.last_mut().filter(|ran| ran.name == name) {
                    ran.passed = Some(word == "passed");
                    ran.took = Duration::from_secs(seconds.parse().unwrap_or_default());
                }
            }
            "skipped" => {
                let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
                self.skipped.push((name.to_owned(), why.to_owned()));
            }
            "trouble" => self.trouble = Some(rest.to_owned()),
            "end" => self.is_complete = true,
            _ => {}
        }
    }

    /// Parses `ok. 3 passed; 0 failed; …`.
    fn count(&mut self, result: &str) {
        let passed = result.split(". ").nth(1).and_then(|rest| rest.split(' ').next());
        if let (Some(ran), Some(passed)) = (self.suites.last_mut(), passed) {
            ran.tests = passed.parse().unwrap_or_default();
        }
    }

    pub(super) fn has_skipped(&self, suite: &str) -> bool {
        self.skipped.iter().any(|(name, _)| name == suite)
    }

    /// One line per suite, for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |ran: &Ran| {
            let verdict = match ran.passed {
                Some(true) => "passed",
                Some(false) => "FAILED",
                None => "did not end",
            };
            let why = self.skipped.iter().filter(|(name, _)| *name == ran.name);
            let why: String = why.map(|(_, why)| format!("; skipped {why}")).collect();
            let took = clock(ran.took);
            format!("{:<10} {:>2} tests {verdict}, {took}{why}", ran.name, ran.tests)
        };
        self.suites.iter().map(line).collect()
    }
}

/// The lines to show for a failed machine: the last ones of the first failed suite, or of the log.
pub(super) fn excerpt(log: &str) -> Vec<&str> {
    const LINES: usize = 40;
    let mut lines: Vec<&str> = log.lines().map(str::trim_end).filter(|it| !it.is_empty()).collect();
    if let Some(end) = lines.iter().position(|line| line.starts_with("@guest failed")) {
        lines.truncate(end);
    }
    lines.split_off(lines.len().saturating_sub(LINES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "SeaBIOS (version 1.16.2)\r\n\r\n@guest booted 5.10.0-46\r\n\
        @guest begin verifier\r\n\r\nrunning 1 test\r\nverified connect4 instructions 2799\r\n\
        verified nothing much\r\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; finished in 7.62s\r\n\
        @guest passed verifier 7\r\n@guest begin connect\r\n\
        @guest skipped connect: MPTCP: not built in\r\n[   12.1] some kernel's word\r\n\
        test result: FAILED. 1 passed; 2 failed; 0 ignored\r\n@guest failed connect 61\r\n\
        @guest begin datagram\r\n";

    #[test]
    fn a_log_is_read_whatever_stands_between() {
        let report = Report::read(LOG);
        let ran = |name: &str, tests, passed, seconds| Ran {
            name: name.to_owned(),
            tests,
            passed,
            took: Duration::from_secs(seconds),
        };
        let expected = [
            ran("verifier", 1, Some(true), 7),
            ran("connect", 1, Some(false), 61),
            ran("datagram", 0, None, 0),
        ];
        assert_eq!(report.suites, expected);
        let row = ("connect4".to_owned(), "instructions".to_owned());
        assert_eq!(report.verified, [(row, 2799)]);
        assert!(report.has_skipped("connect") && !report.has_skipped("verifier"));
        assert!(!report.is_complete && report.trouble.is_none());
        assert!(Report::read("@guest end 2 passed 0 failed\n").is_complete);
    }

    #[test]
    fn what_is_shown_of_a_failure_is_what_was_said_last_before_it() {
        let shown = excerpt(LOG);
        assert_eq!(shown.last(), Some(&"test result: FAILED. 1 passed; 2 failed; 0 ignored"));
        assert_eq!(
            excerpt("one\r\n\r\n[    3.1] Kernel panic\r\n"),
            ["one", "[    3.1] Kernel panic"]
        );
    }

    #[test]
    fn people_read_a_line_for_each_suite() {
        let lines = Report::read(LOG).lines();
        assert_eq!(lines[0], "verifier    1 tests passed, 7.0 s");
        let skipped = "connect     1 tests FAILED, 1 min 01 s; skipped MPTCP: not built in";
        assert_eq!(lines[1], skipped);
        assert_eq!(lines[2], "datagram    0 tests did not end, 0.0 s");
    }
}
