//! Many idle connections to an agent; each is opened again when the agent closes it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::netns::NetNs;

/// How often a slow connection sends a byte.
const SLOW: Duration = Duration::from_secs(8);

/// The size of a crowd.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of source addresses: 127.0.1.1 and the following.
    pub addresses: u8,
    /// Connections per address. Every other one is silent; the rest send a byte every 8 s.
    pub each: usize,
}

impl Plan {
    /// 2,000 connections from 50 addresses: with them the agent still promises fast answers.
    pub const LARGE: Self = Self { addresses: 50, each: 40 };

    /// The number of all connections.
    #[must_use]
    pub fn connections(self) -> usize {
        usize::from(self.addresses) * self.each
    }

    /// The address with this number, from 1 on.
    #[must_use]
    pub fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, number)
    }
}

/// Counts of a crowd's connections.
#[derive(Debug, Default)]
pub struct Counts {
    opened: AtomicUsize,
    closed: AtomicUsize,
}

impl Counts {
    /// Connections opened so far.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.opened().saturating_sub(self.closed.load(Ordering::Relaxed))
    }
}

/// Runs `body` while a crowd inside `netns` is connected to `address`.
pub fn around<T>(
    netns: &NetNs,
    address: SocketAddr,
    plan: Plan,
    body: impl FnOnce(&Counts) -> Result<T>,
) -> Result<T> {
    let counts = Arc::new(Counts::default());
    let (stop, stopped) = oneshot::channel::<Infallible>();
    thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            netns.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.context("no runtime")?.block_on(async {
                    for number in 1..=plan.addresses {
                        for member in 0..plan.each {
                            let counts = Arc::clone(&counts);
                            let from = Plan::address(number);
                            tokio::spawn(stay(from, address, member % 2 == 0, counts));
                        }
                    }
                    // The sender is only dropped.
                    let _ = stopped.await;
                });
                Ok(())
            })
        });
        let outcome = body(&counts);
        drop(stop);
        let crowd = crowd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.and_then(|outcome| crowd.map(|()| outcome))
    })
}

/// Keeps one connection open, and opens it again when it ends.
async fn stay(from: Ipv4Addr, to: SocketAddr, silent: bool, counts: Arc<Counts>) {
    loop {
        let Ok(mut stream) = connect(from, to).await else {
            // Nothing listens, or the queue is full.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        counts.opened.fetch_add(1, Ordering::Relaxed);
        let mut chunk = [0; 256];
        loop {
            if !silent && stream.write_all(b"G").await.is_err() {
                break;
            }
            let read = tokio::time::timeout(SLOW, stream.read(&mut chunk)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                break;
            }
        }
        counts.closed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}
