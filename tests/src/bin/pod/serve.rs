//! The server: a task per address and protocol. Answers with its name, and echoes posts to `/echo`.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime;

/// Serves until standard input ends: then the lab is gone, and nothing else ends this process.
pub(crate) fn serve(name: String, addresses: &[SocketAddr], mptcp: bool) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the server's runtime")?;
    // A thread blocks on standard input; the runtime must not wait for it at the end.
    let (gone, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // An error also means that the lab is gone.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = gone.send(());
    });
    runtime.block_on(async {
        for &address in addresses {
            let tcp = listen(address, mptcp)
                .with_context(|| format!("cannot listen on {address}, TCP"))?;
            let udp = UdpSocket::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address}, UDP"))?;
            let body = name.clone();
            let router = Router::new()
                .route("/echo", post(async |body: Bytes| body).layer(DefaultBodyLimit::disable()))
                .fallback(async move || body);
            tokio::spawn(async move { axum::serve(tcp, router).await });
            tokio::spawn(echo(udp, name.clone()));
        }
        println!("listening");
        io::stdout().flush().context("cannot say that the server listens")?;
        // A closed channel means the same as a message.
        let _ = wait.await;
        Ok(())
    })
}

fn listen(address: SocketAddr, mptcp: bool) -> io::Result<TcpListener> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1_024)?;
    TcpListener::from_std(socket.into())
}

/// Answers every datagram with the name.
async fn echo(socket: UdpSocket, name: String) {
    let mut buffer = [0; 2048];
    loop {
        // Errors concern one datagram, for example ICMP errors for an answer to a gone client.
        if let Ok((_, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(name.as_bytes(), from).await;
        }
    }
}
