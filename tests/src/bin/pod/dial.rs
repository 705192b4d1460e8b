//! Dials many destinations at once.
//!
//! Few exchanges are busy at a time, so that a small machine answers each quickly. One that waits for
//! longer than [`BUSY`] lets others begin, so that those without any answer cost one time-out together.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::future::join_all;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use topo_lb_tests::dial::{Dial, Dialled, LIMIT, SOURCE_DATAGRAM, SOURCE_PATH, Transport};
use topo_lb_tests::traffic::{Failure, Step};
use topo_lb_tests::wait::patient;

use crate::exchange::at;
use crate::http;

/// How many exchanges are busy at a time.
const AT_ONCE: usize = 48;
/// An exchange that lasts longer waits for an answer that is lost or was never sent.
const BUSY: Duration = Duration::from_millis(200);
/// So many more exchanges are tried after one has failed: whatever half of all do is missed by all with a
/// probability of 1 in 4,096.
const AFTER_FAILURE: u32 = 12;
/// How long an exchange after another one may take. All of these are answered, if late on a busy machine.
const THEN_LIMIT: Duration = Duration::from_secs(6);
/// How often a port that is taken is tried.
const AGAIN: Duration = Duration::from_millis(5);
/// The client repeats a datagram after so long, then after twice as long, as TCP repeats a SYN.
const REPEAT: Duration = Duration::from_secs(1);

/// Dials all destinations, and returns what came of each, in their order.
pub(crate) fn dial(all: Vec<Dial>) -> Result<Vec<Dialled>, Failure> {
    // Every exchange that waits has a socket.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .map_err(|errno| at(Step::Socket)(errno.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(at(Step::Socket))?.block_on(async {
        let busy = Semaphore::new(AT_ONCE);
        Ok(join_all(all.iter().map(|dial| one(dial, &busy))).await)
    })
}

async fn one(dial: &Dial, busy: &Semaphore) -> Dialled {
    let mut dialled = Dialled::default();
    let mut left = dial.most;
    while left > 0 && dialled.kinds() < dial.enough && dialled.failure.is_none() {
        left -= 1;
        add(&mut dialled, attempt(dial, busy).await);
    }
    // All that may take the whole time wait together.
    let left = if dialled.kinds() < dial.enough { left.min(AFTER_FAILURE) } else { 0 };
    for outcome in join_all((0..left).map(|_| attempt(dial, busy))).await {
        add(&mut dialled, outcome);
    }
    dialled
}

fn add(dialled: &mut Dialled, outcome: Outcome) {
    for (to, outcome) in outcome.then {
        match outcome {
            Ok(_) => dialled.then_answered += 1,
            Err(failure) => dialled.then_failed.push((to, failure)),
        }
    }
    if let Err(failure) = outcome.answer.and_then(|answer| dialled.add(&answer).ok_or(NONSENSE)) {
        dialled.failure.get_or_insert(failure);
    }
}

/// What came of an exchange, and of those after it from the same port.
struct Outcome {
    answer: Result<String, Failure>,
    then: Vec<(SocketAddr, Result<String, Failure>)>,
}

async fn attempt(dial: &Dial, busy: &Semaphore) -> Outcome {
    let mut then = Vec::new();
    // Others take no port before they begin.
    let mut port = 0;
    let first = async {
        let (own, socket) = free(&dial.ports, |port| Socket::bound(dial.transport, dial.to, port))?;
        port = own;
        socket.exchange(dial.to).await
    };
    let answer = timed(first, busy).await;
    if answer.is_err() {
        return Outcome { answer, then };
    }
    for &to in &dial.then {
        let exchange = async {
            let socket = Socket::bound_once_free(dial.transport, to, port).await?;
            let _permit = busy.acquire().await;
            let exchange = timeout(patient(THEN_LIMIT), socket.exchange(to));
            exchange.await.unwrap_or(Err(UNANSWERED))
        };
        then.push((to, exchange.await));
    }
    Outcome { answer, then }
}

