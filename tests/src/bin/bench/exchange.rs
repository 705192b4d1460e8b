//! Both ends of a timed exchange: a server in a pod, and a client process that dials it and takes
//! the time.
//!
//! The client reads orders as lines of JSON, and answers each with the nanoseconds of every
//! exchange. The timed span thus lies within one process.

use std::io::{self, Read as _, Write as _, stdin, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use topo_lb_tests::process::{Running, Worker};

use crate::queries::{self, Asked};

/// The port of the servers, TCP and UDP.
pub(crate) const PORT: u16 = 9500;
/// Where the servers' kernel completes connections that nobody accepts. To one address and port a client
/// finds some 30,000 ports of its own soon, and others late.
pub(crate) const HELD_PORTS: [u16; 4] = [9501, 9502, 9503, 9504];
/// How many of these it keeps, if `net.core.somaxconn` allows them.
pub(crate) const HELD: i32 = 1 << 17;
/// Bytes of a request, and of its response.
pub(crate) const BYTES: usize = 64;
/// Datagrams of a burst; the server's socket has room for them.
pub(crate) const BURST: u8 = 64;
/// The first byte of a datagram that is counted, and not answered.
const COUNTED: u8 = 0;
/// The client's ports of exchanges, at random. The kernel would begin its search for one at another port for each
/// target (`__inet_hash_connect`, net/ipv4/inet_hashtables.c): so a client of many targets would use ports
/// all over this range, one of a single target one after the other, which takes less time.
const CLIENT_PORTS: Range<u16> = 32_768..61_000;
/// How many of them may be in use before a free one is found.
const BINDS: usize = 1_000;
/// How long to wait for one answer.
const SILENCE: Duration = Duration::from_secs(5);

/// What to do with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Act {
    /// TCP: connect, request, response, close.
    Exchange,
    /// TCP: connect, and close at once.
    Open,
    /// TCP: `connect` alone, without waiting for an answer. Every result is accepted.
    Knock,
    /// UDP: a request and its response through one unconnected socket.
    Datagram,
    /// UDP: [`BURST`] datagrams through one connected socket. The server answers the last one, with
    /// the number that have arrived.
    Burst,
    /// UDP: `getpeername` of one connected socket.
    Peer,
    /// TCP: a request and its response on one connection that stays open.
    Keep,
    /// UDP: a query and its answer through one connected socket.
    Ask(Asked),
    /// UDP: queries through one connected socket, without a pause, and their answers: those of
    /// [`queries::BURST`] at a time.
    Flood(Asked),
    /// TCP: a request, without an answer, through each of so many connections, which are opened first and stay open.
    Hold,
}

/// Consecutive addresses, or consecutive ports of one address, to dial.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Targets {
    pub(crate) first: SocketAddr,
    /// How many; each time one of them is chosen at random.
    pub(crate) count: u32,
    /// Whether these are ports of one address.
    are_ports: bool,
}

impl Targets {
    pub(crate) fn one(address: SocketAddr) -> Self {
        Self::addresses(address, 1)
    }

    pub(crate) fn addresses(first: SocketAddr, count: u32) -> Self {
        Self { first, count, are_ports: false }
    }

    pub(crate) fn ports(first: SocketAddr, count: u16) -> Self {
        Self { first, count: count.into(), are_ports: true }
    }

    fn at(&self, random: u32) -> SocketAddr {
        let place = random % self.count.max(1);
        if self.are_ports {
            let port = self.first.port().saturating_add(u16::try_from(place).unwrap_or(u16::MAX));
            return SocketAddr::new(self.first.ip(), port);
        }
        let address = match self.first.ip() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + place).into(),
            IpAddr::V6(first) => {
                IpAddr::from(Ipv6Addr::from_bits(first.to_bits() + u128::from(place)))
            }
        };
        SocketAddr::new(address, self.first.port())
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Order {
    act: Act,
    targets: Targets,
    times: u32,
}

/// A client process.
#[derive(Debug)]
pub(crate) struct Dialler(Worker);

