//! From kube-proxy to topo-lb in its place, and back, while connections are open: none reaches another
//! endpoint than before.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use topo_lb_tests::address::Family;
use topo_lb_tests::dial::Transport;
use topo_lb_tests::external::cell::{Caller, Cell, Endpoints, Policy, Service, Target, Variant};
use topo_lb_tests::external::scene::{ReversePath, Stage, within};
use topo_lb_tests::traffic::{Failure, Socket, Via};
use topo_lb_tests::wait::PATIENCE;

/// A connection that stays open.
struct Held {
    caller: Caller,
    to: SocketAddr,
    socket: Socket,
    pod: String,
    /// It comes in by the uplink of the node that translates it.
    is_from_outside: bool,
}

/// Who dials what: sockets of pods and of the host, and packets from outside.
const DIALLED: [(Caller, Target); 6] = [
    (Caller::PodHere, Target::ClusterIp),
    (Caller::PodHere, Target::NodePortThere),
    (Caller::Host, Target::NodePortHere),
    (Caller::Outside, Target::NodePortHere),
    (Caller::Outside, Target::NodePortThere),
    (Caller::Outside, Target::LoadBalancer),
];

/// What may become of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    GoesOn,
    GoesOnOrIsReset,
}

impl Held {
    /// Opens a connection of each kind, to endpoints on both nodes and on each one alone.
    fn open(stage: &mut Stage<'_>) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for endpoints in [Endpoints::Both, Endpoints::Here, Endpoints::There] {
            let service = Service { policy: Policy::Cluster, endpoints, variant: Variant::Plain };
            for (caller, target) in DIALLED {
                for family in Family::BOTH {
                    let transport = Transport::Tcp;
                    let to = Cell { service, target, caller, transport, family }.address();
                    let client = stage.client(caller)?;
                    let opened = client.open(Via::Http, to)?;
                    let socket = opened.with_context(|| format!("{caller:?} dials {to}"))?;
                    let reply = client.ask(socket, None)?;
                    let reply = reply.with_context(|| format!("{caller:?} asks {to}"))?;
                    let is_from_outside =
                        caller == Caller::Outside || target == Target::NodePortThere;
                    all.push(Self { caller, to, socket, pod: reply.pod, is_from_outside });
                }
            }
        }
        Ok(all)
    }

    /// Uses all of them, and forgets those that have ended. Returns how many have.
    fn use_all(all: &mut Vec<Self>, stage: &mut Stage<'_>, fate: Fate) -> Result<usize> {
        let before = all.len();
        let mut staying = Vec::new();
        for held in all.drain(..) {
            let Self { caller, to, socket, pod, .. } = &held;
            match stage.client(*caller)?.ask(*socket, None)? {
                Ok(reply) => {
                    ensure!(
                        reply.pod == *pod,
                        "{caller:?} at {to}: {} answers for {pod}",
                        reply.pod
                    );
                    staying.push(held);
                }
                Err(failure) => ensure!(
                    fate == Fate::GoesOnOrIsReset && is_end(&failure),
                    "{caller:?} at {to}, to {pod}: {failure}"
                ),
            }
        }
        *all = staying;
        Ok(before - all.len())
    }
}

/// Whether a failure is an end of the connection, and not silence.
fn is_end(failure: &Failure) -> bool {
    [Errno::CONNRESET, Errno::PIPE].iter().any(|end| failure.errno == end.raw_os_error())
}

#[test]
fn an_agent_that_observes_counts_what_kube_proxy_does() -> Result<()> {
    within(ReversePath::Loose, |stage| {
        let _kube_proxy = stage.start_kube_proxy()?;
        let agents = stage.start_agents(&[("--observe", "")])?;
        let agent = agents.first().context("an agent on node here")?;
        let service = Service {
            policy: Policy::Cluster,
            endpoints: Endpoints::Both,
            variant: Variant::Plain,
        };
        let (caller, target) = (Caller::PodHere, Target::ClusterIp);
        let mut answers = Vec::new();
        for family in Family::BOTH {
            let to = Cell { service, target, caller, transport: Transport::Tcp, family }.address();
            let tally = stage.client(caller)?.call(Via::Http, to, 40)?;
            ensure!(tally.answered() == 40, "{tally}");
            answers.push(tally.replies);
        }
        let by = |pod: &str| -> u32 { answers.iter().filter_map(|it| it.get(pod)).sum() };
        // The nodes are in different zones, and have no region.
        let wanted = [by("a"), by("b")].map(f64::from);
        ensure!(wanted.iter().all(|count| *count > 0.0), "kube-proxy uses both: {answers:?}");
        agent.wait_for_answer("/metrics", PATIENCE, |answer| {
            let of = |locality: &str| {
                let labels = format!(
                    "namespace=\"default\",service=\"{}\",port=\"tcp\",locality=\"{locality}\"",
                    service.name()
                );
                answer.sample(&format!("topo_lb_observed_connections_total{{{labels}}}"))
            };
            ["node", "elsewhere"].map(of) == wanted.map(Some)
        })?;
        Ok(())
    })
}

#[test]
fn connections_go_on_from_kube_proxy_to_topo_lb_and_back() -> Result<()> {
    within(ReversePath::Loose, |stage| {
        let kube_proxy = stage.start_kube_proxy()?;
        let mut old = Held::open(stage)?;

        let mut agents = stage.start_topo_lb()?;
        Held::use_all(&mut old, stage, Fate::GoesOn).context("topo-lb beside kube-proxy")?;
        let mut new = Held::open(stage).context("beside kube-proxy")?;

        let program = kube_proxy.stop();
        Held::use_all(&mut old, stage, Fate::GoesOn).context("kube-proxy has ended")?;
        Held::use_all(&mut new, stage, Fate::GoesOn).context("kube-proxy has ended")?;
        stage.remove_rules(&program)?;
        let lost =
            Held::use_all(&mut old, stage, Fate::GoesOnOrIsReset).context("its rules are gone")?;
        println!("without kube-proxy's rules, {lost} of its connections have ended");
        Held::use_all(&mut new, stage, Fate::GoesOn).context("kube-proxy's rules are gone")?;
        new.extend(Held::open(stage).context("topo-lb alone")?);

        let _kube_proxy = stage.start_kube_proxy_again(program)?;
        Held::use_all(&mut new, stage, Fate::GoesOn).context("kube-proxy is back")?;
        for agent in &mut agents {
            agent.stop()?;
            let output = stage.node(agent.node())?.run(|| agent.cleanup())?;
            ensure!(output.status.success(), "{output:?}");
        }
        let (mut outside, mut inside): (Vec<_>, Vec<_>) =
            new.into_iter().partition(|held| held.is_from_outside);
        Held::use_all(&mut inside, stage, Fate::GoesOn).context("topo-lb is gone")?;
        let lost = Held::use_all(&mut outside, stage, Fate::GoesOnOrIsReset)?;
        println!("without topo-lb's programs, {lost} of its connections from outside have ended");
        Held::open(stage).context("kube-proxy alone again").map(drop)
    })
}
