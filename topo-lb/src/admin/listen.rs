//! The address that is listened on, and how many connections it bears.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tracing::{info, warn};

/// Connections at a time; others wait in the kernel's queue.
const CONNECTIONS: usize = 32;
/// A connection on which nothing happens for so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// Pause before an address that cannot be had is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 is any that is free.
    On(SocketAddr),
}

/// Not an address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no address: write it as ADDRESS:PORT, like 127.0.0.1:9876 or [::]:9876, or `off`")]
pub struct ListenError;

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        match text.trim() {
            "" | "off" => Ok(Self::Off),
            address => address.parse().map(Self::On).map_err(|_| ListenError),
        }
    }
}

/// Gets the address, sooner or later.
pub(super) async fn bind(address: SocketAddr) -> Limited {
    let mut has_warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let bound = listener.local_addr().unwrap_or(address);
                // What is as it was asked for goes without saying.
                if bound != address || has_warned {
                    info!("listening on http://{bound}");
                }
                return Limited { listener, places: Arc::new(Semaphore::new(CONNECTIONS)) };
            }
            Err(error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    warn!(
                        "cannot listen on {address}: {}; connections to Services do not depend on \
                         it, it is tried again every {} s; choose another address with --listen",
                        reason(&error),
                        PAUSE.as_secs()
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no device of this host has that address".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 takes the capability CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => error.to_string(),
    }
}

/// A listener that takes as many connections as it has places.
pub(super) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Nobody closes the semaphore: there is a place, sooner or later.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let idle = Box::pin(tokio::time::sleep(IDLE));
                    return (Connection { stream, idle, _place: place }, from);
                }
                // The host is out of descriptors or memory, or the client has gone: wait a little.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing happens on it.
pub(super) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// What came of an attempt to read or write: something happened, or the time is up.
    fn happened<T>(
        &mut self,
        result: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE);
            return result;
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.happened(result, context)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.happened(result, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_nothing_is_off() {
        assert_eq!("".parse(), Ok(Listen::Off));
        assert_eq!("off".parse(), Ok(Listen::Off));
        assert_eq!("[::1]:0".parse(), Ok(Listen::On("[::1]:0".parse().unwrap())));
        for wrong in ["9876", ":9876", "127.0.0.1", "localhost:9876", "127.0.0.1:70000"] {
            assert_eq!(wrong.parse::<Listen>(), Err(ListenError), "{wrong}");
        }
    }
}
