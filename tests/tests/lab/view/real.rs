//! The shop with real agents: nodes and pods in the lab, and every connection a real one.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::browser::Browser;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::counting::Demand;
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest::Manifests;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::requirements;
use topo_lb_tests::served::View;
use topo_lb_tests::terminal::Terminal;
use topo_lb_tests::traffic::Via;
use topo_lb_tests::transfer::Ending;
use topo_lb_tests::wiring::{node4, pod4};

use super::shop;

/// The share of the shop's connections that is made: one machine has to make all of them.
const SHARE: f64 = 0.08;
/// The last byte of the address of each node's pod.
const HOST: u8 = 2;
/// How often a client looks what is due.
const PAUSE: Duration = Duration::from_millis(50);

/// The open shop.
pub(crate) struct Open<'a> {
    cluster: &'a Cluster,
    /// `--agent` for each agent.
    agents: Vec<String>,
    pub(crate) view: View,
    pub(crate) browser: Browser,
}

impl Open<'_> {
    /// `topo-lb top` in a terminal.
    pub(crate) fn top(&self) -> Result<Terminal> {
        let mut command = Binary::new(requirements::agent()?).command(&["top", "--sort", "bytes"]);
        self.cluster.beyond(command.args(&self.agents))?;
        Terminal::start(command)
    }
}

/// Runs `work` while clients of all nodes use the shop's Services.
pub(crate) fn open_shop(work: impl FnOnce(&mut Open<'_>) -> Result<()> + Send) -> Result<()> {
    let names: Vec<_> =
        shop::places().into_iter().map(|it| (format!("{}-pod", it.name), it.name)).collect();
    let node = |(number, (pod, name))| NodePlan { name, number, pods: vec![(pod, HOST)] };
    let plan: Vec<_> =
        (0..).zip(names.iter().map(|(pod, name)| (&**pod, &**name))).map(node).collect();
    within(&plan, |cluster| {
        let mut manifests = Manifests::new(cluster.folder())?;
        let number = |at: usize| plan.get(at).map_or(0, |it| it.number);
        for object in shop::objects(|at| pod4(number(at), HOST)) {
            manifests.put(object);
        }
        manifests.write()?;
        let _servers = cluster.serve(names.iter().map(|(pod, _)| &**pod))?;
        let agents = agents(cluster, &plan, &manifests)?;
        let mut clients = Vec::new();
        for pod in cluster.pods() {
            let demands = shop::demands().into_iter().filter(|(_, it)| it.node == pod.node);
            clients.push((pod.client()?, demands.collect::<Vec<_>>()));
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let busy: Vec<_> = clients
                .iter_mut()
                .map(|(client, demands)| scope.spawn(|| buy(client, demands, &done)))
                .collect();
            // Clients end also after a panic.
            let looked =
                catch_unwind(AssertUnwindSafe(|| look(cluster, &manifests, &agents, work)));
            done.store(true, Ordering::Relaxed);
            for client in busy {
                client.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            }
            looked.unwrap_or_else(|panic| resume_unwind(panic))
        })
    })
}

/// An agent on every node, which tells its counts at the node's address.
fn agents<'a>(
    cluster: &'a Cluster,
    plan: &[NodePlan<'_>],
    manifests: &Manifests,
) -> Result<Vec<Agent<'a>>> {
    let binary = Binary::new(requirements::agent()?);
    let mut agents = Vec::new();
    for node in plan {
        let mut agent = Agent::prepare(&binary, cluster, node.name, manifests.folder())?;
        agent.set("--metrics-listen", at(node.number).to_string());
        agent.launch()?;
        agents.push(agent);
    }
    agents.iter_mut().try_for_each(Agent::wait_until_ready)?;
    Ok(agents)
}

/// Where an agent tells its counts.
fn at(number: u8) -> SocketAddr {
    SocketAddr::from((node4(number), 19_876))
}

/// Starts page and browser beside the nodes.
fn look(
    cluster: &Cluster,
    manifests: &Manifests,
    agents: &[Agent<'_>],
    work: impl FnOnce(&mut Open<'_>) -> Result<()> + Send,
) -> Result<()> {
    let flags = (0..).zip(agents).flat_map(|(number, agent)| {
        ["--agent".to_owned(), format!("{}=http://{}", agent.node(), at(number))]
    });
    let agents: Vec<_> = flags.collect();
    let folder = manifests.folder().display().to_string();
    let arguments: Vec<_> =
        ["--manifests", &folder].into_iter().chain(agents.iter().map(|it| &**it)).collect();
    let view = View::start_with(&arguments, |command| cluster.beyond(command))?;
    cluster.fabric().run(|| {
        let mut browser = Browser::start(1300, 800)?;
        browser.prefer("light")?;
        browser.open(&view.url)?;
        work(&mut Open { cluster, agents, view, browser })
    })
}

/// Makes the connections of one node, each when it is due, until all is done.
fn buy(client: &mut Client, demands: &[(u8, Demand)], done: &AtomicBool) -> Result<()> {
    let begin = Instant::now();
    let mut made = vec![0.0; demands.len()];
    while !done.load(Ordering::Relaxed) {
        // Sometimes more, sometimes less, as a time line shows.
        let seconds = begin.elapsed().as_secs_f64();
        let seconds = seconds - 3.0 * (seconds / 9.0).cos();
        for ((index, demand), made) in demands.iter().zip(&mut made) {
            if *made + 1.0 > demand.connections * SHARE * seconds {
                continue;
            }
            *made += 1.0;
            let to = SocketAddr::from((shop::cluster_ip(*index), 80));
            // A refusal is a part of the picture.
            if let Ok(socket) = client.open(Via::Http, to)? {
                client.echo(socket, demand.bytes as usize / 2).context("an answer")?;
                client.end(socket, Ending::Close)?;
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
