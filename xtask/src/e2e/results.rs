//! The results of a run: verdicts and times of specs, as JSON and as a table.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::cluster::ServiceProxy;

/// The folder of the results that are kept, in docs: a folder for each minor version of Kubernetes.
const FOLDER: &str = "conformance";

/// The columns that the page must have of each version.
const REQUIRED: [ServiceProxy; 2] = [ServiceProxy::KubeProxy, ServiceProxy::Beside];

/// All specs in focus.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Results {
    /// The version of the nodes' kubelets.
    pub(super) kubernetes: String,
    pub(super) proxy: ServiceProxy,
    pub(super) specs: Vec<Spec>,
    pub(super) passed: usize,
    pub(super) failed: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) result: Verdict,
    pub(super) seconds: f64,
    /// What went wrong, or why it has not run.
    #[serde(skip)]
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl Results {
    pub(super) fn new(kubernetes: String, proxy: ServiceProxy, mut specs: Vec<Spec>) -> Self {
        specs.iter_mut().for_each(|spec| spec.seconds = (spec.seconds * 10.0).round() / 10.0);
        let count = |verdict| specs.iter().filter(|spec| spec.result == verdict).count();
        let (passed, failed) = (count(Verdict::Passed), count(Verdict::Failed));
        Self { kubernetes, proxy, specs, passed, failed }
    }

    pub(super) fn json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).context("results are always JSON")?;
        text.push('\n');
        Ok(text)
    }

    /// A table for people. What a spec says of its failure is below it.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["RESULT", "SECONDS", "SPEC"]);
        for spec in &self.specs {
            table.add_row([spec.result.name(), &format!("{:.1}", spec.seconds), &spec.name]);
            if !spec.why.is_empty() {
                table.add_row(["", "", &format!("    {}", spec.why)]);
            }
        }
        if let Some(seconds) = table.column_mut(1) {
            seconds.set_cell_alignment(CellAlignment::Right);
        }
        let skipped = self.specs.len() - self.passed - self.failed;
        format!(
            "{}\n\nKubernetes {}, {}: {} passed, {} failed, {skipped} skipped",
            table.trim_fmt(),
            self.kubernetes,
            self.proxy.name(),
            self.passed,
            self.failed
        )
    }

    /// Keeps these results in place of the earlier ones of this minor version with this proxy.
    pub(super) fn keep(&self, docs: &Path) -> Result<()> {
        fs::create_dir_all(docs.join(FOLDER).join(self.minor()))?;
        Ok(fs::write(place(docs, self.minor(), self.proxy), self.json()?)?)
    }

    /// The minor version of Kubernetes: `1.20`.
    pub(super) fn minor(&self) -> &str {
        self.kubernetes
            .match_indices('.')
            .nth(1)
            .map_or(&self.kubernetes, |(at, _)| &self.kubernetes[..at])
    }

    /// A column of this version that the page must have, and of which no results are kept.
    pub(super) fn missing(&self, docs: &Path) -> Option<ServiceProxy> {
        REQUIRED.into_iter().find(|proxy| !place(docs, self.minor(), *proxy).is_file())
    }

    /// The columns of the page: all of one version of Kubernetes together, the oldest version first.
    ///
    /// # Errors
    /// There are no results, or none of a column that each version must have.
    pub(super) fn columns(docs: &Path) -> Result<Vec<Vec<Self>>> {
        let mut versions = Vec::new();
        for entry in fs::read_dir(docs.join(FOLDER))? {
            versions.push(entry?.file_name().to_string_lossy().into_owned());
        }
        versions.sort_by_key(|version| {
            version.split('.').map(|part| part.parse::<u32>().ok()).collect::<Vec<_>>()
        });
        ensure!(!versions.is_empty(), "there are no results in {}", docs.join(FOLDER).display());
        let of_version = |version: &String| -> Result<Vec<Self>> {
            let is_kept = |proxy: &ServiceProxy| place(docs, version, *proxy).is_file();
            let alone = Some(ServiceProxy::TopoLb).filter(is_kept);
            let proxies = REQUIRED.into_iter().chain(alone);
            proxies.map(|proxy| Self::kept(docs, version, proxy)).collect()
        };
        versions.iter().map(of_version).collect()
    }

    /// The results that are kept of a minor version with a proxy.
    fn kept(docs: &Path, version: &str, proxy: ServiceProxy) -> Result<Self> {
        let path = place(docs, version, proxy);
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "docs/conformance.md has a column of Kubernetes {version} with {0}: keep its results \
                 with `cargo xtask e2e --proxy {0} --write-docs`",
                proxy.name()
            )
        })?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
    }
}

fn place(docs: &Path, version: &str, proxy: ServiceProxy) -> PathBuf {
    docs.join(FOLDER).join(version).join(format!("{}.json", proxy.name()))
}