/// The command of a client.
pub(crate) fn dialler() -> Result<Command> {
    this("dial")
}

pub(crate) fn server() -> Result<Command> {
    this("serve")
}

fn this(what: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program has a path")?);
    command.arg(what);
    Ok(command)
}

impl Dialler {
    /// Takes over a client's process.
    pub(crate) fn new(process: Running) -> Result<Self> {
        Worker::new(process).map(Self)
    }

    /// Does `act` so many times, and returns the nanoseconds of each.
    pub(crate) fn times(&mut self, act: Act, targets: Targets, times: u32) -> Result<Vec<u64>> {
        let answer: Result<Vec<u64>, String> =
            self.0.tell(&Order { act, targets, times }).context("a dialler")?;
        answer.map_err(anyhow::Error::msg)
    }
}

/// The core of clients and servers.
pub(crate) fn last_core() -> Result<usize> {
    Ok(thread::available_parallelism().context("a machine has cores")?.get() - 1)
}

/// Binds this process to the last core, like its peer: placement must not affect the figures.
fn stay() -> Result<()> {
    let mut last = CpuSet::new();
    last.set(last_core()?);
    sched_setaffinity(None, &last).context("cannot stay on a core")
}

/// Serves until standard input ends; prints `listening` when it is ready.
pub(crate) fn serve() -> Result<()> {
    stay()?;
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    let datagrams = UdpSocket::bind(everywhere).context("cannot listen for datagrams")?;
    // As many for those that are accepted: a client that dials faster loses no SYN.
    let listen = |port| -> Result<TcpListener> {
        let listener = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
        listener.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
        listener.listen(HELD)?;
        Ok(listener.into())
    };
    let listener = listen(PORT).context("cannot listen")?;
    let _held = HELD_PORTS.map(listen).into_iter().collect::<Result<Vec<_>>>()?;
    queries::serve()?;
    println!("listening");
    thread::spawn(move || {
        let mut bytes = [0; BYTES];
        let mut counted = 0_u8;
        while let Ok((length, from)) = datagrams.recv_from(&mut bytes) {
            counted = counted.wrapping_add(1);
            if bytes[0] != COUNTED {
                bytes[1] = std::mem::take(&mut counted);
                let _ = datagrams.send_to(&bytes[..length], from);
            }
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.set_nodelay(true);
            let mut bytes = [0; BYTES];
            // Until the client resets the connection.
            while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
        }
    });
    // The parent process holds the other end.
    io::copy(&mut stdin(), &mut io::sink()).context("cannot wait for the end")?;
    Ok(())
}

/// Carries out orders until standard input ends.
pub(crate) fn dial() -> Result<()> {
    stay()?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut random_port = fastrand::Rng::with_seed(2);
    let mut ports = std::iter::repeat_with(|| random_port.u16(CLIENT_PORTS));
    let mut held = Vec::new();
    for line in stdin().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = carry_out(order, &mut random, &mut ports, &mut held)
            .map_err(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&answer)?);
        stdout().flush()?;
    }
    Ok(())
}

