//! The lab's side of a client in a pod.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;

use crate::cgroup::Cgroup;
use crate::netns::NetNs;
use crate::process::{Running, spawn_in};
use crate::requirements;
use crate::traffic::{Failure, Order, Reply, Socket, Tally, Via};
use crate::wait::until;

/// One process in a pod that makes all connections on request: a batch costs only system calls.
#[derive(Debug)]
pub struct Client {
    pod: String,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Running,
}

impl Client {
    /// Starts a client in a network namespace and a cgroup; errors call it `pod`.
    pub(crate) fn start(pod: &str, netns: &NetNs, cgroup: &Cgroup) -> Result<Self> {
        let mut command = Command::new(requirements::pod()?);
        command.arg("client");
        let mut process = spawn_in(command, netns, cgroup)?;
        let orders = process.child().stdin.take().context("a client without input")?;
        let answers = process.child().stdout.take().context("a client without output")?;
        Ok(Self { pod: pod.into(), orders, answers: BufReader::new(answers), _process: process })
    }

    /// Its pod.
    #[must_use]
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Makes `requests` exchanges with `to`, each through a new socket.
    ///
    /// # Errors
    /// The client is gone. The tally has the errors of the network.
    pub fn call(&mut self, via: Via, to: SocketAddr, requests: u32) -> Result<Tally> {
        Ok(self.tell::<Tally>(&Order::Call(via, to, requests))??)
    }

    /// Calls `to` over HTTP until exactly `pods` answer, or, with no pods, every connection is
    /// refused. Returns how long that took.
    ///
    /// # Errors
    /// That does not happen within `limit`, or the client is gone.
    pub fn until_answered_by(
        &mut self,
        to: SocketAddr,
        pods: &[&str],
        limit: Duration,
    ) -> Result<Duration> {
        let what = format!("answers to {} at {to} of {pods:?} alone", self.pod);
        // For twelve pods, 32 requests each miss one of them with a probability of 4 in 10^14.
        let requests = 32 * u32::try_from(pods.len()).unwrap_or(1).max(2);
        until(&what, limit, || {
            let tally = self.call(Via::Http, to, requests)?;
            Ok(if tally.is_of(pods) { Ok(()) } else { Err(tally) })
        })
    }

    /// Calls `to` continuously while `work` runs.
    ///
    /// # Errors
    /// `work` fails, or the client is gone.
    pub fn call_during<T>(
        &mut self,
        via: Via,
        to: SocketAddr,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(Tally, T)> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let calls = scope.spawn(|| -> Result<Tally> {
                let mut sum = Tally::default();
                while !done.load(Ordering::Relaxed) {
                    sum.add(&self.call(via, to, 50)?);
                }
                Ok(sum)
            });
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // Also after a panic; otherwise the calls would never end.
            done.store(true, Ordering::Relaxed);
            let sum = calls.join().unwrap_or_else(|panic| resume_unwind(panic));
            let worked = outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok((sum?, worked))
        })
    }

    /// Opens a socket that stays open; an unconnected one takes only its family from `to`.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn open(&mut self, via: Via, to: SocketAddr) -> Result<Result<Socket, Failure>> {
        self.tell(&Order::Open(via, to))
    }

    /// Connects an open datagram socket to another address.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn reconnect(&mut self, socket: Socket, to: SocketAddr) -> Result<Result<(), Failure>> {
        self.tell(&Order::Reconnect(socket, to))
    }

    /// Disconnects a datagram socket from its peer.
    pub fn disconnect(&mut self, socket: Socket) -> Result<()> {
        Ok(self.tell(&Order::Disconnect(socket))??)
    }

    /// One exchange through an open socket; `to` is the destination for an unconnected one.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn ask(
        &mut self,
        socket: Socket,
        to: Option<SocketAddr>,
    ) -> Result<Result<Reply, Failure>> {
        self.tell(&Order::Ask(socket, to))
    }

    /// Waits for a message that must not come, and returns the error that ended the wait.
    ///
    /// # Errors
    /// The client is gone, or a message came.
    pub fn hear(&mut self, socket: Socket) -> Result<Failure> {
        match self.tell::<Reply>(&Order::Hear(socket))? {
            Err(failure) => Ok(failure),
            Ok(reply) => bail!("the client in {} heard {reply:?}", self.pod),
        }
    }

    /// Leaves an open socket to the kernel: no process has it open.
    pub fn shelve(&mut self, socket: Socket) -> Result<()> {
        Ok(self.tell(&Order::Shelve(socket))??)
    }

    /// Opens such a socket again.
    pub fn unshelve(&mut self, socket: Socket) -> Result<()> {
        Ok(self.tell(&Order::Unshelve(socket))??)
    }

    /// The result of `getpeername` for an open socket.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn peer(&mut self, socket: Socket) -> Result<Result<SocketAddr, Failure>> {
        self.tell(&Order::Peer(socket))
    }

    fn tell<T: DeserializeOwned>(&mut self, order: &Order) -> Result<Result<T, Failure>> {
        let gone = || format!("the client in pod {} is gone", self.pod);
        let mut line = serde_json::to_string(order).context("an order is always JSON")?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).with_context(gone)?;
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).with_context(gone)?;
        ensure!(length > 0, gone());
        serde_json::from_str(&line)
            .with_context(|| format!("the client in pod {} does not speak: {line}", self.pod))
    }
}
