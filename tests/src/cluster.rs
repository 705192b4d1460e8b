//! Nodes and pods of a lab, and their owner.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::card;
use crate::cgroup::{self, Cgroup};
use crate::client::Client;
use crate::folder::Folder;
use crate::netns::NetNs;
use crate::node::{Node, NodePlan};
use crate::objects::Objects;
use crate::pod::{Pod, serve};
use crate::prefix::{self, Prefix};
use crate::process::{Running, enter, spawn_in};
use crate::wiring::{fabric4, pod4, pod6, wire};
use crate::{interrupt, requirements, residue};

/// A lab's cluster. Dropping it removes it.
#[derive(Debug)]
pub struct Cluster {
    prefix: Prefix,
    folder: Folder,
    nodes: Vec<Node>,
    /// The cgroup of agents: on no node, so that no agent translates their own connections.
    agents: Cgroup,
    fabric: NetNs,
    /// Where XDP is asked for, what makes the nodes' uplinks like those of cards.
    _cables: Vec<OwnedFd>,
    made: Mutex<Objects>,
}

/// Makes uplinks like those of cards, and pods' devices like those behind one queue of a card: if two CPUs handle the
/// end of a handshake and the request after it at once, the kernel may give the request to the listening socket, which
/// resets the connection ("inet: Avoid ehash lookup race in inet_ehash_insert()"; once in 500,000 connections here).
fn like_cards(fabric: &NetNs, plan: &[NodePlan<'_>], nodes: &[Node]) -> Result<Vec<OwnedFd>> {
    let uplinks = plan.iter().map(|node| card::far_end(fabric, &format!("node{}", node.number)));
    uplinks.chain(pods_at_one_queue(nodes)).collect()
}

/// What makes pods' devices like those behind one queue of a card.
fn pods_at_one_queue(nodes: &[Node]) -> impl Iterator<Item = Result<OwnedFd>> {
    nodes.iter().flat_map(|node| &node.pods).map(|pod| card::pass_all(&pod.netns, "eth0"))
}

impl Cluster {
    /// Makes the cluster; first removes what labs of dead processes have left.
    pub fn make(plan: &[NodePlan<'_>]) -> Result<Self> {
        requirements::check()?;
        interrupt::arm()?;
        residue::sweep(|name| prefix::owner(name).is_some_and(prefix::is_dead))?;
        let prefix = Prefix::new();
        let folder = Folder::make(prefix.folder())?;

        let mut names = vec![prefix.name("fabric")];
        for node in plan {
            ensure!(node.number < 100, "a node's number is below 100");
            names.push(prefix.name(node.name));
            names.extend(node.pods.iter().map(|(pod, _)| prefix.name(pod)));
        }
        let mut spaces = NetNs::make(&names)?.into_iter();
        let mut space = || spaces.next().context("as many namespaces as names");
        let root = cgroup::root()?;
        let fabric = space()?;
        let agents = Cgroup::make(&root, &prefix.name("agents"))?;
        let mut nodes = Vec::new();
        for node in plan {
            let netns = space()?;
            let cgroup = Cgroup::make(&root, &prefix.name(node.name))?;
            let mut pods = Vec::new();
            for &(name, host) in &node.pods {
                pods.push(Pod {
                    name: name.into(),
                    node: node.name.into(),
                    ipv4: pod4(node.number, host),
                    ipv6: pod6(node.number, host),
                    cgroup: Cgroup::make(cgroup.path(), name)?,
                    netns: space()?,
                });
            }
            nodes.push(Node { name: node.name.into(), pods, cgroup, netns });
        }
        wire(&fabric, &nodes, plan)?;
        let _cables =
            if card::is_asked() { like_cards(&fabric, plan, &nodes)? } else { Vec::new() };
        let made = Mutex::new(Objects::default());
        Ok(Self { prefix, folder, nodes, agents, fabric, _cables, made })
    }

    /// Makes pods' devices like those behind one queue of a card, until the links are dropped.
    ///
    /// # Errors
    /// A device has a program of XDP.
    pub fn pods_at_one_queue(&self) -> Result<Vec<OwnedFd>> {
        pods_at_one_queue(&self.nodes).collect()
    }

    /// The prefix of all its names.
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// A folder for files; removed with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The cgroup of the agents.
    #[must_use]
    pub fn agents(&self) -> &Cgroup {
        &self.agents
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.with_context(|| format!("the lab has no node {name}"))
    }

    /// The network namespace of a node.
    pub fn node_netns(&self, name: &str) -> Result<&NetNs> {
        Ok(&self.node(name)?.netns)
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The pod with this name.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        let found = self.pods().find(|pod| pod.name == name);
        found.with_context(|| format!("the lab has no pod {name}"))
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// A server in each of these pods.
    pub fn serve<'p>(&self, pods: impl IntoIterator<Item = &'p str>) -> Result<Vec<Running>> {
        pods.into_iter().map(|pod| self.pod(pod)?.serve()).collect()
    }

    /// A server on the fabric that answers "untouched" at addresses of the Service ranges: it
    /// receives the connections that no agent translated.
    pub fn serve_untouched(&self, listen: &[SocketAddr]) -> Result<Running> {
        serve("untouched", listen, &[], &self.fabric, &self.agents)
    }

    /// Gives the fabric so many more addresses, to which each node has a way: those of clients outside.
    pub fn add_clients(&self, clients: u8) -> Result<Vec<Ipv4Addr>> {
        let addresses: Vec<_> =
            (0..clients).map(|host| Ipv4Addr::new(198, 51, 100, host)).collect();
        let add = addresses.iter().map(|address| format!("address add {address}/32 dev lo"));
        self.fabric.ip(&add.collect::<Vec<_>>())?;
        for node in &self.nodes {
            node.netns.ip(&[format!("route add 198.51.100.0/24 via {}", fabric4())])?;
        }
        Ok(addresses)
    }

    /// A server on a node, outside its cgroup, at addresses of the node.
    pub fn serve_on(&self, node: &str, name: &str, listen: &[SocketAddr]) -> Result<Running> {
        serve(name, listen, &[], &self.node(node)?.netns, &self.agents)
    }

    /// A client on a node's own network and in its cgroup, like a daemon of the node.
    pub fn client_on(&self, node: &str) -> Result<Client> {
        let node = self.node(node)?;
        Client::start(&node.name, &node.netns, &node.cgroup)
    }

    /// Like [`client_on`](Self::client_on), in a cgroup below the node's, like a Pod with `hostNetwork`.
    pub fn client_on_in(&self, node: &str, cgroup: &Cgroup) -> Result<Client> {
        Client::start(node, &self.node(node)?.netns, cgroup)
    }

    /// A client that stands for a virtual machine behind the device of the pod `pod`: in the pod's
    /// network namespace, and in no cgroup that an agent serves.
    pub fn machine(&self, pod: &str) -> Result<Client> {
        self.guest(pod, &self.pod(pod)?.netns)
    }

    /// A client that stands for a process of a node itself.
    pub fn process(&self, node: &str) -> Result<Client> {
        let node = self.node(node)?;
        Client::start(&node.name, &node.netns, &node.cgroup)
    }

    /// A client in any network namespace, like a virtual machine's guest: in no cgroup of an agent.
    pub fn guest(&self, name: &str, netns: &NetNs) -> Result<Client> {
        Client::start(name, netns, &self.agents)
    }

    /// A client in the network namespace of the pod `pod`, and in the given cgroup.
    pub fn client_in(&self, pod: &str, cgroup: &Cgroup) -> Result<Client> {
        Client::start(pod, &self.pod(pod)?.netns, cgroup)
    }

    /// A process with piped input and output in the pod `pod`'s network namespace, in no agent's
    /// cgroup.
    pub fn spawn_outside(&self, pod: &str, command: Command) -> Result<Running> {
        spawn_in(command, &self.pod(pod)?.netns, &self.agents)
    }

    /// Runs lines of `ip` in the network namespace of a node.
    pub fn ip_on(&self, node: &str, lines: &[String]) -> Result<()> {
        self.node(node)?.netns.ip(lines)
    }

    /// Makes `command` run where agents of `node` run: in its network namespace, not in its cgroup.
    pub fn beside(&self, node: &Node, command: &mut Command) -> Result<()> {
        enter(command, &node.netns, Some(&self.agents))
    }

    /// Makes `command` run on the fabric, outside every node's cgroup.
    pub fn beyond(&self, command: &mut Command) -> Result<()> {
        enter(command, &self.fabric, Some(&self.agents))
    }

    /// A process with piped input and output on the fabric, in no agent's cgroup.
    pub fn spawn_beyond(&self, command: Command) -> Result<Running> {
        spawn_in(command, &self.fabric, &self.agents)
    }

    /// How many packets the devices of this cluster have dropped since they were made: a processor's queue was full
    /// (`net.core.netdev_max_backlog`), or the ring of a veth device with a program of XDP (drivers/net/veth.c,
    /// `veth_get_stats64`). No program or socket has seen them.
    ///
    /// # Errors
    /// `/proc/net/dev` has another form.
    pub fn dropped_in_queues(&self) -> Result<u64> {
        let nodes = self.nodes.iter().map(|node| &node.netns);
        let pods = self.nodes.iter().flat_map(|node| &node.pods).map(|pod| &pod.netns);
        let of_space = |space: &NetNs| {
            let text = space.run(|| Ok(fs::read_to_string("/proc/thread-self/net/dev")?))?;
            // Two lines of names; then a device, eight figures of what it received, and those of what it sent.
            let dropped = text.lines().skip(2).map(|line| {
                let (_, figures) = line.split_once(':').with_context(|| line.to_owned())?;
                let dropped = figures.split_whitespace().nth(8 + 3);
                dropped.and_then(|it| it.parse::<u64>().ok()).with_context(|| line.to_owned())
            });
            dropped.sum::<Result<u64>>()
        };
        [&self.fabric].into_iter().chain(nodes).chain(pods).map(of_space).sum()
    }

    /// The network namespace of the fabric.
    #[must_use]
    pub fn fabric(&self) -> &NetNs {
        &self.fabric
    }

    /// Records BPF objects that must be gone after [`remove`](Self::remove).
    pub fn remember(&self, objects: &Objects) {
        self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(objects);
    }

    /// Removes the cluster, and checks that no namespace, cgroup, pin, folder, process or recorded
    /// object is left.
    ///
    /// # Errors
    /// Something is left; the error names it.
    pub fn remove(self) -> Result<()> {
        let prefix = self.prefix.clone();
        let made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        drop(self);
        let left = residue::find(|name| prefix.owns(name))?;
        if !left.is_empty() {
            residue::sweep(|name| prefix.owns(name))?;
            bail!("left behind, and now removed: {left:?}");
        }
        made.wait_until_gone()
    }
}
