//! The addresses on which the agent listens.

use std::fmt::{self, Display};
use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};
use topo_lb_core::once::Once;
use tracing::{info, warn};

/// Pause before retrying to bind an address.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);
/// Most connections in the kernel's accept queue; net.core.somaxconn limits it, too.
const QUEUE: u32 = 4096;

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 is any free port.
    On(SocketAddr),
}

impl Listen {
    /// The agent's default: reachable only from the node. docs/metrics.md says why this port.
    pub const DEFAULT: Self =
        Self::On(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 19_876)));

    /// Where kube-proxy answers load balancers by default (`--healthz-bind-address`).
    pub const HEALTHZ: Self =
        Self::On(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 10_256)));

    /// Whether the two exclude each other: they have the same port, and one includes the other.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        let (Self::On(one), Self::On(other)) = (self, other) else { return false };
        let has = |one: SocketAddr, other: SocketAddr| {
            one.ip() == other.ip() || one.ip().is_unspecified() && one.is_ipv4() == other.is_ipv4()
        };
        one.port() == other.port() && one.port() != 0 && (has(one, other) || has(other, one))
    }
}

/// The text is no address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no address: write it as ADDRESS:PORT, like 127.0.0.1:19876 or [::]:19876, or `off`")]
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

/// Listens at the address; retries until that succeeds.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> TcpListener {
    let advice =
        format!("connections to Services do not depend on it; {flag} chooses another address");
    let once = || ready(listen(address).map_err(|error| reason(&error)));
    let listener = retried("http://", address, &advice, once).await;
    // Logs only what differs from the flag.
    if let Some(bound) = listener.local_addr().ok().filter(|bound| *bound != address) {
        info!("listening on http://{bound}");
    }
    listener
}

/// Calls `listen` until it succeeds. Logs the first failure, and then the success, with `scheme`
/// before the place.
pub(crate) async fn retried<L, R>(
    scheme: &str,
    place: impl Display,
    advice: &str,
    mut listen: impl FnMut() -> R,
) -> L
where
    R: Future<Output = Result<L, String>>,
{
    let mut failing = Once::new();
    loop {
        match listen().await {
            Ok(listener) => {
                if failing.ends(&()) {
                    info!("listening on {scheme}{place}");
                }
                return listener;
            }
            Err(reason) => {
                if failing.begins(()) {
                    let seconds = PAUSE.as_secs();
                    warn!(
                        "cannot listen on {place}: {reason}; retrying every {seconds} s; {advice}"
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Listens at the address.
///
/// # Errors
/// The kernel refuses; [`reason`] says why.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    bind_to(&socket, address)?;
    socket.listen(QUEUE)
}

/// Listens at the address; an unspecified one means every address of the host, of both families, as in
/// Go's `net.Listen`.
///
/// # Errors
/// As [`listen`].
pub fn listen_as_go(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen(address);
    }
    match TcpSocket::new_v6() {
        Ok(socket) => {
            set_ipv6_v6only(&socket, false)?;
            bind_to(&socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())))?;
            socket.listen(QUEUE)
        }
        // A kernel without IPv6.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
        }
        Err(error) => Err(error),
    }
}

fn bind_to(socket: &TcpSocket, address: SocketAddr) -> io::Result<()> {
    // Connections of an earlier agent in TIME_WAIT do not block the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// Why the kernel refuses to listen.
pub fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no device of this host has that address".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 takes the capability CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => error.to_string(),
    }
}

impl Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_was_taken_is_logged_as_a_url_when_it_is_free() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let logs = tracing_subscriber::fmt().with_writer(file.try_clone().unwrap()).finish();
        let _logs = tracing::subscriber::set_default(logs);
        tokio::join!(bind(address, topo_lb_core::flag::LISTEN), async {
            tokio::time::sleep(PAUSE / 2).await;
            drop(taken);
        });
        let mut log = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut log).unwrap();
        assert!(log.contains(&format!("cannot listen on {address}: another process")), "{log}");
        assert!(log.contains(&format!("listening on http://{address}")), "{log}");
    }

    #[test]
    fn the_default_is_the_port_that_the_docs_name_on_the_node_alone() {
        assert_eq!(Ok(Listen::DEFAULT), "127.0.0.1:19876".parse());
    }

    #[test]
    fn addresses_exclude_each_other_where_one_has_the_port_of_the_other() {
        let excludes = |one: &str, other: &str| {
            let (one, other): (Listen, Listen) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(one.excludes(other), other.excludes(one));
            one.excludes(other)
        };
        assert!(excludes("127.0.0.1:19876", "127.0.0.1:19876"));
        assert!(excludes("127.0.0.1:19876", "0.0.0.0:19876"));
        assert!(excludes("[::1]:19876", "[::]:19876"));
        assert!(!excludes("127.0.0.1:19876", "127.0.0.1:19877"));
        assert!(!excludes("127.0.0.1:19876", "192.0.2.1:19876"));
        // Whether these conflict depends on net.ipv6.bindv6only.
        assert!(!excludes("127.0.0.1:19876", "[::]:19876"));
        assert!(!excludes("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!excludes("off", "off"));
    }

    #[test]
    fn an_address_has_a_port_and_nothing_is_off() {
        assert_eq!("".parse(), Ok(Listen::Off));
        assert_eq!("off".parse(), Ok(Listen::Off));
        assert_eq!("[::1]:0".parse(), Ok(Listen::On("[::1]:0".parse().unwrap())));
        for wrong in ["19876", ":19876", "127.0.0.1", "localhost:19876", "127.0.0.1:70000"] {
            assert_eq!(wrong.parse::<Listen>(), Err(ListenError), "{wrong}");
        }
    }
}
