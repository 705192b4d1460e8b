//! The suites for virtual machines, and whether a machine has run them.

use anyhow::{Result, ensure};

use super::Line;
use super::report::Report;
use super::variants::Variant;
use crate::suites::{IN_GUESTS, filter};

/// The extent of the suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// [`Short`](Self::Short) without what only asks the verifiers.
    Accepted,
    /// Each program, hook, family and protocol once on the oldest kernel that has it, as in
    /// `cargo xtask test`.
    Short,
    /// All tests.
    Whole,
    /// The short tests of the suites that a [variant](Variant) names.
    Variant,
}

/// A suite for virtual machines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suite {
    /// Its file or folder in `tests/tests/datapath`.
    pub(super) name: &'static str,
    /// The tests of [`Scope::Short`]; empty: all.
    short: &'static [&'static str],
    /// Tests that an emulated machine cannot run.
    skipped: &'static [&'static str],
    /// Whether it has tests that need MPTCP, with [`MPTCP`] in their names. They are reported as
    /// skipped if the kernel has no MPTCP.
    pub(super) has_mptcp: bool,
}

/// See [`Suite::has_mptcp`].
pub(super) const MPTCP: &str = "mptcp";

/// The suites of this extent on this kernel. `try_out` and `overlays` are part of the whole: in the lab the first runs with
/// every test, and each overlay takes minutes here. A short run has the suites in guests alone on the newest kernel, whose machine ends before
/// the oldest one's.
pub(super) fn of(scope: Scope, variant: &Variant) -> Vec<Suite> {
    let is_short = |suite: &Suite| match variant.line {
        Line::V5_10 => !["try_out", OVERLAYS, BOOTS].contains(&suite.name) && !suite.is_in_guests(),
        Line::V6_1 => EVERYWHERE.contains(&suite.name),
        Line::V6_12 => EVERYWHERE.contains(&suite.name) || suite.is_in_guests(),
        _ => WITHOUT_AGENT.contains(&suite.name),
    };
    let is_of = |suite: &Suite| match scope {
        Scope::Accepted => is_short(suite) && suite.name != VERIFIER,
        Scope::Short => is_short(suite),
        Scope::Whole => suite.name != BOOTS,
        Scope::Variant => variant.suites.contains(&suite.name),
    };
    SUITES.into_iter().filter(is_of).collect()
}

/// The suite of tunnels and IPsec.
const OVERLAYS: &str = "overlays";

/// The suite that only asks the verifiers.
const VERIFIER: &str = "verifier";

/// The suite of how a machine was booted.
const BOOTS: &str = "boots";

/// The suites of [`Scope::Short`] on every kernel: each kernel has its own verifier, grace periods and
/// answer to a refused client, and the oldest has no walk over open connections. The others run on the
/// oldest kernel, and in the lab on this machine's; `--kernel` runs them on those in between.
const EVERYWHERE: [&str; 4] = [VERIFIER, "records", "connect", "accounting"];

/// The suites of [`Scope::Short`] on another architecture, whose verifier knows another compiler of the
/// kernel. They need no agent: to compile it as for a release takes ten minutes. `records` is not one of
/// them: its negative control takes two processors at the same time, which four emulators do not get.
const WITHOUT_AGENT: [&str; 1] = [VERIFIER];

/// In the order of execution. `tc_packets` is last: its old connections need some uptime.
pub(super) const SUITES: [Suite; 14] = [
    Suite { name: VERIFIER, short: &[], skipped: &[], has_mptcp: false },
    Suite { name: BOOTS, short: &[], skipped: &[], has_mptcp: false },
    Suite { name: "records", short: &[], skipped: &[], has_mptcp: false },
    Suite {
        name: "connect",
        short: &[
            "every_endpoint_answers_and_the_peer_is_the_service",
            "a_service_without_endpoints_refuses_at_once",
            "an_mptcp_socket_is_a_tcp_client",
        ],
        skipped: &[],
        has_mptcp: true,
    },
    Suite {
        name: "datagram",
        short: &[
            "every_endpoint_answers_as_the_service",
            "a_socket_moves_when_its_endpoint_stops_serving",
        ],
        skipped: &[],
        has_mptcp: false,
    },
    Suite {
        name: "accounting",
        short: &[
            "closed_half_closed_and_reset_connections_count_what_programs_wrote_and_read",
            "an_open_connection_is_counted_up_to_a_byte_and_its_end_counts_the_rest",
            "with_all_counted_pods_that_are_dialled_directly_count_what_programs_wrote_and_read",
        ],
        // The machine has neither nft nor ss.
        skipped: &[
            "a_connection_that_its_endpoint_resets_counts_what_programs_wrote_and_read",
            "connections_that_are_never_established_are_told_by_reason",
            "retransmissions_are_counted_as_segments_and_not_as_bytes",
        ],
        has_mptcp: true,
    },
    Suite { name: "try_out", short: &[], skipped: &[], has_mptcp: false },
    Suite { name: IN_GUESTS[0], short: &[], skipped: &[], has_mptcp: false },
    Suite { name: IN_GUESTS[1], short: &[], skipped: &[], has_mptcp: false },
    // These kernels do not order programs: the agent must report which one decides.
    Suite {
        name: "foreign",
        short: &["a_load_balancer_that_is_first_is_named_everywhere_until_it_has_gone"],
        skipped: &[],
        has_mptcp: false,
    },
    Suite { name: OVERLAYS, short: &[], skipped: &[], has_mptcp: false },
    Suite {
        name: "tc_traffic",
        short: &[
            "every_endpoint_answers_a_machine",
            "a_device_is_attached_when_it_comes_and_leaves_nothing_when_it_goes",
        ],
        skipped: &[],
        has_mptcp: false,
    },
    Suite {
        name: "trace",
        short: &[
            "what_a_process_dials_is_told_with_its_pod_its_endpoint_and_its_tier",
            "packets_that_open_connections_are_told_with_their_client_and_device",
            "one_tracer_at_a_time_and_a_killed_one_leaves_nothing",
        ],
        skipped: &[],
        has_mptcp: false,
    },
    Suite {
        name: "tc_packets",
        short: &[
            "a_connection_is_translated_each_way",
            "a_service_without_endpoints_answers_a_syn_with_a_rst",
            "a_service_without_endpoints_answers_a_datagram_with_port_unreachable",
            "an_icmpv6_error_is_told_in_the_client_s_words",
            "only_packets_to_another_node_are_marked_and_replies_have_the_frontend",
            "source_ranges_hold_for_openings_from_outside",
            "both_ways_go_on_by_the_uplink_with_one_hop_less",
        ],
        // An emulated machine does not reach that many packets per second.
        skipped: &["refusals_are_limited", "fragments_of_another_device_do_not_evict_a_first_one"],
        has_mptcp: false,
    },
];

