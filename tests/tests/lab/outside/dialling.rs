//! How clients outside dial from any address of a network, and how often TCP had to send again.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use socket2::{Domain, Socket, Type};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::scene::Scene;
use topo_lb_tests::traffic::Tally;
use topo_lb_tests::wait::patient;

/// Networks whose addresses are all the fabric's own after [`own_networks`].
const NETWORKS: [&str; 2] = ["198.18.0.0/15", "2001:db8:c000::/34"];
/// `IP_BIND_ADDRESS_NO_PORT` (include/uapi/linux/in.h): the port is chosen when the socket connects.
const WITHOUT_PORT: libc::c_int = 24;

/// Makes each address of [`client4`] and [`client6`] one of the fabric, and gives their connections ports enough.
pub(super) fn own_networks(scene: &Scene<'_>) -> Result<()> {
    let fabric = scene.cluster.fabric();
    fabric.ip(&NETWORKS.map(|network| format!("route add local {network} dev lo")))?;
    // One address that dials in series has most of its ports in TIME-WAIT, and takes them again after 1 s.
    fabric.set(&[("ipv4/ip_local_port_range", "1024 65535"), ("ipv4/tcp_tw_reuse", "1")])
}

/// A client's IPv4 address; there are 65,536 of them.
pub(super) fn client4(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(198, 18, high, low).into()
}

/// A host's address in the /64 with this number.
pub(super) fn client6(network: u16, host: u64) -> IpAddr {
    let first = 0x2001_0db8_c000_0000_u64 | u64::from(network);
    Ipv6Addr::from_bits(u128::from(first) << 64 | u128::from(host)).into()
}

/// How long a connection may take: TCP has sent a SYN three times by then.
pub(super) fn limit() -> Duration {
    patient(Duration::from_secs(7))
}

/// Connects from an address of this thread's network namespace.
pub(super) fn dial(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    dial_within(from, to, limit())?.with_context(|| format!("{from} does not reach {to}"))
}

/// The same, with the error of an attempt that takes so long.
pub(super) fn dial_within(
    from: IpAddr,
    to: SocketAddr,
    limit: Duration,
) -> Result<io::Result<TcpStream>> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    let on: libc::c_int = 1;
    // SAFETY: the value has this length.
    let result = unsafe {
        let length = size_of_val(&on) as libc::socklen_t;
        let value = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, WITHOUT_PORT, value, length)
    };
    ensure!(result == 0, "IP_BIND_ADDRESS_NO_PORT: {}", io::Error::last_os_error());
    socket.bind(&SocketAddr::new(from, 0).into())?;
    if let Err(error) = socket.connect_timeout(&to.into(), limit) {
        return Ok(Err(error));
    }
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(self::limit()))?;
    Ok(Ok(stream))
}

/// Asks a pod's server by HTTP for its name.
pub(super) fn ask(mut stream: &TcpStream) -> Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n")?;
    let mut answer = Vec::new();
    loop {
        let mut bytes = [0; 512];
        let read = stream.read(&mut bytes).context("no answer")?;
        ensure!(read != 0, "the connection ends: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..read]);
        let text = std::str::from_utf8(&answer)?;
        // Names are short: the body comes with the head, or whole after it.
        if let Some((_, name)) = text.split_once("\r\n\r\n").filter(|(_, name)| !name.is_empty()) {
            return Ok(name.to_owned());
        }
    }
}

/// Closes a connection, and waits for the server's FIN.
pub(super) fn close(stream: TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut &stream, &mut io::sink()).context("an end that is no FIN")?;
    Ok(())
}

/// How often TCP has sent a segment of a connection again (`tcpi_total_retrans`, include/uapi/linux/tcp.h).
pub(super) fn sent_again(stream: &TcpStream) -> Result<u32> {
    // SAFETY: all zeros are a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let socket: RawFd = stream.as_raw_fd();
    let (to, option) = ((&raw mut info).cast(), libc::TCP_INFO);
    // SAFETY: the value has this length.
    let result =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, option, to, &raw mut length) };
    ensure!(result == 0, "TCP_INFO: {}", io::Error::last_os_error());
    Ok(info.tcpi_total_retrans)
}

/// How many SYNs and SYN-ACKs this network namespace has sent again (`TCPSynRetrans`).
pub(super) fn syns_sent_again(netns: &NetNs) -> Result<u64> {
    let text = netns.run(|| Ok(fs::read_to_string("/proc/thread-self/net/netstat")?))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().context("names")?, lines.next().context("values")?);
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "TCPSynRetrans").context("no TCPSynRetrans")?;
    Ok(value.parse()?)
}

/// Fails if more packets are missing than full queues of the lab have dropped since there were `before` of them
/// (`Cluster::dropped_in_queues`). What they drop no program has seen.
pub(super) fn expect_no_more_than_dropped(
    cluster: &Cluster,
    missing: u64,
    before: u64,
) -> Result<()> {
    let dropped = cluster.dropped_in_queues()? - before;
    ensure!(missing <= dropped, "{missing} packets are missing, {dropped} dropped by full queues");
    Ok(())
}

/// Connections and datagrams without an answer.
pub(super) fn lost(tally: &Tally) -> u64 {
    u64::from(tally.requests - tally.answered())
}
