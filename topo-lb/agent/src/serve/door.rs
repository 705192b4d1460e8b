//! Connections from accept to close. Each is accepted at once; if there are too many, one is
//! closed.
//!
//! A connection first waits for the head of its one request, then it is answered and closed. Each
//! phase has a hard deadline and its own limit (`Crowd` chooses the connection to close), so
//! neither silent nor slow peers keep others out.

use std::io::{self, Cursor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::crowd::{Crowd, Peer, Ticket};
use super::head::{self, LONGEST, NoHead};

/// Deadline for the head of a request, from accept. Some connections have up to twice as long: many
/// that arrive at once must not all be closed, and reconnect, at once.
const HEAD: Duration = Duration::from_secs(5);
/// Deadline for producing and sending an answer that ends.
const ANSWER: Duration = Duration::from_secs(60);
/// Connections that are answered at the same time.
const ANSWERING: usize = 64;
/// After its answer, a peer has this much time, and may send this many bytes, until it closes:
/// closing a connection with unread bytes resets it, and the answer is lost.
const LINGER: Duration = Duration::from_secs(1);
const LEFTOVER: u64 = 64 * 1024;
/// Pause after the host ran out of descriptors or memory for a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener.
pub trait Accept: Send {
    /// What it accepts.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next connection, and whose it is.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&mut self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, from) = Self::accept(self).await?;
        Ok((stream, from.ip().into()))
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&mut self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, _) = Self::accept(self).await?;
        Ok((stream, Peer::Local))
    }
}

/// The limits of connections, which listeners may share.
#[derive(Clone)]
pub struct Rooms {
    waiting: Room,
    answering: Room,
    /// Deadline for producing and sending an answer.
    answer: Duration,
}

impl Rooms {
    /// At most `waiting` connections wait for the head of a request.
    pub(crate) fn new(waiting: usize) -> Self {
        Self { waiting: Room::new(waiting), answering: Room::new(ANSWERING), answer: ANSWER }
    }

    /// The same for answers without an end: at most `answering` of them, and no deadline.
    pub fn of_streams(waiting: usize, answering: usize) -> Self {
        let (waiting, answering) = (Room::new(waiting), Room::new(answering));
        Self { waiting, answering, answer: Duration::MAX }
    }
}

/// Answers all connections, for ever.
pub async fn serve(mut listener: impl Accept, router: Router, rooms: Rooms) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let place = rooms.waiting.take(peer);
                tokio::spawn(attend(stream, peer, place, rooms.clone(), router.clone()));
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(_) => {
                // The process is out of descriptors, or the host out of memory: closing a waiting
                // connection frees some of both.
                rooms.waiting.make_way();
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the peer closed the connection before it was accepted.
fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM)
    )
}

/// Connections in one phase. Dropping a member's sender closes the connection.
#[derive(Clone)]
pub(crate) struct Room(Arc<Mutex<Crowd<oneshot::Sender<()>>>>);

impl Room {
    /// Room for so many.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Crowd::new(limit))))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Crowd<oneshot::Sender<()>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Admits a connection. Beyond the limit, the room closes another one.
    pub(crate) fn take(&self, peer: Peer) -> Admission {
        let (sender, lost) = oneshot::channel();
        let (ticket, out) = self.with(|crowd| crowd.enter(peer, sender));
        drop(out);
        Admission { room: self.clone(), ticket, lost }
    }

    fn make_way(&self) {
        drop(self.with(Crowd::evict));
    }
}

/// The admission of a connection to a room, until it is dropped.
pub(crate) struct Admission {
    room: Room,
    ticket: Ticket,
    lost: oneshot::Receiver<()>,
}

impl Admission {
    /// Deadline for the head: 5 to 10 s, spread by ticket number.
    fn patience(&self) -> Duration {
        HEAD + HEAD * u32::from(self.ticket.low_byte()) / 256
    }

    /// Ends when the room closes this connection in favour of another one.
    pub(crate) async fn lost(&mut self) {
        // Nothing is ever sent: the sender is dropped.
        let _ = (&mut self.lost).await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        drop(self.room.with(|crowd| crowd.leave(&self.ticket)));
    }
}

async fn attend<S>(mut stream: S, peer: Peer, mut waiting: Admission, rooms: Rooms, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut head = Vec::new();
    let patience = waiting.patience();
    let read = tokio::select! {
        () = waiting.lost() => return,
        read = timeout(patience, head::read(&mut stream, &mut head)) => read,
    };
    let read = match read {
        Ok(Err(NoHead::Closed)) => return,
        Err(_) => {
            if !head.is_empty() {
                let sentence =
                    format!("the head of the request did not come within {} s", HEAD.as_secs());
                // This is the first write, so the socket's buffer has room.
                let text = refusal("408 Request Timeout", &sentence);
                let _ = timeout(LINGER, stream.write_all(text.as_bytes())).await;
            }
            return;
        }
        Ok(read) => read,
    };
    let mut place = rooms.answering.take(peer);
    drop(waiting);
    // Boxed: a connection that waits for a head then needs no room for its answer.
    let rest = Box::pin(async {
        match read {
            Ok(()) => answer(stream, head, router).await,
            Err(_) => {
                let status = "431 Request Header Fields Too Large";
                let sentence = format!("the head of a request has at most {LONGEST} bytes");
                refuse(stream, &refusal(status, &sentence)).await;
            }
        }
    });
    tokio::select! {
        () = place.lost() => {}
        // An error of one connection ends only that connection.
        _ = timeout(rooms.answer, rest) => {}
    }
}

/// Answers the request that begins with `head`.
async fn answer<S>(stream: S, head: Vec<u8>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (reader, writer) = tokio::io::split(stream);
    let mut stream = tokio::io::join(Cursor::new(head).chain(reader), writer);
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(2 * LONGEST)
        .serve_connection(TokioIo::new(&mut stream), TowerToHyperService::new(router))
        .await;
    if served.is_ok() {
        linger(&mut stream).await;
    }
}

/// An HTTP answer with an error sentence.
fn refusal(status: &str, sentence: &str) -> String {
    let length = sentence.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{sentence}\n"
    )
}

/// Sends an error to a peer that may still be sending.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
    let written = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    };
    if matches!(timeout(LINGER, written).await, Ok(Ok(()))) {
        linger(&mut stream).await;
    }
}

/// Waits until the peer has closed, too.
async fn linger(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = stream.take(LEFTOVER);
    let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

#[cfg(test)]
mod tests;
