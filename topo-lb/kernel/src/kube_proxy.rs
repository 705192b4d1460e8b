//! Whether kube-proxy runs on this host, and what it has left in the kernel.

mod rules;

use std::fs::{read_dir, read_link, read_to_string};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Where kube-proxy serves its metrics by default (`--metrics-bind-address`).
pub const METRICS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10_249));
/// Time limit of each step of a request on this host.
const PATIENCE: Duration = Duration::from_secs(1);

/// What there is of kube-proxy on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Its mode, such as `iptables`, if it says so.
    pub mode: Option<String>,
    /// Its process. A container with process ids of its own does not see it.
    pub process: Option<u32>,
    /// What is in the kernel, in words: kube-proxy's own, not what kubelet makes.
    pub rules: Vec<&'static str>,
}

impl Traces {
    /// Looks for them. Blocks. The kernel loads its module nf_tables for this, if it has not yet.
    #[must_use]
    pub fn look() -> Self {
        Self { mode: mode(METRICS), process: process(), rules: rules::look() }
    }

    /// How it runs, in words; `None` if it does not.
    #[must_use]
    pub fn running(&self) -> Option<String> {
        match (&self.mode, self.process) {
            (Some(mode), _) => Some(format!("it runs, in mode {mode}")),
            (None, Some(process)) => Some(format!("it runs, as process {process}")),
            (None, None) => None,
        }
    }
}

/// A process with kube-proxy's name in this network namespace.
fn process() -> Option<u32> {
    let netns = |process: &Path| read_link(process.join("ns/net")).ok();
    let here = netns(Path::new("/proc/self"))?;
    let mut all = read_dir("/proc").ok()?.flatten();
    all.find_map(|entry| {
        let (id, path) = (entry.file_name().to_str()?.parse().ok()?, entry.path());
        let name = read_to_string(path.join("comm")).ok()?;
        (name.trim_end() == "kube-proxy" && netns(&path)? == here).then_some(id)
    })
}

/// The mode of the kube-proxy that answers at this address, such as `iptables`; `None` without one. Only
/// kube-proxy has the path `/proxyMode` (cmd/kube-proxy/app/server.go). Blocks.
#[must_use]
pub fn mode(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /proxyMode HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).ok()?;
    read(std::str::from_utf8(&answer).ok()?)
}

/// The mode in an HTTP answer: one lower-case word.
fn read(answer: &str) -> Option<String> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_good = head.split(' ').nth(1) == Some("200");
    let is_word = !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_lowercase());
    (is_good && is_word).then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_mode_is_one_word_of_a_good_answer() {
        for (answer, wanted) in [
            ("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\niptables", Some("iptables")),
            ("HTTP/1.1 404 Not Found\r\n\r\nno", None),
            ("HTTP/1.0 200 OK\r\n\r\n<html>hello</html>", None),
            ("HTTP/1.0 200 OK\r\n\r\n", None),
            ("SSH-2.0-OpenSSH_9.6\r\n", None),
        ] {
            assert_eq!(read(answer).as_deref(), wanted, "{answer}");
        }
    }

    #[test]
    fn kube_proxy_is_asked_at_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nipvs").unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        assert_eq!(mode(address).as_deref(), Some("ipvs"));
        assert!(answers.join().unwrap().starts_with("GET /proxyMode HTTP/1.0\r\n"));
        assert_eq!(mode(address), None, "nobody listens any more");
    }
}
