//! A port of the machine's loopback device that leads to a server on the fabric.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::Cluster;

use super::background::Background;

/// The port. Dropping it closes it.
#[derive(Debug)]
pub struct Door {
    port: u16,
    _forwarding: Background,
}

impl Door {
    /// Opens a free port that leads to `server`.
    ///
    /// # Errors
    /// No port is free.
    pub fn open(cluster: &Cluster, server: SocketAddr) -> Result<Self> {
        // Made here, so it is on the machine's own network.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = listener.context("no free port on the loopback device")?;
        let port = listener.local_addr().context("a bound socket has an address")?.port();
        listener.set_nonblocking(true).context("cannot make a socket non-blocking")?;
        let forwarding = Background::start("door", cluster, async move {
            let listener = TcpListener::from_std(listener).context("cannot use the socket")?;
            Ok(async move {
                loop {
                    match listener.accept().await {
                        Ok((client, _)) => drop(tokio::spawn(forward(client, server))),
                        // Too many open files, for one.
                        Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                    }
                }
            })
        })?;
        Ok(Self { port, _forwarding: forwarding })
    }

    /// Its number.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr) {
    // The client sees either end's failure as the end of its connection.
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