impl Suite {
    pub(super) fn needs_agent(&self) -> bool {
        !WITHOUT_AGENT.contains(&self.name)
    }

    /// The tests to run; empty: all.
    fn tests(&self, scope: Scope) -> &'static [&'static str] {
        match scope {
            Scope::Accepted | Scope::Short | Scope::Variant => self.short,
            Scope::Whole => &[],
        }
    }

    fn is_in_guests(&self) -> bool {
        IN_GUESTS.contains(&self.name)
    }

    /// The arguments for the suite's binary.
    pub(super) fn arguments(&self, scope: Scope) -> Vec<String> {
        // Each test has its own cluster. `--nocapture` also shows the output of passing tests.
        let mut arguments = vec!["--test-threads=1".to_owned(), "--nocapture".to_owned()];
        let skipped = self.skipped.iter().flat_map(|name| ["--skip", *name]);
        arguments.extend(skipped.chain(self.tests(scope).iter().copied()).map(str::to_owned));
        if self.is_in_guests() {
            arguments.push("--ignored".to_owned());
        }
        if self.tests(scope).is_empty() {
            arguments.push(filter(self.name));
        }
        arguments
    }

    /// The number of tests that must pass, if known.
    fn expected(&self, scope: Scope, without_mptcp: bool) -> Option<usize> {
        let tests = self.tests(scope);
        let runs = |name: &&&str| !(without_mptcp && name.contains(MPTCP));
        (!tests.is_empty()).then(|| tests.iter().filter(runs).count())
    }
}

/// Checks that the machine ran all suites to the end, and that all passed.
///
/// # Errors
/// One sentence about the first problem.
pub(super) fn judge(suites: &[Suite], scope: Scope, report: &Report) -> Result<()> {
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
        let expected = suite.expected(scope, report.has_skipped(name));
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
        let place =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/datapath").join(name);
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
    fn the_oldest_kernel_runs_most_and_the_others_what_differs() {
        let number = |scope| Variant::plain().map(|it| of(scope, it).len()).collect::<Vec<_>>();
        assert_eq!(number(Scope::Short), [SUITES.len() - 5, 4, 6, 1]);
        assert_eq!(number(Scope::Accepted), [SUITES.len() - 6, 3, 5, 0]);
        assert_eq!(number(Scope::Whole), [SUITES.len() - 1; 4]);
        for variant in Variant::variants() {
            assert_eq!(of(Scope::Variant, variant).len(), variant.suites.len(), "{}", variant.name);
        }
    }

    #[test]
    fn no_test_s_name_is_part_of_another_s() {
        // libtest runs every test of the binary that has the given name as part of its own.
        let all: String = SUITES.iter().map(|suite| source(suite.name)).collect();
        for name in SUITES.iter().flat_map(|suite| suite.short) {
            let lines = all.lines().filter(|line| line.starts_with("fn ") && line.contains(name));
            assert_eq!(lines.count(), 1, "{name}");
        }
    }

    fn judged(log: &str) -> Result<()> {
        let suite = Suite {
            name: "connect",
            short: &["plain", "mptcp_too"],
            skipped: &[],
            has_mptcp: true,
        };
        judge(&[suite], Scope::Short, &Report::read(log))
    }

    #[test]
    fn only_a_whole_run_is_good() {
        let whole = "@guest begin connect\ntest result: ok. 2 passed; 0 failed; 9 filtered out\n\
                     @guest passed connect 12\n@guest end 1 passed 0 failed\n";
        judged(whole).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        for (length, said) in [
            (0, "before connect began"),
            (1, "in the middle of connect"),
            (2, "in the middle of connect"),
            (3, "before it printed"),
        ] {
            let error = judged(&lines[..length].join("\n")).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let failed = whole.replace("passed connect", "failed connect");
        assert_eq!(judged(&failed).unwrap_err().to_string(), "connect failed");
        let fewer = whole.replace("2 passed", "1 passed");
        assert!(judged(&fewer).unwrap_err().to_string().contains("1 tests"));
        let trouble = "@guest trouble no module\n";
        assert!(judged(trouble).unwrap_err().to_string().contains("no module"));
    }

    #[test]
    fn what_the_kernel_was_built_without_is_not_missed() {
        let log = "@guest begin connect\n@guest skipped connect: without mptcp\n\
                   test result: ok. 1 passed; 0 failed\n@guest passed connect 12\n\
                   @guest end 1 passed 0 failed\n";
        judged(log).unwrap();
    }
}
