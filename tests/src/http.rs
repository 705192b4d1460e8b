//! Just enough of HTTP to look at an agent, and to tell etcd something.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::NetNs;
use crate::wait::patient;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200, say.
    pub status: u16,
    /// Its first line and its headers.
    pub head: String,
    /// What it says.
    pub body: String,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.body)
    }
}

/// Asks for a path, from inside a network namespace.
///
/// # Errors
/// Nobody answers there.
pub fn get(netns: &NetNs, address: SocketAddr, path: &str) -> Result<Answer> {
    exchange(netns, address, &format!("GET {path} HTTP/1.0\r\n\r\n"))
        .with_context(|| format!("no answer to {path}"))
}

/// Tells JSON to a path, from inside a network namespace.
///
/// # Errors
/// Nobody answers there.
pub fn post(netns: &NetNs, address: SocketAddr, path: &str, json: &str) -> Result<Answer> {
    let head = format!(
        "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        json.len()
    );
    exchange(netns, address, &(head + json)).with_context(|| format!("no answer to {path}"))
}

/// By HTTP/1.0: the answer ends with the connection.
fn exchange(netns: &NetNs, address: SocketAddr, request: &str) -> Result<Answer> {
    netns.run(|| {
        let patience = patient(Duration::from_secs(15));
        let mut stream = TcpStream::connect_timeout(&address, patience)
            .with_context(|| format!("nobody listens on {address}"))?;
        stream.set_read_timeout(Some(patience)).context("a socket has a timeout")?;
        stream.write_all(request.as_bytes()).context("cannot ask")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("the connection breaks")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Answer {
            status: status.with_context(|| format!("no status in {head:?}"))?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    })
}
