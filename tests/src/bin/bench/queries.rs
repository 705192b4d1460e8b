//! Queries by UDP, and a server that stands in for the cluster DNS: it sends each query back as an answer
//! without records.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;

use anyhow::{Context as _, Result};
use hickory_server::proto::op::{Message, MessageType, OpCode, Query};
use hickory_server::proto::rr::{Name, RecordType};
use serde::{Deserialize, Serialize};

/// The port of the server.
pub(crate) const PORT: u16 = 9505;
/// Queries of a [`Client::burst`].
pub(crate) const BURST: usize = 100;
/// Queries that wait for an answer at once, while bursts follow one another.
const WINDOW: usize = 64;
/// The flag that tells an answer from a query, in the third byte.
const RESPONSE: u8 = 1 << 7;
/// Where a message has the low byte of its number of answers.
const ANSWERS: usize = 7;
/// Answers have some more bytes than queries.
const LONGEST: usize = 512;

/// Who answers a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// The agent's resolver.
    Own,
    /// The cluster DNS.
    Other,
}

impl Asked {
    fn query(self) -> Result<Vec<u8>> {
        let name = match self {
            Self::Own => "db.default.svc.cluster.local.",
            Self::Other => "other.default.svc.cluster.local.",
        };
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(Name::from_ascii(name)?, RecordType::A));
        Ok(query.to_vec()?)
    }
}

/// Answers queries on a thread of its own until the process ends.
pub(crate) fn serve() -> Result<()> {
    let socket = UdpSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)));
    let socket = socket.context("cannot listen for queries")?;
    thread::spawn(move || {
        let mut message = [0; LONGEST];
        while let Ok((length, from)) = socket.recv_from(&mut message) {
            message[2] |= RESPONSE;
            let _ = socket.send_to(&message[..length], from);
        }
    });
    Ok(())
}

/// A connected socket that asks for one name.
pub(crate) struct Client {
    socket: UdpSocket,
    asked: Asked,
    query: Vec<u8>,
    /// Queries that wait for an answer.
    waiting: usize,
}

impl Client {
    /// `socket`: connected to the server.
    pub(crate) fn new(socket: UdpSocket, asked: Asked) -> Result<Self> {
        Ok(Self { socket, asked, query: asked.query()?, waiting: 0 })
    }

    /// A query and its answer.
    pub(crate) fn ask(&mut self) -> io::Result<()> {
        self.socket.send(&self.query)?;
        self.hear()
    }

    /// So many answers, and a new query for each.
    pub(crate) fn burst(&mut self) -> io::Result<()> {
        while self.waiting < WINDOW {
            self.socket.send(&self.query)?;
            self.waiting += 1;
        }
        for _ in 0..BURST {
            self.hear()?;
            self.socket.send(&self.query)?;
        }
        Ok(())
    }

    /// Checks who has answered, too.
    fn hear(&self) -> io::Result<()> {
        let mut answer = [0; LONGEST];
        self.socket.recv(&mut answer)?;
        let has_records = answer[ANSWERS] > 0;
        if answer[2] & RESPONSE == 0 || has_records != (self.asked == Asked::Own) {
            return Err(io::Error::other("somebody else has answered"));
        }
        Ok(())
    }
}
