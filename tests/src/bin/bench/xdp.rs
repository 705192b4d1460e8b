//! The fast path of XDP: the CPU time of a node for frames that come as from a card, without an skb
//! ([`crate::uplink`]). Each contender has a node of its own, and all of a row take turns.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use aya_obj::generated::bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS;
use fs_err as fs;
use serde_json::json;
use topo_lb_kernel::datapath::host::syscall::load;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::card::{ASKS, always, answer_all, drop_all};
use topo_lb_tests::frame::udp;
use topo_lb_tests::generator::Generator;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::wiring::node4;

use crate::exchange::PORT;
use crate::external::rule;
use crate::external_services::{Endpoint, Services};
use crate::ground::{
    Effort, FAR, FAR_NUMBER, Ground, HERE, HERE_NUMBER, NFTABLES, NFTABLES_NUMBER, PLAIN,
    PLAIN_NUMBER,
};
use crate::nftables;
use crate::program::{attach_tc, prepare, through_pin};
use crate::result::Figure;
use crate::sample::Sample;
use crate::uplink::{Cpus, DEVICE, Uplink};

/// The load balancer IP of a Service that denies [`DENIED`].
const BALANCER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// Clients: one that is denied, one that is answered, and one that nobody answers.
const DENIED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const ANSWERED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 78);
const UNANSWERED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 79);
/// The first source port of a client.
const FIRST: u16 = 40_000;
/// `TC_ACT_SHOT`, include/uapi/linux/pkt_cls.h.
const SHOT: i32 = 2;

/// Who takes frames.
const FAST: &str = "topo-lb --xdp any";
const SLOW: &str = "topo-lb --xdp off";
const RULES: &str = "nftables";
const EMPTY_XDP: &str = "an empty XDP program";
const EMPTY_TC: &str = "an empty tc program";
pub(crate) const SWAP: &str = "an XDP program that swaps addresses";

/// Frames of one client.
#[derive(Clone, Copy)]
pub(crate) struct Flows {
    pub(crate) from: Ipv4Addr,
    pub(crate) count: u16,
    /// The other end of the uplink answers them.
    pub(crate) is_answered: bool,
}

/// What a node has to do with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Drop,
    SendOn,
}

/// One of those that are compared.
pub(crate) struct Contender<'a> {
    pub(crate) by: &'static str,
    uplink: &'a Uplink<'a>,
    generator: Generator,
    /// Nanoseconds of the node for a frame.
    pub(crate) times: Sample,
}

impl<'a> Contender<'a> {
    /// Takes datagrams of 64 bytes to this address.
    pub(crate) fn new(
        by: &'static str,
        uplink: &'a Uplink<'a>,
        flows: Flows,
        to: SocketAddr,
    ) -> Result<Self> {
        let mut payload = [0; 22];
        payload[0] = if flows.is_answered { ASKS } else { 0 };
        let mut frame = udp((flows.from, FIRST).into(), to, &payload);
        // No checksum: it would be another one for each source port.
        frame[40..42].copy_from_slice(&[0, 0]);
        let generator = uplink.generator(&frame, flows.count)?;
        Ok(Self { by, uplink, generator, times: Sample::default() })
    }
}

pub(crate) fn measure(ground: &Ground<'_>, effort: Effort) -> Result<Vec<Figure>> {
    let cpus = Cpus::divide()?;
    let uplink = |name, number| Uplink::new(ground.cluster, name, number, &cpus);
    let [fast, slow, rules, bare] = [
        uplink(HERE, HERE_NUMBER)?,
        uplink(PLAIN, PLAIN_NUMBER)?,
        uplink(NFTABLES, NFTABLES_NUMBER)?,
        uplink(FAR, FAR_NUMBER)?,
    ];
    let services = |number, pod| Services::new(ground, 2, node4(number), pod);
    let [here, plain, nftables] = [
        services(HERE_NUMBER, "a")?,
        services(PLAIN_NUMBER, "b4")?,
        services(NFTABLES_NUMBER, "a2")?,
    ];
    let _agents = [agent(ground, HERE, &here, "any")?, agent(ground, PLAIN, &plain, "off")?];

    let mut figures = drops([&fast, &slow], [&bare, &rules], effort)?;
    rule(ground, NFTABLES, &nftables::rules(nftables.translated(), node4(NFTABLES_NUMBER)))?;
    let to = |services: &Services| services.first(Endpoint::Remote).first;
    let ways =
        [(FAST, &fast, to(&here)), (SLOW, &slow, to(&plain)), (RULES, &rules, to(&nftables))];
    let forwarded = forwarding(ways, effort);
    rule(ground, NFTABLES, "flush ruleset\n")?;
    figures.extend(forwarded?);
    figures.extend(swaps(&fast, to(&here), &bare, effort)?);
    Ok(figures)
}

/// An agent that serves these Services and denies a client another one.
fn agent<'a>(
    ground: &Ground<'a>,
    node: &str,
    services: &Services,
    xdp: &'static str,
) -> Result<Agent<'a>> {
    let ports = [("dns", PORT, "UDP")];
    let mut denied = service("denied", &["10.96.0.20"], &ports, &[]);
    denied["spec"]["type"] = "LoadBalancer".into();
    denied["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    denied["status"] = json!({"loadBalancer": {"ingress": [{"ip": BALANCER}]}});
    let far = endpoint(&ground.cluster.pod("a5")?.ipv4.to_string(), FAR, "a5");
    let others = [denied, slice("denied", "IPv4", &ports, &[far])];
    let items: Vec<_> = services.objects().chain(others).collect();
    let path = ground.cluster.folder().join(format!("xdp-{node}.json"));
    fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
    let mut agent =
        Agent::prepare_from(&ground.binary, ground.cluster, node, ("--manifests", &path))?;
    agent.set("--kube-proxy-replacement", "");
    agent.set("--xdp", xdp);
    agent.resume()?;
    let devices = agent.get("/metrics")?.sample("topo_lb_xdp_devices").context("no devices")?;
    ensure!((devices > 0.0) == (xdp == "any"), "{devices} devices with XDP, by --xdp {xdp}");
    Ok(agent)
}

