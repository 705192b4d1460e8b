//! Direct return: clients outside, whose packets one node sends on to another, which answers them. The plain way is the
//! same: the request by a node where nothing translates, the answer straight from the node of the pod.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::requirements::kernel;
use topo_lb_tests::wiring::node4;

use crate::exchange::{Act, Dialler, PORT, Targets};
use crate::ground::{Effort, Ground, HERE, HERE_NUMBER, NFTABLES, PLAIN, PLAIN_NUMBER};
use crate::result::Figure;
use crate::sample::Sample;
use crate::{consistent, xdp_direct};

/// Services with direct return, each with a table of its own.
const SERVICES: u32 = 100;
/// The address before the load balancer IP of the first Service.
const BALANCERS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The other node, which proves and is proved. The rules that the bench has there otherwise are of other parts.
const OTHER: &str = NFTABLES;
/// The pod that is reached without any proxy, on the node `far`.
const PLAIN_POD: &str = "a5";
/// Exchanges on one path before the next path has its turn.
const EXCHANGES: u32 = 200;
/// How long until both nodes are proved.
const PROVED: Duration = Duration::from_secs(10);

/// How a client's packets get to a pod of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Without any proxy.
    Plain,
    /// The same again, for the noise.
    Again,
    Direct {
        any: bool,
    },
    SourceNat,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Plain | Self::Again => "plain forwarding",
            Self::Direct { .. } => "direct return",
            Self::SourceNat => "source NAT",
        }
    }
}

/// A path that is timed.
struct Path {
    way: Way,
    act: Act,
    targets: Targets,
    times: Sample,
    ratios: Sample,
}

/// What a node has done with packets of clients outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Packets sent on.
    pub(crate) sent_on: u64,
    /// Connections that are translated.
    opened: u64,
}

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    say("tables of a consistent choice");
    let mut figures = consistent::tables(effort);
    say("direct return");
    figures.extend(exchanges(ground, effort)?);
    if kernel() < (5, 18) {
        say("frames as from a card are left out: they take Linux 5.18");
    } else {
        say("direct return, frames as from a card");
        figures.extend(xdp_direct::measure(ground, effort)?);
    }
    figures.extend(consistent::measure(ground, effort, say)?);
    Ok(figures)
}

/// The load balancer IP of a Service with direct return.
pub(crate) fn balancer(service: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(BALANCERS.to_bits() + 1 + service), SERVICE_PORT))
}

/// An agent on the first node, by which clients come, and one on the node of the endpoints. They have proved each other.
pub(crate) fn agents<'a>(ground: &Ground<'a>, xdp: &str) -> Result<[Agent<'a>; 2]> {
    let path = ground.cluster.folder().join("direct-return.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects(ground)?});
    fs::write(&path, list.to_string())?;
    let prepare = |node| -> Result<Agent<'a>> {
        let source = ("--manifests", path.as_path());
        let mut agent = Agent::prepare_from(&ground.binary, ground.cluster, node, source)?;
        agent.set("--kube-proxy-replacement", "");
        agent.set("--direct-return", "auto");
        agent.set("--xdp", if node == HERE { xdp } else { "off" });
        agent.launch()?;
        Ok(agent)
    };
    let mut agents = [prepare(HERE)?, prepare(OTHER)?];
    agents.iter_mut().try_for_each(Agent::wait_until_ready)?;
    for agent in &agents {
        let is = |body: &str| body.matches("\"proved\"").count() == 1;
        let answer = agent.wait_for_answer("/peers", PROVED, |answer| is(&answer.body));
        answer.map(drop).with_context(|| format!("{}: {}", agent.node(), agent.log()))?;
    }
    Ok(agents)
}

/// The Services, one more that has no direct return, and one with an endpoint on the first node, so that the other one
/// proves that.
fn objects(ground: &Ground<'_>) -> Result<Vec<Value>> {
    let population = |pods: &[&str]| -> Result<Population> {
        let pods: Vec<_> = pods.iter().map(|pod| ground.cluster.pod(pod)).collect::<Result<_>>()?;
        let node = &pods.first().context("no pod")?.node;
        let (addresses, port) = (pods.iter().map(|pod| pod.ipv4).collect(), PORT);
        let count = pods.len() as u32;
        let new = Population::new(node, 1, SERVICES + 2, count);
        Ok(Population { addresses, port, annotates: false, ..new })
    };
    let (far, near) = (population(&["a2", "b2"])?, population(&["a"])?);
    let mut objects = vec![far.node(0), near.node(0)];
    for number in 0..SERVICES + 2 {
        let of = if number > SERVICES { &near } else { &far };
        let mut service = of.service(number);
        let spec = &mut service["spec"];
        spec["type"] = "LoadBalancer".into();
        let udp =
            json!({"name": "udp", "port": SERVICE_PORT, "protocol": "UDP", "targetPort": PORT});
        spec["ports"].as_array_mut().context("ports")?.push(udp);
        service["status"] = json!({"loadBalancer": {"ingress": [{"ip": balancer(number).ip()}]}});
        if number == SERVICES {
            service["metadata"]["annotations"] = json!({"topo-lb.io/direct-return": "false"});
        }
        objects.push(service);
        for mut slice in of.slices(number, |_| true) {
            let udp = json!({"name": "udp", "port": PORT, "protocol": "UDP"});
            slice["ports"].as_array_mut().context("ports")?.push(udp);
            objects.push(slice);
        }
    }
    Ok(objects)
}

