//! A node of `try`: a cgroup, and the agent that serves it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::Check;
use super::sandbox::Sandbox;
use super::world::{FAR, NEAR, SERVICE};
use topo_lb_agent::admin::probe::{self, Probe};

/// How long an agent may take to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two questions.
const PERIOD: Duration = Duration::from_millis(20);

/// A node. Dropping it ends its agent; what that has pinned goes with the bpffs.
#[derive(Debug)]
pub(super) struct Node {
    zone: &'static str,
    cgroup: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    agent: Child,
}

impl Node {
    /// Makes the cgroup, and starts the agent.
    pub(super) fn start(
        sandbox: &Sandbox,
        zone: &'static str,
        manifests: &Path,
    ) -> anyhow::Result<Self> {
        let cgroup = sandbox.make_cgroup(zone)?;
        let file = |end: &str| sandbox.folder().join(format!("{zone}.{end}"));
        let (socket, log) = (file("socket"), file("log"));
        let mut command = Command::new("/proc/self/exe");
        // The user's own settings are for another agent.
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.to_string_lossy().starts_with("TOPO_LB_")) {
            command.env_remove(name);
        }
        command
            .args(["agent", "--listen", "off", "--node-name", zone])
            .arg("--manifests")
            .arg(manifests);
        command.arg("--cgroup-root").arg(&cgroup).arg("--pin-dir").arg(sandbox.pins(zone));
        command.arg("--probe-socket").arg(&socket);
        command.args(["--max-services", "64", "--max-endpoints", "64", "--max-flows", "64"]);
        let output = File::create(&log)?;
        command.stdout(output.try_clone()?).stderr(output).stdin(Stdio::null());
        // Ctrl-C is for this process, which ends its agents.
        command.process_group(0);
        // SAFETY: it makes one system call, and touches no memory.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let agent = command.spawn().context("cannot start an agent")?;
        Ok(Self { zone, cgroup, socket, log, agent })
    }

    /// Its name, and that of its zone.
    pub(super) fn zone(&self) -> &'static str {
        self.zone
    }

    /// Waits until the agent translates connections.
    ///
    /// # Errors
    /// It ends, or takes too long; with the last line of its log, and what shows the cause.
    pub(super) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let answer = probe::ask(&self.socket, Probe::Readyz).await;
            if answer.as_ref().is_ok_and(|answer| answer.ok) {
                return Ok(());
            }
            let ended = self.agent.try_wait().context("cannot wait for an agent")?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                let why = answer.map_or(last, |answer| answer.sentence);
                bail!(
                    "the agent does not get ready here: {why}; `topo-lb check` says what this host lacks"
                );
            }
            sleep(PERIOD).await;
        }
    }

    /// Makes so many connections to the Service, as a process of this node.
    ///
    /// # Errors
    /// A connection fails otherwise than by a refusal.
    pub(super) async fn call(
        &self,
        sandbox: &Sandbox,
        connections: u32,
        mut check: Check,
    ) -> anyhow::Result<Check> {
        // A socket belongs to the cgroup in which it was made.
        let _inside = sandbox.move_into(&self.cgroup)?;
        for _ in 0..connections {
            let mut stream = match TcpStream::connect(SERVICE).await {
                // Before Linux 6.1, the kernel says EPERM.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied
                    ) =>
                {
                    check.refused += 1;
                    continue;
                }
                other => other.context("cannot connect to the Service")?,
            };
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.context("a Pod does not answer")?;
            let zone = [NEAR, FAR].into_iter().find(|zone| *zone == answer);
            *check.answers.entry(zone.context("no Pod answered")?).or_default() += 1;
        }
        Ok(check.judge())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}
