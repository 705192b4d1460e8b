//! The lab's end of a client in a pod.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::Running;
use crate::traffic::{Answer, Failure, Order, Reply, Tally, Via};
use crate::wait::until;

/// A process in a pod that makes connections when it is told to. One process makes them all, so a
/// batch costs what its system calls cost.
#[derive(Debug)]
pub struct Client {
    pod: String,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Running,
}

/// A socket that a client holds open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(usize);

impl Client {
    pub(crate) fn new(pod: &str, mut process: Running) -> Result<Self> {
        let orders = process.child().stdin.take().context("a client without input")?;
        let answers = process.child().stdout.take().context("a client without output")?;
        Ok(Self { pod: pod.into(), orders, answers: BufReader::new(answers), _process: process })
    }

    /// The pod it is in.
    #[must_use]
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// `requests` exchanges with `to`, each through a socket of its own.
    ///
    /// # Errors
    /// The client is gone. What does not work on the network is in the tally.
    pub fn call(&mut self, via: Via, to: SocketAddr, requests: u32) -> Result<Tally> {
        match self.tell(&Order::Call { via, to, requests })? {
            Answer::Called(tally) => Ok(tally),
            other => bail!("the client in {} answered {other:?} to a call", self.pod),
        }
    }

    /// Calls `to` over HTTP until exactly `pods` answer, every time; none: until every connection is
    /// refused. How long that took.
    ///
    /// # Errors
    /// It does not come to that within `limit`, or the client is gone.
    pub fn until_answered_by(
        &mut self,
        to: SocketAddr,
        pods: &[&str],
        limit: Duration,
    ) -> Result<Duration> {
        let what = format!("answers to {} at {to} of {pods:?} alone", self.pod);
        // 32 requests for each of twelve miss one of them with a probability of 4 in 10^14.
        let requests = 32 * u32::try_from(pods.len()).unwrap_or(1).max(2);
        until(&what, limit, || {
            let tally = self.call(Via::Http, to, requests)?;
            Ok(if tally.is_of(pods) { Ok(()) } else { Err(tally) })
        })
    }

    /// Calls `to` without a pause while `work` runs.
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
            // Before a panic goes on, or the caller would go on for ever.
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
        match self.tell(&Order::Open { via, to })? {
            Answer::Opened(socket) => Ok(Ok(Socket(socket))),
            Answer::Failed(failure) => Ok(Err(failure)),
            other => bail!("the client in {} answered {other:?} to an open", self.pod),
        }
    }

    /// Connects an open datagram socket to another address.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn reconnect(
        &mut self,
        Socket(socket): Socket,
        to: SocketAddr,
    ) -> Result<Result<(), Failure>> {
        match self.tell(&Order::Reconnect { socket, to })? {
            Answer::Opened(_) => Ok(Ok(())),
            Answer::Failed(failure) => Ok(Err(failure)),
            other => bail!("the client in {} answered {other:?} to a reconnect", self.pod),
        }
    }

    /// Has a datagram socket connected to nobody any more.
    ///
    /// # Errors
    /// The client is gone, or the kernel refuses.
    pub fn disconnect(&mut self, Socket(socket): Socket) -> Result<()> {
        self.moved(&Order::Disconnect { socket })
    }

    /// One exchange through an open socket; with `to`, for an unconnected one, its address.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn ask(
        &mut self,
        Socket(socket): Socket,
        to: Option<SocketAddr>,
    ) -> Result<Result<Reply, Failure>> {
        match self.tell(&Order::Ask { socket, to })? {
            Answer::Replied(reply) => Ok(Ok(reply)),
            Answer::Failed(failure) => Ok(Err(failure)),
            other => bail!("the client in {} answered {other:?} to a question", self.pod),
        }
    }

    /// Why the wait for something that nobody says came to its end.
    ///
    /// # Errors
    /// The client is gone, or something was said.
    pub fn hear(&mut self, Socket(socket): Socket) -> Result<Failure> {
        match self.tell(&Order::Hear { socket })? {
            Answer::Failed(failure) => Ok(failure),
            other => bail!("the client in {} heard {other:?}", self.pod),
        }
    }

    /// Leaves an open socket to the kernel alone: no process has it open.
    ///
    /// # Errors
    /// The client is gone, or the kernel refuses.
    pub fn shelve(&mut self, Socket(socket): Socket) -> Result<()> {
        self.moved(&Order::Shelve { socket })
    }

    /// Takes such a socket back.
    ///
    /// # Errors
    /// The client is gone, or the kernel refuses.
    pub fn unshelve(&mut self, Socket(socket): Socket) -> Result<()> {
        self.moved(&Order::Unshelve { socket })
    }

    fn moved(&mut self, order: &Order) -> Result<()> {
        match self.tell(order)? {
            Answer::Opened(_) => Ok(()),
            other => bail!("the client in {} answered {other:?} to {order:?}", self.pod),
        }
    }

    /// What `getpeername` says of an open socket.
    ///
    /// # Errors
    /// The client is gone; the inner error is the kernel's.
    pub fn peer(&mut self, Socket(socket): Socket) -> Result<Result<SocketAddr, Failure>> {
        match self.tell(&Order::Peer { socket })? {
            Answer::Peer(peer) => Ok(Ok(peer)),
            Answer::Failed(failure) => Ok(Err(failure)),
            other => bail!("the client in {} answered {other:?} to a peer", self.pod),
        }
    }

    fn tell(&mut self, order: &Order) -> Result<Answer> {
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
