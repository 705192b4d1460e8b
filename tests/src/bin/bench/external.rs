//! Clients outside of the nodes: the cost of a node port, and what a proxy costs traffic that only
//! passes its node. Every path has as many hops as the plain one that it is compared with.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::Value;
use topo_lb_tests::kube_proxy::{Program, VARIABLE};
use topo_lb_tests::requirements::kernel;
use topo_lb_tests::wiring::node4;

use crate::exchange::{Act, BURST, Dialler, PORT, Targets};
use crate::external_serial;
use crate::external_services::{Endpoint, Services};
use crate::ground::{
    Effort, FAR, Ground, HERE, HERE_NUMBER, KUBE_PROXY, KUBE_PROXY_NUMBER, NFTABLES,
    NFTABLES_NUMBER, PLAIN, PLAIN_NUMBER, TRACKED, TRACKED_NUMBER,
};
use crate::kube_proxy::{self, KubeProxy};
use crate::nftables;
use crate::result::Figure;
use crate::sample::Sample;
use crate::xdp;

/// Exchanges on one path before the next path has its turn.
const EXCHANGES: u32 = 200;
/// The same for bursts of datagrams.
const BURSTS: u32 = 40;
/// The client's addresses for the pods that it reaches by two nodes without any proxy: their node
/// sends answers to these addresses by the other node, too.
const BY_TWO_NODES: [(&str, u8, &str); 2] =
    [("172.31.0.1", PLAIN_NUMBER, "b5"), ("172.31.0.2", TRACKED_NUMBER, "c5")];
/// A rule as of a network plugin. It makes the kernel track all connections, and fits none of these.
const TRACKING: &str = "table ip plugin {\n chain postrouting {
 type nat hook postrouting priority 100\n ip saddr 192.0.2.0/24 masquerade\n}\n}\n";

/// What is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Traffic {
    /// A pod, on the node by which the packets come.
    Plain,
    /// The same again, for the noise.
    Again,
    /// A pod on a second node.
    PlainRemote,
    Local {
        any: bool,
    },
    Remote {
        any: bool,
    },
    /// A pod that is no endpoint: on the proxy's node, or beyond it.
    Other,
    OtherRemote,
}

impl Traffic {
    fn base(self) -> Self {
        match self {
            Self::Plain | Self::Again | Self::Local { .. } | Self::Other => Self::Plain,
            Self::PlainRemote | Self::Remote { .. } | Self::OtherRemote => Self::PlainRemote,
        }
    }

    /// The same way by a node that tracks connections.
    fn tracked(self) -> Self {
        if self.base() == Self::Plain { Self::Other } else { Self::OtherRemote }
    }
}

/// A path that is timed.
struct Path {
    proxy: &'static str,
    traffic: Traffic,
    act: Act,
    targets: Targets,
    times: Sample,
    ratios: Sample,
    /// The same by a node that tracks connections.
    tracked: Sample,
}

impl Path {
    fn new(proxy: &'static str, traffic: Traffic, act: Act, targets: Targets) -> Self {
        let [times, ratios, tracked] = [const { Sample::EMPTY }; 3];
        Self { proxy, traffic, act, targets, times, ratios, tracked }
    }

    /// Where the server is.
    fn place(&self) -> &'static str {
        match self.traffic {
            Traffic::Plain | Traffic::Again | Traffic::Local { .. } => "local",
            Traffic::PlainRemote | Traffic::Remote { .. } => "remote",
            Traffic::Other => "local, no Service",
            Traffic::OtherRemote => "remote, no Service",
        }
    }

    fn batch(&self) -> u32 {
        if self.act == Act::Burst { BURSTS } else { EXCHANGES }
    }
}

/// No proxy.
const NOTHING: &str = "nothing";
/// No proxy, but a kernel that tracks connections.
const CONNTRACK: &str = "connection tracking";
const TOPO_LB: &str = "topo-lb";

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    lay_ways(ground)?;
    let program = Program::given(ground.cluster, KUBE_PROXY)?;
    if program.is_none() {
        say(&format!("kube-proxy is left out: {} is not set", VARIABLE));
    }
    let mut client = ground.beyond()?;
    let (mut all, mut serial) = (Vec::new(), Vec::new());
    let sizes: &[u16] = effort.of(&[10], &[10, 1_000, 10_000]);
    for &count in sizes {
        say(&format!("clients outside, {count} Services"));
        let paths =
            one_size(ground, count, program.as_ref(), &mut client, &mut serial, effort, say)?;
        all.push((count, paths));
    }
    let mut figures = tell(&all);
    figures.extend(serial);
    if kernel() < (5, 18) {
        say("frames as from a card are left out: they take Linux 5.18");
    } else {
        say("frames as from a card");
        figures.extend(xdp::measure(ground, effort)?);
    }
    Ok(figures)
}