fn carry_out(
    order: Order,
    random: &mut fastrand::Rng,
    ports: &mut impl Iterator<Item = u16>,
    held: &mut Vec<Socket>,
) -> Result<Vec<u64>> {
    let Order { act, targets, times } = order;
    let first = targets.at(random.u32(..));
    let mut work: Box<dyn FnMut(SocketAddr) -> io::Result<()>> = match act {
        Act::Exchange => Box::new(|to| exchange(to, ports)),
        Act::Open => Box::new(|to| connect(to).map(drop)),
        Act::Knock => Box::new(knock),
        Act::Datagram => {
            let socket = datagram(first)?;
            Box::new(move |to| ask(&socket, to))
        }
        Act::Burst => {
            let socket = connected(first)?;
            // Whatever the server has counted before does not matter.
            burst(&socket, 1)?;
            Box::new(move |_| {
                let arrived = burst(&socket, BURST)?;
                let lost = || io::Error::other(format!("{arrived} of {BURST} datagrams arrived"));
                if arrived == BURST { Ok(()) } else { Err(lost()) }
            })
        }
        Act::Peer => {
            let socket = connected(first)?;
            Box::new(move |_| socket.peer_addr().map(drop))
        }
        Act::Ask(asked) => {
            let mut client = queries::Client::new(connected(first)?, asked)?;
            Box::new(move |_| client.ask())
        }
        Act::Flood(asked) => {
            let mut client = queries::Client::new(connected(first)?, asked)?;
            Box::new(move |_| client.burst())
        }
        Act::Keep => {
            let mut stream = connect(first).with_context(|| format!("cannot dial {first}"))?;
            stream.set_read_timeout(Some(SILENCE)).context("a socket has a timeout")?;
            Box::new(move |_| request(&mut stream))
        }
        Act::Hold => {
            let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
                .context("cannot raise the limit of descriptors")?;
            while held.len() < times as usize {
                let socket = connect(first).with_context(|| format!("cannot dial {first}"))?;
                held.push(socket);
            }
            let mut held = held.iter();
            Box::new(move |_| {
                held.next().map_or(Ok(()), |mut socket| socket.write_all(&[7; BYTES]))
            })
        }
    };
    (0..times)
        .map(|_| {
            let to = targets.at(random.u32(..));
            let begun = Instant::now();
            work(to).with_context(|| format!("{act:?} with {to} failed"))?;
            Ok(u64::try_from(begun.elapsed().as_nanos())?)
        })
        .collect()
}

fn exchange(to: SocketAddr, ports: &mut impl Iterator<Item = u16>) -> io::Result<()> {
    let mut stream = socket(to)?;
    let bound = ports.take(BINDS).find_map(|port| {
        match stream.bind(&SocketAddr::new(any_like(to), port).into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            bound => Some(bound),
        }
    });
    bound.unwrap_or_else(|| Err(io::ErrorKind::AddrInUse.into()))?;
    stream.connect(&to.into())?;
    request(&mut stream)
}

/// A connection that ends as that of [`socket`].
fn connect(to: SocketAddr) -> io::Result<Socket> {
    let socket = socket(to)?;
    socket.connect(&to.into())?;
    Ok(socket)
}

/// A socket whose connection ends with a reset: connections in TIME_WAIT would use up all ports, and
/// fill the connection tables of proxies that keep one.
fn socket(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket)
}

fn request(stream: &mut Socket) -> io::Result<()> {
    let mut bytes = [7; BYTES];
    stream.write_all(&bytes)?;
    stream.read_exact(&mut bytes)
}

fn knock(to: SocketAddr) -> io::Result<()> {
    let socket = socket(to)?;
    socket.set_nonblocking(true)?;
    // In progress, refused, or unreachable: the hook has run in any case.
    let _ = socket.connect(&to.into());
    Ok(())
}

fn datagram(like: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((any_like(like), 0)).context("cannot make a socket")?;
    socket.set_read_timeout(Some(SILENCE)).context("a socket has a timeout")?;
    Ok(socket)
}

/// The unspecified address of the same family.
fn any_like(address: SocketAddr) -> IpAddr {
    match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn connected(to: SocketAddr) -> Result<UdpSocket> {
    let socket = datagram(to)?;
    socket.connect(to).with_context(|| format!("cannot connect to {to}"))?;
    Ok(socket)
}

fn ask(socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
    let mut bytes = [7; BYTES];
    socket.send_to(&bytes, to)?;
    socket.recv_from(&mut bytes)?;
    Ok(())
}

/// Sends so many datagrams, and returns the server's count.
fn burst(socket: &UdpSocket, count: u8) -> io::Result<u8> {
    for _ in 1..count {
        socket.send(&[COUNTED; BYTES])?;
    }
    let mut bytes = [7; BYTES];
    socket.send(&bytes)?;
    socket.recv(&mut bytes)?;
    Ok(bytes[1])
}
