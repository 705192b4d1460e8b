//! The server: a task per address and protocol. Answers with its name, echoes posts to `/echo`, and
//! tells the source address of a request on request.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit};
use axum::routing::{get, post};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::setpriority_process;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime;
use topo_lb_tests::dial::{SOURCE_DATAGRAM, SOURCE_PATH};

/// The nice value of servers: about ten times the CPU time of a client.
const SERVES_FIRST: i32 = -10;

/// Serves until standard input ends: then the lab is gone, and nothing else ends this process.
pub(crate) fn serve(
    name: String,
    addresses: &[SocketAddr],
    mptcp: bool,
    only_ipv6: bool,
) -> Result<()> {
    // Before its clients: where other programs have the CPUs, a server that gets no more than each of its clients answers
    // seconds late, and they give up. Without the privilege it serves as before.
    let _ = setpriority_process(None, SERVES_FIRST);
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
            let tcp = listen(address, mptcp, only_ipv6)
                .with_context(|| format!("cannot listen on {address}, TCP"))?;
            let udp = bound(address, only_ipv6)
                .with_context(|| format!("cannot listen on {address}, UDP"))?;
            let (body, named) = (name.clone(), name.clone());
            let source = async move |ConnectInfo(from): ConnectInfo<SocketAddr>| told(&named, from);
            let router = Router::new()
                .route(SOURCE_PATH, get(source))
                .route("/echo", post(async |body: Bytes| body).layer(DefaultBodyLimit::disable()))
                .fallback(async move || body);
            let router = router.into_make_service_with_connect_info::<SocketAddr>();
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

/// Room for datagrams that wait, in bytes: a flood of some seconds.
const WAITING: usize = 64 << 20;

fn bound(address: SocketAddr, only_ipv6: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if only_ipv6 {
        socket.set_only_v6(true)?;
    }
    // A flood that the node lets through waits here, and pushes out no other datagram. Without the privilege
    // for it the socket keeps the kernel's default.
    let _ = set_socket_recv_buffer_size_force(&socket, WAITING);
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

fn listen(address: SocketAddr, mptcp: bool, only_ipv6: bool) -> io::Result<TcpListener> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    if only_ipv6 {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1_024)?;
    TcpListener::from_std(socket.into())
}

/// The answer with the source address of a request.
fn told(name: &str, from: SocketAddr) -> String {
    format!("{name} {}", from.ip())
}

/// Answers every datagram with the name, or as [`told`].
async fn echo(socket: UdpSocket, name: String) {
    let mut buffer = [0; 2048];
    loop {
        // Errors concern one datagram, for example ICMP errors for an answer to a gone client.
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let _ = match &buffer[..length] {
                SOURCE_DATAGRAM => socket.send_to(told(&name, from).as_bytes(), from).await,
                _ => socket.send_to(name.as_bytes(), from).await,
            };
        }
    }
}
