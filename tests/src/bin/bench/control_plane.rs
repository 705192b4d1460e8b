//! From the API server to the maps: how long a first list takes, how soon a change is in the
//! kernel, and what this costs the agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use topo_lb_fake_api::{FakeApi, NODES, SLICES};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::wait::{PATIENCE, until_is};

use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;
use crate::{api, bad_days, policies, turnover};
use topo_lb_tests::population::Population;
use topo_lb_tests::records::Records;

/// Time between two changes.
const PERIOD: Duration = Duration::from_millis(10);
/// A kubelet's status reports per hour when nothing changes (`nodeStatusReportFrequency`: 5 min).
const REPORTS: f64 = 12.0;
pub(crate) const MEGABYTE: f64 = 1e6;
/// The kinds that an agent watches.
const KINDS: usize = 6;

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let sizes: &[(u32, u32)] = effort.of(
        &[(100, 10), (1_000, 10)],
        &[(100, 10), (1_000, 10), (10_000, 10), (10_000, 25), (50_000, 5)],
    );
    let mut figures = Vec::new();
    for &(services, endpoints) in sizes {
        say(&format!("control plane, {services} Services of {endpoints} endpoints"));
        // The size that the promises are about.
        let is_promised = (services, endpoints) == (10_000, 10);
        let population = Population::new(HERE, effort.of(100, 1_000), services, endpoints);
        let found = one_size(ground, effort, &population, Asks::Nothing)?;
        figures.extend(found.into_iter().map(|figure| {
            let figure = figure.with("services", services).with("endpoints", services * endpoints);
            match figure.name.as_str() {
                "program_seconds" if is_promised => figure.at_most(1.0),
                "rss_mb" if is_promised => figure.at_most(40.0),
                "event_to_map_p99_ms" if is_promised => figure.p99_at_most(10.0),
                "restart_writes" => figure.at_most(0.0),
                _ => figure,
            }
        }));
    }
    figures.extend(policies::measure(ground, effort, say)?);
    figures.extend(bad_days::measure(ground, effort, say)?);
    figures.extend(turnover::measure(ground, effort, say)?);
    say("control plane, what kubelets report");
    figures.extend(status_reports(ground, effort)?);
    Ok(figures)
}

/// What the objects of a cluster ask for besides annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    Nothing,
    /// [Policies](policies::objects) for many Services.
    Policies,
    /// What [bad days](bad_days::objects) take.
    BadDays,
}

/// An agent that follows this server.
pub(crate) fn follow<'a>(ground: &Ground<'a>, server: &FakeApi) -> Result<Agent<'a>> {
    ground.agent(("--api-server", Path::new(&server.url())), &[])
}

/// Measures a cluster of one size.
pub(crate) fn one_size(
    ground: &Ground<'_>,
    effort: Effort,
    population: &Population,
    asks: Asks,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let (mut programmed, mut started, mut memory) =
        (Sample::default(), Sample::default(), Sample::default());
    let (mut restarted, mut writes) = (Sample::default(), Sample::default());
    let others = match asks {
        Asks::Nothing => Vec::new(),
        Asks::Policies => policies::objects(ground, population)?,
        Asks::BadDays => bad_days::objects(),
    };
    let objects = population.objects().chain(others);
    let server = api::start(ground.cluster.node_netns(HERE)?, objects)?;
    let mut last = None;
    for _ in 0..effort.of(1, 3) {
        // The previous agent and its maps must be gone.
        drop(last.take());
        let begun = Instant::now();
        let mut agent = follow(ground, &server)?;
        started.add(begun.elapsed().as_secs_f64());
        let listed = server.state().finished.context("all objects were listed")?;
        programmed.add(listed.elapsed().as_secs_f64());
        thread::sleep(Duration::from_secs(1));
        memory.add(resident(agent.process_id()?, "VmRSS:")? / MEGABYTE);

        agent.stop()?;
        let begun = Instant::now();
        agent.resume()?;
        restarted.add(begun.elapsed().as_secs_f64());
        let count = agent.get("/metrics")?.sample("topo_lb_map_writes_total");
        writes.add(count.context("writes are counted")?);
        last = Some(agent);
    }
    let agent = last.context("a run was made")?;
    figures.push(Figure::new("program_seconds", "s", &programmed));
    figures.push(Figure::new("start_seconds", "s", &started));
    figures.push(Figure::new("restart_seconds", "s", &restarted));
    figures.push(Figure::new("restart_writes", "writes", &writes));
    figures.push(Figure::new("rss_mb", "MB", &memory));
    let listed = server.state().listed;
    // Every start lists once, and each round has two starts.
    let lists = f64::from(effort.of(2, 6));
    figures.push(Figure::single("list_mb", "MB", listed as f64 / lists / MEGABYTE));

    let before = processor_seconds(&agent)?;
    // How long to observe the agent while nothing changes.
    let watched = Duration::from_secs(effort.of(1, 5));
    thread::sleep(watched);
    let idle = (processor_seconds(&agent)? - before) / watched.as_secs_f64() * 100.0;
    figures.push(Figure::single("cpu_idle_percent", "%", idle));

    wait_for_watches(&server)?;
    let (before, begun) = (processor_seconds(&agent)?, Instant::now());
    let delays = churn(&agent, &server, population, effort.of(100, 3_000), asks)?;
    let busy = (processor_seconds(&agent)? - before) / begun.elapsed().as_secs_f64() * 100.0;
    figures.push(Figure::new("event_to_map_p99_ms", "ms", &delays));
    figures.push(Figure::single("cpu_churn_percent", "%", busy));
    if asks == Asks::Policies {
        figures.extend(policies::flip(ground, effort, &agent, &server, population)?);
    }
    Ok(figures)
}

