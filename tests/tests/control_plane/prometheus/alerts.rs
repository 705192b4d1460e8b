//! Each alert by promtool's unit tests: what makes it fire, and what does not.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use topo_lb_tests::folder::Folder;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::prometheus::program;

use super::rules::{alerts, rules};

/// Series and their values, a sample a minute, as promtool expands them (`1+2x3` is 1 3 5 7).
type Series = &'static [(&'static str, &'static str)];

struct Case {
    alert: &'static str,
    /// When to look.
    at: &'static str,
    fires: Series,
    silent: &'static [Series],
}

const CASES: &[Case] = &[
    Case {
        alert: "TopoLbServiceRefused",
        at: "15m",
        fires: &[(
            "topo_lb_refused_connections_total{namespace='a',service='b',port='http',reason='topology-policy'}",
            "0+60x20",
        )],
        silent: &[
            // It refused until an hour ago.
            &[(
                "topo_lb_refused_connections_total{namespace='a',service='b',port='http',reason='topology-policy'}",
                "60x20",
            )],
            // A Service without endpoints anywhere.
            &[(
                "topo_lb_refused_connections_total{namespace='a',service='b',port='http',reason='no-endpoints'}",
                "0+60x20",
            )],
        ],
    },
    Case {
        alert: "TopoLbAgentUnready",
        at: "15m",
        fires: &[("topo_lb_ready{node='n'}", "0x20")],
        // The second one starts.
        silent: &[
            &[("topo_lb_ready{node='n'}", "1x20")],
            &[("topo_lb_ready{node='n'}", "1x5 0x5 1x10")],
        ],
    },
    Case {
        alert: "TopoLbStateStale",
        at: "20m",
        fires: &[("topo_lb_state_age_seconds{node='n'}", "0+60x20")],
        silent: &[
            &[("topo_lb_state_age_seconds{node='n'}", "0x20")],
            // Away for four minutes at a time.
            &[("topo_lb_state_age_seconds{node='n'}", "0+60x4 0+60x4 0+60x4 0+60x4")],
        ],
    },
    Case {
        alert: "TopoLbMapNearlyFull",
        at: "20m",
        fires: &[
            ("topo_lb_map_used_entries{node='n',map='slots4'}", "81x20"),
            ("topo_lb_map_capacity_entries{node='n',map='slots4'}", "100x20"),
        ],
        silent: &[
            &[
                ("topo_lb_map_used_entries{node='n',map='slots4'}", "80x20"),
                ("topo_lb_map_capacity_entries{node='n',map='slots4'}", "100x20"),
            ],
            // The maps are not open yet.
            &[
                ("topo_lb_map_used_entries{node='n',map='slots4'}", "0x20"),
                ("topo_lb_map_capacity_entries{node='n',map='slots4'}", "0x20"),
            ],
        ],
    },
    Case {
        alert: "TopoLbConnectionTableNearlyFull",
        at: "10m",
        fires: &[
            ("topo_lb_tracked_connections{node='n',family='IPv4',state='open'}", "81x20"),
            ("topo_lb_tracked_connections_limit{node='n',family='IPv4'}", "100x20"),
        ],
        silent: &[
            &[
                ("topo_lb_tracked_connections{node='n',family='IPv4',state='open'}", "80x20"),
                ("topo_lb_tracked_connections_limit{node='n',family='IPv4'}", "100x20"),
            ],
            // Those that are not established have a table of their own.
            &[
                ("topo_lb_tracked_connections{node='n',family='IPv4',state='half-open'}", "90x20"),
                ("topo_lb_tracked_connections_limit{node='n',family='IPv4'}", "100x20"),
            ],
        ],
    },
    Case {
        alert: "TopoLbServicesWithoutRoom",
        at: "10m",
        fires: &[
            ("topo_lb_left_out_services{node='n'}", "0x20"),
            ("topo_lb_narrowed_services{node='n'}", "0x20"),
            ("topo_lb_stale_services{node='n'}", "1x20"),
            ("topo_lb_no_room_refused_services{node='n'}", "0x20"),
            ("topo_lb_direct_dials_services{node='n'}", "0x20"),
        ],
        silent: &[&[
            ("topo_lb_left_out_services{node='n'}", "0x20"),
            ("topo_lb_narrowed_services{node='n'}", "0x20"),
            ("topo_lb_stale_services{node='n'}", "0x20"),
            ("topo_lb_no_room_refused_services{node='n'}", "0x20"),
            ("topo_lb_direct_dials_services{node='n'}", "0x20"),
        ]],
    },
    Case {
        alert: "TopoLbHooksOverridden",
        at: "5m",
        fires: &[("topo_lb_overridden_hooks{node='n'}", "4x20")],
        silent: &[&[("topo_lb_overridden_hooks{node='n'}", "0x20")]],
    },
    Case {
        alert: "TopoLbProgramsInFront",
        at: "5m",
        fires: &[("topo_lb_programs_in_front{node='n'}", "1x20")],
        silent: &[&[("topo_lb_programs_in_front{node='n'}", "0x20")]],
    },
    Case {
        alert: "TopoLbServicesWaiting",
        at: "10m",
        fires: &[("topo_lb_waiting_services{node='n'}", "3x20")],
        // While all Nodes are listed.
        silent: &[&[("topo_lb_waiting_services{node='n'}", "0x8 3 0x11")]],
    },
    Case {
        alert: "TopoLbEndpointsEjected",
        at: "40m",
        fires: &[("topo_lb_ejected_endpoints{node='n'}", "0x5 2x40")],
        // Each is mended soon.
        silent: &[&[("topo_lb_ejected_endpoints{node='n'}", "0x5 2x20 0 1x20")]],
    },
    Case {
        alert: "TopoLbEvacuationWithoutEnd",
        at: "30h",
        // No Service has endpoints there.
        fires: &[
            ("topo_lb_evacuated_services{node='n',key='rack',value='a'}", "_x5 0x2000"),
            ("topo_lb_evacuated_services{node='m',key='rack',value='a'}", "_x5 0x2000"),
        ],
        silent: &[
            // It says when it ends.
            &[(
                "topo_lb_evacuated_services{node='n',key='rack',value='a',until='1970-01-03T00:00:00Z'}",
                "7x2000",
            )],
            // Each ends within a day.
            &[("topo_lb_evacuated_services{node='n',key='rack',value='a'}", "7x1000 _x60 7x1000")],
        ],
    },
    Case {
        alert: "TopoLbNodeIsIsland",
        at: "20m",
        fires: &[("topo_lb_island{node='n'}", "0x5 1x20")],
        // The API server restarts.
        silent: &[&[("topo_lb_island{node='n'}", "0x5 1x8 0 1x8")]],
    },
    Case {
        alert: "TopoLbConnectionsCannotReturn",
        at: "40m",
        fires: &[
            ("topo_lb_away_sockets{node='n',state='forbidden'}", "0x40"),
            ("topo_lb_hidden_processes{node='n'}", "2x40"),
        ],
        silent: &[&[
            ("topo_lb_away_sockets{node='n',state='waiting'}", "9x40"),
            ("topo_lb_away_sockets{node='n',state='forbidden'}", "0x40"),
            ("topo_lb_hidden_processes{node='n'}", "0x40"),
        ]],
    },
    Case {
        alert: "TopoLbCrossZoneShare",
        at: "3h",
        fires: &[
            ("topo_lb_connections_total{locality='zone'}", "0+60x200"),
            ("topo_lb_connections_total{locality='elsewhere'}", "0+90x200"),
        ],
        silent: &[
            &[
                ("topo_lb_connections_total{locality='zone'}", "0+90x200"),
                ("topo_lb_connections_total{locality='elsewhere'}", "0+60x200"),
            ],
            // No endpoint has a zone.
            &[
                ("topo_lb_connections_total{locality='node'}", "0+60x200"),
                ("topo_lb_connections_total{locality='elsewhere'}", "0+90x200"),
            ],
        ],
    },
    Case {
        alert: "TopoLbBoundServiceLeavesZone",
        at: "3h",
        fires: &[
            (
                "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='zone',tier='0'}",
                "0+50x200",
            ),
            (
                "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region',tier='1'}",
                "0+50x200",
            ),
            (
                "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region',tier='1'}",
                "0+50x200",
            ),
        ],
        silent: &[
            // A tenth spills.
            &[
                (
                    "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='zone',tier='0'}",
                    "0+90x200",
                ),
                (
                    "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region',tier='0'}",
                    "0+10x200",
                ),
                (
                    "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region',tier='0'}",
                    "0x200",
                ),
            ],
            // It has no policy.
            &[
                (
                    "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region',tier='none'}",
                    "0+90x200",
                ),
                (
                    "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region',tier='none'}",
                    "0+90x200",
                ),
            ],
            // It is left to another proxy.
            &[
                (
                    "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region',tier='left'}",
                    "0+90x200",
                ),
                (
                    "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region',tier='left'}",
                    "0+90x200",
                ),
            ],
            // Its endpoints are dialled directly.
            &[
                (
                    "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region',tier='direct'}",
                    "0+90x200",
                ),
                (
                    "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region',tier='direct'}",
                    "0+90x200",
                ),
            ],
        ],
    },
    Case {
        alert: "TopoLbNamespaceOverBudget",
        at: "30h",
        // 1,440 times 1.5 GB a day at 0.02, and nothing between zones: $1,296 a month.
        fires: &[
            (
                "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='elsewhere'}",
                "0+1500000000x2000",
            ),
            (
                "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='elsewhere'}",
                "0+10x2000",
            ),
        ],
        // The same between zones costs half of it.
        silent: &[&[
            (
                "topo_lb_tcp_sent_bytes_total{namespace='a',service='b',locality='region'}",
                "0+1500000000x2000",
            ),
            (
                "topo_lb_tcp_received_bytes_total{namespace='a',service='b',locality='region'}",
                "0+10x2000",
            ),
        ]],
    },
    Case {
        alert: "TopoLbPoliciesOnlyInAgents",
        at: "15m",
        fires: &[
            ("topo_lb_kept_policies{node='n',kind='TopologyPolicy'}", "3x20"),
            ("topo_lb_kept_policies{node='m',kind='TopologyPolicy'}", "3x20"),
        ],
        // An API server that starts.
        silent: &[&[("topo_lb_kept_policies{node='n',kind='TopologyPolicy'}", "0x5 3x5 0x10")]],
    },
];

