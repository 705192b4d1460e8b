//! Every way to dial a Service, from inside and from outside of the cluster, and what comes of it with
//! kube-proxy 1.20 and with topo-lb.
//!
//! | node | pods |
//! |---|---|
//! | here | client, a |
//! | there | remote, b |
//! | outside | none: a client on the nodes' network, whose packets to load balancer IPs, external IPs and ClusterIPs go to node here |
//!
//! A [`Cell`](cell::Cell) is one way; a [`Table`] has an outcome for each.
//! [`differences`] lists where topo-lb's outcomes differ from kube-proxy's, and why.

pub mod cell;
pub mod differences;
pub mod objects;
pub mod page;
pub mod scene;
pub mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use self::table::Table;

/// What makes a table: its name on command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Proxy {
    /// kube-proxy 1.20.
    KubeProxy,
    /// topo-lb in place of kube-proxy.
    TopoLb,
    /// The same with direct return.
    DirectReturn,
}

/// The repository's folder of docs.
#[must_use]
pub fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Where kube-proxy's table is kept in the docs, and the page that is made of it.
const TABLE: &str = "external/kube-proxy.json";
const PAGE: &str = "external-traffic.md";

/// kube-proxy's kept table.
pub fn kept(docs: &Path) -> Result<Table> {
    let path = docs.join(TABLE);
    let text = fs::read_to_string(&path)?;
    let json = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Table::parse(&json).with_context(|| path.display().to_string())
}

/// The files of the docs with kube-proxy's table.
#[must_use]
pub fn files(kube_proxy: &Table) -> [(&'static str, String); 2] {
    [(TABLE, format!("{:#}\n", kube_proxy.json())), (PAGE, page::text(kube_proxy))]
}

/// Checks outcomes of topo-lb against those of kube-proxy, less the accepted differences.
///
/// # Errors
/// A cell is neither the same nor as a difference says, or a difference occurs in no cell.
pub fn compare(kube_proxy: &Table, proxy: Proxy, topo_lb: &Table) -> Result<()> {
    let (mut expected, counts) = differences::expected(kube_proxy);
    expected.0.retain(|cell, _| topo_lb.0.contains_key(cell));
    if proxy == Proxy::DirectReturn {
        let changed = differences::return_directly(&mut expected);
        ensure!(changed > 0, "direct return makes no difference");
    }
    topo_lb
        .check(&expected)
        .context("topo-lb differs from kube-proxy, which no difference explains")?;
    for (difference, count) in differences::ALL.iter().zip(counts) {
        let is_there = count > 0 || difference.is_random && difference.applies(kube_proxy);
        ensure!(is_there, "this difference occurs no longer: {}", difference.reason);
    }
    Ok(())
}
