//! Sockets of every kind that a client can use, and one exchange through each.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, connect_unspec, recv, recvfrom};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use topo_lb_tests::traffic::{Failure, Reply, Step, Via};
use topo_lb_tests::transfer::{Ending, Moved};
use topo_lb_tests::wait::patient;

use crate::{http, transfer};

/// The limit of one system call; on a busy machine a server may have to wait for a core. Longer than a
/// kernel that sends a SYN twice waits for an answer.
const LIMIT: Duration = Duration::from_secs(4);

/// An open socket, and its protocol.
#[derive(Debug)]
pub(crate) struct Open {
    socket: Socket,
    via: Via,
}

impl Open {
    /// Opens a socket of the family of `to`, and connects it unless `via` is unconnected.
    pub(crate) fn new(via: Via, to: SocketAddr) -> Result<Self, Failure> {
        let (kind, protocol) = match via {
            Via::Http => (Type::STREAM, Protocol::TCP),
            Via::HttpMptcp => (Type::STREAM, Protocol::MPTCP),
            Via::Udp | Via::UdpConnected => (Type::DGRAM, Protocol::UDP),
        };
        let socket = Socket::new(Domain::for_address(to), kind, Some(protocol))
            .and_then(|socket| {
                socket.set_read_timeout(Some(patient(LIMIT)))?;
                // `connect` obeys this timeout too.
                socket.set_write_timeout(Some(patient(LIMIT)))?;
                Ok(socket)
            })
            .map_err(at(Step::Socket))?;
        let open = Self { socket, via };
        if via != Via::Udp {
            open.connect(to)?;
        }
        Ok(open)
    }

    pub(crate) fn of(socket: OwnedFd, via: Via) -> Self {
        Self { socket: socket.into(), via }
    }

    pub(crate) fn into_parts(self) -> (OwnedFd, Via) {
        (self.socket.into(), self.via)
    }

    /// Calls `connect`; a datagram socket can be connected again.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(), Failure> {
        self.socket.connect(&SockAddr::from(to)).map_err(at(Step::Connect))
    }

    /// Disconnects the socket from its peer.
    pub(crate) fn disconnect(self) -> Result<Self, Failure> {
        connect_unspec(&self.socket).map_err(|errno| at(Step::Connect)(errno.into()))?;
        Ok(Self { via: Via::Udp, ..self })
    }

    /// One request and its response; only an unconnected socket uses `to`.
    pub(crate) fn ask(&self, to: SocketAddr) -> Result<Reply, Failure> {
        match self.via {
            Via::Http | Via::HttpMptcp => {
                let peer = self.peer()?;
                let written = http::ask(&self.socket).map_err(at(Step::Send))?;
                let answer = http::answer(&self.socket).map_err(at(Step::Receive))?;
                let (pod, read) = answer.ok_or(Failure { step: Step::Receive, errno: 0 })?;
                Ok(Reply { pod, peer, moved: Moved { written, read } })
            }
            Via::UdpConnected => {
                let peer = self.peer()?;
                (&self.socket).write(b"who?").map_err(at(Step::Send))?;
                let mut buffer = [0; 512];
                let length = (&self.socket).read(&mut buffer).map_err(at(Step::Receive))?;
                Ok(Reply { pod: text(&buffer[..length]), peer, moved: Moved::default() })
            }
            Via::Udp => {
                self.send(to)?;
                self.receive()
            }
        }
    }

    /// Sends these bytes, and receives as many as come in answer.
    pub(crate) fn exchange(&self, to: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut socket = &self.socket;
        if self.via == Via::Udp {
            self.socket.send_to(bytes, &SockAddr::from(to)).map_err(at(Step::Send))?;
        } else {
            socket.write_all(bytes).map_err(at(Step::Send))?;
        }
        let mut answer = vec![0; 65_536];
        let length = match self.via {
            Via::Udp | Via::UdpConnected => socket.read(&mut answer).map_err(at(Step::Receive))?,
            Via::Http | Via::HttpMptcp => {
                socket.read_exact(&mut answer[..2]).map_err(at(Step::Receive))?;
                let length = usize::from(u16::from_be_bytes([answer[0], answer[1]])) + 2;
                answer.resize(length, 0);
                socket.read_exact(&mut answer[2..]).map_err(at(Step::Receive))?;
                length
            }
        };
        answer.truncate(length);
        Ok(answer)
    }

    /// Sends a request through an unconnected socket.
    pub(crate) fn send(&self, to: SocketAddr) -> Result<(), Failure> {
        self.socket.send_to(b"who?", &SockAddr::from(to)).map_err(at(Step::Send))?;
        Ok(())
    }

    /// Receives an answer through an unconnected socket.
    pub(crate) fn receive(&self) -> Result<Reply, Failure> {
        let mut buffer = [0; 512];
        let (length, _, from) = recvfrom(&self.socket, &mut buffer, RecvFlags::empty())
            .map_err(|errno| at(Step::Receive)(errno.into()))?;
        let peer = from.and_then(|from| from.try_into().ok());
        let peer = peer.ok_or(Failure { step: Step::Receive, errno: 0 })?;
        Ok(Reply { pod: text(&buffer[..length]), peer, moved: Moved::default() })
    }

    /// Posts so many bytes, and reads them back.
    pub(crate) fn echo(&self, bytes: usize) -> Result<Moved, Failure> {
        transfer::echo(&self.socket, bytes).map_err(at(Step::Receive))
    }

    /// Ends the connection. Returns how many bytes were still read.
    pub(crate) fn end(self, ending: Ending) -> Result<u64, Failure> {
        transfer::end(self.socket, ending).map_err(at(Step::Receive))
    }

    /// Waits for an unrequested message.
    pub(crate) fn hear(&self) -> Result<Reply, Failure> {
        let mut buffer = [0; 512];
        let length = (&self.socket).read(&mut buffer).map_err(at(Step::Receive))?;
        Ok(Reply { pod: text(&buffer[..length]), peer: self.peer()?, moved: Moved::default() })
    }

    /// Writes to a connected socket.
    pub(crate) fn say(&self, bytes: &[u8]) -> Result<(), Failure> {
        (&self.socket).write_all(bytes).map_err(at(Step::Send))
    }

    /// How many bytes could be read, at most one; zero at the end of the stream, `None` for nothing yet.
    pub(crate) fn look(&self) -> Result<Option<usize>, Failure> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.socket, &mut [0; 1], flags) {
            Ok((length, _)) => Ok(Some(length)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(at(Step::Receive)(errno.into())),
        }
    }

    /// `getpeername`.
    pub(crate) fn peer(&self) -> Result<SocketAddr, Failure> {
        let peer = self.socket.peer_addr().map_err(at(Step::Peer))?;
        peer.as_socket().ok_or(Failure { step: Step::Peer, errno: 0 })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn at(step: Step) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let errno = error.raw_os_error().unwrap_or_default();
        // A call that timed out returns EAGAIN or EINPROGRESS; reports ETIMEDOUT instead.
        let slow = [Errno::AGAIN.raw_os_error(), Errno::INPROGRESS.raw_os_error()];
        let errno = if slow.contains(&errno) { Errno::TIMEDOUT.raw_os_error() } else { errno };
        Failure { step, errno }
    }
}