/// What it takes to drop what a Service denies, and what it takes to drop without a look.
fn drops(
    [fast, slow]: [&Uplink<'_>; 2],
    [by_xdp, by_tc]: [&Uplink<'_>; 2],
    effort: Effort,
) -> Result<Vec<Figure>> {
    let shot = load(BPF_PROG_TYPE_SCHED_CLS, "", &always(SHOT), 0);
    let mut shot = through_pin(shot, |pin| SchedClassifier::from_pin(pin))?;
    let tc = by_tc.node.run(|| {
        prepare(DEVICE)?;
        attach_tc(&mut shot, DEVICE, TcAttachType::Ingress)
    })?;
    let _xdp = drop_all(by_xdp.node, DEVICE)?;
    let flows = Flows { from: DENIED, count: 256, is_answered: false };
    let contender = |by, uplink| Contender::new(by, uplink, flows, (BALANCER, PORT).into());
    let mut contenders = [
        contender(FAST, fast)?,
        contender(SLOW, slow)?,
        contender(EMPTY_XDP, by_xdp)?,
        contender(EMPTY_TC, by_tc)?,
    ];
    let result = rounds(&mut contenders, Task::Drop, effort);
    by_tc.node.run(|| {
        drop(tc);
        Ok(())
    })?;
    result?;
    let [fast, slow, empty_xdp, empty_tc] = &contenders;
    let ratio = |slow: &Contender<'_>, fast: &Contender<'_>, by| {
        Figure::new("xdp_drop_ratio", "ratio", &slow.times.by(&fast.times)).with("by", by)
    };
    let mut figures = vec![
        ratio(slow, fast, "topo-lb").at_least(5.0),
        ratio(empty_tc, empty_xdp, "empty programs"),
    ];
    figures.extend(contenders.iter().map(|it| each("xdp_drop_ns", it)));
    Ok(figures)
}

/// What it takes to send requests and their answers on, and what nobody answers.
fn forwarding(
    ways: [(&'static str, &Uplink<'_>, SocketAddr); 3],
    effort: Effort,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (from, count, name, target) in [
        (ANSWERED, 1, "xdp_forward", 4.0),
        (ANSWERED, 1_000, "xdp_forward", 3.5),
        (UNANSWERED, 5_000, "xdp_oneway", 1.5),
    ] {
        let flows = Flows { from, count, is_answered: from == ANSWERED };
        let [fast, slow, rules] =
            ways.map(|(by, uplink, to)| Contender::new(by, uplink, flows, to));
        let mut contenders = [fast?, slow?, rules?];
        rounds(&mut contenders, Task::SendOn, effort)?;
        let [fast, slow, rules] = &contenders;
        let ratio = |it: &Contender<'_>| {
            let ratio = Figure::new(&format!("{name}_ratio"), "ratio", &rules.times.by(&it.times));
            ratio.with("flows", count).with("by", it.by)
        };
        figures.extend([ratio(fast).at_least(target), ratio(slow)]);
        let times = contenders.iter().map(|it| each(&format!("{name}_ns"), it));
        figures.extend(times.map(|figure| figure.with("flows", count)));
    }
    Ok(figures)
}

/// The packets that one core sends on: requests of established flows.
fn swaps(
    fast: &Uplink<'_>,
    to: SocketAddr,
    bare: &Uplink<'_>,
    effort: Effort,
) -> Result<Vec<Figure>> {
    let _swap = answer_all(bare.node, DEVICE)?;
    let mut figures = Vec::new();
    for count in [1, 1_000] {
        // The forwarded ones have established them.
        let flows = |is_answered| Flows { from: ANSWERED, count, is_answered };
        let mut contenders = [
            Contender::new(FAST, fast, flows(false), to)?,
            Contender::new(SWAP, bare, flows(true), to)?,
        ];
        rounds(&mut contenders, Task::SendOn, effort)?;
        let [fast, swap] = &contenders;
        let ratio = Figure::new("xdp_swap_ratio", "ratio", &swap.times.by(&fast.times));
        figures.push(ratio.with("flows", count).at_least(0.5));
        for it in &contenders {
            let rate = Figure::new("xdp_swap_kpps", "kpps", &it.times.inverted(1e6));
            figures.push(rate.with("by", it.by).with("flows", count));
        }
    }
    Ok(figures)
}

/// How many turns of each count, and frames of a turn.
pub(crate) fn turns(effort: Effort) -> (u32, u64) {
    effort.of((2, 1 << 13), (15, 1 << 15))
}

pub(crate) fn rounds(contenders: &mut [Contender<'_>], task: Task, effort: Effort) -> Result<()> {
    let (turns, frames) = turns(effort);
    for round in 0..=turns {
        for Contender { by, uplink, generator, times } in &mut *contenders {
            let work = uplink.take(generator, frames)?;
            // The first round warms the caches, and opens the flows.
            if round > 0 {
                let rest = if task == Task::Drop {
                    work.sent
                } else {
                    work.taken.saturating_sub(work.sent)
                };
                ensure!(rest < work.taken / 20, "{by}: no {task:?}: {work:?}");
                times.add(work.each());
            }
        }
    }
    Ok(())
}

fn each(name: &str, contender: &Contender<'_>) -> Figure {
    Figure::new(name, "ns", &contender.times).with("by", contender.by)
}
