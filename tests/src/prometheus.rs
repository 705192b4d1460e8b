//! A real Prometheus that scrapes a lab's agents as `deploy/components/prometheus` asks, and promtool.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::deployment::NAME;
use crate::http;
use crate::process::{Running, spawn_logged};
use crate::requirements::named;
use crate::wait::{PATIENCE, until};
use crate::wiring::fabric4;

/// The port of its HTTP interface, on the lab's fabric.
const PORT: u16 = 9090;

/// A program of the folder that `TOPO_LB_PROMETHEUS` names: `prometheus` or `promtool`.
///
/// # Errors
/// The variable is not set, or names no folder.
pub fn program(name: &str) -> Result<PathBuf> {
    let folder = named("TOPO_LB_PROMETHEUS")?.context(
        "TOPO_LB_PROMETHEUS does not name a folder with prometheus and promtool: \
         `cargo xtask test --only control-plane` fetches both, and sets it",
    )?;
    Ok(folder.join(name))
}

/// A running Prometheus. Dropping it kills it.
#[derive(Debug)]
pub struct Prometheus<'a> {
    cluster: &'a Cluster,
    _process: Running,
}

impl<'a> Prometheus<'a> {
    /// Starts it on the fabric, and waits until it answers. It scrapes the agents every second: their
    /// nodes, and their addresses. `monitor` is the `PodMonitor`, `rules` the spec of the
    /// `PrometheusRule`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        cluster: &'a Cluster,
        agents: &[(&str, SocketAddr)],
        monitor: &Value,
        rules: &Value,
    ) -> Result<Self> {
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        let targets: Vec<Value> = agents
            .iter()
            // These labels are the operator's, and the monitor's `node`.
            .map(|(node, address)| {
                let labels = json!({
                    "node": node, "namespace": NAME, "pod": format!("{NAME}-{node}"),
                    "container": "agent", "endpoint": endpoint["port"],
                });
                json!({"targets": [address.to_string()], "labels": labels})
            })
            .collect();
        let folder = cluster.folder().join("prometheus");
        fs::create_dir(&folder)?;
        fs::write(folder.join("rules.json"), rules.to_string())?;
        let configuration = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.json"],
            "scrape_configs": [{
                "job_name": NAME, "static_configs": targets,
                "metrics_path": endpoint["path"], "honor_labels": endpoint["honorLabels"],
            }],
        });
        fs::write(folder.join("prometheus.json"), configuration.to_string())?;
        let mut command = Command::new(program("prometheus")?);
        command.arg(format!("--config.file={}", folder.join("prometheus.json").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={}", Self::address()));
        cluster.beyond(&mut command)?;
        let process = spawn_logged(&mut command, &cluster.folder().join("prometheus.log"))?;
        let prometheus = Self { cluster, _process: process };
        until("the readiness of Prometheus", PATIENCE, || {
            let answer = http::get(cluster.fabric(), Self::address(), "/-/ready");
            Ok(answer.map(drop).map_err(|error| format!("{error:#}")))
        })?;
        Ok(prometheus)
    }

    /// Where it answers, from the lab's fabric.
    #[must_use]
    pub fn url() -> String {
        format!("http://{}", Self::address())
    }

    /// The same as an address.
    #[must_use]
    pub fn address() -> SocketAddr {
        SocketAddr::from((fabric4(), PORT))
    }

    /// The samples of a query now: labels, and value as text.
    ///
    /// # Errors
    /// Prometheus refuses the query.
    pub fn query(&self, query: &str) -> Result<Vec<Value>> {
        self.result("query", query, "")
    }

    /// The samples of a query from `begin` to `end`, in seconds since 1970, every `step` seconds: labels,
    /// times, and values as text.
    ///
    /// # Errors
    /// Prometheus refuses the query.
    pub fn query_range(
        &self,
        query: &str,
        (begin, end): (f64, f64),
        step: f64,
    ) -> Result<Vec<Value>> {
        self.result("query_range", query, &format!("&start={begin}&end={end}&step={step}"))
    }

    fn result(&self, what: &str, query: &str, more: &str) -> Result<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let found = self.get(&format!("/api/v1/{what}?query={encoded}{more}"))?;
        found["result"].as_array().cloned().with_context(|| format!("{query}: {found}"))
    }

    /// The `data` of an answer of its HTTP interface.
    ///
    /// # Errors
    /// The answer is an error.
    pub fn get(&self, path: &str) -> Result<Value> {
        let answer = http::get(self.cluster.fabric(), Self::address(), path)?;
        ensure!(answer.status == 200, "{path}: {answer}");
        let mut answer: Value = serde_json::from_str(&answer.body).context("not JSON")?;
        Ok(answer["data"].take())
    }
}
