//! The client: obeys orders, and counts.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use topo_lb_tests::traffic::{Answer, Failure, Order, Step, Tally, Via};

use crate::exchange::Open;
use crate::shelf::Shelved;

/// How many exchanges may time out before a call is given up.
const TIMEOUTS: u32 = 3;

/// `requests` exchanges, each through a socket of its own.
pub(crate) fn call(via: Via, to: SocketAddr, requests: u32) -> Tally {
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

/// Obeys orders from standard input until it ends.
pub(crate) fn obey() -> Result<()> {
    let mut open = Vec::new();
    let mut shelf = BTreeMap::new();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.context("cannot read orders")?;
        let order = serde_json::from_str(&line).with_context(|| format!("no order: {line}"))?;
        let answer = match order {
            Order::Call { via, to, requests } => Ok(Answer::Called(call(via, to, requests))),
            Order::Open { via, to } => Open::new(via, to).map(|new| {
                open.push(Some(new));
                Answer::Opened(open.len() - 1)
            }),
            Order::Ask { socket, to } => with(&open, socket).and_then(|open| {
                let to = to.map_or_else(|| open.peer(), Ok)?;
                open.ask(to).map(Answer::Replied)
            }),
            Order::Reconnect { socket, to } => with(&open, socket)
                .and_then(|open| open.connect(to))
                .map(|()| Answer::Opened(socket)),
            Order::Disconnect { socket } => {
                take(&mut open, socket).and_then(Open::disconnect).map(|one| {
                    open[socket] = Some(one);
                    Answer::Opened(socket)
                })
            }
            Order::Hear { socket } => with(&open, socket).and_then(Open::hear).map(Answer::Replied),
            Order::Shelve { socket } => {
                take(&mut open, socket).and_then(Shelved::shelve).map(|one| {
                    shelf.insert(socket, one);
                    Answer::Opened(socket)
                })
            }
            Order::Unshelve { socket } => {
                shelf.remove(&socket).ok_or(NO_SUCH_SOCKET).and_then(Shelved::unshelve).map(|one| {
                    open[socket] = Some(one);
                    Answer::Opened(socket)
                })
            }
            Order::Peer { socket } => with(&open, socket).and_then(Open::peer).map(Answer::Peer),
        };
        let answer = answer.unwrap_or_else(Answer::Failed);
        let answer = serde_json::to_string(&answer).context("an answer is always JSON")?;
        writeln!(output, "{answer}").context("nobody hears the answer")?;
        output.flush().context("nobody hears the answer")?;
    }
    Ok(())
}

const NO_SUCH_SOCKET: Failure = Failure { step: Step::Socket, errno: Errno::BADF.raw_os_error() };

fn with(open: &[Option<Open>], socket: usize) -> Result<&Open, Failure> {
    open.get(socket).and_then(Option::as_ref).ok_or(NO_SUCH_SOCKET)
}

fn take(open: &mut [Option<Open>], socket: usize) -> Result<Open, Failure> {
    open.get_mut(socket).and_then(Option::take).ok_or(NO_SUCH_SOCKET)
}
