//! Nodes that die and come back under load. Three nodes announce a load balancer IP by BGP, and the fabric spreads flows
//! over them by addresses and ports. One after the other is drained for one Service, cut off, and led back.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::agent::Agent;
use crate::direct_return::{NODES, PROVED, REQUEST, Returns, answer, ask, named, play, put};
use crate::outside::BALANCER;
use crate::pod;
use crate::process::printed;
use crate::report::Report;
use crate::router::{Speaker, announce};
use crate::scene::{ALL, FOLLOWS, HERE, Scene};
use crate::traffic::Via;
use crate::wait::{patient, until};

/// What clients outside do meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections that stay open, to endpoints on all nodes.
    pub open: usize,
    /// New connections a second, to endpoints on nodes that live.
    pub per_second: u32,
}

/// When nodes die.
#[derive(Clone, Copy, Debug)]
pub struct Deaths {
    /// How many times one does.
    pub count: usize,
    /// Time from one to the next, at least.
    pub every: Duration,
}

/// What became of the connections.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How many times a node died.
    pub deaths: usize,
    /// How many times an open connection to an endpoint that lives was asked, and answered.
    pub asked: u64,
    /// Open connections to endpoints that live that were lost.
    pub lost: Vec<String>,
    /// New connections that were answered.
    pub answered: u64,
    /// New connections that were not.
    pub failed: Vec<String>,
    /// How long the slowest of those that were took.
    pub slowest: Duration,
}

impl From<Outcome> for Report {
    fn from(outcome: Outcome) -> Self {
        let mut report = Self {
            connections: outcome.answered + outcome.asked,
            failed: (outcome.lost.len() + outcome.failed.len()) as u64,
            ..Self::default()
        };
        for what in outcome.lost.into_iter().chain(outcome.failed) {
            report.describe(|| what);
        }
        report
    }
}

/// Nodes that announce the address, each with its endpoint and its link on the fabric.
const DYING: [(&str, &str, &str); 3] =
    [(HERE, "a", "node1"), ("beside", "b", "node2"), ("there", "c", "node3")];
/// Addresses of clients: one has ports for 28,000 connections, also of those that have just ended.
const CLIENTS: u8 = 8;
/// How long a client waits. A SYN that a dead node gets is sent again after 1, 2 and 4 s.
const WAITS: Duration = Duration::from_secs(15);

/// Runs the cluster while nodes die.
///
/// # Errors
/// The cluster, a router or an agent does not come up, or does not follow.
pub fn run(load: Load, returns: Returns, speaker: Speaker, deaths: Deaths) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    raise_limit()?;
    play(returns, |scene, others, mut client| {
        let [four, _] = BALANCER;
        let [all, living] = [80, 81].map(|port| SocketAddr::new(ip(four), port));
        let fabric = scene.cluster.fabric();
        fabric.set(&[("ipv4/fib_multipath_hash_policy", "1")])?;
        fabric.ip(&[format!("route del {four}")])?;
        fabric.ip(&(1..=CLIENTS)
            .map(|number| format!("address add {} dev lo", of_client(number)))
            .collect::<Vec<_>>())?;
        let announcing: Vec<_> =
            DYING.iter().zip(NODES).map(|((node, ..), [four, _])| (*node, four)).collect();
        let _routers = announce(scene.cluster, four, &announcing, speaker)?;
        wait_for_ways(scene, four, DYING.len())?;
        client.wait_for(Via::Http, all, &ALL, FOLLOWS)?;
        put(scene, pod::PORT, &ALL)?;
        client.wait_for(Via::Http, living, &ALL, FOLLOWS)?;
        let mut open = fabric.run(|| open(all, load.open))?;
        let dialled = dial_during(scene, living, load.per_second, |scene| {
            for number in 0..deaths.count {
                let begun = Instant::now();
                let (node, pod, link) = DYING[number % DYING.len()];
                let left: Vec<_> = ALL.into_iter().filter(|it| *it != pod).collect();
                put(scene, pod::PORT, &left)?;
                client.wait_for(Via::Http, living, &left, FOLLOWS)?;
                scene.cluster.fabric().ip(&[format!("link set {link} down")])?;
                // Every other time its agent dies, too.
                let dies = number % 2 == 1;
                if dies {
                    with_agent(scene, others, node, |agent| agent.kill());
                }
                wait_for_ways(scene, four, DYING.len() - 1)?;
                outcome.asked += ask_all(&mut open, Some(pod), &mut outcome.lost);
                if dies {
                    with_agent(scene, others, node, |agent| agent.resume())?;
                }
                scene.cluster.fabric().ip(&[format!("link set {link} up")])?;
                wait_for_ways(scene, four, DYING.len())?;
                outcome.asked += ask_all(&mut open, None, &mut outcome.lost);
                put(scene, pod::PORT, &ALL)?;
                client.wait_for(Via::Http, living, &ALL, FOLLOWS)?;
                outcome.deaths += 1;
                while begun.elapsed() < deaths.every {
                    outcome.asked += ask_all(&mut open, None, &mut outcome.lost);
                    thread::sleep(Duration::from_secs(1));
                }
            }
            Ok(())
        })?;
        let Dialled { answered, slowest, failed } = dialled;
        (outcome.answered, outcome.slowest, outcome.failed) = (answered, slowest, failed);
        Ok(())
    })?;
    Ok(outcome)
}

