//! What containers of deploy/ do besides the agent, so that an installation takes no other image.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::mount::{MountFlags, mount};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::aside;
use crate::commands::trace;
use topo_lb_kernel::datapath::host::mount::check_bpffs;

/// What the endpoint of the test answers.
const ANSWER: &[u8] = b"answered";
/// How long a connection of the test may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two connections of the test.
const PAUSE: Duration = Duration::from_millis(100);

/// Mounts a bpffs on `place`, unless there is one.
///
/// # Errors
/// It cannot be mounted.
pub fn mount_bpffs(place: &Path) -> anyhow::Result<()> {
    if check_bpffs(place).is_ok() {
        return Ok(());
    }
    let none = MountFlags::empty();
    mount("bpf", place, "bpf", none, None)
        .with_context(|| format!("cannot mount a bpffs on {}", place.display()))
}

/// Waits for SIGTERM: what runs on a node that is cleaned.
///
/// # Errors
/// Signals cannot be received.
pub async fn done() -> anyhow::Result<()> {
    aside::line("This node is clean. What was removed is in the log of the container `cleanup`.");
    signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?.recv().await;
    Ok(())
}

/// Traces a Service, while this process is its endpoint on `port` and its client. Ends when as many
/// connections were decided as `options` ask for. Returns how many were answered.
///
/// # Errors
/// The port is taken, the Service cannot be traced, or no connection was answered.
pub async fn test(options: trace::Options, service: SocketAddr, port: u16) -> anyhow::Result<u64> {
    let any: IpAddr = match service {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let listener = TcpListener::bind((any, port)).await;
    let listener = listener.with_context(|| format!("cannot listen on port {port}"))?;
    let mut answered = 0;
    let mut errors = std::io::stderr();
    tokio::select! {
        traced = trace::run(options, std::io::stdout(), &mut errors) => traced?,
        never = answer(&listener) => match never {},
        never = dial(service, &mut answered) => match never {},
    }
    ensure!(
        answered > 0,
        "connections to the Service at {service} were decided, but none was answered"
    );
    Ok(answered)
}

async fn answer(listener: &TcpListener) -> Infallible {
    loop {
        if let Ok((mut client, _)) = listener.accept().await {
            // A client that has gone misses nothing.
            let _ = timeout(PATIENCE, client.write_all(ANSWER)).await;
        }
    }
}

async fn dial(service: SocketAddr, answered: &mut u64) -> Infallible {
    loop {
        if timeout(PATIENCE, exchange(service))
            .await
            .is_ok_and(|it| it.is_ok_and(|it| it == ANSWER))
        {
            *answered += 1;
        }
        sleep(PAUSE).await;
    }
}

async fn exchange(service: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    TcpStream::connect(service).await?.read_to_end(&mut answer).await?;
    Ok(answer)
}
