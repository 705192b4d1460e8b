//! The client: carries out orders and counts results.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use serde_json::{Value, json};
use topo_lb_tests::traffic::{Failure, Order, Socket, Step, Tally, Via};

use crate::datagrams;
use crate::dial::dial;
use crate::exchange::Open;
use crate::shelf::Shelved;

/// How many exchanges may time out before a call ends.
const TIMEOUTS: u32 = 3;

/// Makes `requests` exchanges, each through a new socket.
fn call(via: Via, to: SocketAddr, requests: u32) -> Tally {
    let mut tally = Tally::default();
    let mut failures = BTreeMap::<Failure, u32>::new();
    let mut timeouts = 0;
    let mut times = Vec::new();
    while tally.requests < requests && timeouts < TIMEOUTS {
        tally.requests += 1;
        let start = Instant::now();
        let outcome = Open::new(via, to).and_then(|open| open.ask(to));
        times.push(start.elapsed());
        match outcome {
            Ok(reply) => {
                *tally.moved.entry(reply.pod.clone()).or_default() += reply.moved;
                *tally.replies.entry(reply.pod).or_default() += 1;
                tally.peers.insert(reply.peer);
            }
            Err(failure) => {
                tally.refused += u32::from(failure.is_refusal());
                timeouts += u32::from(failure.errno == Errno::TIMEDOUT.raw_os_error());
                *failures.entry(failure).or_default() += 1;
            }
        }
    }
    tally.failures = failures.into_iter().collect();
    times.sort_unstable();
    tally.median_us = times.get(times.len() / 2).map_or(0, micros);
    tally.longest_us = times.last().map_or(0, micros);
    tally
}

fn micros(time: &Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Sockets that stay open, and sockets that only the kernel holds.
#[derive(Default)]
struct Sockets {
    open: BTreeMap<Socket, Open>,
    shelf: BTreeMap<Socket, Shelved>,
    next: usize,
}

/// Carries out orders from standard input until it ends.
pub(crate) fn obey() -> Result<()> {
    let mut sockets = Sockets::default();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.context("cannot read orders")?;
        let order = serde_json::from_str(&line).with_context(|| format!("no order: {line}"))?;
        writeln!(output, "{}", json!(sockets.carry_out(order))).context("nobody reads answers")?;
        output.flush().context("nobody reads answers")?;
    }
    Ok(())
}

impl Sockets {
    fn carry_out(&mut self, order: Order) -> Result<Value, Failure> {
        Ok(match order {
            Order::Call(via, to, requests) => json!(call(via, to, requests)),
            Order::Open(via, to) => {
                let socket = Socket(self.next);
                self.open.insert(socket, Open::new(via, to)?);
                self.next += 1;
                json!(socket)
            }
            Order::Ask(socket, to) => {
                let open = self.get(socket)?;
                json!(open.ask(to.map_or_else(|| open.peer(), Ok)?)?)
            }
            Order::Echo(socket, bytes) => json!(self.get(socket)?.echo(bytes)?),
            Order::End(socket, ending) => json!(self.take(socket)?.end(ending)?),
            Order::Exchange(socket, to, bytes) => json!(self.get(socket)?.exchange(to, &bytes)?),
            Order::Send(socket, to) => json!(self.get(socket)?.send(to)?),
            Order::Receive(socket) => json!(self.get(socket)?.receive()?),
            Order::Scatter(to, sockets) => json!(datagrams::scatter(to, sockets)?),
            Order::Race(to, rounds) => json!(datagrams::race(&to, rounds)?),
            Order::Dial(all) => json!(dial(all)?),
            Order::Reconnect(socket, to) => json!(self.get(socket)?.connect(to)?),
            Order::Disconnect(socket) => {
                let open = self.take(socket)?.disconnect()?;
                self.open.insert(socket, open);
                Value::Null
            }
            Order::Hear(socket) => json!(self.get(socket)?.hear()?),
            Order::Say(socket, bytes) => json!(self.get(socket)?.say(&bytes)?),
            Order::Look(socket) => json!(self.get(socket)?.look()?),
            Order::Shelve(socket) => {
                let shelved = Shelved::shelve(self.take(socket)?)?;
                self.shelf.insert(socket, shelved);
                Value::Null
            }
            Order::Unshelve(socket) => {
                let shelved = self.shelf.remove(&socket).ok_or(NO_SUCH_SOCKET)?;
                self.open.insert(socket, shelved.unshelve()?);
                Value::Null
            }
            Order::Peer(socket) => json!(self.get(socket)?.peer()?),
        })
    }

    fn get(&self, socket: Socket) -> Result<&Open, Failure> {
        self.open.get(&socket).ok_or(NO_SUCH_SOCKET)
    }

    fn take(&mut self, socket: Socket) -> Result<Open, Failure> {
        self.open.remove(&socket).ok_or(NO_SUCH_SOCKET)
    }
}

const NO_SUCH_SOCKET: Failure = Failure { step: Step::Socket, errno: Errno::BADF.raw_os_error() };
