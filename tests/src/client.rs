//! The lab's side of a client in a pod.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;

use crate::cgroup::Cgroup;
use crate::dial::{Dial, Dialled};
use crate::netns::NetNs;
use crate::process::{Worker, spawn_in};
use crate::requirements;
use crate::traffic::{Answers, Failure, Order, Reply, Socket, Tally, Via};
use crate::transfer::{Ending, Moved};
use crate::wait::until;

/// One process in a pod that makes all connections on request: a batch costs only system calls.
///
/// Every method fails if the process is gone. Where an error is inside a result, it is the kernel's.
#[derive(Debug)]
pub struct Client {
    pod: String,
    process: Worker,
}

impl Client {
    /// Starts a client in a network namespace and a cgroup; errors call it `pod`.
    pub(crate) fn start(pod: &str, netns: &NetNs, cgroup: &Cgroup) -> Result<Self> {
        let mut command = Command::new(requirements::pod()?);
        command.arg("client");
        let process = Worker::new(spawn_in(command, netns, cgroup)?)?;
        Ok(Self { pod: pod.into(), process })
    }

    /// Makes `requests` exchanges with `to`, each through a new socket. The tally has the failures.
    pub fn call(&mut self, via: Via, to: SocketAddr, requests: u32) -> Result<Tally> {
        Ok(self.tell::<Tally>(&Order::Call(via, to, requests))??)
    }

    /// Calls `to` until exactly `pods` answer, or, with no pods, every request is refused. Returns
    /// how long that took.
    ///
    /// # Errors
    /// That does not happen within `limit`.
    pub fn wait_for(
        &mut self,
        via: Via,
        to: SocketAddr,
        pods: &[&str],
        limit: Duration,
    ) -> Result<Duration> {
        let what = format!("answers to {} at {to} by {via:?} of {pods:?} alone", self.pod);
        // For 20 pods, 20 requests each miss one of them with a probability of 1 in 40 million.
        let requests = 64.max(20 * u32::try_from(pods.len())?);
        until(&what, limit, || {
            let tally = self.call(via, to, requests)?;
            Ok(if tally.is_of(pods) { Ok(()) } else { Err(tally) })
        })
    }

    /// Calls `to`, and checks that exactly `pods` answer, or, with no pods, that every request is
    /// refused, and that the peer is always `to`.
    pub fn expect(&mut self, via: Via, to: SocketAddr, pods: &[&str]) -> Result<()> {
        let tally = self.expect_of_any_peer(via, to, pods)?;
        let other = tally.peers.iter().find(|peer| **peer != to);
        ensure!(other.is_none(), "{via:?} to {to}: the peer is {other:?}");
        Ok(())
    }

    /// Like [`expect`](Self::expect), with any peer address.
    pub fn expect_of_any_peer(&mut self, via: Via, to: SocketAddr, pods: &[&str]) -> Result<Tally> {
        let tally = self.call(via, to, 100)?;
        ensure!(tally.is_of(pods), "{via:?} to {to}: {pods:?} should answer; {tally}");
        Ok(tally)
    }

    /// Calls `to` continuously while `work` runs.
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
    pub fn open(&mut self, via: Via, to: SocketAddr) -> Result<Result<Socket, Failure>> {
        self.tell(&Order::Open(via, to))
    }

    /// Connects an open datagram socket to another address.
    pub fn reconnect(&mut self, socket: Socket, to: SocketAddr) -> Result<Result<(), Failure>> {
        self.tell(&Order::Reconnect(socket, to))
    }

    /// Disconnects a datagram socket from its peer.
    pub fn disconnect(&mut self, socket: Socket) -> Result<()> {
        Ok(self.tell(&Order::Disconnect(socket))??)
    }

    /// One exchange through an open socket; `to` is the destination for an unconnected one.
    pub fn ask(
        &mut self,
        socket: Socket,
        to: Option<SocketAddr>,
    ) -> Result<Result<Reply, Failure>> {
        self.tell(&Order::Ask(socket, to))
    }

    /// Posts so many bytes through an open TCP socket, and reads them back.
    pub fn echo(&mut self, socket: Socket, bytes: usize) -> Result<Moved> {
        Ok(self.tell(&Order::Echo(socket, bytes))??)
    }

    /// Ends a TCP connection. Returns how many bytes the client still read.
    pub fn end(&mut self, socket: Socket, ending: Ending) -> Result<u64> {
        Ok(self.tell(&Order::End(socket, ending))??)
    }

    /// Sends `bytes` through an open socket, to `to` if it is unconnected, and returns what comes in
    /// answer. Over TCP both begin with their length, as in DNS.
    pub fn exchange(
        &mut self,
        socket: Socket,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<Result<Vec<u8>, Failure>> {
        self.tell(&Order::Exchange(socket, to, bytes.to_vec()))
    }

    /// Sends a request through an unconnected socket.
    pub fn send(&mut self, socket: Socket, to: SocketAddr) -> Result<()> {
        Ok(self.tell(&Order::Send(socket, to))??)
    }

    /// Receives an answer through an unconnected socket.
    pub fn receive(&mut self, socket: Socket) -> Result<Reply> {
        Ok(self.tell(&Order::Receive(socket))??)
    }

    /// Opens so many unconnected sockets, one after the other: each sends two datagrams, and closes.
    pub fn scatter(&mut self, to: SocketAddr, sockets: u32) -> Result<()> {
        Ok(self.tell(&Order::Scatter(to, sockets))??)
    }

    /// Has threads of one unconnected socket send to all addresses at the same moment; so many rounds
    /// with a new socket each. Fails if an answer is missing.
    pub fn race(&mut self, to: &[SocketAddr], rounds: u32) -> Result<Answers> {
        Ok(self.tell(&Order::Race(to.to_vec(), rounds))??)
    }

    /// Dials many destinations at once, and returns what came of each, in their order.
    pub fn dial(&mut self, all: Vec<Dial>) -> Result<Vec<Dialled>> {
        Ok(self.tell(&Order::Dial(all))??)
    }

    /// Waits for a message that must not come (if one does, this fails), and returns the error that
    /// ended the wait.
    pub fn hear(&mut self, socket: Socket) -> Result<Failure> {
        match self.tell::<Reply>(&Order::Hear(socket))? {
            Err(failure) => Ok(failure),
            Ok(reply) => bail!("the client in {} heard {reply:?}", self.pod),
        }
    }

    /// Writes these bytes to an open TCP socket, and reads nothing.
    pub fn say(&mut self, socket: Socket, bytes: &[u8]) -> Result<()> {
        Ok(self.tell(&Order::Say(socket, bytes.to_vec()))??)
    }

    /// How many bytes wait to be read from an open socket, at most one; zero at the end of the stream.
    pub fn look(&mut self, socket: Socket) -> Result<Result<Option<usize>, Failure>> {
        self.tell(&Order::Look(socket))
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
    pub fn peer(&mut self, socket: Socket) -> Result<Result<SocketAddr, Failure>> {
        self.tell(&Order::Peer(socket))
    }

    fn tell<T: DeserializeOwned>(&mut self, order: &Order) -> Result<Result<T, Failure>> {
        self.process.tell(order).with_context(|| format!("the client in pod {}", self.pod))
    }
}
