//! The connect path: what an exchange takes through a ClusterIP and without, and what a proxy adds
//! to traffic that is no Service's.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use crate::exchange::{Act, Dialler, PORT, Targets};
use crate::ground::{Effort, Ground, PEER};
use crate::nftables;
use crate::result::Figure;
use crate::sample::Sample;
use topo_lb_tests::population::{Population, SERVICE_PORT};

/// Exchanges between two looks at another path.
const BATCH: u32 = 200;
/// The most Services for which the peer gets rules: for 10,000 of them nft takes a minute to load these,
/// and for 50,000 it was not done after five.
const PEER_LIMIT: u32 = 10_000;

/// A way that is timed.
struct Path {
    /// What does the work: `nothing`, `topo-lb`, `nftables`.
    proxy: &'static str,
    /// What is dialled.
    traffic: &'static str,
    dialler: usize,
    targets: Targets,
    times: Sample,
    ratios: Sample,
}

impl Path {
    fn new(proxy: &'static str, traffic: &'static str, dialler: usize, targets: Targets) -> Self {
        let (times, ratios) = (Sample::default(), Sample::default());
        Self { proxy, traffic, dialler, targets, times, ratios }
    }
}

/// Measures it for every size.
pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut diallers =
        [ground.outside("client")?, ground.inside("client")?, ground.inside("client2")?];
    for &services in effort.sizes() {
        for (tcp_peer, reverse) in [("service", "on"), ("endpoint", "off")] {
            // What is measured beside it does not depend on it.
            let with_peer = tcp_peer == "service" && services <= PEER_LIMIT;
            say(&format!("connect path, {services} Services, reverse state {reverse}"));
            let population = ground.population(services, ["a", "b"])?;
            let manifests = ground.manifests(&population, &[])?;
            let agent = ground.agent(("--manifests", &manifests), &[("--tcp-peer", tcp_peer)])?;
            if with_peer {
                rule(ground, &ground.population(services, ["a2", "b2"])?)?;
            }
            let mut paths = paths(ground, services, with_peer)?;
            for path in &paths {
                ground.reach(&mut diallers[path.dialler], path.targets)?;
            }
            rounds(&mut paths, &mut diallers, effort.of(25, 150))?;
            drop(agent);
            if with_peer {
                unrule(ground)?;
            }
            figures.extend(tell(&paths, services, reverse));
        }
    }
    Ok(figures)
}

fn paths(ground: &Ground<'_>, services: u32, with_peer: bool) -> Result<Vec<Path>> {
    // The two servers of a node have addresses in a row.
    let direct = |pod: &str| -> Result<Targets> {
        let first = SocketAddr::from((ground.cluster.pod(pod)?.ipv4, PORT));
        Ok(Targets { first, count: 2 })
    };
    let frontend = |service| SocketAddr::from((Population::frontend(service), SERVICE_PORT));
    let one = Targets::one(frontend(services / 2));
    let any = Targets { first: frontend(0), count: services };
    let mut paths = vec![
        Path::new("nothing", "direct", 0, direct("a")?),
        Path::new("topo-lb", "direct", 1, direct("a")?),
        Path::new("topo-lb", "one Service", 1, one),
        Path::new("topo-lb", "any Service", 1, any),
    ];
    if with_peer {
        paths.push(Path::new("nftables", "direct", 2, direct("a2")?));
        paths.push(Path::new("nftables", "one Service", 2, one));
        paths.push(Path::new("nftables", "any Service", 2, any));
    }
    Ok(paths)
}

/// All paths in turns, so that whatever else the machine does befalls each of them.
fn rounds(paths: &mut [Path], diallers: &mut [Dialler; 3], rounds: u32) -> Result<()> {
    for round in 0..=rounds {
        let mut base = 0.0;
        for (place, path) in paths.iter_mut().enumerate() {
            let times = diallers[path.dialler].times(Act::Exchange, path.targets, BATCH)?;
            let mut batch = Sample::default();
            batch.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            // The first path is what the others of the round are held against.
            if place == 0 {
                base = batch.median();
            }
            // The first round warms the caches.
            if round > 0 {
                path.ratios.add(batch.median() / base);
                path.times.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            }
        }
    }
    Ok(())
}

fn tell(paths: &[Path], services: u32, reverse: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    for path in paths {
        let is_ours = path.proxy == "topo-lb";
        let with = |figure: Figure| {
            let figure = figure
                .with("services", services)
                .with("proxy", path.proxy)
                .with("traffic", path.traffic);
            if is_ours { figure.with("reverse", reverse) } else { figure }
        };
        if reverse == "off" && !is_ours {
            continue;
        }
        figures.push(with(Figure::new("exchange_us", "us", &path.times)));
        if path.proxy == "nothing" {
            continue;
        }
        let (name, target) = match path.traffic {
            "direct" => ("other_traffic_ratio", 1.01),
            _ => ("connect_ratio", 1.03),
        };
        let ratio = with(Figure::new(name, "ratio", &path.ratios));
        // The promise is about what is on unless one turns it off.
        figures.push(if is_ours && reverse == "on" { ratio.at_most(target) } else { ratio });
    }
    figures
}

fn rule(ground: &Ground<'_>, population: &Population) -> Result<()> {
    let mut command = Command::new("nft");
    ground.cluster.beside(ground.cluster.node(PEER)?, &mut command)?;
    nftables::load(command, &nftables::rules(population))
}

fn unrule(ground: &Ground<'_>) -> Result<()> {
    let mut command = Command::new("nft");
    ground.cluster.beside(ground.cluster.node(PEER)?, &mut command)?;
    nftables::load(command, "flush ruleset\n")
}
