//! What the agent's resolver adds to a query that it hands on, and how many queries it takes a second: by
//! one Service of the cluster DNS that leads to the resolver, and by another one that leads to the same
//! server without it.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use fs_err as fs;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::population::SERVICE_PORT;
use topo_lb_tests::scene::KEYS;
use topo_lb_tests::wait::PATIENCE;

use crate::exchange::{Act, Targets, last_core};
use crate::ground::{Effort, Ground, HERE};
use crate::queries::{Asked, BURST, PORT};
use crate::result::Figure;
use crate::sample::Sample;

/// Services beside those of DNS.
const SERVICES: u32 = 100;
/// The ClusterIP of the cluster DNS.
const RESOLVED: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The ClusterIP of the other Service with the same server.
const DIRECT: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
/// Queries of a turn, one after the other.
const TURN: u32 = 200;
/// Bursts of a turn.
const BURSTS: u32 = 50;
/// Names that the resolver hands on, and its own.
const FLOODS: [(&str, Asked); 2] = [("forwarded", Asked::Other), ("own", Asked::Own)];

fn objects(ground: &Ground<'_>) -> Result<Vec<Value>> {
    let (a, b) = (ground.cluster.pod("a")?, ground.cluster.pod("b")?);
    let endpoints =
        [endpoint(&a.ipv4.to_string(), HERE, "a"), endpoint(&b.ipv4.to_string(), HERE, "b")];
    let mut all = Vec::new();
    for (name, address) in [("kube-dns", RESOLVED), ("direct", DIRECT)] {
        all.push(service(name, &[&address.to_string()], &[("dns", 53, "UDP")], &[]));
        all.push(slice(name, "IPv4", &[("dns", PORT, "UDP")], &endpoints[..1]));
    }
    let annotations = [("topo-lb.io/dns", "true"), (KEYS, "*")];
    let mut db = service("db", &[], &[("http", SERVICE_PORT, "TCP")], &annotations);
    db["spec"]["clusterIP"] = "None".into();
    db["spec"]["clusterIPs"] = ["None"].as_slice().into();
    all.extend([db, slice("db", "IPv4", &[("http", SERVICE_PORT, "TCP")], &endpoints)]);
    Ok(all)
}

/// The thread that serves DNS.
struct Thread {
    id: Pid,
    folder: String,
}

impl Thread {
    fn of(agent: &Agent<'_>) -> Result<Self> {
        let process = agent.process_id()?;
        for entry in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
            let folder = entry.path();
            if fs::read_to_string(folder.join("comm"))?.trim() == "dns" {
                let id = entry.file_name().to_string_lossy().parse()?;
                let id = Pid::from_raw(id).context("a thread has a number")?;
                return Ok(Self { id, folder: folder.display().to_string() });
            }
        }
        anyhow::bail!("the agent serves no DNS")
    }

    fn stay(&self, core: usize) -> Result<()> {
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(Some(self.id), &cores).context("cannot bind a thread to a core")
    }

    /// Its processor time, in microseconds.
    fn spent(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("{}/schedstat", self.folder))?;
        let nanoseconds = text.split(' ').next().context("a thread has run")?.parse::<f64>()?;
        Ok(nanoseconds / 1e3)
    }
}

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    say("DNS");
    let population = ground.population(SERVICES, ["a", "b"])?;
    let manifests = ground.manifests(&population, &objects(ground)?)?;
    let flags = [("--dns", ""), ("--dns-service", "default/kube-dns")];
    let agent = ground.agent(("--manifests", &manifests), &flags)?;
    agent.wait_for_log("DNS is served", PATIENCE)?;
    let thread = Thread::of(&agent)?;
    // Clients and servers are there, too.
    thread.stay(last_core()?)?;
    let mut client = ground.inside("client")?;
    let at = |address: Ipv4Addr| Targets::one((address, 53).into());

    let ways = [
        ("direct", DIRECT, Asked::Other),
        ("forwarded", RESOLVED, Asked::Other),
        ("own", RESOLVED, Asked::Own),
    ];
    let (mut times, mut added) = ([Sample::EMPTY; 3], Sample::default());
    for round in 0..=effort.of(4, 60) {
        let mut medians = [0.0; 3];
        // The order changes, because later turns may find warmer caches.
        for place in 0..ways.len() {
            let way = (place + round) % ways.len();
            let (_, address, asked) = ways[way];
            let mut turn = Sample::default();
            let spent = client.times(Act::Ask(asked), at(address), TURN)?;
            turn.extend(spent.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            medians[way] = turn.median();
        }
        // The first round warms the caches.
        if round > 0 {
            for (times, median) in times.iter_mut().zip(medians) {
                times.add(median);
            }
            added.add(medians[1] - medians[0]);
        }
    }

    thread.stay(0)?;
    let (mut rates, mut costs) = ([Sample::EMPTY; 2], [Sample::EMPTY; 2]);
    for _ in 0..effort.of(2, 30) {
        for (place, (_, asked)) in FLOODS.into_iter().enumerate() {
            let before = thread.spent()?;
            let spent = client.times(Act::Flood(asked), at(RESOLVED), BURSTS)?;
            let queries = (BURST * spent.len()) as f64;
            costs[place].add((thread.spent()? - before) / queries);
            let nanoseconds: u64 = spent.iter().sum();
            rates[place].add(queries * 1e6 / nanoseconds as f64);
        }
    }
    let mut figures = vec![Figure::new("dns_added_us", "us", &added).at_most(50.0)];
    for ((names, _), (rate, cost)) in FLOODS.into_iter().zip(rates.iter().zip(&costs)) {
        let figure = |name, unit, sample| Figure::new(name, unit, sample).with("names", names);
        figures.push(figure("dns_kqps", "kqps", rate).at_least(20.0));
        figures.push(figure("dns_thread_us", "us", cost));
    }
    for ((path, ..), times) in ways.into_iter().zip(&times) {
        figures.push(Figure::new("dns_us", "us", times).with("path", path));
    }
    Ok(figures)
}
