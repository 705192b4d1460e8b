//! The stage: nodes, agents, servers, clients, and the world that changes their objects.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::{Binary, json_of};
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::direct_return::wait_for_proofs;
use topo_lb_tests::kind;
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::traffic::{Tally, Via};

use crate::bytes::Account;
use crate::check::{Check, Expected, Question, REQUESTS, Report};
use crate::files::Files;
use crate::server::Server;
use crate::table;
use crate::world::World;
use topo_lb_tests::progress::Progress;
use topo_lb_tests::wait::patient;

/// How long traffic may take to follow a change of the objects.
pub(crate) const FOLLOWS: Duration = Duration::from_secs(1);

/// A client for a virtual machine on [`kind::SHANGHAI_CLIENT`]'s node: agents see only its packets.
pub(crate) const MACHINE: &str = "vm-shanghai";
/// A client outside of the cluster, in the network of the nodes.
pub(crate) const OUTSIDE: &str = "outside";

pub(crate) struct Stage<'a> {
    binary: &'a Binary,
    cluster: &'a Cluster,
    world: Box<dyn World + 'a>,
    clients: BTreeMap<String, Client>,
    progress: Progress,
    tables: bool,
    rows: Vec<Row>,
    agents: Vec<Agent<'a>>,
    /// `None` if the kernel cannot count.
    account: Option<Account>,
}

/// A check with further details for people.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) check: Check,
    pub(crate) node: String,
    /// The Service's name, in `default`.
    pub(crate) service: String,
    pub(crate) to: SocketAddr,
    pub(crate) via: Via,
    pub(crate) tally: Tally,
    pub(crate) decision: Decision,
}

/// The decision that `topo-lb explain` shows.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// Index of the key that matched.
    pub(crate) tier: Option<u64>,
    pub(crate) reason: String,
}

