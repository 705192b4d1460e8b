//! Pods: a place for servers and clients.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::netns::NetNs;
use crate::process::{Running, enter};
use crate::{interrupt, requirements};

/// The port on which pods serve, as in the OpenYurt tutorial.
pub const PORT: u16 = 9376;

/// A pod: a network namespace, and a cgroup below its node's.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The name of its node.
    pub node: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    pub(crate) cgroup: Cgroup,
    pub(crate) netns: NetNs,
}

impl Pod {
    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// A process in the pod, with its input and output in pipes.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, mut command: Command) -> Result<Running> {
        let _permit = interrupt::permit();
        enter(&mut command, &self.netns, Some(&self.cgroup))?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start a process in pod {}", self.name))?;
        Ok(Running::new(child))
    }

    /// A server that answers with the pod's name, over HTTP and UDP, IPv4 and IPv6, on [`PORT`].
    ///
    /// # Errors
    /// It does not start.
    pub fn serve(&self) -> Result<Running> {
        self.serve_as(&self.name, PORT)
    }

    /// The same by another name on another port.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve_as(&self, name: &str, port: u16) -> Result<Running> {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        serve(name, &[everywhere], |command| self.spawn(command))
    }

    /// The same for MPTCP, with as many subflows as a client makes.
    ///
    /// # Errors
    /// It does not start, or the kernel has no MPTCP.
    pub fn serve_mptcp_as(&self, name: &str, port: u16) -> Result<Running> {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        serve(name, &[everywhere], |mut command| {
            command.arg("--mptcp");
            self.spawn(command)
        })
    }

    /// A client in the pod.
    ///
    /// # Errors
    /// It does not start.
    pub fn client(&self) -> Result<Client> {
        let mut command = Command::new(requirements::pod()?);
        command.arg("client");
        Client::new(&self.name, self.spawn(command)?)
    }

    /// Its IPv4 address and port.
    #[must_use]
    pub fn address4(&self) -> SocketAddr {
        SocketAddr::from((self.ipv4, PORT))
    }

    /// Its IPv6 address and port.
    #[must_use]
    pub fn address6(&self) -> SocketAddr {
        SocketAddr::from((self.ipv6, PORT))
    }
}

/// Starts a server named `name` by means of `spawn`, and waits until it listens.
///
/// # Errors
/// It ends, or says something else.
pub(crate) fn serve(
    name: &str,
    listen: &[SocketAddr],
    spawn: impl FnOnce(Command) -> Result<Running>,
) -> Result<Running> {
    let mut command = Command::new(requirements::pod()?);
    command.args(["serve", "--name", name]);
    for address in listen {
        command.arg("--listen").arg(address.to_string());
    }
    let mut server = spawn(command)?;
    let output = server.child().stdout.take().context("a server without output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("cannot hear a server")?;
    ensure!(line.trim() == "listening", "the server in {name} did not start: it says {line:?}");
    Ok(server)
}
