//! Agents with traffic, a real Prometheus that scrapes them, and every query of the dashboard.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::ControlPlane;
use topo_lb_tests::dashboard::{self, Dashboard, Panel, STEP};
use topo_lb_tests::deployment::{deploy, monitoring};
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::pictures;
use topo_lb_tests::prometheus::Prometheus;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{HERE, KEYS, REGION, ZONE, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;
use topo_lb_tests::wiring::node4;

use super::rules::rules;

/// The dashboard's variables, as a reader may choose them.
const VARIABLES: [(&str, &str); 4] = [
    ("$__rate_interval", "20s"),
    ("$namespace", "default"),
    ("$service", "web|strict|closed"),
    ("$node", "here|there|beyond"),
];

const SOON: Duration = Duration::from_secs(60);

/// A Service with a pod at every distance, one that no node may use, one at whose port no pod
/// listens, and one whose first key matches nothing.
const WEB: &str = "10.96.5.1";
const STRICT: &str = "10.96.5.2";
const CLOSED: &str = "10.96.5.3";
const SECOND: &str = "10.96.5.4";

const EVACUATE: &str = "topo-lb.io/evacuate";

/// Nodes, each with its number, zone and region.
const NODES: [(&str, u8, &str, &str); 4] = [
    (HERE, 1, "zone-1", "region-1"),
    ("beside", 2, "zone-1", "region-1"),
    (OBSERVING, 3, "zone-2", "region-1"),
    (BEYOND, 4, "zone-3", "region-2"),
];
const BEYOND: &str = "beyond";
/// Its agent only observes.
const OBSERVING: &str = "there";

/// Where the agent of a node serves metrics.
fn metrics(number: u8) -> SocketAddr {
    SocketAddr::from((node4(number), 19876))
}

/// The nodes and the Services.
fn described() -> impl Iterator<Item = Value> {
    let nodes = NODES.map(|(name, _, zone, region)| node(name, &[(ZONE, zone), (REGION, region)]));
    let services = [
        ("web", WEB, 9376, None),
        ("strict", STRICT, 9376, Some((KEYS, "example.com/nobody"))),
        ("closed", CLOSED, 9, None),
        ("second", SECOND, 9376, Some((KEYS, "example.com/nobody,*"))),
    ];
    let services = services.map(|(name, address, target, keys)| {
        let mut keys: Vec<_> = keys.into_iter().collect();
        // Nothing is there; the metric is.
        keys.extend((name == "second").then_some((EVACUATE, "kubernetes.io/hostname=nobody")));
        let mut service = service(name, &[address], &[("http", 80, "TCP")], &keys);
        service["spec"]["selector"] = json!({"app": "web"});
        service["spec"]["ports"][0]["targetPort"] = target.into();
        service
    });
    nodes.into_iter().chain(services)
}

/// An agent that serves metrics on its node's address.
fn agent<'a>(
    plane: &ControlPlane<'a>,
    binary: &Binary,
    node: &str,
    number: u8,
) -> Result<Agent<'a>> {
    let mut agent = plane.agent(binary, node)?;
    if node == OBSERVING {
        agent.set("--observe", "");
    } else {
        agent.set("--tc-devices", "pod*");
        agent.set("--max-connections", "4096");
    }
    agent.set("--metrics-listen", metrics(number).to_string());
    agent.resume()?;
    Ok(agent)
}

/// A query, of the dashboard or of a page.
struct Query {
    panel: String,
    expr: String,
    /// The labels that its legend shows.
    labels: Vec<String>,
}

/// All queries of the dashboard.
fn queries(dashboard: &Dashboard) -> Result<Vec<Query>> {
    let of_panel = |panel: &Panel| {
        let title = panel.title.clone();
        let query = move |query: dashboard::Query| Query {
            panel: title.clone(),
            labels: query.labels().map(str::to_owned).collect(),
            expr: query.expr,
        };
        panel.queries.clone().into_iter().map(query)
    };
    let all: Vec<_> = dashboard.panels.iter().flat_map(of_panel).collect();
    ensure!(all.len() > 10, "the dashboard has only {} queries", all.len());
    Ok(all)
}

