//! The connect path: the cost of a ClusterIP, and what a proxy costs traffic to other destinations.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use crate::exchange::{Act, Dialler, PORT, Targets};
use crate::ground::{Effort, Ground, KUBE_PROXY, NFTABLES, NFTABLES_NUMBER};
use crate::kube_proxy;
use crate::nftables;
use crate::result::Figure;
use crate::sample::Sample;
use topo_lb_tests::kube_proxy::{Program, VARIABLE};
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::wiring::node4;

/// Exchanges on one path before the next path has its turn.
const BATCH: u32 = 200;
/// The most Services that nftables gets rules for: `nft` takes a minute to load rules for 10,000,
/// and had not loaded those for 50,000 after five.
const NFTABLES_LIMIT: u32 = 10_000;

/// What translates on a node: topo-lb or an alternative.
#[derive(Clone, Copy)]
struct Proxy {
    name: &'static str,
    /// Its setting, if figures have it as a parameter.
    setting: Option<(&'static str, &'static str)>,
    /// Index of the client on that node.
    dialler: usize,
    /// The first of the two servers on that node.
    server: &'static str,
}

/// A path that is timed.
struct Path {
    proxy: Proxy,
    /// Name of what is dialled.
    traffic: &'static str,
    targets: Targets,
    times: Sample,
    ratios: Sample,
}

impl Path {
    fn new(proxy: Proxy, traffic: &'static str, targets: Targets) -> Self {
        Self { proxy, traffic, targets, times: Sample::default(), ratios: Sample::default() }
    }
}

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let program = Program::given(ground.cluster, KUBE_PROXY)?;
    if program.is_none() {
        say(&format!(
            "kube-proxy is left out: {VARIABLE} is not set; `cargo xtask bench` builds one"
        ));
    }
    let mut diallers = [
        ground.outside("client")?,
        ground.inside("client")?,
        ground.inside("client2")?,
        ground.inside("client3")?,
    ];
    for &services in effort.sizes() {
        for (tcp_peer, reverse) in [("service", "on"), ("endpoint", "off")] {
            // The alternatives do not depend on this setting: measure them once.
            let with_peers = tcp_peer == "service";
            say(&format!("connect path, {services} Services, reverse state {reverse}"));
            let population = ground.population(services, ["a", "b"])?;
            let manifests = ground.manifests(&population, &[])?;
            let agent = ground.agent(("--manifests", &manifests), &[("--tcp-peer", tcp_peer)])?;
            let setting = Some(("reverse", reverse));
            let mut proxies = vec![Proxy { name: "topo-lb", setting, dialler: 1, server: "a" }];
            if with_peers && services <= NFTABLES_LIMIT {
                proxies.push(Proxy { name: "nftables", setting: None, dialler: 2, server: "a2" });
                rule(ground, &ground.population(services, ["a2", "b2"])?)?;
            }
            let mut kube_proxy = None;
            if let Some(program) = &program
                && with_peers
                && services <= program.iptables.tables.limit()
            {
                let population = ground.population(services, ["a3", "b3"])?;
                let last = (Population::frontend(services.saturating_sub(1)), SERVICE_PORT).into();
                let started = kube_proxy::start(
                    program,
                    ground,
                    population.objects(),
                    last,
                    &mut diallers[3],
                )?;
                say(&format!(
                    "kube-proxy served the last Service after {:.1} s, and was idle after {:.1} s",
                    started.reached.as_secs_f64(),
                    started.rested.as_secs_f64()
                ));
                let setting = Some(("tables", program.iptables.tables.name()));
                proxies.push(Proxy { name: kube_proxy::NAME, setting, dialler: 3, server: "a3" });
                kube_proxy = Some(started);
            }
            let mut paths = paths(ground, services, &proxies)?;
            for path in &paths {
                ground.reach(&mut diallers[path.proxy.dialler], path.targets)?;
            }
            rounds(&mut paths, &mut diallers, effort.of(8, 150))?;
            drop((agent, kube_proxy));
            if with_peers && services <= NFTABLES_LIMIT {
                unrule(ground)?;
            }
            figures.extend(tell(&paths, services, reverse));
        }
    }
    Ok(figures)
}

fn paths(ground: &Ground<'_>, services: u32, proxies: &[Proxy]) -> Result<Vec<Path>> {
    // The two servers of a node have consecutive addresses.
    let direct = |proxy: Proxy| -> Result<Targets> {
        let first = SocketAddr::from((ground.cluster.pod(proxy.server)?.ipv4, PORT));
        Ok(Targets::addresses(first, 2))
    };
    let frontend = |service| SocketAddr::from((Population::frontend(service), SERVICE_PORT));
    let one = Targets::one(frontend(services / 2));
    let any = Targets::addresses(frontend(0), services);
    let nothing = Proxy { name: "nothing", setting: None, dialler: 0, server: "a" };
    let mut paths = vec![Path::new(nothing, "direct", direct(nothing)?)];
    for &proxy in proxies {
        paths.push(Path::new(proxy, "direct", direct(proxy)?));
        paths.push(Path::new(proxy, "one Service", one));
        paths.push(Path::new(proxy, "any Service", any));
    }
    Ok(paths)
}

/// Takes turns between all paths, so that other load on the machine affects each of them.
fn rounds(paths: &mut [Path], diallers: &mut [Dialler], rounds: u32) -> Result<()> {
    for round in 0..=rounds {
        let mut base = 0.0;
        for (place, path) in paths.iter_mut().enumerate() {
            let times = diallers[path.proxy.dialler].times(Act::Exchange, path.targets, BATCH)?;
            let mut batch = Sample::default();
            batch.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            // The ratios of a round are relative to its first path.
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
        let Proxy { name, setting, .. } = path.proxy;
        let is_ours = name == "topo-lb";
        if reverse == "off" && !is_ours {
            continue;
        }
        let with = |figure: Figure| {
            let figure =
                figure.with("services", services).with("proxy", name).with("traffic", path.traffic);
            match setting {
                Some((setting, value)) => figure.with(setting, value),
                None => figure,
            }
        };
        figures.push(with(Figure::new("exchange_us", "us", &path.times)));
        if name == "nothing" {
            continue;
        }
        let (name, target) = match path.traffic {
            "direct" => ("other_traffic_ratio", 1.01),
            _ => ("connect_ratio", 1.03),
        };
        let ratio = with(Figure::new(name, "ratio", &path.ratios));
        // The promise holds for the default, reverse state on.
        figures.push(if is_ours && reverse == "on" { ratio.at_most(target) } else { ratio });
    }
    figures
}

fn rule(ground: &Ground<'_>, population: &Population) -> Result<()> {
    let mut command = Command::new("nft");
    ground.cluster.beside(ground.cluster.node(NFTABLES)?, &mut command)?;
    let services = nftables::of_population(population);
    nftables::load(command, &nftables::rules(services, node4(NFTABLES_NUMBER)))
}

fn unrule(ground: &Ground<'_>) -> Result<()> {
    let mut command = Command::new("nft");
    ground.cluster.beside(ground.cluster.node(NFTABLES)?, &mut command)?;
    nftables::load(command, "flush ruleset\n")
}
