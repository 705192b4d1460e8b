//! The orders for a client in a pod, and its answers: one JSON object per line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dial::Dial;
use crate::requirements::kernel;
use crate::transfer::{Ending, Moved};
use crate::wait::patient;

/// How a client connects. The family of the address is the family of the socket: an IPv4-mapped
/// address uses an `AF_INET6` socket, as in Java, Go and Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// `GET /` over TCP.
    Http,
    /// `GET /` over MPTCP.
    HttpMptcp,
    /// A datagram through a connected socket.
    UdpConnected,
    /// A datagram through an unconnected socket.
    Udp,
}

/// The number of a socket that a client holds open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Socket(pub usize);

/// An order to a client. The answer is the type named at the variant, or a [`Failure`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// So many exchanges with an address, each through a new socket: a [`Tally`].
    Call(Via, SocketAddr, u32),
    /// Opens a socket: a [`Socket`]. An unconnected one takes only its family from the address.
    Open(Via, SocketAddr),
    /// One exchange through an open socket: a [`Reply`]. An unconnected one needs the address.
    Ask(Socket, Option<SocketAddr>),
    /// Posts so many bytes through an open TCP socket, and reads them back: [`Moved`].
    Echo(Socket, usize),
    /// Ends a TCP connection: the number of bytes that the client still read.
    End(Socket, Ending),
    /// Sends these bytes through an open socket, and receives as many as come in answer: the bytes. Over
    /// TCP both begin with their length, as in DNS.
    Exchange(Socket, SocketAddr, Vec<u8>),
    /// Sends a request through an unconnected socket.
    Send(Socket, SocketAddr),
    /// Receives an answer through an unconnected socket: a [`Reply`].
    Receive(Socket),
    /// So many unconnected sockets, one after the other: each sends two datagrams, and closes. Whether
    /// they arrive does not matter.
    Scatter(SocketAddr, u32),
    /// So many rounds, each with a new unconnected socket: for each address a thread sends a request,
    /// all at the same moment. How often each pod answered, as which address: [`Answers`].
    Race(Vec<SocketAddr>, u32),
    /// Dials many destinations at once: what came of each, a list of [`Dialled`](crate::dial::Dialled).
    Dial(Vec<Dial>),
    /// Connects an open socket to another address.
    Reconnect(Socket, SocketAddr),
    /// Disconnects a datagram socket from its peer (connect(2), `AF_UNSPEC`).
    Disconnect(Socket),
    /// Waits for a message through an open socket without a request: a [`Reply`].
    Hear(Socket),
    /// Writes these bytes to an open TCP socket, and reads nothing.
    Say(Socket, Vec<u8>),
    /// What waits to be read from an open socket: how many bytes; zero for the end of the stream, and `None` for
    /// nothing.
    Look(Socket),
    /// Sends a socket through a UNIX socket and closes it: only the kernel holds it then.
    Shelve(Socket),
    /// Takes a shelved socket back.
    Unshelve(Socket),
    /// The result of `getpeername` for an open socket: a [`SocketAddr`].
    Peer(Socket),
}

/// The result of one exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The name of the pod that answered.
    pub pod: String,
    /// For a connected socket the result of `getpeername`, otherwise the datagram's source.
    pub peer: SocketAddr,
    /// What the client wrote and read for it, over TCP.
    pub moved: Moved,
}

/// How often each pod answered, by the source address of its answers.
pub type Answers = BTreeMap<String, BTreeMap<SocketAddr, u32>>;

/// The system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// `socket`.
    Socket,
    /// `connect`.
    Connect,
    /// `getpeername`.
    Peer,
    /// `send` or `sendto`.
    Send,
    /// `recv` or `recvfrom`.
    Receive,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// The failed system call.
    pub step: Step,
    /// The kernel's error number; zero if the answer was not valid.
    pub errno: i32,
}

/// An exchange without a time-out takes less, also on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(5);

/// `ECONNREFUSED`.
pub const REFUSED: i32 = rustix::io::Errno::CONNREFUSED.raw_os_error();

/// The error number when a program refuses: since Linux 6.1 the program chooses it with
/// `bpf_set_retval`; before, the kernel returns `EPERM`.
#[must_use]
pub fn refusal() -> i32 {
    if kernel() < (6, 1) { rustix::io::Errno::PERM.raw_os_error() } else { REFUSED }
}

impl Failure {
    /// Whether the connection was refused, by its destination or by a program.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.errno == REFUSED || self.errno == refusal()
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = format!("{:?}", self.step).to_lowercase();
        match self.errno {
            0 => write!(f, "{step}: the answer makes no sense"),
            errno => write!(f, "{step}: {}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The results of many exchanges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Exchanges tried; a client stops after three that timed out.
    pub requests: u32,
    /// Answers per pod.
    pub replies: BTreeMap<String, u32>,
    /// What the client wrote and read over TCP for these answers.
    pub moved: BTreeMap<String, Moved>,
    /// Refusals ([`Failure::is_refusal`]), at any step.
    pub refused: u32,
    /// All failures, with their number.
    pub failures: Vec<(Failure, u32)>,
    /// The peers seen, as in [`Reply::peer`].
    pub peers: BTreeSet<SocketAddr>,
    /// Median time of an exchange, or of a refusal, in microseconds.
    pub median_us: u64,
    /// The longest such time, in microseconds.
    pub longest_us: u64,
}

impl Tally {
    /// The pods that answered.
    #[must_use]
    pub fn pods(&self) -> BTreeSet<&str> {
        self.replies.keys().map(String::as_str).collect()
    }

    /// Adds another tally; of its times only the longest.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        for (pod, count) in &other.replies {
            *self.replies.entry(pod.clone()).or_default() += count;
        }
        for (pod, &moved) in &other.moved {
            *self.moved.entry(pod.clone()).or_default() += moved;
        }
        for &(failure, count) in &other.failures {
            match self.failures.iter_mut().find(|(known, _)| *known == failure) {
                Some((_, sum)) => *sum += count,
                None => self.failures.push((failure, count)),
            }
        }
        self.peers.extend(&other.peers);
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// Whether exactly `pods` answered all exchanges, or, with no pods, all were refused.
    #[must_use]
    pub fn is_of(&self, pods: &[&str]) -> bool {
        let all = if pods.is_empty() { self.refused } else { self.answered() };
        all == self.requests && self.pods() == pods.iter().copied().collect()
    }

    /// Whether the median exchange was too fast to include a time-out.
    #[must_use]
    pub fn is_at_once(&self) -> bool {
        Duration::from_micros(self.median_us) < patient(AT_ONCE)
    }

    /// The number of answered exchanges.
    #[must_use]
    pub fn answered(&self) -> u32 {
        self.replies.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests", self.requests)?;
        for (pod, count) in &self.replies {
            write!(f, ", {count} answered by {pod}")?;
        }
        for (failure, count) in &self.failures {
            write!(f, ", {count} failed ({failure})")?;
        }
        Ok(())
    }
}