/// A unit test of promtool: how many alerts of this name fire at these times.
fn unit_test(name: &str, series: Series, at: &[(&str, u32)]) -> Value {
    let series: Vec<Value> =
        series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let expectations: Vec<Value> = at
        .iter()
        .map(|(time, firing)| {
            let samples: &[Value] = match firing {
                0 => &[],
                _ => &[json!({"labels": "{}", "value": firing})],
            };
            json!({
                "expr": format!("count(ALERTS{{alertname='{name}',alertstate='firing'}})"),
                "eval_time": time, "exp_samples": samples,
            })
        })
        .collect();
    json!({"name": name, "interval": "1m", "input_series": series, "promql_expr_test": expectations})
}

#[test]
fn each_alert_fires_for_its_trouble_after_a_while_and_for_nothing_near_it() -> Result<()> {
    let rules = rules()?;
    let there = alerts(&rules)?;
    let there: BTreeSet<_> = there.iter().filter_map(|alert| alert["alert"].as_str()).collect();
    let tried: BTreeSet<_> = CASES.iter().map(|case| case.alert).collect();
    ensure!(there == tried, "alerts: {there:?}, cases: {tried:?}");

    let mut tests = Vec::new();
    for case in CASES {
        ensure!(!case.silent.is_empty(), "{} is always expected", case.alert);
        tests.push(unit_test(case.alert, case.fires, &[("1m", 0), (case.at, 1)]));
        tests.extend(
            case.silent.iter().map(|series| unit_test(case.alert, series, &[(case.at, 0)])),
        );
    }
    let folder = Folder::make(Prefix::new().folder())?;
    fs::write(folder.path().join("rules.json"), rules.to_string())?;
    let path = folder.path().join("tests.json");
    let file = json!({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": tests});
    fs::write(&path, file.to_string())?;
    let mut test = Command::new(program("promtool")?);
    printed(test.args(["test", "rules"]).arg(&path)).context("promtool test rules")?;
    Ok(())
}
