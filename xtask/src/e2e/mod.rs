//! `cargo xtask e2e`: Kubernetes' own tests on a cluster of this machine.
//!
//! [`suite`] runs `e2e.test`, [`ginkgo`] knows its flags, [`lanes`] says which specs run at the same time, [`junit`]
//! reads what it has written, [`results`] shows and keeps it, and [`page`] writes docs/conformance.md from
//! what is kept.

mod cluster;
mod ginkgo;
mod internet;
mod junit;
mod lanes;
mod page;
mod reasons;
mod results;
mod suite;

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use self::cluster::Cluster;
use crate::cluster::ServiceProxy;
use crate::install;
use crate::kubernetes;
use crate::needs::Need;
use crate::progress;
use crate::workspace::Workspace;

/// The specs that a proxy of Services can pass or fail.
const FOCUS: &str = concat!(
    r"\[sig-network\] (Services|EndpointSlice|Networking Granular Checks: (Pods|Services)",
    "|DNS should provide DNS for) "
);

/// Runs Kubernetes' own tests, e2e.test, on a cluster of this machine: the one that is up, or else one
/// that it brings up and takes down again.
///
/// By default it runs what sig-network tests of Services, EndpointSlices, connections between Pods
/// and Services, and the names of Services, which takes ten minutes. What cannot run here
/// is in xtask/src/e2e/skipped.txt, with reasons. e2e.test is compiled from Debian's source the first
/// time, which takes minutes, or is in the folder that TOPO_LB_KUBERNETES names, of any version from 1.20 to
/// 1.36, with kubectl of the same version.
///
/// Exit code 1: a spec failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask e2e
  cargo xtask e2e --proxy topo-lb         # no kube-proxy
  cargo xtask e2e --proxy kube-proxy --focus 'Services should serve'
  cargo xtask e2e --json | jq -r '.specs[] | select(.result == \"failed\") | .name'
  cargo xtask e2e --write-docs            # keeps the results of a whole run, and writes docs/conformance.md
  cargo xtask e2e --write-docs --saved    # writes this page again, and runs nothing")]
pub(crate) struct Args {
    /// What handles the cluster's Services
    #[arg(long, value_enum, default_value_t)]
    proxy: ServiceProxy,
    /// Only specs whose names match this regular expression
    #[arg(long, value_name = "RE", default_value = FOCUS, hide_default_value = true)]
    focus: String,
    /// Print the results as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Keep the results in docs/conformance, and write docs/conformance.md from all that are there
    #[arg(long, conflicts_with = "focus")]
    write_docs: bool,
    /// Run nothing; write the page from what is in docs/conformance
    #[arg(long, requires = "write_docs", conflicts_with_all = ["proxy", "json"])]
    saved: bool,
}

/// # Errors
/// A spec failed, or could not run.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let docs = workspace.root.join("docs");
    if args.saved {
        return page::write(&docs);
    }
    let focus = Regex::new(&args.focus)
        .with_context(|| format!("--focus {} is no regular expression", args.focus))?;
    install::ready(workspace, &[Need::Cluster, Need::Root].into())?;
    let programs = kubernetes::tests(workspace)?;
    let cluster = Cluster::ready(args.proxy)?;
    let results = suite::run(workspace, &programs, &cluster, &focus)?;
    drop(cluster);
    if args.json {
        print!("{}", results.json()?);
    } else {
        println!("{}", results.table());
    }
    if args.write_docs {
        results.keep(&docs)?;
        match results.missing(&docs) {
            None => page::write(&docs)?,
            Some(proxy) => progress::note(&format!(
                "docs/conformance.md is written once there are results of this version with {0}, too: \
                 `cargo xtask e2e --proxy {0} --write-docs`",
                proxy.name()
            )),
        }
    }
    match results.failed {
        0 => Ok(()),
        1 => bail!("1 spec failed"),
        failed => bail!("{failed} specs failed"),
    }
}
