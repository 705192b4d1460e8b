//! A minimal HTTP client, to read from an agent and to post JSON to etcd.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use crate::netns::NetNs;
use crate::wait::patient;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status, for example 200.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a series, its labels included, among metrics in the text format.
    #[must_use]
    pub fn sample(&self, series: &str) -> Option<f64> {
        let mut lines = self.body.lines();
        lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.body)
    }
}

/// Sends a GET from inside a network namespace.
pub fn get(netns: &NetNs, address: SocketAddr, path: &str) -> Result<Answer> {
    get_from(netns, None, address, path)
}

/// Sends a GET from this process's network namespace, to a server that wants the name of a host.
pub fn get_here(address: SocketAddr, path: &str) -> Result<Answer> {
    ask(None, address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
        .with_context(|| format!("no answer to {path}"))
}

/// Like [`get`], from a given source address.
pub fn get_from(
    netns: &NetNs,
    from: Option<IpAddr>,
    address: SocketAddr,
    path: &str,
) -> Result<Answer> {
    exchange(netns, from, address, &format!("GET {path} HTTP/1.0\r\n\r\n"))
        .with_context(|| format!("no answer to {path}"))
}

/// Posts JSON from inside a network namespace.
pub fn post(netns: &NetNs, address: SocketAddr, path: &str, json: &str) -> Result<Answer> {
    let head = format!(
        "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        json.len()
    );
    exchange(netns, None, address, &(head + json)).with_context(|| format!("no answer to {path}"))
}

fn exchange(
    netns: &NetNs,
    from: Option<IpAddr>,
    address: SocketAddr,
    request: &str,
) -> Result<Answer> {
    netns.run(|| ask(from, address, request))
}

/// HTTP/1.0: the server closes the connection after the response.
fn ask(from: Option<IpAddr>, address: SocketAddr, request: &str) -> Result<Answer> {
    let patience = patient(Duration::from_secs(15));
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)
        .context("there is no socket")?;
    if let Some(from) = from {
        let from = SocketAddr::new(from, 0);
        socket.bind(&from.into()).with_context(|| format!("{from} is not to be had"))?;
    }
    socket
        .connect_timeout(&address.into(), patience)
        .with_context(|| format!("nothing listens on {address}"))?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(patience)).context("a socket has a timeout")?;
    stream.set_write_timeout(Some(patience)).context("a socket has a timeout")?;
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
}
