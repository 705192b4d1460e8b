//! Processes on nodes and in pods.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fs_err::File;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space,
    remove_capability_from_bounding_set, set_no_new_privs,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cgroup::Cgroup;
use crate::netns::NetNs;
use crate::permit::permit;
use crate::wait::patient;

/// Makes `command` join a network namespace and, if given, a cgroup before its program begins. The
/// command gets its own process group, so that Ctrl-C on a terminal reaches only the lab, which
/// then cleans up in order.
pub fn enter(command: &mut Command, netns: &NetNs, cgroup: Option<&Cgroup>) -> Result<()> {
    let netns = netns.file().try_clone().context("cannot duplicate a file descriptor")?;
    let door = cgroup.map(Cgroup::door).transpose()?;
    command.process_group(0);
    // SAFETY: between fork and exec this makes only system calls, on files opened before; it
    // neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            if let Some(mut door) = door.as_ref() {
                door.write_all(b"0")?;
            }
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        });
    }
    Ok(())
}

/// Starts `command` in a network namespace and a cgroup; its input and output are pipes.
pub fn spawn_in(mut command: Command, netns: &NetNs, cgroup: &Cgroup) -> Result<Running> {
    let _permit = permit();
    enter(&mut command, netns, Some(cgroup))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(Running(command.spawn().with_context(|| format!("cannot start {command:?}"))?))
}

/// Starts `command`; what it prints goes to a file.
pub fn spawn_logged(command: &mut Command, log: &Path) -> Result<Running> {
    let _permit = permit();
    let (log, _) = File::create(log)?.into_parts();
    let also = log.try_clone().context("cannot duplicate a file descriptor")?;
    command.stdin(Stdio::null()).stdout(log).stderr(also);
    Ok(Running(command.spawn().with_context(|| format!("cannot start {command:?}"))?))
}

/// Makes `command` run without these capabilities, even as root.
pub fn without(command: &mut Command, capabilities: CapabilitySet) {
    // SAFETY: between fork and exec this makes only system calls; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            // exec gives root no capability outside the bounding set (capabilities(7)).
            for capability in capabilities.iter() {
                remove_capability_from_bounding_set(capability)?;
            }
            Ok(())
        });
    }
}

/// The standard output of `command`.
///
/// # Errors
/// It fails; the error has its standard error.
pub fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` with this standard input, and returns its status and its output.
pub fn fed(command: &mut Command, input: &str) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A command that fails may break the pipe; what it prints says more.
        let _ = pipe.write_all(input.as_bytes());
    }
    child.wait_with_output().with_context(|| format!("cannot wait for {command:?}"))
}

/// Makes `command` and its children run with only these capabilities and without escalation.
pub fn only_with(command: &mut Command, capabilities: CapabilitySet) {
    // Not all(): its other bits are not capabilities.
    let known: CapabilitySet = CapabilitySet::all().iter_names().map(|(_, one)| one).collect();
    without(command, known - capabilities);
    // SAFETY: between fork and exec this makes one system call; it neither allocates nor locks.
    unsafe { command.pre_exec(|| Ok(set_no_new_privs(true)?)) };
}

/// A process; dropping this kills it.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Takes over a process.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// The process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Waits for the first line of its output, which must be `wanted`.
    pub fn wait_for_line(&mut self, wanted: &str) -> Result<()> {
        let output = self.0.stdout.take().context("a process without a pipe")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("cannot read what it prints")?;
        ensure!(line.trim() == wanted, "it does not print {wanted:?} but {line:?}");
        Ok(())
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        self.0.try_wait()
    }

    /// Sends SIGTERM, and waits; sends SIGKILL after `limit` (see [`patient`]).
    pub fn stop(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        let limit = patient(limit);
        let start = Instant::now();
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // It may have ended; then the wait below returns its status.
            let _ = kill_process(pid, Signal::TERM);
        }
        while start.elapsed() < limit {
            if let Some(status) = self.0.try_wait().context("cannot wait for a process")? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.kill();
        anyhow::bail!("process {} did not end within {limit:?} of SIGTERM", self.0.id())
    }

    /// Sends SIGKILL, and waits.
    pub fn kill(&mut self) {
        // Both fail only for a process that was already waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process that reads orders as lines of JSON, and answers each with one. Dropping this kills it.
#[derive(Debug)]
pub struct Worker {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Running,
}

impl Worker {
    /// Takes over a process with pipes.
    pub fn new(mut process: Running) -> Result<Self> {
        let orders = process.child().stdin.take().context("a process without input")?;
        let answers = process.child().stdout.take().context("a process without output")?;
        Ok(Self { orders, answers: BufReader::new(answers), _process: process })
    }

    /// Sends an order, and returns the answer.
    ///
    /// # Errors
    /// The process is gone, or its answer is no `T`.
    pub fn tell<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> Result<T> {
        let mut line = serde_json::to_string(order).context("an order is always JSON")?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).context("the process has ended")?;
        line.clear();
        let length = self.answers.read_line(&mut line).context("the process has ended")?;
        ensure!(length > 0, "the process has ended");
        serde_json::from_str(&line).with_context(|| format!("unexpected answer: {line:?}"))
    }
}
