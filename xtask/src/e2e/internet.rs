//! Stands in for the internet: before each spec of *Networking*, e2e.test itself asks for
//! `http://google.com`, and it fails if the answer is not 200. That request says nothing about the
//! cluster, and no test may need the internet. Other requests get 502.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// What e2e.test asks for.
const EXPECTED: &str = "GET http://google.com/ ";

/// Where the cluster and this machine are: requests to these go there.
const PRIVATE: &str =
    "localhost,127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,.cluster.local";

/// How long a client may be silent.
const LIMIT: Duration = Duration::from_secs(10);

/// Has `command` send its unencrypted requests to the HTTP proxy at `address`.
pub(super) fn stand_in_for(command: &mut Command, address: SocketAddr) {
    // Go reads both spellings; the API server is asked over HTTPS.
    for name in ["HTTPS_PROXY", "https_proxy", "http_proxy", "no_proxy"] {
        command.env_remove(name);
    }
    command.env("HTTP_PROXY", format!("http://{address}")).env("NO_PROXY", PRIVATE);
}

/// Starts the HTTP proxy, until this program ends.
///
/// # Errors
/// No port is free.
pub(super) fn serve() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    let address = listener.local_addr().context("a listener has an address")?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A client that has gone away needs no answer.
            let _ = answer(&client);
        }
    });
    Ok(address)
}

fn answer(mut client: &TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(LIMIT))?;
    let mut lines = BufReader::new(client).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The connection ends with a reset if something is unread.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let status = if request.starts_with(EXPECTED) { "200 OK" } else { "502 Bad Gateway" };
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn only_what_the_tests_ask_for_is_answered() {
        let address = serve().unwrap();
        let ask = |request: &str| {
            let mut client = TcpStream::connect(address).unwrap();
            write!(client, "{request} HTTP/1.1\r\nHost: any\r\n\r\n").unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).unwrap();
            said.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(ask("GET http://google.com/"), "HTTP/1.1 200 OK");
        assert_eq!(ask("GET http://example.com/"), "HTTP/1.1 502 Bad Gateway");
        assert_eq!(ask("CONNECT google.com:443"), "HTTP/1.1 502 Bad Gateway");
    }
}