/// Waits until the agent watches each kind.
pub(crate) fn wait_for_watches(server: &FakeApi) -> Result<usize> {
    let open = || Ok(server.state().watches);
    until_is("a watch of each kind", PATIENCE, open, |open| *open >= KINDS)
}

/// Makes a hundred changes a second, and waits for each in the kernel's map. Returns milliseconds.
fn churn(
    agent: &Agent<'_>,
    server: &FakeApi,
    population: &Population,
    changes: u32,
    asks: Asks,
) -> Result<Sample> {
    let records = Records::open(agent)?;
    let mut delays = Sample::default();
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(1);
    let mut turns = BTreeMap::new();
    for change in 0..changes {
        // Odd Services have no policy of their own: each of their changes concerns this node.
        let service = random.u32(..population.services) | 1;
        if service >= population.services {
            continue;
        }
        let before = records.of(service)?;
        // Not the endpoint that the previous change removed: that would change nothing.
        let gone = turns.entry(service).or_insert(0);
        *gone = (*gone + 1) % population.endpoints;
        let gone = *gone;
        let mut slice = population.slices(service, |number| number != gone).swap_remove(0);
        if asks == Asks::BadDays {
            // What nobody gets does not change the map; the others start slowly when they are back.
            if population.zone_of(service, gone) == bad_days::EVACUATED {
                continue;
            }
            let now = Timestamp::now().to_string();
            slice["metadata"]["annotations"] =
                json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
        }
        let told = Instant::now();
        server.change(SLICES, "MODIFIED", slice);
        while records.of(service)? == before {
            ensure!(told.elapsed() < PATIENCE, "a change was not in the map after {PATIENCE:?}");
            thread::sleep(Duration::from_micros(50));
        }
        delays.add(told.elapsed().as_secs_f64() * 1e3);
        let due = PERIOD * (change + 1);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(delays)
}

/// The cost of kubelets' status reports, per hour, for 5,000 nodes that do not change.
fn status_reports(ground: &Ground<'_>, effort: Effort) -> Result<Vec<Figure>> {
    const CLUSTER: u32 = 5_000;
    let population = Population::new(HERE, effort.of(500, CLUSTER), 10, 10);
    let server = api::start(ground.cluster.node_netns(HERE)?, population.objects())?;
    let agent = follow(ground, &server)?;
    wait_for_watches(&server)?;
    let before = processor_seconds(&agent)?;
    for index in 0..population.nodes {
        server.change(NODES, "MODIFIED", population.node(index));
        if index.is_multiple_of(100) {
            thread::sleep(Duration::from_millis(20));
        }
    }
    // Waits until the agent has read everything.
    thread::sleep(Duration::from_secs(2));
    let watched = server.state().watched;
    let scale = f64::from(CLUSTER) / f64::from(population.nodes) * REPORTS;
    let spent = processor_seconds(&agent)? - before;
    let megabytes = watched as f64 * scale / MEGABYTE;
    Ok(vec![
        Figure::single("status_mb_per_hour", "MB", megabytes).with("nodes", CLUSTER).at_most(0.1),
        Figure::single("status_cpu_seconds_per_hour", "s", spent * scale).with("nodes", CLUSTER),
    ])
}

/// Resident memory of a process, in bytes: a line of /proc/PID/status, such as `VmRSS:`.
pub(crate) fn resident(process: u32, line: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|it| it.strip_prefix(line));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kibibytes.context("a process has a size")? * 1024.0)
}

/// User and system time of /proc/PID/stat, in seconds.
pub(crate) fn processor_seconds(agent: &Agent<'_>) -> Result<f64> {
    /// `USER_HZ`, the same on every architecture that Kubernetes supports.
    const TICKS: f64 = 100.0;
    let path = format!("/proc/{}/stat", agent.process_id()?);
    let stat = fs::read_to_string(&path)?;
    // The name in parentheses may contain blanks; the state after it is field 3.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).flat_map(str::parse).collect();
    ensure!(fields.len() == 2, "{path} has no times");
    Ok((fields[0] + fields[1]) / TICKS)
}
