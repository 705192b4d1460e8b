//! Tests whether the hooks work: a child process in a cgroup beside those of applications dials an
//! address that only the programs can translate, and must reach the endpoint.
//!
//! The trial has its own programs and maps. They are attached where the agent's are, and run after
//! these. So the connection runs through the same foreign programs as an application's.
//!
//! A kernel may accept programs and never run them for the processes that matter: the cgroup root
//! is not above them, cgroup v1's network classes are in use, or a container engine has its own
//! hierarchy. So the test connects as an application does.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use topo_lb_common::address::TCP;
use topo_lb_common::record::Record4;
use topo_lb_common::selection::NO_SLOTS;

use super::trial::{Trial, TrialCgroup, TrialError};
use crate::datapath::programs::object::TcpPeer;
use topo_lb_core::plan::Capacity;

/// The hidden subcommand of the child; its one argument is the address to dial.
pub const SUBCOMMAND: &str = "self-probe";
/// A documentation address (RFC 5737): no host has it.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Timeout of the child, which may have to wait for a CPU on a busy node.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the child's connection, which goes to this node.
const DIAL: Duration = Duration::from_millis(2500);

/// Why the hooks do not work, or why the test failed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The trial datapath cannot be created.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// The listener or the child cannot be created.
    #[error("the self-probe cannot {0}: {1}")]
    Setup(&'static str, #[source] io::Error),
    /// The child printed nothing in time, or no valid answer.
    #[error("the self-probe's child gave no answer: {0}")]
    Silent(String),
    /// No child can be moved below the cgroup root, and this process is not there either.
    #[error(
        "it cannot be told whether the hooks fire below {}: no process can be moved into a cgroup \
         there ({moving}), and a connection of this process was not translated ({got}); run the \
         agent in the host's cgroup namespace, or in a cgroup below this one", root.display()
    )]
    Outside {
        /// The cgroup root.
        root: PathBuf,
        /// Why no child can be moved.
        moving: io::Error,
        /// What happened to this process's own connection.
        got: String,
    },
    /// The connection was not translated.
    #[error(
        "the hooks do not fire: a connection to {ADDRESS} was not translated ({0}); a program \
         of others decides first, or processes are not below this cgroup root"
    )]
    NotTranslated(String),
    /// `getpeername` does not show the dialled address.
    #[error("getpeername is not translated: the peer of {ADDRESS} appears as {0}")]
    Peer(String),
    /// The connection to the Service without endpoints did not get the expected error.
    #[error("a connection to a Service without endpoints got {got} instead of {expected}")]
    NotRefused {
        /// The actual result.
        got: String,
        /// The expected result.
        expected: &'static str,
    },
}

/// Attaches a trial datapath to `cgroup_root` and lets a child dial through it. The trial affects
/// only connections to its own address. Removes everything that it created. Blocks for some tens of
/// milliseconds, at most for 20 s.
///
/// A process in a cgroup namespace of its own, as in most containers, may not move a child out of
/// it if cgroup v2 is mounted with `nsdelegate` (`cgroup_procs_write_permission`,
/// kernel/cgroup/cgroup.c: `ENOENT`). The child then dials from the cgroup of this process.
///
/// # Errors
/// The hooks do not work, or it cannot be tested.
pub fn run(cgroup_root: &Path) -> Result<(), ProbeError> {
    let cgroup = TrialCgroup::make(&applications(cgroup_root));
    let moving = match &cgroup {
        Ok(cgroup) => match ask(cgroup_root, Some(cgroup)) {
            Err(ProbeError::Setup(START, error)) if is_forbidden(&error) => error,
            answer => return answer,
        },
        Err(TrialError::Cgroup(_, error)) if is_forbidden(error) => {
            io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EPERM))
        }
        Err(_) => return cgroup.map(drop).map_err(Into::into),
    };
    match ask(cgroup_root, None) {
        Err(ProbeError::NotTranslated(got)) => {
            Err(ProbeError::Outside { root: cgroup_root.to_owned(), moving, got })
        }
        answer => answer,
    }
}

/// The kubelet's cgroup for Pods below `root`; `root` itself if there is none.
fn applications(root: &Path) -> PathBuf {
    // The kubelet's cgroup drivers, systemd and cgroupfs, and both as kind configures them.
    ["kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods"]
        .iter()
        .map(|name| root.join(name))
        .find(|path| path.is_dir())
        .unwrap_or_else(|| root.to_owned())
}

