//! `cargo xtask cluster up --prometheus`: what it prints installs topo-lb, and its Prometheus has the agents.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::wait::until;

/// How long Prometheus may take to have all agents.
const SOON: Duration = Duration::from_secs(60);

/// A cluster that is up. Dropping it takes it down.
struct Kept;

impl Kept {
    /// The lines to type.
    fn up() -> Result<(Self, String)> {
        let up = cluster(&["up", "--nodes", "2", "--proxy", "kube-proxy", "--prometheus"])?;
        let said = String::from_utf8(up.stderr)?;
        ensure!(up.status.success(), "{said}");
        let lines = said.find("export ").map(|at| said[at..].to_owned());
        Ok((Self, lines.context(said)?))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The residue that a failure leaves is found by what runs after it.
        let _ = cluster(&["down"]);
    }
}

fn cluster(words: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    command.args(words).output().context("cannot start the lab's cluster")
}

/// Types `line` after the line with the environment, in the checkout.
fn shell(environment: &str, line: &str) -> Result<Output> {
    let mut shell = Command::new("sh");
    shell.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    shell.args(["-ec", &format!("{environment}\n{line}")]).output().context("cannot start sh")
}

#[test]
fn its_lines_install_topo_lb_and_plan_asks_its_prometheus() -> Result<()> {
    let (kept, lines) = Kept::up()?;
    let (environment, rest) = lines.split_once('\n').with_context(|| lines.clone())?;
    let (install, url) = rest.split_once("\nPrometheus: ").with_context(|| lines.clone())?;
    let installed = shell(environment, &format!("{install} --wait --timeout 3m"))?;
    ensure!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let plan = format!("kubectl topo plan --advise --prometheus {} --over 1h", url.trim());
    until("metrics of both agents", SOON, || {
        let done = shell(environment, &plan)?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let is_whole = done.status.success() && !said.contains("no metrics of these nodes");
        Ok(if is_whole { Ok(()) } else { Err(said) })
    })?;
    drop(kept);
    let status = cluster(&["status"])?;
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    ensure!(!status.status.success() && said.contains("no cluster is up"), "{said}");
    Ok(())
}
