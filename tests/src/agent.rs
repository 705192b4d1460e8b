//! The agent under test: its binary, run as on a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::replace;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use rustix::thread::CapabilitySet;
use serde_json::Value;
use topo_lb_agent::serve::Listen;

use crate::binary::{Binary, json_of};
use crate::card;
use crate::cluster::Cluster;
use crate::http::{self, Answer};
use crate::node::Node;
use crate::objects::Objects;
use crate::process::{Running, enter, only_with, spawn_logged};
use crate::requirements::BPFFS;
use crate::wait::{PATIENCE, until, until_is};

/// Part of the log line for: programs are attached, and the maps hold the source's state.
const READY: &str = "datapath attached";

/// The agent of a node. Dropping it kills it and removes everything that it put into the kernel.
#[derive(Debug)]
pub struct Agent<'a> {
    binary: Binary,
    cluster: &'a Cluster,
    node: &'a Node,
    flags: BTreeMap<&'static str, OsString>,
    pins: PathBuf,
    log: PathBuf,
    inside: bool,
    capabilities: Option<CapabilitySet>,
    process: Option<Running>,
}

impl<'a> Agent<'a> {
    /// Starts agents on all nodes at once, with a flag's source, in place of kube-proxy, with tc on the
    /// devices of the pods, and with these flags.
    pub fn start_all_from(
        binary: &Binary,
        cluster: &'a Cluster,
        source: (&'static str, &Path),
        flags: &[(&'static str, &str)],
    ) -> Result<Vec<Self>> {
        let mut agents = Vec::new();
        for node in cluster.nodes() {
            let mut agent = Self::prepare_from(binary, cluster, &node.name, source)?;
            agent.set("--tc-devices", "pod*");
            agent.set("--kube-proxy-replacement", "");
            agent.set("--max-connections", "4096");
            flags.iter().for_each(|(flag, value)| agent.set(flag, value));
            agent.launch()?;
            agents.push(agent);
        }
        for agent in &mut agents {
            agent.wait_until_ready()?;
        }
        Ok(agents)
    }

    /// Prepares an agent without starting it.
    pub fn prepare(
        binary: &Binary,
        cluster: &'a Cluster,
        node: &str,
        manifests: &Path,
    ) -> Result<Self> {
        Self::prepare_from(binary, cluster, node, ("--manifests", manifests))
    }

    /// Like [`prepare`](Self::prepare) with a flag for the source: `--manifests` or `--kubeconfig`.
    pub fn prepare_from(
        binary: &Binary,
        cluster: &'a Cluster,
        node: &str,
        (flag, source): (&'static str, &Path),
    ) -> Result<Self> {
        let pins = Path::new(BPFFS).join(cluster.prefix().name(node));
        let log = cluster.folder().join(format!("{node}.log"));
        let binary = binary.clone();
        let node = cluster.node(node)?;
        let mut agent = Self {
            binary,
            cluster,
            node,
            flags: BTreeMap::new(),
            pins,
            log,
            inside: false,
            capabilities: None,
            process: None,
        };
        agent.set(flag, source);
        agent.set("--node-name", &node.name);
        agent.set("--cgroup-root", node.cgroup.path());
        agent.set("--pin-dir", agent.pins.clone());
        agent.set("--log-format", "json");
        Ok(agent)
    }

    /// Runs another binary from the next start on. Returns the one before.
    pub fn replace_binary(&mut self, binary: Binary) -> Binary {
        replace(&mut self.binary, binary)
    }

    /// Sets a flag from the next start on. An empty value gives the flag without a value.
    pub fn set(&mut self, flag: &'static str, value: impl AsRef<OsStr>) {
        self.flags.insert(flag, value.as_ref().to_owned());
    }

    /// Removes a flag from the next start on.
    pub fn unset(&mut self, flag: &str) {
        self.flags.remove(flag);
    }

    /// Puts the agent into the node's cgroup from the next start on; its connections are
    /// translated.
    pub fn live_inside(&mut self) {
        self.inside = true;
    }

    /// Restricts the agent (from the next start on) and its `cleanup` to these capabilities.
    pub fn keep_only(&mut self, capabilities: CapabilitySet) {
        self.capabilities = Some(capabilities);
    }

    /// Starts the agent, also again, and waits until it translates connections.
    ///
    /// # Errors
    /// The agent ends before that; the error quotes its log.
    pub fn resume(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_until_ready()
    }

    /// The command that runs the agent.
    pub fn command(&self) -> Result<Command> {
        self.command_with(&[])
    }

    /// The command that would run the agent with other values for some flags.
    pub fn command_with(&self, others: &[(&str, &str)]) -> Result<Command> {
        let mut flags: BTreeMap<&str, &OsStr> =
            self.flags.iter().map(|(flag, value)| (*flag, value.as_os_str())).collect();
        if card::is_asked() && flags.contains_key("--kube-proxy-replacement") {
            flags.entry("--xdp").or_insert("any".as_ref());
        }
        flags.extend(others.iter().map(|(flag, value)| (*flag, OsStr::new(*value))));
        let mut command = self.binary.command(&["agent"]);
        for (flag, value) in flags {
            command.arg(flag).args(Some(value).filter(|value| !value.is_empty()));
        }
        if self.inside {
            enter(&mut command, &self.node.netns, Some(&self.node.cgroup))?;
        } else {
            self.cluster.beside(self.node, &mut command)?;
        }
        // Last: entering the namespace and cgroup needs more capabilities.
        if let Some(capabilities) = self.capabilities {
            only_with(&mut command, capabilities);
        }
        Ok(command)
    }

    /// Runs `command`, an agent, to its end, or kills it after a while. Returns status and log.
    ///
    /// # Errors
    /// It cannot be started, or did not end by itself.
    pub fn run_to_end(&self, mut command: Command) -> Result<(ExitStatus, String)> {
        let path = self.cluster.folder().join(format!("{}.end", self.node.name));
        let mut process = spawn_logged(&mut command, &path)?;
        let mut ended = None;
        until("the end of an agent", PATIENCE, || {
            ended = process.ended().context("cannot wait for an agent")?;
            Ok(if ended.is_some() { Ok(()) } else { Err(read(&path)) })
        })?;
        let status = ended.context("an agent that ended has a status")?;
        Ok((status, read(&path)))
    }

    /// Starts the agent without waiting.
    pub fn launch(&mut self) -> Result<()> {
        let mut command = self.command()?;
        self.process = Some(spawn_logged(&mut command, &self.log)?);
        Ok(())
    }

    /// Waits until the agent translates connections.
    ///
    /// # Errors
    /// The agent ends before that; the error quotes its log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let process = self.process.as_mut().context("the agent does not run")?;
        let (log, node) = (&self.log, &self.node.name);
        until(&format!("the readiness of {node}'s agent"), PATIENCE, || {
            let said = read(log);
            if said.contains(READY) {
                return Ok(Ok(()));
            }
            if let Some(status) = process.ended().context("cannot wait for an agent")? {
                bail!("the agent of {node} ended with {status}:\n{said}");
            }
            Ok(Err(said))
        })?;
        self.cluster.remember(&self.objects()?);
        Ok(())
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node.name
    }

    /// The agent's pin directory.
    #[must_use]
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// The agent's process id.
    pub fn process_id(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the agent does not run")?.id())
    }

    /// The agent's log since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// The agent's objects in the kernel.
    pub fn objects(&self) -> Result<Objects> {
        Objects::pinned(&self.pins)
    }

    /// Ends the agent with SIGTERM; its objects stay in the kernel.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            let status = process.stop(Duration::from_secs(5))?;
            ensure!(status.success(), "the agent ended with {status}:\n{}", self.log());
        }
        Ok(())
    }

    /// Ends the agent with SIGKILL; its objects stay in the kernel.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The default listen address.
    pub fn address() -> Result<SocketAddr> {
        match Listen::DEFAULT {
            Listen::On(address) => Ok(address),
            Listen::Off => bail!("the agent does not listen by default"),
        }
    }

    /// An HTTP GET at the default address.
    pub fn get(&self, path: &str) -> Result<Answer> {
        http::get(&self.node.netns, Self::address()?, path)
    }

    /// Waits until the log contains a text.
    ///
    /// # Errors
    /// It does not within `limit`; the error quotes the log.
    pub fn wait_for_log(&self, text: &str, limit: Duration) -> Result<()> {
        let look = || Ok(self.log());
        until_is(&format!("{text:?} in the log"), limit, look, |log| log.contains(text)).map(drop)
    }

    /// Repeats a GET at the default address until the answer satisfies `is`, and returns it.
    ///
    /// # Errors
    /// None does within `limit`; the error quotes the last answer.
    pub fn wait_for_answer(
        &self,
        path: &str,
        limit: Duration,
        is: impl Fn(&Answer) -> bool,
    ) -> Result<Answer> {
        until_is(&format!("the wanted answer to {path}"), limit, || self.get(path), is)
    }

    /// Waits until the agent explains a Service in `default` with this verdict.
    pub fn wait_for_verdict(&self, service: &str, verdict: &str, limit: Duration) -> Result<()> {
        let path = format!("/explain?service=default/{service}");
        let wanted = format!("\"verdict\": \"{verdict}\"");
        self.wait_for_answer(&path, limit, |answer| answer.body.contains(&wanted)).map(drop)
    }

    /// The command `topo-lb list <what>` for the agent's maps.
    pub fn list_command(&self, what: &str) -> Command {
        let mut command = self.binary.command(&["list", what, "--pin-dir"]);
        command.arg(&self.pins);
        command
    }

    /// The output of `topo-lb list <what> -o json` for the agent's maps.
    pub fn list(&self, what: &str) -> Result<Value> {
        let mut command = self.list_command(what);
        command.args(["-o", "json"]);
        json_of(command)
    }

    /// Repeats `topo-lb list services -o json` until the output satisfies `is`, and returns it.
    ///
    /// # Errors
    /// None does within `limit`; the error quotes the last output.
    pub fn wait_for_services(&self, limit: Duration, is: impl Fn(&Value) -> bool) -> Result<Value> {
        until_is("the wanted list of services", limit, || self.list("services"), is)
    }

    /// `topo-lb cleanup`.
    pub fn cleanup(&self) -> Result<Output> {
        let mut command = self.binary.command(&["cleanup", "--pin-dir"]);
        command.arg(&self.pins);
        if let Some(capabilities) = self.capabilities {
            only_with(&mut command, capabilities);
        }
        command.output().context("cannot run `topo-lb cleanup`")
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.process = None;
        if !self.pins.exists() {
            return;
        }
        match self.cleanup() {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("cleanup: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => eprintln!("{error:#}"),
        }
        // `Cluster::remove` finds what cleanup has left.
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}