/// The way by two nodes without any proxy. No node tells clients of shorter ways.
fn lay_ways(ground: &Ground<'_>) -> Result<()> {
    let cluster = ground.cluster;
    for node in [HERE, NFTABLES, KUBE_PROXY, PLAIN, TRACKED] {
        let off = |device: &str| (format!("ipv4/conf/{device}/send_redirects"), "0");
        let off = [off("all"), off("eth0")];
        let off = off.each_ref().map(|(name, value)| (name.as_str(), *value));
        cluster.node_netns(node)?.set(&off)?;
    }
    for (own, by, pod) in BY_TWO_NODES {
        let (by, pod) = (node4(by), cluster.pod(pod)?.ipv4);
        cluster.fabric().ip(&[
            format!("address replace {own}/32 dev br0"),
            format!("route replace {pod}/32 via {by} src {own}"),
        ])?;
        cluster.ip_on(FAR, &[format!("route replace {own}/32 via {by}")])?;
    }
    rule(ground, TRACKED, TRACKING)
}

fn one_size(
    ground: &Ground<'_>,
    count: u16,
    program: Option<&Program>,
    client: &mut Dialler,
    serial: &mut Vec<Figure>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Path>> {
    let pod = |name: &str| -> Result<Targets> {
        Ok(Targets::one((ground.cluster.pod(name)?.ipv4, PORT).into()))
    };
    let mut paths = Vec::new();
    for (traffic, name) in [(Traffic::Plain, "b4"), (Traffic::PlainRemote, "b5")] {
        for act in [Act::Exchange, Act::Burst] {
            paths.push(Path::new(NOTHING, traffic, act, pod(name)?));
        }
    }
    for act in [Act::Exchange, Act::Burst] {
        paths.push(Path::new(NOTHING, Traffic::Again, act, pod("b4")?));
        paths.push(Path::new(CONNTRACK, Traffic::Other, act, pod("b6")?));
        paths.push(Path::new(CONNTRACK, Traffic::OtherRemote, act, pod("c5")?));
    }
    let mut add = |proxy, services: &Services, other: &str| -> Result<()> {
        let mut add = |traffic, act, targets| paths.push(Path::new(proxy, traffic, act, targets));
        let (local, remote) = (Endpoint::Local, Endpoint::Remote);
        for act in [Act::Exchange, Act::Burst] {
            add(Traffic::Local { any: false }, act, services.first(local));
            add(Traffic::Remote { any: false }, act, services.first(remote));
            add(Traffic::Other, act, pod(other)?);
        }
        add(Traffic::Local { any: true }, Act::Exchange, services.node_ports(local));
        add(Traffic::Remote { any: true }, Act::Exchange, services.node_ports(remote));
        Ok(())
    };

    let services = Services::new(ground, count, node4(HERE_NUMBER), "a")?;
    let agent = agent(ground, services.objects())?;
    ground.reach(client, services.last())?;
    add(TOPO_LB, &services, "b")?;

    let services = Services::new(ground, count, node4(NFTABLES_NUMBER), "a2")?;
    rule(ground, NFTABLES, &nftables::rules(services.translated(), node4(NFTABLES_NUMBER)))?;
    ground.reach(client, services.last())?;
    add(NFTABLES, &services, "b2")?;

    let mut kube_proxy: Option<KubeProxy<'_>> = None;
    if let Some(program) = program {
        let services = Services::new(ground, count, node4(KUBE_PROXY_NUMBER), "a3")?;
        let last = services.last().first;
        kube_proxy = Some(kube_proxy::start(program, ground, services.objects(), last, client)?);
        say("kube-proxy is idle");
        add(kube_proxy::NAME, &services, "b3")?;
    }
    for path in &paths {
        ground.reach(client, path.targets)?;
    }
    rounds(&mut paths, client, effort.of(3, 60))?;
    // The number of Services does not matter, as one of them is dialled.
    if serial.is_empty() {
        say("clients outside, one connection after the other");
        let is_one = |path: &&Path| {
            let traffic = matches!(path.traffic, Traffic::Plain | Traffic::Local { any: false });
            path.act == Act::Exchange && traffic && path.proxy != NFTABLES
        };
        let ways: Vec<_> = paths.iter().filter(is_one).map(|it| (it.proxy, it.targets)).collect();
        *serial = external_serial::measure(&ways, TOPO_LB, client, effort)?;
    }
    drop((agent, kube_proxy));
    rule(ground, NFTABLES, "flush ruleset\n")?;
    Ok(paths)
}

/// An agent on the first node that does all that kube-proxy does.
fn agent<'a>(
    ground: &Ground<'a>,
    objects: impl Iterator<Item = Value>,
) -> Result<topo_lb_tests::agent::Agent<'a>> {
    let path = ground.cluster.folder().join("external.json");
    let items: Vec<String> = objects.map(|object| object.to_string()).collect();
    let list = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#, items.join(","));
    fs::write(&path, list)?;
    ground.agent(("--manifests", &path), &[("--kube-proxy-replacement", "")])
}