/// Waits for an exchange until it has failed, without keeping others from beginning.
async fn timed(
    exchange: impl Future<Output = Result<String, Failure>>,
    busy: &Semaphore,
) -> Result<String, Failure> {
    let permit = busy.acquire().await;
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        outcome = &mut exchange => outcome,
        () = sleep(BUSY) => {
            drop(permit);
            timeout(patient(LIMIT), exchange).await.unwrap_or(Err(UNANSWERED))
        }
    }
}

const UNANSWERED: Failure = Failure { step: Step::Receive, errno: Errno::TIMEDOUT.raw_os_error() };
const NONSENSE: Failure = Failure { step: Step::Receive, errno: 0 };

/// A socket with a port.
enum Socket {
    Tcp(TcpSocket),
    Udp(UdpSocket),
}

impl Socket {
    fn bound(transport: Transport, to: SocketAddr, port: u16) -> io::Result<Self> {
        let own = (any(to), port).into();
        Ok(match transport {
            Transport::Tcp => {
                let socket = match to {
                    SocketAddr::V4(_) => TcpSocket::new_v4(),
                    SocketAddr::V6(_) => TcpSocket::new_v6(),
                }?;
                socket.bind(own)?;
                Self::Tcp(socket)
            }
            Transport::Udp => {
                let socket = std::net::UdpSocket::bind(own)?;
                socket.set_nonblocking(true)?;
                Self::Udp(UdpSocket::from_std(socket)?)
            }
        })
    }

    /// Waits for a port of ours: the last socket with it has it until the peer has acknowledged its FIN.
    async fn bound_once_free(
        transport: Transport,
        to: SocketAddr,
        port: u16,
    ) -> Result<Self, Failure> {
        let bound = async {
            loop {
                match Self::bound(transport, to, port) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(AGAIN).await,
                    other => return other.map_err(at(Step::Socket)),
                }
            }
        };
        let limit = timeout(patient(THEN_LIMIT), bound);
        limit.await.unwrap_or(Err(at(Step::Socket)(Errno::ADDRINUSE.into())))
    }

    /// Asks `to` which source it sees.
    async fn exchange(self, to: SocketAddr) -> Result<String, Failure> {
        match self {
            Self::Tcp(socket) => {
                let mut stream = socket.connect(to).await.map_err(at(Step::Connect))?;
                let request =
                    format!("GET {SOURCE_PATH} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await.map_err(at(Step::Send))?;
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.map_err(at(Step::Receive))?;
                http::body(&answer).ok_or(NONSENSE)
            }
            Self::Udp(socket) => {
                socket.connect(to).await.map_err(at(Step::Connect))?;
                let (mut buffer, mut pause) = ([0; 512], REPEAT);
                loop {
                    socket.send(SOURCE_DATAGRAM).await.map_err(at(Step::Send))?;
                    let Ok(received) = timeout(pause, socket.recv(&mut buffer)).await else {
                        pause *= 2;
                        continue;
                    };
                    let length = received.map_err(at(Step::Receive))?;
                    return String::from_utf8(buffer[..length].to_vec()).map_err(|_| NONSENSE);
                }
            }
        }
    }
}

fn any(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The port that was bound last.
static LAST: AtomicU16 = AtomicU16::new(0);

/// Binds a socket to the next port that is free; returns both.
fn free<T>(
    ports: &RangeInclusive<u16>,
    bind: impl Fn(u16) -> io::Result<T>,
) -> Result<(u16, T), Failure> {
    for _ in ports.clone() {
        let next = LAST.load(Relaxed).saturating_add(1);
        let port = if ports.contains(&next) { next } else { *ports.start() };
        LAST.store(port, Relaxed);
        match bind(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other.map(|socket| (port, socket)).map_err(at(Step::Socket)),
        }
    }
    Err(Failure { step: Step::Socket, errno: Errno::ADDRINUSE.raw_os_error() })
}