/// All queries of docs/cost.md, and those of docs/metrics.md for agents that observe: the lines of examples
/// without comments, with a price.
fn queries_of_pages() -> Result<Vec<Query>> {
    let cost = fs::read_to_string(deploy("../docs/cost.md"))?;
    let metrics = fs::read_to_string(deploy("../docs/metrics.md"))?;
    let (_, observing) =
        metrics.split_once("### While an agent only observes").context("a section")?;
    let (observing, _) = observing.split_once("\n### ").context("an end of the section")?;
    let page = cost + observing;
    let blocks = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines).filter(|line| !line.starts_with('#'));
    let all = lines.map(|line| {
        let expr = line.replace("$price", "0.5");
        Query { panel: "docs".into(), expr, labels: Vec::new() }
    });
    let all: Vec<_> = all.collect();
    ensure!(all.len() >= 11, "the pages have only {} queries", all.len());
    Ok(all)
}

/// Sends what clients of `there` dial to a pod of another zone, as another proxy may do.
fn proxy(cluster: &Cluster) -> Result<()> {
    let pod = cluster.pod("a")?.ipv4;
    cluster.node_netns(OBSERVING)?.nft(&format!(
        "table ip proxy {{ chain services {{ type nat hook prerouting priority dstnat; \
         ip daddr {{ {WEB}, {STRICT} }} tcp dport 80 dnat to {pod}:9376; }}; }}"
    ))
}

/// Traffic to every locality, refusals, a pod whose readiness changes each time, and connections that an agent
/// only observes.
fn act(
    plane: &ControlPlane<'_>,
    client: &mut Client,
    observed: &mut Client,
    ready: &mut bool,
) -> Result<()> {
    observed.call(Via::Http, at(WEB)?, 5)?;
    observed.call(Via::Http, at(STRICT)?, 5)?;
    client.call(Via::Http, at(WEB)?, 20)?;
    client.call(Via::Http, at(STRICT)?, 5)?;
    client.call(Via::Http, at(CLOSED)?, 5)?;
    client.call(Via::Http, at(SECOND)?, 5)?;
    *ready = !*ready;
    plane.set_ready(&["c"], *ready)
}

/// The first query that gives no number, or not the labels of its legend.
fn without_data(prometheus: &Prometheus<'_>, queries: &[Query]) -> Result<Option<String>> {
    for Query { panel, expr, labels } in queries {
        let samples = prometheus.query(expr)?;
        let is_whole = |sample: &Value| {
            let value = sample["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
            let is_there = |label: &String| sample["metric"][label].is_string();
            value.is_some_and(f64::is_finite) && labels.iter().all(is_there)
        };
        if !samples.iter().any(is_whole) {
            return Ok(Some(format!("{panel}: {expr} gives {samples:?}")));
        }
    }
    Ok(None)
}

/// A picture of the dashboard, with a curve in every graph: of the last seconds or, for the documentation, of two
/// minutes. In the second one, `web` keeps its clients in their zone.
fn expect_a_picture(
    plane: &ControlPlane<'_>,
    prometheus: &Prometheus<'_>,
    dashboard: &Dashboard,
    mut act: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut span = Duration::from_secs(20);
    if pictures::folder().is_some() {
        let part = Duration::from_secs(60);
        for policy in [None, Some("topology.kubernetes.io/zone,*")] {
            plane.annotate("web", KEYS, policy)?;
            let begin = Instant::now();
            while begin.elapsed() < part {
                act()?;
            }
        }
        span = 2 * part;
    }
    let (mut found, mut times) = (Vec::new(), (0.0, 0.0));
    // A curve has two points, and Prometheus may have just the first.
    until("a curve in every graph", SOON, || {
        act()?;
        let end = SystemTime::now().duration_since(UNIX_EPOCH)?;
        times = ((end - span).as_secs_f64(), end.as_secs_f64());
        found.clear();
        for panel in &dashboard.panels {
            let mut lines = Vec::new();
            for query in &panel.queries {
                lines.extend(query.series(&prometheus.query_range(&query.expr, times, STEP)?));
            }
            if !lines.iter().any(|it| it.points.len() > 1) {
                return Ok(Err(format!("{}: {lines:?}", panel.title)));
            }
            found.push(lines);
        }
        Ok(Ok(()))
    })?;
    let picture = dashboard.picture(&found, times);
    ensure!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    pictures::keep("dashboard.svg", picture)
}

/// The names of metrics that a text mentions.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("topo_lb_")).collect()
}

