//! Sockets that hear this node and its Pods, and nobody else.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::net::if_::if_nameindex;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};

use topo_lb_core::cluster::LocalAddresses;

/// Room for queries that wait, in bytes: a burst of some thousand.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;
/// Where the kernel shows what devices are.
const DEVICES: &str = "/sys/class/net";
/// `SKF_AD_OFF + SKF_AD_IFINDEX`: the device by which a packet came (include/uapi/linux/filter.h).
const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;

/// Devices by which packets of others come: hardware, and those with an address of the host. Those of
/// Pods and loopback are not among them.
pub(super) struct Outside(Vec<u32>);

impl Outside {
    /// Those of this network namespace.
    ///
    /// # Errors
    /// A sentence: this host's devices cannot be told apart.
    pub(super) fn of(local: &LocalAddresses) -> Result<Self, String> {
        let own = |address: &IpAddr| local.by_device.get(address).map(|name| &**name);
        let own: BTreeSet<&str> = local.primary.iter().filter_map(own).collect();
        let listed = if_nameindex().map_err(|errno| format!("no device can be listed: {errno}"))?;
        let mut all = Vec::new();
        for device in &listed {
            let name = device.name().to_string_lossy();
            let shown = Path::new(DEVICES).join(&*name);
            let is_own = own.contains(&*name);
            if is_own && shown.join("bridge").exists() {
                return Err(format!(
                    "{name} is a bridge with an address of this host: packets of Pods and of others \
                     come by it alike"
                ));
            }
            if name != "lo" && (is_own || shown.join("device").exists()) {
                all.push(device.index());
            }
        }
        Ok(Self(all))
    }

    /// A filter that drops packets of these devices, before they reach the socket's queue.
    fn filter(&self) -> Vec<SockFilter> {
        let statement = |code, k| SockFilter::new(code as u16, 0, 0, k);
        let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, INTERFACE)];
        for &index in &self.0 {
            let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
            program.push(SockFilter::new(jump, 0, 1, index));
            program.push(statement(libc::BPF_RET | libc::BPF_K, 0));
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, u32::MAX));
        program
    }

    fn socket(&self, kind: Type, protocol: Protocol, at: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(at), kind, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // Before the bind: nobody else is ever heard.
        socket.attach_filter(&self.filter())?;
        if kind == Type::STREAM {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&at.into())?;
        Ok(socket)
    }

    /// A socket for datagrams. Needs a runtime.
    pub(super) fn datagrams(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(Type::DGRAM, Protocol::UDP, at)?;
        // The kernel gives as much as it may.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        UdpSocket::from_std(socket.into())
    }

    /// A socket for streams. Needs a runtime.
    pub(super) fn streams(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.socket(Type::STREAM, Protocol::TCP, at)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    }
}
