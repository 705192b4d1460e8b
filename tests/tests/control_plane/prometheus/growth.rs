//! The queries of `topo-lb plan`, as Prometheus evaluates them: by promtool's unit tests.

use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::json;
use topo_lb::commands::prometheus::{Span, wider};
use topo_lb_tests::folder::Folder;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::prometheus::program;

const COUNTER: &str = "topo_lb_tcp_sent_bytes_total";

/// A series of the Service `web` on a node, by the Pod of an agent there, with a sample a minute.
fn series((node, pod): (&str, u8), tier: &str, locality: &str, values: &str) -> serde_json::Value {
    let labels = format!(
        "node='{node}',pod='{pod}',namespace='shop',service='web',tier='{tier}',locality='{locality}'"
    );
    json!({"series": format!("{COUNTER}{{{labels}}}"), "values": values})
}

#[test]
fn a_series_that_a_policy_begins_counts_from_zero_and_one_of_a_new_node_from_its_first_value()
-> Result<()> {
    let ready = |node: &str, values: &str| json!({"series": format!("topo_lb_ready{{node='{node}'}}"), "values": values});
    let all = [
        ready("old", "1x40"),
        ready("new", "_x20 1x20"),
        // 100 a minute, until a policy begins at minute 20.
        series(("old", 1), "left", "region", "0+100x20 2000x20"),
        // The agent's next Pod goes on with both counters.
        series(("old", 1), "0", "zone", "_x19 700 700x10"),
        series(("old", 2), "0", "zone", "_x31 800x9"),
        series(("old", 1), "0", "node", "0+100x20"),
        series(("old", 2), "0", "node", "_x21 2000+100x19"),
        series(("old", 1), "direct", "region", "0+1x40"),
        // What it has moved before Prometheus knew it, nobody knows.
        series(("new", 1), "0", "elsewhere", "_x20 5000+100x20"),
    ];
    let sums = |sums: &[(&str, f64)]| {
        let sum = |(locality, sum): &(&str, f64)| {
            let labels = format!("{{namespace='shop',service='web',locality='{locality}'}}");
            json!({"labels": labels, "value": sum})
        };
        sums.iter().map(sum).collect::<Vec<_>>()
    };
    let after = Span { length: "24m", end: "", begin: "24m" };
    let before = Span { length: "12m", end: "24m", begin: "36m" };
    let tests: Vec<_> = [
        // From minute 16 on: 4 more minutes of the old series, and half a scrape more where one begins or ends.
        (
            &after,
            false,
            sums(&[("region", 400.0), ("zone", 800.0), ("node", 2_400.0), ("elsewhere", 2_050.0)]),
        ),
        (&before, false, sums(&[("region", 1_200.0), ("node", 1_200.0)])),
        (&after, true, sums(&[("region", 24.0)])),
    ]
    .into_iter()
    .map(|(span, is_direct, sums)| {
        let query = span.bytes("", COUNTER, is_direct);
        json!({"expr": query, "eval_time": "40m", "exp_samples": sums})
    })
    .collect();
    evaluate(&all, &tests)
}

/// Of three nodes with connections, two know.
#[test]
fn connections_to_a_wider_tier_are_summed_and_nodes_that_do_not_know_are_counted() -> Result<()> {
    let series = |metric: &str, node: &str, more: &str, values: &str| {
        let labels =
            format!("node='{node}',pod='p',namespace='shop',service='web',port='http'{more}");
        json!({"series": format!("{metric}{{{labels}}}"), "values": values})
    };
    let (mut all, far) = (Vec::new(), ",locality='region'");
    for node in ["n1", "n2", "n3"] {
        all.push(series("topo_lb_connections_total", node, far, "0+5x10"));
        all.push(series("topo_lb_connections_total", node, ",locality='zone'", "0+9x10"));
    }
    all.push(series("topo_lb_wider_tier_connections", "n1", "", "40x9 12"));
    all.push(series("topo_lb_wider_tier_connections", "n2", "", "2x10"));
    let [known, unknown] = wider();
    let tests = [(known, 14), (unknown, 1)].map(|(query, value)| {
        let labels = "{namespace='shop',service='web',port='http'}";
        let samples = json!([{"labels": labels, "value": value}]);
        json!({"expr": query, "eval_time": "10m", "exp_samples": samples})
    });
    evaluate(&all, &tests)
}

/// Has Prometheus evaluate queries: what promtool calls `promql_expr_test`.
fn evaluate(series: &[serde_json::Value], tests: &[serde_json::Value]) -> Result<()> {
    let folder = Folder::make(Prefix::new().folder())?;
    let path = folder.path().join("tests.json");
    let test = json!({"interval": "1m", "input_series": series, "promql_expr_test": tests});
    fs::write(&path, json!({"evaluation_interval": "1m", "tests": [test]}).to_string())?;
    let mut test = Command::new(program("promtool")?);
    printed(test.args(["test", "rules"]).arg(&path)).context("promtool test rules").map(drop)
}
