//! The suites for virtual machines, and whether a machine has run them.

use anyhow::{Result, ensure};

use super::report::Report;

/// The extent of the suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Each program, hook, family and protocol once, as in `cargo xtask test`.
    Short,
    /// All tests.
    Whole,
}

/// A suite, with the tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suite {
    /// Its file or folder in `tests/tests`.
    pub(super) name: &'static str,
    /// The tests to run; empty: all.
    pub(super) tests: &'static [&'static str],
    /// Tests that an emulated machine cannot run.
    pub(super) skipped: &'static [&'static str],
    /// Part of the names of tests that need MPTCP; reported as skipped if the kernel has no MPTCP.
    pub(super) mptcp: Option<&'static str>,
}

/// See [`Suite::mptcp`].
const MPTCP: &str = "mptcp";

struct Selection {
    name: &'static str,
    short: &'static [&'static str],
    skipped: &'static [&'static str],
    has_mptcp: bool,
}

/// In the order of execution. `tc_packets` is last: its old connections need some uptime.
const SUITES: [Selection; 6] = [
    Selection { name: "verifier", short: &[], skipped: &[], has_mptcp: false },
    Selection {
        name: "connect",
        short: &[
            "every_endpoint_answers_and_the_peer_is_the_service",
            "a_service_without_endpoints_refuses_at_once",
            "an_mptcp_socket_is_a_tcp_client",
        ],
        skipped: &[],
        has_mptcp: true,
    },
    Selection {
        name: "datagram",
        short: &[
            "every_endpoint_answers_as_the_service",
            "a_socket_moves_when_its_endpoint_stops_serving",
        ],
        skipped: &[],
        has_mptcp: false,
    },
    // These kernels do not order programs: the agent must report which one decides.
    Selection {
        name: "foreign",
        short: &["a_load_balancer_that_is_first_is_named_everywhere_until_it_has_gone"],
        skipped: &[],
        has_mptcp: false,
    },
    Selection {
        name: "tc_traffic",
        short: &[
            "every_endpoint_answers_a_machine",
            "a_device_is_attached_when_it_comes_and_leaves_nothing_when_it_goes",
        ],
        skipped: &[],
        has_mptcp: false,
    },
    Selection {
        name: "tc_packets",
        short: &[
            "a_connection_is_translated_each_way",
            "a_service_without_endpoints_answers_a_syn_with_a_rst",
            "a_service_without_endpoints_answers_a_datagram_with_port_unreachable",
            "an_icmpv6_error_is_told_in_the_client_s_words",
        ],
        // An emulated machine does not reach that many packets per second.
        skipped: &["refusals_are_limited"],
        has_mptcp: false,
    },
];

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|suite| suite.name)
}

pub(super) fn selection(scope: Scope) -> Vec<Suite> {
    let suite = |known: &Selection| Suite {
        name: known.name,
        tests: if scope == Scope::Short { known.short } else { &[] },
        skipped: known.skipped,
        mptcp: known.has_mptcp.then_some(MPTCP),
    };
    SUITES.iter().map(suite).collect()
}

impl Suite {
    /// The arguments for the suite's binary.
    pub(super) fn arguments(&self) -> Vec<&'static str> {
        // Each test has its own cluster. `--nocapture` also shows the output of passing tests.
        let mut arguments = vec!["--test-threads=1", "--nocapture"];
        arguments.extend(self.skipped.iter().flat_map(|name| ["--skip", *name]));
        arguments.extend(self.tests);
        arguments
    }

    /// The number of tests that must pass, if known.
    fn expected(&self, without_mptcp: bool) -> Option<usize> {
        let runs = |name: &&&str| !(without_mptcp && name.contains(MPTCP));
        (!self.tests.is_empty()).then(|| self.tests.iter().filter(runs).count())
    }
}

/// Checks that the machine ran all suites to the end, and that all passed.
///
/// # Errors
/// One sentence about the first problem.
pub(super) fn judge(suites: &[Suite], report: &Report) -> Result<()> {
    if let Some(trouble) = &report.trouble {
        anyhow::bail!("the machine failed: {trouble}");
    }
    for suite in suites {
        let name = suite.name;
        let ran = report.suites.iter().find(|ran| ran.name == name);
        let Some(ran) = ran else {
            anyhow::bail!("the machine ended before {name} began");
        };
        let Some(passed) = ran.passed else {
            anyhow::bail!("the machine ended in the middle of {name}");
        };
        ensure!(passed, "{name} failed");
        let expected = suite.expected(report.has_skipped(name));
        let enough = expected.map_or(ran.tests > 0, |expected| ran.tests == expected);
        ensure!(enough, "{name} ran {} tests, not {expected:?}: was one renamed?", ran.tests);
    }
    ensure!(report.is_complete, "the machine ended before it printed that all had run");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The source of a suite: one file, or all files of a folder.
    fn source(name: &str) -> String {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests").join(name);
        let Ok(files) = fs::read_dir(&place) else {
            return fs::read_to_string(place.with_extension("rs")).unwrap();
        };
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn every_test_that_is_named_is_there() {
        for suite in &SUITES {
            let text = source(suite.name);
            for name in suite.short.iter().chain(suite.skipped) {
                assert!(text.contains(&format!("fn {name}()")), "{} has no {name}", suite.name);
            }
            assert_eq!(text.contains("HttpMptcp"), suite.has_mptcp, "{}", suite.name);
        }
    }

    #[test]
    fn no_test_s_name_is_part_of_another_s() {
        // libtest runs every test that has the given name as part of its own.
        for suite in selection(Scope::Short) {
            let parts = suite
                .tests
                .iter()
                .map(|one| suite.tests.iter().filter(|other| other.contains(one)).count());
            assert!(parts.into_iter().all(|count| count == 1), "{}", suite.name);
        }
    }

    fn report(lines: &str) -> Report {
        Report::read(lines)
    }

    const SHORT: [Suite; 1] = [Suite {
        name: "connect",
        tests: &["plain", "mptcp_too"],
        skipped: &[],
        mptcp: Some("mptcp"),
    }];

    #[test]
    fn only_a_whole_run_is_good() {
        let whole = "@guest begin connect\ntest result: ok. 2 passed; 0 failed; 9 filtered out\n\
                     @guest passed connect 12\n@guest end 1 passed 0 failed\n";
        judge(&SHORT, &report(whole)).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        for (length, said) in [
            (0, "before connect began"),
            (1, "in the middle of connect"),
            (2, "in the middle of connect"),
            (3, "before it printed"),
        ] {
            let error = judge(&SHORT, &report(&lines[..length].join("\n"))).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let failed = whole.replace("passed connect", "failed connect");
        assert_eq!(judge(&SHORT, &report(&failed)).unwrap_err().to_string(), "connect failed");
        let fewer = whole.replace("2 passed", "1 passed");
        assert!(judge(&SHORT, &report(&fewer)).unwrap_err().to_string().contains("1 tests"));
        let trouble = "@guest trouble no module\n";
        assert!(judge(&SHORT, &report(trouble)).unwrap_err().to_string().contains("no module"));
    }

    #[test]
    fn what_the_kernel_was_built_without_is_not_missed() {
        let log = "@guest begin connect\n@guest skipped connect: without mptcp\n\
                   test result: ok. 1 passed; 0 failed\n@guest passed connect 12\n\
                   @guest end 1 passed 0 failed\n";
        judge(&SHORT, &report(log)).unwrap();
    }
}