/// Does something to the agent of a node.
fn with_agent<T>(
    scene: &mut Scene<'_>,
    others: &mut [Agent<'_>],
    node: &str,
    work: impl FnOnce(&mut Agent<'_>) -> T,
) -> T {
    match others.iter_mut().find(|it| it.node() == node) {
        Some(agent) => work(agent),
        None => work(&mut scene.agent),
    }
}

/// Lets this process have as many files as it may.
fn raise_limit() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("cannot raise the limit of files")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn of_client(number: u8) -> String {
    format!("172.31.9.{number}")
}

/// Waits until the fabric has so many ways to an address.
fn wait_for_ways(scene: &Scene<'_>, address: &str, wanted: usize) -> Result<()> {
    until("routes", PROVED, || {
        let show = || printed(Command::new("ip").args(["-4", "route", "show", address]));
        let routes = scene.cluster.fabric().run(show)?;
        let found = routes.matches("via").count();
        Ok(if found == wanted { Ok(()) } else { Err(routes) })
    })
    .map(drop)
}

/// An open connection, and the pod that answers.
type Open = (TcpStream, String);

/// Opens connections, and asks each for its pod.
fn open(to: SocketAddr, count: usize) -> Result<Vec<Open>> {
    let open = |number: usize| {
        let stream = TcpStream::connect_timeout(&to, patient(WAITS))
            .with_context(|| format!("connection {number}"))?;
        let pod = ask(&stream, WAITS).with_context(|| format!("connection {number}"))?;
        Ok((stream, pod))
    };
    (0..count).map(open).collect()
}

/// Asks all connections at once, but for those of the pod that is cut off. Removes those that are lost. Returns how many
/// have answered.
fn ask_all(open: &mut Vec<Open>, cut_off: Option<&str>, lost: &mut Vec<String>) -> u64 {
    let lives = |pod: &str| cut_off != Some(pod);
    let sent: Vec<_> = open
        .iter_mut()
        .map(|(stream, pod)| if lives(pod) { stream.write_all(REQUEST) } else { Ok(()) })
        .collect();
    let (mut answered, mut sent) = (0, sent.into_iter());
    open.retain_mut(|(stream, pod)| {
        let sent = sent.next().expect("one for each");
        if !lives(pod) {
            return true;
        }
        match sent.map_err(Into::into).and_then(|()| answer(&mut *stream)) {
            Ok(by) if by == *pod => answered += 1,
            Ok(by) => lost.push(format!("{pod}: {by} answers")),
            Err(error) => {
                lost.push(format!("{pod}: {error:#}"));
                return false;
            }
        }
        true
    });
    answered
}

/// What became of new connections.
#[derive(Default)]
struct Dialled {
    answered: u64,
    slowest: Duration,
    failed: Vec<String>,
}

impl Dialled {
    fn add(&mut self, ended: Result<Duration>) {
        match ended {
            Ok(took) => {
                self.answered += 1;
                self.slowest = self.slowest.max(took);
            }
            Err(error) => self.failed.push(format!("{error:#}")),
        }
    }
}

/// Dials with this rate until `work` is done.
fn dial_during<'a>(
    scene: &mut Scene<'a>,
    to: SocketAddr,
    per_second: u32,
    work: impl FnOnce(&mut Scene<'a>) -> Result<()>,
) -> Result<Dialled> {
    let done = AtomicBool::new(false);
    let fabric = scene.cluster.fabric();
    thread::scope(|scope| {
        let dialling = scope.spawn(|| {
            fabric.run(|| {
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(dial_until(&done, to, per_second))
            })
        });
        let worked = work(scene);
        done.store(true, Ordering::Relaxed);
        let dialled = dialling.join().expect("no panic");
        worked.and(dialled)
    })
}

async fn dial_until(done: &AtomicBool, to: SocketAddr, per_second: u32) -> Result<Dialled> {
    let (mut dialled, mut dialling) = (Dialled::default(), JoinSet::new());
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0_u64.. {
        ticks.tick().await;
        if done.load(Ordering::Relaxed) {
            break;
        }
        let from = ip(&of_client((number % u64::from(CLIENTS)) as u8 + 1));
        dialling.spawn(async move {
            let begun = Instant::now();
            // Not `patient`: the kernel's timers are what they are on any machine.
            timeout(WAITS, dial(from, to)).await.context("no answer in time")??;
            Ok(begun.elapsed())
        });
        while let Some(ended) = dialling.try_join_next() {
            dialled.add(ended?);
        }
    }
    while let Some(ended) = dialling.join_next().await {
        dialled.add(ended?);
    }
    Ok(dialled)
}

/// Opens a connection from this address, asks for the pod, and ends it.
async fn dial(from: IpAddr, to: SocketAddr) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(to).await.context("connect")?;
    stream.write_all(REQUEST).await.context("write")?;
    let mut bytes = [0; 512];
    let read = stream.read(&mut bytes).await.context("read")?;
    let pod = named(&bytes[..read])?;
    ensure!(ALL.contains(&&*pod), "{pod} answers");
    Ok(())
}