/// `topo-lb plan --prometheus`: the bytes that agents have counted at `web`, in both directions.
fn expect_a_plan_with_bytes(cluster: &Cluster, binary: &Binary) -> Result<()> {
    let pods = ["a", "b", "c", "d"].map(|pod| cluster.pod(pod));
    let endpoints: Result<Vec<_>> = pods
        .into_iter()
        .map(|pod| {
            let pod = pod?;
            Ok(endpoint(&pod.ipv4.to_string(), &pod.node, &pod.name))
        })
        .collect();
    let slice = slice("web", "IPv4", &[("http", 9376, "TCP")], &endpoints?);
    let items: Vec<_> = described().chain([slice]).collect();
    let path = cluster.folder().join("cluster.json");
    fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
    let mut plan = binary.command(&["plan", "-o", "json", "--over", "1h"]);
    plan.arg("--from").arg(&path).args(["--prometheus", &Prometheus::url()]);
    plan.args(["--set", "default/web=topology-keys:kubernetes.io/hostname,*"]);
    cluster.beyond(&mut plan)?;
    let done = plan.output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&done.stdout)?;
    let bytes = &report["services"][0]["bytes"];
    // It has run for seconds.
    let over = report["bytesOver"].as_str().context("no time")?;
    let seconds = over.strip_suffix('s').and_then(|seconds| seconds.parse::<u32>().ok());
    ensure!(seconds.is_some_and(|seconds| seconds < 600), "{report:#}");
    ensure!(said.contains(&format!("of the last {over} alone, and not of 1h")), "{said}");
    let count = |name: &str| bytes[name].as_f64().with_context(|| format!("{name}: {report:#}"));
    let (moved, crossed) = (count("moved")?, count("crossed")?);
    ensure!(moved > crossed && crossed > 0.0, "{bytes}");
    let cost = &report["cost"]["money"];
    ensure!(cost["before"].as_f64() > Some(0.0), "{report:#}");
    // No agent runs on these.
    ensure!(said.contains("no metrics of these nodes in the last 1h: beside"), "{said}");
    expect_what_was_saved(cluster, binary)
}

/// `topo-lb plan --since`: a time before which nothing was there is refused, with one that can be compared.
fn expect_what_was_saved(cluster: &Cluster, binary: &Binary) -> Result<()> {
    let since = |time: &str, service: &str| {
        let mut since = binary.command(&["plan", "-o", "json", "--since", time, service]);
        since.args(["--prometheus", &Prometheus::url()]);
        cluster.beyond(&mut since)?;
        let done = since.output()?;
        anyhow::Ok((done.status.success(), String::from_utf8(done.stderr)?, done.stdout))
    };
    let mut client = cluster.pod("client")?.client()?;
    // It has run for seconds, and half of that needs two samples.
    until("a comparison with the time that it says", SOON, || {
        client.call(Via::Http, at(WEB)?, 5)?;
        let (is_compared, said, _) = since("1h", "default")?;
        let is_refused = said.contains("from before 1h ago, so nothing can be compared");
        ensure!(!is_compared && is_refused, "{said}");
        let Some((_, time)) = said.trim().rsplit_once("try --since ") else { return Ok(Err(said)) };
        let (is_compared, said, report) = since(time, "default/web")?;
        if !is_compared {
            return Ok(Err(said));
        }
        let report: Value = serde_json::from_slice(&report)?;
        let services = report["services"].as_array().context("no Services")?;
        ensure!(services.len() == 1 && services[0]["name"] == "web", "{report:#}");
        let moved = |when: &str| services[0]["bytes"][when]["all"].as_f64().unwrap_or_default();
        Ok(if moved("after") > 0.0 { Ok(()) } else { Err(format!("{report:#}")) })
    })?;
    let (is_compared, said, _) = since("2s", "default/nobody")?;
    ensure!(!is_compared && said.contains("no bytes of Service default/nobody"), "{said}");
    Ok(())
}

