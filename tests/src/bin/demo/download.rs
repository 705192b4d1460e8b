//! A download of a client outside that goes on while a node is unplugged.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::wait::{patient, until};

/// Its bytes: more than the sockets of both sides hold.
const BYTES: usize = 32 << 20;
/// How many the client takes before it waits.
const FIRST: usize = 1 << 20;
/// How long it waits for more. What was lost is sent again after less than that.
const WAITS: Duration = Duration::from_secs(20);

/// A download that has begun.
pub(crate) struct Download {
    stream: TcpStream,
    left: usize,
}

impl Download {
    /// Begins one from one of these pods, and takes its first part.
    pub(crate) fn begin(netns: &NetNs, to: SocketAddr, pods: &[&str]) -> Result<Self> {
        let mut begun = None;
        until("a connection to the pods of the download", WAITS, || {
            let dial = || Ok(TcpStream::connect_timeout(&to, patient(WAITS))?);
            let mut stream = netns.run(dial)?;
            stream.set_read_timeout(Some(patient(WAITS)))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n")?;
            let pod = body(&mut stream)?;
            if !pods.contains(&&*pod) {
                return Ok(Err(pod));
            }
            begun = Some(stream);
            Ok(Ok(()))
        })?;
        let mut stream = begun.context("what is there")?;
        // The server sends back what it gets, when it has all of it.
        write!(stream, "POST /echo HTTP/1.1\r\nHost: demo\r\nContent-Length: {BYTES}\r\n\r\n")?;
        stream.write_all(&vec![b'x'; BYTES])?;
        let first = body(&mut stream)?;
        let mut download = Self { stream, left: BYTES - first.len() };
        download.take(BYTES - FIRST)?;
        Ok(download)
    }

    /// Takes the rest.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.take(0)
    }

    /// Reads until so many bytes are left.
    fn take(&mut self, left: usize) -> Result<()> {
        let mut bytes = vec![0; 1 << 16];
        while self.left > left {
            let most = bytes.len().min(self.left - left);
            let read = self.stream.read(&mut bytes[..most])?;
            ensure!(read > 0, "it ends {} bytes too early", self.left);
            ensure!(bytes[..read].iter().all(|byte| *byte == b'x'), "it has other bytes");
            self.left -= read;
        }
        Ok(())
    }
}

/// What follows the head of an answer, as much as is there.
fn body(stream: &mut TcpStream) -> Result<String> {
    let mut bytes = [0; 4_096];
    let read = stream.read(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes[..read]);
    let (_, body) = text.split_once("\r\n\r\n").with_context(|| format!("{text:?}"))?;
    Ok(body.to_owned())
}
