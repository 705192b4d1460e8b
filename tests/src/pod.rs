//! Pods, in which servers and clients run.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::netns::NetNs;
use crate::process::{Running, enter, spawn_in};
use crate::requirements::{self, has_ipv6};

/// The port that pods serve, as in the OpenYurt tutorial.
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
    /// Makes `command` run as a process of the pod.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        enter(command, &self.netns, Some(&self.cgroup))
    }

    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// A process in the pod; its input and output are pipes.
    pub fn spawn(&self, command: Command) -> Result<Running> {
        spawn_in(command, &self.netns, &self.cgroup)
    }

    /// A server that answers with the pod's name, over HTTP and UDP, IPv4 and IPv6, on [`PORT`].
    pub fn serve(&self) -> Result<Running> {
        self.serve_as(&self.name, PORT)
    }

    /// Like [`serve`](Self::serve), with another name on another port.
    pub fn serve_as(&self, name: &str, port: u16) -> Result<Running> {
        serve(name, &[everywhere(port)], &[], &self.netns, &self.cgroup)
    }

    /// Like [`serve_as`](Self::serve_as) for MPTCP, with as many subflows as a client makes.
    ///
    /// # Errors
    /// It does not start, or the kernel has no MPTCP.
    pub fn serve_mptcp_as(&self, name: &str, port: u16) -> Result<Running> {
        serve(name, &[everywhere(port)], &["--mptcp"], &self.netns, &self.cgroup)
    }

    /// A [cluster DNS](crate::cluster_dns) on this port.
    pub fn serve_dns(&self, port: u16) -> Result<Running> {
        let mut command = Command::new(requirements::pod()?);
        command.args(["dns", "--port", &port.to_string()]);
        let mut server = self.spawn(command)?;
        server.wait_for_line("listening").with_context(|| format!("no DNS in {}", self.name))?;
        Ok(server)
    }

    /// A client in the pod.
    pub fn client(&self) -> Result<Client> {
        Client::start(&self.name, &self.netns, &self.cgroup)
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

fn everywhere(port: u16) -> SocketAddr {
    if has_ipv6() {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
    } else {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    }
}

/// Starts a server `name` in a network namespace and a cgroup, and waits until it listens.
pub(crate) fn serve(
    name: &str,
    listen: &[SocketAddr],
    flags: &[&str],
    netns: &NetNs,
    cgroup: &Cgroup,
) -> Result<Running> {
    let mut command = Command::new(requirements::pod()?);
    command.args(["serve", "--name", name]).args(flags);
    for address in listen.iter().filter(|it| it.is_ipv4() || has_ipv6()) {
        command.arg("--listen").arg(address.to_string());
    }
    let mut server = spawn_in(command, netns, cgroup)?;
    server.wait_for_line("listening").with_context(|| format!("no server {name}"))?;
    Ok(server)
}
