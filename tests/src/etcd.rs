//! The database of a control plane: start, crash, compaction.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;
use crate::http;

impl ControlPlane<'_> {
    /// Starts etcd, also again, without waiting.
    pub fn start_etcd(&mut self) -> Result<()> {
        let client = format!("http://{}", self.etcd);
        self.database = Some(self.spawn(
            "etcd",
            &[
                format!("--data-dir={}", self.path("etcd")),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls=http://{}", self.peer),
                "--unsafe-no-fsync".to_owned(),
            ],
        )?);
        Ok(())
    }

    /// Ends etcd with SIGKILL; committed data stays.
    pub fn kill_etcd(&mut self) {
        self.database = None;
    }

    /// Compacts etcd to its current revision, as kube-apiserver does every five minutes. A watch
    /// from an earlier revision fails: kube-apiserver answers 410, unless its own cache has the
    /// events (`--watch-cache=false` turns that off).
    ///
    /// # Errors
    /// This is not a lab, or etcd refuses.
    pub fn compact(&self) -> Result<()> {
        let at = self.ask_etcd("/v3/kv/range", &json!({"key": "AA==", "limit": 1}))?;
        let revision = &at["header"]["revision"];
        ensure!(revision.is_string(), "etcd says no revision: {at}");
        self.ask_etcd("/v3/kv/compaction", &json!({"revision": revision, "physical": true}))?;
        Ok(())
    }

    /// Uses etcd's JSON gateway.
    fn ask_etcd(&self, path: &str, order: &Value) -> Result<Value> {
        let cluster = self.lab.context("etcd is asked in labs only")?;
        let answer = http::post(cluster.fabric(), self.etcd, path, &order.to_string())?;
        ensure!(answer.status == 200, "etcd refuses {path}: {answer}");
        serde_json::from_str(&answer.body).with_context(|| format!("no JSON: {answer}"))
    }
}
