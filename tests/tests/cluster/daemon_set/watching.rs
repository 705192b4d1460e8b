//! `topo-lb view` and `topo-lb top` on this machine, beside a cluster that they ask through its API server.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::binary::{Binary, json_of};
use topo_lb_tests::requirements;
use topo_lb_tests::served::View;
use topo_lb_tests::wait::until_is;

use super::SOON;
use super::answers::{ANYWHERE, SERVICE, ask, client_of};
use super::load::Stage;

/// Besides what goes on all the time, pods of zone a ask both zones. Their Service gets a policy that allows
/// both: agents count only Services with a policy now.
pub(crate) fn the_page_and_top_show_what_pods_do(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let annotate = |what| kubernetes.kubectl(&["annotate", "service", ANYWHERE, what]);
    annotate("topo-lb.io/topology-keys=*")?;
    let script = format!(
        "(for i in $(seq 600); do {}; sleep 0.05; done) < /dev/null > /dev/null 2>&1 &",
        ask(ANYWHERE)
    );
    kubernetes.kubectl(&["exec", &client_of("hangzhou"), "--", "sh", "-c", &script])?;
    let kubeconfig = kubernetes.kubeconfig()?.display().to_string();

    let view = View::start(&["--kubeconfig", &kubeconfig, "--scope", "opt-in", "--interval", "1"])?;
    let picture = until_is(
        "bytes from zone a to zone b",
        SOON,
        || view.picture(""),
        |picture| {
            // Agents may answer before the API server has listed the cluster.
            let is_complete = picture["cluster"]["sentences"] == json!([]);
            is_complete && bytes(picture, 0, 1) > 0.0 && bytes(picture, 1, 1) > 0.0
        },
    )?;
    let (cluster, now) = (&picture["cluster"], &picture["now"]);
    let zones: Vec<_> = cluster["groups"].as_array().into_iter().flatten().collect();
    let zones: Vec<_> = zones.iter().map(|zone| (&zone["value"], &zone["nodes"])).collect();
    let wanted = [json!("a"), json!(["node-a"]), json!("b"), json!(["node-b"])];
    ensure!(zones == [(&wanted[0], &wanted[1]), (&wanted[2], &wanted[3])], "{zones:?}");
    ensure!(now["answered"] == 2 && now["flows"]["measured"] == 2, "{now}");
    ensure!(now["troubles"] == json!([]), "{picture}");
    // Nobody in zone b asks zone a.
    ensure!(bytes(&picture, 1, 0) == 0.0, "{}", now["flows"]);

    let top = || {
        let flags = ["top", "--cluster", "--once", "-o", "json", "--interval", "1"];
        let mut command = Binary::new(requirements::agent()?).command(&flags);
        command.args(["--kubeconfig", &kubeconfig]);
        json_of(command).map(|mut looked| looked["services"].take())
    };
    let is_shown = |rows: &Value| far(rows, ANYWHERE) > 0.0 && near(rows, SERVICE) > 0.0;
    let rows = until_is("rates of both Services", SOON, top, is_shown)?;
    ensure!(far(&rows, SERVICE) == 0.0, "{rows}");
    // Both zones are in one region, which agents know although each watches its own Node alone.
    ensure!(at(&rows, ANYWHERE, [2, 2]) > 0.0 && at(&rows, ANYWHERE, [3, 3]) == 0.0, "{rows}");
    let nodes = &row(&rows, SERVICE).context("a row")?["nodes"];
    ensure!(nodes["node-a"].is_object() && nodes["node-b"].is_object(), "{nodes}");
    annotate("topo-lb.io/topology-keys-").map(drop)
}

/// Bytes a second from one group to another.
fn bytes(picture: &Value, from: usize, to: usize) -> f64 {
    let lines = picture["now"]["flows"]["lines"].as_array().into_iter().flatten();
    let mut lines = lines.filter(|line| line["from"] == from && line["to"] == to);
    lines.next().and_then(|line| line["bytes"].as_f64()).unwrap_or_default()
}

fn row<'a>(rows: &'a Value, service: &str) -> Option<&'a Value> {
    let name = format!("default/{service}");
    rows.as_array()?.iter().find(|row| row["service"] == *name)
}

/// Bytes a second at these distances.
fn at(rows: &Value, service: &str, distances: [usize; 2]) -> f64 {
    let bytes = row(rows, service).map(|row| &row["bytes"]);
    bytes.map_or(0.0, |bytes| distances.iter().filter_map(|&at| bytes[at].as_f64()).sum())
}

fn near(rows: &Value, service: &str) -> f64 {
    at(rows, service, [0, 1])
}

fn far(rows: &Value, service: &str) -> f64 {
    at(rows, service, [2, 3])
}