/// Whether this process lacks the permission.
fn is_forbidden(error: &io::Error) -> bool {
    let codes = [libc::ENOENT, libc::EACCES, libc::EPERM, libc::EROFS];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Attaches a trial to the cgroup `attached`. A child dials in the cgroup `within`, or in ours.
fn ask(attached: &Path, within: Option<&TrialCgroup>) -> Result<(), ProbeError> {
    let setup = |what| move |error| ProbeError::Setup(what, error);
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(setup("listen on 127.0.0.1"))?;
    let port = listener.local_addr().map_err(setup("listen on 127.0.0.1"))?.port();

    let capacity = Capacity {
        services: 16,
        slots: 16,
        members: 16,
        flows: 256,
        connections: 0,
        sources: 0,
        hops: 0,
        spare: 2,
    };
    let mut trial = Trial::load(&capacity, TcpPeer::Service)?;
    let (reached, refused) = ports();
    trial.write4(service(reached, Some(port)))?;
    trial.write4(service(refused, None))?;
    trial.attach(attached)?;

    let answer = dial(within, reached)?;
    match answer.strip_prefix("peer ") {
        Some(peer) if peer == SocketAddrV4::new(ADDRESS, reached).to_string() => {}
        Some(peer) => return Err(ProbeError::Peer(peer.to_owned())),
        None => return Err(ProbeError::NotTranslated(answer)),
    }
    // The kernel completed the handshake before the child's `connect` returned.
    listener
        .set_nonblocking(true)
        .and_then(|()| listener.accept())
        .map_err(|error| ProbeError::NotTranslated(format!("it did not arrive: {error}")))?;

    let (errno, expected) = if trial.reports_refused() {
        (libc::ECONNREFUSED, "ECONNREFUSED")
    } else {
        (libc::EPERM, "EPERM")
    };
    let got = dial(within, refused)?;
    if got != format!("error {errno}") {
        return Err(ProbeError::NotRefused { got, expected });
    }
    Ok(())
}

/// Ports of the frontend with an endpoint and of the one without. Each trial has its own: the programs of another one, as of
/// an agent while somebody runs `topo-lb check`, leave them alone.
fn ports() -> (u16, u16) {
    let reached = (RandomState::new().hash_one(std::process::id()) % 0x7fff) as u16 * 2 + 1;
    (reached, reached + 1)
}

/// A Service at a port of [`ADDRESS`]; its endpoint is a local port.
fn service(port: u16, endpoint: Option<u16>) -> Record4 {
    let mut record = Record4 {
        address: ADDRESS.octets(),
        port,
        protocol: TCP,
        slot_base: NO_SLOTS,
        count: u16::from(endpoint.is_some()),
        ..Record4::default()
    };
    if let Some(port) = endpoint {
        (record.addresses[0], record.ports[0]) = (Ipv4Addr::LOCALHOST.octets(), port);
    }
    record
}

/// Name of this action in errors.
const START: &str = "start a child";

/// Starts a child that dials, in the cgroup if there is one; returns the line of [`child`].
fn dial(cgroup: Option<&TrialCgroup>, port: u16) -> Result<String, ProbeError> {
    let setup = |error| ProbeError::Setup(START, error);
    let processes = cgroup.map(TrialCgroup::processes).transpose().map_err(setup)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args([SUBCOMMAND, &SocketAddrV4::new(ADDRESS, port).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: between fork and exec, only write(2) is called, on an open descriptor.
    unsafe {
        command.pre_exec(move || {
            let Some(processes) = &processes else { return Ok(()) };
            let zero = b"0";
            match libc::write(processes.as_raw_fd(), zero.as_ptr().cast(), zero.len()) {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    let output = finish(command.spawn().map_err(setup)?)?;
    let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if answer.is_empty() { Err(ProbeError::Silent(output.status.to_string())) } else { Ok(answer) }
}

/// Waits for a child; kills it after the timeout.
fn finish(mut child: Child) -> Result<Output, ProbeError> {
    let setup = |error| ProbeError::Setup("wait for its child", error);
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().map_err(setup)?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(ProbeError::Silent(format!("none within {} s", PATIENCE.as_secs())));
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().map_err(setup)
}

/// The child: dials `address` and prints its peer, `peer ADDRESS:PORT`, or `error ERRNO`.
///
/// # Errors
/// Standard output cannot be written.
pub fn child(address: SocketAddr) -> io::Result<()> {
    let line =
        match TcpStream::connect_timeout(&address, DIAL).and_then(|stream| stream.peer_addr()) {
            Ok(peer) => format!("peer {peer}"),
            Err(error) => match error.raw_os_error() {
                Some(errno) => format!("error {errno}"),
                None => format!("error: {error}"),
            },
        };
    writeln!(io::stdout(), "{line}")
}