impl Stage<'_> {
    /// Sets up the stage, runs `tell`, and removes the stage.
    ///
    /// # Errors
    /// The machine lacks something, an agent fails, or something is left; not for a failed check.
    pub(crate) fn set(
        binary: &Binary,
        over_api: bool,
        progress: Progress,
        tables: bool,
        tell: impl FnOnce(&mut Stage<'_>) -> Result<()>,
    ) -> Result<Report> {
        let cluster = progress.step(
            "three nodes and eight pods, as namespaces and cgroups of this machine",
            || Cluster::make(&kind::plan()),
        )?;
        let world: Box<dyn World + '_> = if over_api {
            let title = "a control plane: etcd, kube-apiserver, kube-controller-manager";
            Box::new(progress.step(title, || Server::start(&cluster))?)
        } else {
            Box::new(Files::write(&cluster)?)
        };
        let mut servers = Vec::new();
        let mut clients = BTreeMap::new();
        progress.step(
            "HTTP and UDP servers in five pods, clients in three, one for a VM, and one outside",
            || {
                servers = cluster.serve(kind::SERVERS.into_iter().chain([kind::NEIGHBOUR]))?;
                for pod in [kind::BEIJING_CLIENT, kind::HANGZHOU_CLIENT, kind::SHANGHAI_CLIENT] {
                    clients.insert(pod.to_owned(), cluster.pod(pod)?.client()?);
                }
                clients.insert(MACHINE.to_owned(), cluster.machine(kind::SHANGHAI_CLIENT)?);
                clients.insert(OUTSIDE.to_owned(), cluster.guest(OUTSIDE, cluster.fabric())?);
                Ok(())
            },
        )?;
        let title = if over_api {
            "one agent per node, fed by the API server"
        } else {
            "one agent per node, fed with what Kubernetes 1.36 says"
        };
        let agents = progress.step(title, || {
            let (flag, source) = world.source()?;
            let flags = [
                ("--direct-return", "auto"),
                // A table for each load balancer IP.
                ("--max-endpoints", "65536"),
            ];
            Agent::start_all_from(binary, &cluster, (flag, &source), &flags)
        })?;
        let counts = agents.iter().all(|agent| agent.pins().join("links/accounting").exists());
        let mut stage = Stage {
            binary,
            cluster: &cluster,
            world,
            clients,
            progress,
            tables,
            rows: Vec::new(),
            agents,
            account: counts.then(Account::default),
        };
        tell(&mut stage)?;
        let bytes = stage.account.take();
        let checks = std::mem::take(&mut stage.rows).into_iter().map(|row| row.check).collect();
        progress.step("agents ended, hooks and maps taken away", || {
            drop((servers, stage));
            Ok(())
        })?;
        progress.step("nothing left behind", || cluster.remove())?;
        Ok(Report { checks, bytes })
    }

    /// Prints a chapter: title, introduction, and the table of the checks that `body` makes.
    pub(crate) fn chapter(
        &mut self,
        title: &str,
        about: &str,
        body: impl FnOnce(&mut Self) -> Result<String>,
    ) -> Result<()> {
        let progress = self.progress;
        let body = |stage: &mut Self| {
            let moral = body(stage)?;
            if let Some(account) = &mut stage.account {
                account.catch_up(&stage.agents)?;
            }
            Ok(moral)
        };
        if !self.tables {
            return progress.step(title, || body(self)).map(drop);
        }
        let before = self.rows.len();
        let moral = progress.while_under_way(title, || body(self))?;
        let text = table::chapter(title, about, &self.rows[before..], &moral);
        anstream::stdout().write_all(text.as_bytes()).context("cannot print a table")
    }

    /// Changes the objects.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(&mut dyn World) -> Result<()>,
    ) -> Result<()> {
        change(&mut *self.world)
    }

    /// Changes the objects, and waits, up to the world's patience, for the traffic of `question` to
    /// follow. Returns how long that took.
    pub(crate) fn change_until(
        &mut self,
        change: impl FnOnce(&mut dyn World) -> Result<()>,
        question: &Question<'_>,
    ) -> Result<Duration> {
        let expected = Expected::of(question.pods);
        let begun = Instant::now();
        change(&mut *self.world)?;
        loop {
            let asked = begun.elapsed();
            // With four pods, 32 requests miss one with a probability of 1 in 2,500.
            let tally = self.call(question, 32)?;
            // `asked` is the time of the first of the 32 requests, which already went right.
            if expected.fits(&tally) || asked > patient(self.world.patience()) {
                return Ok(asked);
            }
        }
    }

    /// Like [`ask`](Self::ask), once controllers and agents have followed the last change.
    pub(crate) fn ask_when_programmed(&mut self, question: &Question<'_>) -> Result<bool> {
        self.change_until(|_| Ok(()), question)?;
        self.ask(question)
    }

    /// Makes a check of [`REQUESTS`] requests.
    pub(crate) fn ask(&mut self, question: &Question<'_>) -> Result<bool> {
        let tally = self.call(question, REQUESTS)?;
        let expected = Expected::of(question.pods);
        let ok = expected.fits(&tally) && tally.requests == REQUESTS;
        let node = match (question.node, question.from) {
            (Some(node), _) => node.to_owned(),
            (None, MACHINE) => self.cluster.pod(kind::SHANGHAI_CLIENT)?.node.clone(),
            (None, pod) => self.cluster.pod(pod)?.node.clone(),
        };
        let decision = self.decision(question, &node)?;
        let check = Check {
            name: question.name.into(),
            service: format!("default/{}", question.service),
            from: question.from.into(),
            requests: tally.requests,
            replies: tally.replies.clone(),
            refused: tally.refused,
            expected,
            ok,
        };
        let (service, to, via) = (question.service.into(), question.to, question.via);
        self.rows.push(Row { check, node, service, to, via, tally, decision });
        Ok(ok)
    }

    /// The network between the nodes, which clients outside share.
    pub(crate) fn network(&self) -> &NetNs {
        self.cluster.fabric()
    }

    /// Waits until each agent has proved all other nodes with endpoints of Services with direct return.
    pub(crate) fn wait_for_proofs(&self) -> Result<()> {
        self.agents.iter().try_for_each(|agent| wait_for_proofs(agent, 1))
    }

    /// The last check passes only if `also` is true.
    pub(crate) fn and_also(&mut self, also: bool) {
        if let Some(row) = self.rows.last_mut() {
            row.check.ok &= also;
        }
    }

    fn call(&mut self, question: &Question<'_>, requests: u32) -> Result<Tally> {
        let client = self.clients.get_mut(question.from);
        let client = client.with_context(|| format!("no client in {}", question.from))?;
        let tally = client.call(question.via, question.to, requests)?;
        // Accounting counts sockets; agents see only packets of the other clients.
        if let Some(account) = &mut self.account
            && ![MACHINE, OUTSIDE].contains(&question.from)
        {
            let node = &self.cluster.pod(question.from)?.node;
            for (pod, moved) in &tally.moved {
                let is_near = self.cluster.pod(pod)?.node == *node;
                let sides = &mut account.moved;
                *(if is_near { &mut sides.kept } else { &mut sides.crossed }) +=
                    moved.written + moved.read;
            }
        }
        Ok(tally)
    }

    fn decision(&self, question: &Question<'_>, node: &str) -> Result<Decision> {
        let (flag, source) = self.world.source()?;
        let mut command = self.binary.command(&["explain", "--node", node, "-o", "json", flag]);
        // The fabric reaches an API server.
        self.cluster.beyond(command.arg(source))?;
        let explained = json_of(command)?;
        let protocol = match question.via {
            Via::Udp | Via::UdpConnected => "UDP",
            Via::Http | Via::HttpMptcp => "TCP",
        };
        let found = explained["services"].as_array().into_iter().flatten().find(|row| {
            let is_node_port = |it: &Value| it["port"] == question.to.port();
            let exposed = row["exposed"]["frontends"].as_array();
            row["name"] == question.service
                && row["port"]["protocol"] == protocol
                && match question.node {
                    Some(_) => exposed.is_some_and(|all| all.iter().any(is_node_port)),
                    None => row["port"]["port"] == question.to.port(),
                }
        });
        let row = found.with_context(|| format!("explain does not know {}", question.service))?;
        let decision =
            if question.node.is_some() { &row["exposed"]["outside"] } else { &row["decision"] };
        let reason = decision["reason"].as_str().unwrap_or_default().to_owned();
        Ok(Decision { tier: decision["tier"].as_u64(), reason })
    }
}
