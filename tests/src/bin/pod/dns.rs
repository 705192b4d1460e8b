//! A server in place of the cluster DNS, UDP and TCP.

use std::io::{self, Read as _, Write as _, stdin};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use anyhow::{Context as _, Result};
use topo_lb_tests::cluster_dns::{echoed, framed};

/// Serves until standard input ends; prints `listening` when it is ready.
pub(crate) fn serve(port: u16) -> Result<()> {
    let at = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let datagrams = UdpSocket::bind(at).context("cannot listen for datagrams")?;
    let streams = TcpListener::bind(at).context("cannot listen")?;
    println!("listening");
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&echoed(&buffer[..length]), from);
        }
    });
    thread::spawn(move || {
        for stream in streams.incoming().flatten() {
            thread::spawn(move || converse(stream));
        }
    });
    // The parent process holds the other end.
    io::copy(&mut stdin(), &mut io::sink()).context("cannot wait for the end")?;
    Ok(())
}

fn converse(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query)?;
        stream.write_all(&framed(&echoed(&query)))?;
    }
}
