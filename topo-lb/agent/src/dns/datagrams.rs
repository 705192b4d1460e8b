//! Queries by UDP. One that is not ours has a socket of its own on its way, so that its id stays as it is
//! and an answer reaches nobody else.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::answer::{answer, is_answer};
use super::shared::Shared;
use crate::metrics::dns::DnsOutcome;
use crate::serve::crowd::Peer;
use crate::serve::door::Room;
use topo_lb_core::dns::transport::Transport;

/// How long the cluster DNS may take: the resolvers of applications wait as long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Queries on their way at once. Beyond that, the client with the most of them loses its oldest.
const IN_FLIGHT: usize = 1_024;
/// Longest query, so that those on their way take little memory. Clients send a hundred bytes.
const LONGEST: usize = 4_096;
/// Sockets to each endpoint of the cluster DNS that are kept for the next query.
const KEPT: usize = 64;
/// Endpoints that are asked one after the other, if they refuse.
const ATTEMPTS: usize = 3;
/// A datagram has at most this many bytes.
const DATAGRAM: usize = 65_536;

/// Serves datagrams, until it is dropped.
pub(super) async fn serve(socket: UdpSocket, shared: Arc<Shared>) {
    let socket = Arc::new(socket);
    let room = Room::new(IN_FLIGHT);
    let kept = Arc::<Kept>::default();
    let mut buffer = vec![0; DATAGRAM];
    loop {
        // An ICMP error about an earlier answer.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let query = &buffer[..length];
        let own = shared.names.read(|it| answer(query, Transport::Udp, it, || fastrand::u32(..)));
        if let Some(own) = own {
            shared.count(if own.is_empty { DnsOutcome::Empty } else { DnsOutcome::Answered });
            // A client whose queue is full asks again.
            let _ = socket.try_send_to(&own.bytes, client);
            continue;
        }
        if query.len() > LONGEST {
            shared.count(DnsOutcome::Dropped);
            continue;
        }
        let mut place = room.take(Peer::near(client.ip()));
        let (query, socket) = (query.to_vec(), Arc::clone(&socket));
        let (shared, kept) = (Arc::clone(&shared), Arc::clone(&kept));
        tokio::spawn(async move {
            let asked = async {
                let answer = ask(&query, &shared, &kept).await?;
                socket.send_to(&answer, client).await
            };
            let outcome = tokio::select! {
                () = place.lost() => DnsOutcome::Dropped,
                sent = timeout(PATIENCE, asked) => match sent {
                    Ok(Ok(_)) => DnsOutcome::Forwarded,
                    Ok(Err(_)) | Err(_) => DnsOutcome::Failed,
                },
            };
            shared.count(outcome);
        });
    }
}

/// Asks endpoints of the cluster DNS until one does not refuse.
async fn ask(query: &[u8], shared: &Shared, kept: &Kept) -> io::Result<Vec<u8>> {
    let mut tried = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::HostUnreachable);
    while tried.len() < ATTEMPTS {
        let next =
            shared.names.read(|it| it.upstream(Transport::Udp, &tried, || fastrand::u32(..)));
        let Some(upstream) = next else { break };
        match exchange(query, upstream, kept).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
        tried.push(upstream);
    }
    Err(last)
}

/// Asks one endpoint. A socket that gets no answer is closed: a late one reaches no later query.
async fn exchange(query: &[u8], upstream: SocketAddr, kept: &Kept) -> io::Result<Vec<u8>> {
    let socket = match kept.take(upstream) {
        Some(socket) => socket,
        None => connected(upstream).await?,
    };
    socket.send(query).await?;
    loop {
        // A refusal makes no datagram readable.
        if socket.ready(Interest::READABLE | Interest::ERROR).await?.is_error() {
            let error = socket.take_error()?;
            return Err(error.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()));
        }
        match kept.receive(&socket) {
            Ok(answer) if is_answer(&answer, query) => {
                kept.put(upstream, socket);
                return Ok(answer);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn connected(upstream: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    Ok(socket)
}

/// Sockets to endpoints of the cluster DNS that wait for nothing.
struct Kept {
    sockets: Mutex<HashMap<SocketAddr, Vec<UdpSocket>>>,
    /// Room for one datagram, as queries on their way hold none.
    buffer: Mutex<Vec<u8>>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { sockets: Mutex::default(), buffer: Mutex::new(vec![0; DATAGRAM]) }
    }
}

impl Kept {
    /// A socket without a message: one that came twice is no answer to the next query.
    fn take(&self, upstream: SocketAddr) -> Option<UdpSocket> {
        let mut all = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = all.get_mut(&upstream)?.pop()?;
        drop(all);
        while self.receive(&socket).is_ok() {}
        Some(socket)
    }

    fn put(&self, upstream: SocketAddr, socket: UdpSocket) {
        /// Beyond so many endpoints most are gone.
        const ENDPOINTS: usize = 64;
        let mut all = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ENDPOINTS && !all.contains_key(&upstream) {
            all.clear();
        }
        let kept = all.entry(upstream).or_default();
        if kept.len() < KEPT {
            kept.push(socket);
        }
    }

    fn receive(&self, socket: &UdpSocket) -> io::Result<Vec<u8>> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let length = socket.try_recv(&mut buffer)?;
        Ok(buffer[..length].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_core::dns::names::Upstreams;

    const QUERY: &[u8] = b"\x12\x34\x01\x00?";

    fn answer_of(query: &[u8]) -> Vec<u8> {
        [&query[..2], b"\x81\x80", &query[4..], b"!"].concat()
    }

    /// An endpoint that refuses, and whether one that answers everything twice comes after it.
    async fn shared(answers: bool) -> Shared {
        let own = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let address = |it: &UdpSocket| it.local_addr().expect("an address");
        let closed = address(&own().await.expect("a socket"));
        let live = own().await.expect("a socket");
        let mut udp = vec![(1.0, vec![closed])];
        if answers {
            udp.push((1e-9, vec![address(&live)]));
            tokio::spawn(async move {
                let mut query = [0; 512];
                while let Ok((length, from)) = live.recv_from(&mut query).await {
                    let answer = answer_of(&query[..length]);
                    // A query that comes back, and an answer to another one, are no answers.
                    for message in [&query[..length], b"\x43\x21\x81\x80?", &answer, &answer] {
                        let _ = live.send_to(message, from).await;
                    }
                }
            });
        }
        let shared = Shared::default();
        shared.names.write(|it| it.set_upstreams(Upstreams { udp, tcp: Vec::new() }));
        shared
    }

    #[tokio::test]
    async fn an_endpoint_that_refuses_is_passed_and_only_an_answer_is_an_answer() {
        let (shared, kept) = (shared(true).await, Kept::default());
        for number in 0..20 {
            let query = [QUERY, &[number]].concat();
            let answer = ask(&query, &shared, &kept).await.expect("an answer");
            assert_eq!(answer, answer_of(&query), "of this query, although the id is the same");
        }
    }

    #[tokio::test]
    async fn a_cluster_dns_that_is_down_is_said_at_once() {
        let (shared, kept) = (shared(false).await, Kept::default());
        let error = ask(QUERY, &shared, &kept).await.expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
