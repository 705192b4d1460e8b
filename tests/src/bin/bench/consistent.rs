//! Services with a consistent choice: what their tables take, how long one is made, and how soon a change of an
//! endpoint is in the maps.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_common::backend::Locality;
use topo_lb_common::maps;
use topo_lb_core::plan::maglev;
use topo_lb_core::topology::{Chosen, Part};
use topo_lb_fake_api::{FakeApi, SLICES};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::population::Population;
use topo_lb_tests::records::Records;
use topo_lb_tests::wait::PATIENCE;

use crate::accounting::spent;
use crate::api;
use crate::control_plane::{MEGABYTE, processor_seconds, resident, wait_for_watches};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;
use crate::store::megabytes;

/// Endpoints of each Service: their table has 12,809 slots.
const ENDPOINTS: u32 = 100;
/// Endpoints of the largest table, of 65,521 slots.
const MOST: u32 = 1_000;
/// The address before the load balancer IP of the first Service.
const BALANCERS: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);
/// Time between two changes.
const PERIOD: Duration = Duration::from_millis(10);

/// The table of a Service of many endpoints, and of the same when one of them has gone or come.
pub(crate) fn tables(effort: Effort) -> Vec<Figure> {
    let endpoint = |number: u32| {
        let address = Ipv4Addr::from_bits(0x0af4_0000 + number);
        Chosen::new(SocketAddr::from((address, 8_080)), Locality::Zone)
    };
    let made = |without: Option<u32>| {
        let endpoints = (0..MOST).filter(|number| Some(*number) != without).map(endpoint).collect();
        let parts = [Part { weight: 1, endpoints }];
        let before = spent();
        let (row, shares) = maglev::apportioned(black_box(&parts));
        black_box(shares.table(&row));
        (spent() - before) * 1e3
    };
    let (mut built, mut changed) = (Sample::default(), Sample::default());
    for round in 0..effort.of(5, 100) {
        built.add(made(None));
        changed.add(made(Some(round)));
    }
    [("maglev_build_ms", built, 20.0), ("maglev_change_ms", changed, 5.0)]
        .into_iter()
        .map(|(name, sample, most)| {
            Figure::new(name, "ms", &sample).with("endpoints", MOST).at_most(most)
        })
        .collect()
}

/// Many such Services, whose endpoints come and go one by one.
pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    // Room for all tables: seven eighths are divided.
    let (services, room) = effort.of((100, "1600000"), (1_000, "16000000"));
    let population = Population::new(HERE, effort.of(100, 1_000), services, ENDPOINTS);
    let population = Population { annotates: false, ..population };
    let nodes = (0..population.nodes).map(|index| population.node(index));
    let each = |index| {
        let slices = population.slices(index, |_| true);
        [service(&population, index)].into_iter().chain(slices)
    };
    let server =
        api::start(ground.cluster.node_netns(HERE)?, nodes.chain((0..services).flat_map(each)))?;
    let follow = |flags: &[(&'static str, &str)]| {
        let flags = [&[("--kube-proxy-replacement", "")], flags].concat();
        ground.agent(("--api-server", Path::new(&server.url())), &flags)
    };
    say(&format!("{services} Services with a consistent choice, at default sizes"));
    let agent = follow(&[])?;
    let with = |figure: Figure, room: &str| {
        figure.with("services", services).with("endpoints", services * ENDPOINTS).with("room", room)
    };
    let mut figures = Vec::new();
    let (narrowed, defaults) = (narrowed(&agent)?, "the default");
    figures.push(with(Figure::single("consistent_narrowed", "Services", narrowed), defaults));
    figures.push(with(Figure::single("consistent_maps_mb", "MB", memory(&agent)?), defaults));
    drop(agent);

    say(&format!("{services} Services with a consistent choice, with room for all"));
    let begun = Instant::now();
    let agent = follow(&[("--max-endpoints", room)])?;
    figures.push(with(
        Figure::single("consistent_start_seconds", "s", begun.elapsed().as_secs_f64()),
        room,
    ));
    figures.push(
        with(Figure::single("consistent_narrowed", "Services", self::narrowed(&agent)?), room)
            .at_most(0.0),
    );
    thread::sleep(Duration::from_secs(1));
    let size = resident(agent.process_id()?, "VmRSS:")? / MEGABYTE;
    figures.push(with(Figure::single("consistent_rss_mb", "MB", size), room));
    figures.push(with(Figure::single("consistent_maps_mb", "MB", memory(&agent)?), room));
    wait_for_watches(&server)?;
    let (before, begun) = (processor_seconds(&agent)?, Instant::now());
    let delays = changes(&agent, &server, &population, effort.of(100, 3_000))?;
    let busy = (processor_seconds(&agent)? - before) / begun.elapsed().as_secs_f64() * 100.0;
    let delay = with(Figure::new("consistent_event_to_map_p99_ms", "ms", &delays), room);
    figures.push(if effort.quick { delay } else { delay.p99_at_most(10.0) });
    figures.push(with(Figure::single("consistent_churn_percent", "%", busy), room));
    Ok(figures)
}

/// A Service with a load balancer IP.
fn service(population: &Population, index: u32) -> Value {
    let mut service = population.service(index);
    service["metadata"]["annotations"] = json!({"topo-lb.io/choice": "consistent"});
    service["spec"]["type"] = "LoadBalancer".into();
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": balancer(index)}]}});
    service
}

fn balancer(service: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(BALANCERS.to_bits() + 1 + service)
}

/// Changes one endpoint each time, and waits for the new table. Returns milliseconds.
fn changes(
    agent: &Agent<'_>,
    server: &FakeApi,
    population: &Population,
    changes: u32,
) -> Result<Sample> {
    let records = Records::open(agent)?;
    let mut delays = Sample::default();
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(1);
    let mut gone = vec![0; population.services as usize];
    for change in 0..changes {
        let service = random.u32(..population.services);
        let record = || records.of_outside(balancer(service));
        let before = record()?;
        // Not the endpoint that the previous change removed: that would change nothing.
        let gone = &mut gone[service as usize];
        *gone = *gone % (ENDPOINTS - 1) + 1;
        let slice = population.slices(service, |number| number != *gone).swap_remove(0);
        let told = Instant::now();
        server.change(SLICES, "MODIFIED", slice);
        while record()? == before {
            ensure!(told.elapsed() < PATIENCE, "a change was not in the map after {PATIENCE:?}");
            thread::sleep(Duration::from_micros(50));
        }
        delays.add(told.elapsed().as_secs_f64() * 1e3);
        let due = PERIOD * (change + 1);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(delays)
}

/// Services that choose at random among few endpoints, as their tables have no room.
fn narrowed(agent: &Agent<'_>) -> Result<f64> {
    let metrics = agent.get("/metrics")?;
    metrics.sample("topo_lb_narrowed_services").context("narrowed Services are counted")
}

/// What the kernel accounts for an agent's maps, in 10⁶ bytes.
fn memory(agent: &Agent<'_>) -> Result<f64> {
    let is_there = |name: &&str| agent.pins().join(name).exists();
    let names: Vec<_> = maps::ALL.into_iter().filter(is_there).collect();
    megabytes(agent.pins(), &names)
}