/// What these hooks of an agent's node have counted: `tc ingress`, `xdp`.
pub(crate) fn counted(agent: &Agent<'_>, hook: &str) -> Result<Counted> {
    let listed = agent.list("hooks")?;
    let hooks = listed["hooks"]["each"].as_array().context("no hooks")?;
    let sum = |outcome: &str| {
        let of_it = hooks.iter().filter(|it| it["hook"].as_str().is_some_and(|it| it == hook));
        of_it.filter_map(|it| it["packets"][outcome].as_u64()).sum()
    };
    Ok(Counted { sent_on: sum("sent_on"), opened: sum("opened") })
}

/// New connections, and exchanges on an open one.
fn exchanges(ground: &Ground<'_>, effort: Effort) -> Result<Vec<Figure>> {
    let cluster = ground.cluster;
    for node in [HERE, PLAIN] {
        let off = ["all", "eth0"].map(|device| format!("ipv4/conf/{device}/send_redirects"));
        cluster.node_netns(node)?.set(&off.each_ref().map(|name| (name.as_str(), "0")))?;
    }
    let pod = cluster.pod(PLAIN_POD)?.ipv4;
    let ways = [(format!("{pod}/32"), PLAIN_NUMBER), (format!("{BALANCERS}/24"), HERE_NUMBER)];
    for (to, by) in &ways {
        cluster.fabric().ip(&[format!("route replace {to} via {}", node4(*by))])?;
    }
    let agents = agents(ground, "off")?;
    let mut client = ground.beyond()?;
    let plain = Targets::one((pod, PORT).into());
    let direct = Targets::one(balancer(0));
    let any = Targets::addresses(balancer(0), SERVICES);
    let translated = Targets::one(balancer(SERVICES));
    let mut paths = Vec::new();
    for act in [Act::Exchange, Act::Keep] {
        for (way, targets) in [
            (Way::Plain, plain),
            (Way::Again, plain),
            (Way::Direct { any: false }, direct),
            (Way::Direct { any: true }, any),
            (Way::SourceNat, translated),
        ] {
            // An open connection is one of one Service.
            if act != Act::Keep || way != (Way::Direct { any: true }) {
                let [times, ratios] = [const { Sample::EMPTY }; 2];
                paths.push(Path { way, act, targets, times, ratios });
            }
        }
    }
    for path in &paths {
        ground.reach(&mut client, path.targets)?;
        let before = counted(&agents[0], "tc ingress")?;
        client.times(path.act, path.targets, EXCHANGES)?;
        let after = counted(&agents[0], "tc ingress")?;
        let (sent_on, opened) = (after.sent_on - before.sent_on, after.opened - before.opened);
        // A request is a packet; a connection is opened, and closed.
        let is_as_said = match path.way {
            Way::Plain | Way::Again => sent_on == 0 && opened == 0,
            Way::Direct { .. } => sent_on >= EXCHANGES.into() && opened == 0,
            Way::SourceNat => sent_on == 0 && opened > 0,
        };
        ensure!(is_as_said, "{:?} {:?}: {before:?}, then {after:?}", path.way, path.act);
    }
    rounds(&mut paths, &mut client, effort.of(3, 150))?;
    drop(agents);
    for (to, _) in &ways {
        cluster.fabric().ip(&[format!("route del {to}")])?;
    }
    Ok(paths.iter().flat_map(figures).collect())
}

/// Takes turns between all paths, so that other load on the machine affects each of them.
fn rounds(paths: &mut [Path], client: &mut Dialler, rounds: u32) -> Result<()> {
    for round in 0..=rounds {
        let mut plain = BTreeMap::new();
        for path in &mut *paths {
            let times = client
                .times(path.act, path.targets, EXCHANGES)
                .with_context(|| format!("{:?} {:?}", path.way, path.act))?;
            let mut batch = Sample::default();
            batch.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            let is_open = path.act == Act::Keep;
            if path.way == Way::Plain {
                plain.insert(is_open, batch.median());
            }
            let base = plain.get(&is_open).context("the plain way comes first")?;
            // The first round warms the caches.
            if round > 0 {
                path.ratios.add(batch.median() / base);
                path.times.extend(times.iter().map(|&nanoseconds| nanoseconds as f64 / 1e3));
            }
        }
    }
    Ok(())
}

fn figures(path: &Path) -> Vec<Figure> {
    let (name, bound) = match path.act {
        Act::Keep => ("external_direct_open", 1.03),
        _ => ("external_direct", 1.06),
    };
    let with = |figure: Figure| match path.way {
        Way::Direct { any } => {
            let figure = figure.with("by", path.way.name());
            figure.with("traffic", if any { "any Service" } else { "one Service" })
        }
        _ => figure.with("by", path.way.name()),
    };
    let time = with(Figure::new(&format!("{name}_us"), "us", &path.times));
    let ratio = with(Figure::new(&format!("{name}_ratio"), "ratio", &path.ratios));
    match path.way {
        Way::Plain => vec![time],
        Way::Again => vec![ratio],
        Way::Direct { .. } => vec![ratio.at_most(bound), time],
        Way::SourceNat => vec![ratio, time],
    }
}