/// Loads rules of nftables on a node.
pub(crate) fn rule(ground: &Ground<'_>, node: &str, rules: &str) -> Result<()> {
    let mut command = Command::new("nft");
    ground.cluster.beside(ground.cluster.node(node)?, &mut command)?;
    nftables::load(command, rules)
}

/// Takes turns between all paths, so that other load on the machine affects each of them.
fn rounds(paths: &mut [Path], client: &mut Dialler, rounds: u32) -> Result<()> {
    for round in 0..=rounds {
        let mut bases = BTreeMap::new();
        for path in &mut *paths {
            let times = client
                .times(path.act, path.targets, path.batch())
                .with_context(|| format!("{} {:?}", path.proxy, path.traffic))?;
            let mut batch = Sample::default();
            batch.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            let is_burst = path.act == Act::Burst;
            if matches!(path.proxy, NOTHING | CONNTRACK) {
                bases.insert((is_burst, path.traffic), batch.median());
            }
            let by = |traffic| bases.get(&(is_burst, traffic)).map(|base| batch.median() / base);
            let ratio = by(path.traffic.base()).context("plain ways come first")?;
            // The first round warms the caches.
            if round > 0 {
                path.ratios.add(ratio);
                path.tracked.extend(by(path.traffic.tracked()));
                path.times.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            }
        }
    }
    Ok(())
}

fn tell(all: &[(u16, Vec<Path>)]) -> Vec<Figure> {
    // The promise about remote endpoints: the rules of kube-proxy's shape with the fewest Services.
    let shape = all.first().and_then(|(_, paths)| {
        let one = Traffic::Remote { any: false };
        let is =
            |path: &&Path| (path.proxy, path.traffic, path.act) == (NFTABLES, one, Act::Exchange);
        paths.iter().find(is).map(|path| Figure::new("", "", &path.ratios).median)
    });
    let each = all.iter().flat_map(|(count, paths)| paths.iter().map(move |path| (*count, path)));
    each.flat_map(|(count, path)| figures(count, path, shape)).collect()
}

fn figures(services: u16, path: &Path, shape: Option<f64>) -> Vec<Figure> {
    let with = |figure: Figure| {
        let figure = figure.with("services", services).with("proxy", path.proxy);
        match path.traffic {
            Traffic::Local { any } | Traffic::Remote { any } => {
                figure.with("traffic", if any { "any Service" } else { "one Service" })
            }
            _ => figure,
        }
    };
    if path.act == Act::Burst {
        return bursts(path).into_iter().map(with).collect();
    }
    let mut figures = Vec::new();
    if path.traffic != Traffic::Again {
        let time = Figure::new("external_us", "us", &path.times);
        figures.push(with(time).with("endpoint", path.place()));
    }
    let (name, target) = match path.traffic {
        Traffic::Plain | Traffic::PlainRemote => return figures,
        Traffic::Again => ("external_noise_ratio", None),
        Traffic::Local { .. } => ("external_local_ratio", Some(1.10)),
        Traffic::Remote { .. } => ("external_remote_ratio", shape),
        Traffic::Other => ("external_other_ratio", Some(1.02)),
        Traffic::OtherRemote => ("external_other_ratio", None),
    };
    let ratio = |than, sample| with(Figure::new(name, "ratio", sample)).with("than", than);
    let promised = |figure: Figure, target: Option<f64>| match target {
        Some(target) => figure.at_most(target),
        None => figure,
    };
    let plain = ratio(NOTHING, &path.ratios);
    if path.proxy == TOPO_LB {
        figures.push(promised(plain, target));
        // Rules of kube-proxy's shape track connections, too: their ratio is by the plain way.
        let target = target.filter(|_| !matches!(path.traffic, Traffic::Remote { .. }));
        figures.push(promised(ratio(CONNTRACK, &path.tracked), target));
    } else {
        figures.push(plain);
    }
    figures
}

/// Datagrams a second, from the times of bursts.
fn bursts(path: &Path) -> Vec<Figure> {
    if path.traffic == Traffic::Again {
        return Vec::new();
    }
    let endpoint = path.place();
    let (rates, ratios) = (path.times.inverted(f64::from(BURST) * 1e3), path.ratios.inverted(1.0));
    let rate = Figure::new("external_udp_kpps", "kpps", &rates).with("endpoint", endpoint);
    let ratio = Figure::new("external_udp_pps_ratio", "ratio", &ratios).with("endpoint", endpoint);
    match path.traffic {
        Traffic::Plain | Traffic::PlainRemote => vec![rate],
        Traffic::Local { .. } if path.proxy == TOPO_LB => vec![rate, ratio.at_least(0.90)],
        _ => vec![rate, ratio],
    }
}
