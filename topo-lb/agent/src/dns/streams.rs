//! Queries by TCP: each message of a connection is answered here, or goes to the cluster DNS by a
//! connection of its own, whose messages come back as they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::answer::answer;
use super::framing::{Messages, framed};
use super::shared::Shared;
use crate::metrics::dns::DnsOutcome;
use crate::serve::crowd::Peer;
use crate::serve::door::Room;
use topo_lb_core::dns::transport::Transport;

/// A connection on which nothing moves is closed after this time, as by CoreDNS.
const IDLE: Duration = Duration::from_secs(10);
/// Connections at once. Beyond that, the client with the most of them loses its oldest.
/// Each may have read a message in either direction.
const CONNECTIONS: usize = 64;
/// Endpoints that are dialled one after the other.
const ATTEMPTS: usize = 3;
/// Pause after the host ran out of descriptors or memory for a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves connections, until it is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let room = Room::new(CONNECTIONS);
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let mut place = room.take(Peer::near(client.ip()));
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::select! {
                () = place.lost() => shared.count(DnsOutcome::Dropped),
                // An error of one connection ends only that connection.
                _ = attend(stream, &shared) => {}
            }
        });
    }
}

async fn attend(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let (mut from_client, mut to_client) = stream.into_split();
    let (mut queries, mut answers) = (Messages::default(), Messages::default());
    let mut upstream = None;
    let mut to_upstream: Option<OwnedWriteHalf> = None;
    loop {
        while let Some(query) = queries.take() {
            let own = |it: &_| answer(&query[2..], Transport::Tcp, it, || fastrand::u32(..));
            if let Some(own) = shared.names.read(own) {
                shared.count(if own.is_empty { DnsOutcome::Empty } else { DnsOutcome::Answered });
                let framed = framed(&own.bytes).ok_or(io::ErrorKind::InvalidData)?;
                timeout(IDLE, to_client.write_all(&framed)).await??;
                continue;
            }
            let to = match &mut to_upstream {
                Some(to) => to,
                None => {
                    let dialled = timeout(IDLE, dial(shared)).await.map_err(io::Error::from);
                    let Ok(stream) = dialled.and_then(|dialled| dialled) else {
                        shared.count(DnsOutcome::Failed);
                        return Ok(());
                    };
                    let (from, to) = stream.into_split();
                    upstream = Some(from);
                    to_upstream.insert(to)
                }
            };
            timeout(IDLE, to.write_all(&query)).await??;
            shared.count(DnsOutcome::Forwarded);
        }
        let answered = async {
            match &mut upstream {
                Some(from) => from.read_buf(answers.room()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = from_client.read_buf(queries.room()) => {
                if read? == 0 {
                    // Answers may still come.
                    let Some(to) = &mut to_upstream else { return Ok(()) };
                    to.shutdown().await?;
                    let Some(from) = &mut upstream else { return Ok(()) };
                    to_client.write_all(answers.rest()).await?;
                    let rest = tokio::io::copy(from, &mut to_client);
                    return timeout(IDLE, rest).await?.map(drop);
                }
            }
            // Whole messages, so that no answer of ours comes between the bytes of another.
            read = answered => {
                if read? == 0 {
                    return Ok(());
                }
                while let Some(framed) = answers.take() {
                    timeout(IDLE, to_client.write_all(&framed)).await??;
                }
            }
            () = sleep(IDLE) => return Ok(()),
        }
    }
}

/// A connection to an endpoint of the cluster DNS.
async fn dial(shared: &Shared) -> io::Result<TcpStream> {
    let mut tried = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::HostUnreachable);
    while tried.len() < ATTEMPTS {
        let next =
            shared.names.read(|it| it.upstream(Transport::Tcp, &tried, || fastrand::u32(..)));
        let Some(upstream) = next else { break };
        match TcpStream::connect(upstream).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
        tried.push(upstream);
    }
    Err(last)
}
