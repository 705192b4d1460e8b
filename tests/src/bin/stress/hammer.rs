//! Makes connections as fast as one CPU can, and checks each against the history of its Service.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::thread::CpuSet;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::history::{History, Outcome};
use topo_lb_tests::address::{Endpoint, Family, SERVICES, cluster_ip};
use topo_lb_tests::report::Report;
use topo_lb_tests::traffic::REFUSED;

/// The port of every Service and every endpoint.
pub(crate) const PORT: u16 = 4444;

/// One of so many IPv4 connections uses TCP; it takes ten times as long as one of UDP.
const TCP_SHARE: usize = 32;
/// Makes connections on one CPU until `stop` is set.
pub(crate) fn hammer(
    cpu: usize,
    histories: &[[History; SERVICES as usize]; 2],
    stop: &AtomicBool,
) -> Result<Report> {
    run_on(cpu)?;
    let mut report = Report::default();
    let mut turn = cpu;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let service = (turn % usize::from(SERVICES)) as u8;
        let (family, kind) = match turn / usize::from(SERVICES) % TCP_SHARE {
            0 => (Family::V4, Type::STREAM),
            1 => (Family::V6, Type::STREAM),
            _ => (Family::V4, Type::DGRAM),
        };
        let history = &histories[family as usize][usize::from(service)];
        let to = cluster_ip(service, family);
        let how = if kind == Type::STREAM { "TCP" } else { "UDP" };
        check(history, service, &mut report, how, to, || {
            connect(to, kind).unwrap_or_else(|error| refusal(&error))
        });
    }
    Ok(report)
}

/// Keeps this thread on one CPU.
pub(crate) fn run_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Makes a connection, and checks its outcome. `how`: for the description of an error.
pub(crate) fn check(
    history: &History,
    service: u8,
    report: &mut Report,
    how: &str,
    to: IpAddr,
    connect: impl FnOnce() -> Outcome,
) {
    let before = history.before();
    let outcome = connect();
    let window = history.after(before);
    report.connections += 1;
    if history.allows(service, window, outcome) {
        report.not_translated += u64::from(!matches!(outcome, Outcome::Landed(_)));
        return;
    }
    match outcome {
        Outcome::Landed(_) => report.wrong_endpoint += 1,
        _ => report.failed += 1,
    }
    report.describe(|| format!("{how} to {to}: {outcome:?} in {window:?}"));
}

fn refusal(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        Some(REFUSED) => Outcome::Refused,
        number => Outcome::Failed(number.unwrap_or(0)),
    }
}

/// Connects, and returns the address reached. A connected datagram socket between two addresses of
/// one host has its destination as its own; a stream socket's peer is not translated back here.
fn connect(to: IpAddr, kind: Type) -> io::Result<Outcome> {
    let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, kind, None)?;
    socket.connect(&SockAddr::from(SocketAddr::new(to, PORT)))?;
    let landed = if kind == Type::DGRAM {
        socket.local_addr()?
    } else {
        let peer = socket.peer_addr()?;
        // Closes with a reset; otherwise the host runs out of ports.
        socket.set_linger(Some(Duration::ZERO))?;
        peer
    };
    let landed = landed.as_socket().map(|address| address.ip());
    Ok(match landed {
        Some(landed) if landed == to => Outcome::Untouched,
        Some(landed) => Endpoint::at(landed).map_or(Outcome::Failed(0), Outcome::Landed),
        None => Outcome::Failed(0),
    })
}

/// Accepts and closes TCP connections of both families until the process ends.
pub(crate) fn accept() -> Result<()> {
    let listener = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    listener.set_only_v6(false)?;
    listener
        .bind(&SockAddr::from(SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), PORT)))?;
    listener.listen(4096)?;
    std::thread::spawn(move || {
        loop {
            // `accept` may fail for a connection that was reset; ignore that.
            drop(listener.accept());
        }
    });
    Ok(())
}