#[test]
fn every_query_of_the_dashboard_and_every_rule_finds_the_metrics_of_real_agents() -> Result<()> {
    let dashboard = Dashboard::read(&VARIABLES)?;
    let (rules, monitor, mut queries) = (rules()?, monitoring("PodMonitor")?, queries(&dashboard)?);
    queries.extend(queries_of_pages()?);
    let binary = Binary::new(requirements::agent()?);
    let pods = [
        vec![("client", 2), ("a", 3)],
        vec![("b", 2)],
        vec![("c", 2), ("observed", 3)],
        vec![("d", 2)],
    ];
    let plan: Vec<_> = NODES
        .into_iter()
        .zip(pods)
        .map(|((name, number, ..), pods)| NodePlan { name, number, pods })
        .collect();
    within(&plan, |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers()?;
        plane.allow("topo-lb", &reading(&READ))?;
        plane.create(described())?;
        let servers = ["a", "b", "c", "d"];
        let _servers = cluster.serve(servers)?;
        let pods: Result<Vec<_>> = servers.into_iter().map(|pod| cluster.pod(pod)).collect();
        plane.run_pods("web", pods?)?;
        proxy(cluster)?;
        let agents = [(HERE, 1), (OBSERVING, 3), (BEYOND, 4)];
        let running = agents.into_iter().map(|(node, number)| agent(&plane, &binary, node, number));
        let _running = running.collect::<Result<Vec<_>>>()?;
        let mut client = cluster.pod("client")?.client()?;
        let mut observed = cluster.pod("observed")?.client()?;
        client.wait_for(Via::Http, at(WEB)?, &servers, SOON)?;

        let targets = agents.map(|(node, number)| (node, metrics(number)));
        let prometheus = Prometheus::start(cluster, &targets, &monitor, &rules)?;
        let mut ready = true;
        until("data for every query", SOON, || {
            act(&plane, &mut client, &mut observed, &mut ready)?;
            Ok(without_data(&prometheus, &queries)?.map_or(Ok(()), Err))
        })?;

        expect_a_plan_with_bytes(cluster, &binary)?;

        let names = prometheus.get("/api/v1/label/__name__/values")?;
        let names: BTreeSet<_> =
            names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let text = rules.to_string();
        let unknown: Vec<_> = mentioned(&text).difference(&names).copied().collect();
        ensure!(unknown.is_empty(), "the rules name {unknown:?}, which no agent has");

        until("the alert of the refused Service", SOON, || {
            act(&plane, &mut client, &mut observed, &mut ready)?;
            let groups = prometheus.get("/api/v1/rules?type=alert")?;
            let ran = groups["groups"][0]["rules"].as_array().context("rules")?;
            for rule in ran {
                ensure!(rule["lastError"].is_null(), "{rule:#}");
            }
            let alerts = ran.iter().filter(|rule| rule["name"] == "TopoLbServiceRefused");
            let mut alerts = alerts.filter_map(|rule| rule["alerts"].as_array()).flatten();
            let summary = "Connections to default/strict are refused by its policy";
            let found = alerts.any(|alert| alert["annotations"]["summary"] == summary);
            Ok(if found { Ok(()) } else { Err(format!("{groups:#}")) })
        })?;

        expect_a_picture(&plane, &prometheus, &dashboard, || {
            act(&plane, &mut client, &mut observed, &mut ready)
        })
    })
}
