//! Packets a second that a node drops: by a program of XDP and by one of tc that do nothing else, and by
//! the agent because of `loadBalancerSourceRanges`. Each has a node of its own, and floods take turns.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use aya::programs::{SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya_obj::generated::bpf_attach_type::BPF_XDP;
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP};
use fs_err as fs;
use serde_json::json;
use topo_lb_kernel::datapath::host::syscall::load;
use topo_lb_tests::flood::{dropped_in_queues, flood};
use topo_lb_tests::frame::udp;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::netns::NetNs;

use crate::exchange::PORT;
use crate::ground::{
    Effort, Ground, HERE, HERE_NUMBER, NFTABLES, NFTABLES_NUMBER, PLAIN, PLAIN_NUMBER,
};
use crate::program::{attach_tc, prepare, through_pin};
use crate::result::Figure;
use crate::sample::Sample;

/// The load balancer IP that is flooded, and who floods it.
const BALANCER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
/// Each node's uplink.
const UPLINK: &str = "eth0";
/// A device whose peer is down, so that the kernel drops what is sent: a flood out of it takes the time
/// of its sender alone.
const NOWHERE: &str = "nowhere";
/// `TC_ACT_SHOT` (include/uapi/linux/pkt_cls.h) and `XDP_DROP` (include/uapi/linux/bpf.h).
const SHOT: u8 = 2;
const XDP_DROP: u8 = 1;
/// How often a flood is tried, and the pause between two tries: half a minute in all.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// Who drops the packets of a flood.
struct Dropper<'a> {
    name: &'static str,
    /// The fabric's device to the node, and the node's namespace.
    device: String,
    node: Option<(&'a NetNs, Vec<Vec<u8>>)>,
    /// Packets a second.
    rates: Sample,
    /// Nanoseconds per packet without the sender's.
    own: Sample,
}

pub(crate) fn measure(ground: &Ground<'_>, effort: Effort) -> Result<Vec<Figure>> {
    let cluster = ground.cluster;
    let fabric = cluster.fabric();
    let node =
        |number: u8, name| Ok::<_, anyhow::Error>((cluster.node_netns(name)?, frames(number)));
    let mut droppers = Vec::new();
    let mut add = |name, device: String, node| {
        let (rates, own) = (Sample::default(), Sample::default());
        droppers.push(Dropper { name, device, node, rates, own });
    };
    add("nobody", NOWHERE.into(), None);
    add("tc", format!("node{NFTABLES_NUMBER}"), Some(node(NFTABLES_NUMBER, NFTABLES)?));
    add("XDP", format!("node{PLAIN_NUMBER}"), Some(node(PLAIN_NUMBER, PLAIN)?));
    add("topo-lb", format!("node{HERE_NUMBER}"), Some(node(HERE_NUMBER, HERE)?));

    let _agent = agent(ground)?;
    let shot = load(BPF_PROG_TYPE_SCHED_CLS, "", &returning(SHOT), 0);
    let mut shot = through_pin(shot, |pin| SchedClassifier::from_pin(pin))?;
    let drop_all = load(BPF_PROG_TYPE_XDP, "", &returning(XDP_DROP), BPF_XDP as u32);
    let attach_type = aya_obj::programs::XdpAttachType::Interface;
    let mut drop_all = through_pin(drop_all, |pin| Xdp::from_pin(pin, attach_type))?;
    let tc = cluster.node_netns(NFTABLES)?.run(|| {
        prepare(UPLINK)?;
        attach_tc(&mut shot, UPLINK, TcAttachType::Ingress)
    })?;
    let xdp = cluster.node_netns(PLAIN)?.run(|| {
        let link = drop_all.attach(UPLINK, XdpMode::Driver);
        let link = link.with_context(|| format!("{UPLINK} takes no program of native XDP"))?;
        Ok(drop_all.take_link(link)?)
    })?;
    fabric.ip(&[
        format!("link add {NOWHERE} type veth peer name {NOWHERE}2"),
        format!("link set {NOWHERE} up"),
    ])?;
    let result = rounds(fabric, &mut droppers, effort);
    fabric.ip(&[format!("link delete {NOWHERE}")])?;
    cluster.node_netns(NFTABLES)?.run(|| {
        drop(tc);
        Ok(())
    })?;
    cluster.node_netns(PLAIN)?.run(|| {
        drop(xdp);
        Ok(())
    })?;
    result?;
    Ok(tell(&droppers))
}

/// r0 = `verdict`; exit.
fn returning(verdict: u8) -> [[u8; 8]; 2] {
    [[0xb7, 0, 0, 0, verdict, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]]
}

/// An agent that denies the flood's source the load balancer IP.
fn agent<'a>(ground: &Ground<'a>) -> Result<topo_lb_tests::agent::Agent<'a>> {
    let ports = [("dns", PORT, "UDP")];
    let mut denied = service("denied", &["10.96.0.20"], &ports, &[]);
    denied["spec"]["type"] = "LoadBalancer".into();
    denied["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    denied["status"] = json!({"loadBalancer": {"ingress": [{"ip": BALANCER}]}});
    let pod = ground.cluster.pod("a")?;
    let slice = slice("denied", "IPv4", &ports, &[endpoint(&pod.ipv4.to_string(), HERE, "a")]);
    let path = ground.cluster.folder().join("denied.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        topo_lb_tests::manifest::node(HERE, &[]), denied, slice]});
    fs::write(&path, list.to_string())?;
    ground.agent(("--manifests", &path), &[("--kube-proxy-replacement", "")])
}

/// Datagrams of 64 bytes to the load balancer IP, for the uplink of a node.
fn frames(number: u8) -> Vec<Vec<u8>> {
    let frame = |port: u16| {
        let mut frame = udp((SOURCE, port).into(), (BALANCER, PORT).into(), &[7; 64]);
        frame[..6].copy_from_slice(&[2, 0x54, 0x4c, 1, number, 0]);
        frame[6..12].copy_from_slice(&[2, 0x54, 0x4c, 1, 254, 0]);
        frame
    };
    (40_000..40_256).map(frame).collect()
}

fn rounds(fabric: &NetNs, droppers: &mut [Dropper<'_>], effort: Effort) -> Result<()> {
    let time = Duration::from_millis(effort.of(50, 400));
    let nowhere = frames(0);
    for round in 0..=effort.of(2, 15) {
        let mut alone = 0.0;
        for dropper in &mut *droppers {
            let Dropper { name, device, node, .. } = dropper;
            let frames = node.as_ref().map_or(&nowhere, |(_, frames)| frames);
            let received = || node.as_ref().map_or(Ok(0), |(netns, _)| received(netns));
            let each = of_each(name, received, || flood(fabric, device, frames, time))?;
            if *name == "nobody" {
                alone = each;
            }
            if round > 0 {
                dropper.rates.add(1e6 / each);
                dropper.own.add(each - alone);
            }
        }
    }
    Ok(())
}

/// The time that a packet of a flood takes, in nanoseconds. The queues of received packets are the whole
/// host's: while another's packets fill them, it floods again.
fn of_each(
    name: &str,
    received: impl Fn() -> Result<u64>,
    flood: impl Fn() -> Result<u64>,
) -> Result<f64> {
    let mut full = String::new();
    for _ in 0..TRIES {
        let (before, lost) = (received()?, dropped_in_queues()?);
        let begun = std::time::Instant::now();
        let sent = flood()?;
        let elapsed = begun.elapsed().as_nanos() as f64;
        let passed = received()? - before;
        ensure!(passed < sent / 50, "{name}: {passed} of {sent} packets were not dropped");
        let lost = dropped_in_queues()? - lost;
        if lost < sent / 50 {
            return Ok(elapsed / sent as f64);
        }
        full = format!("{name}: full queues dropped {lost} of {sent} packets, {TRIES} times");
        std::thread::sleep(PAUSE);
    }
    bail!(full)
}

/// The packets that have reached IP in a network namespace (`InReceives`, RFC 4293).
fn received(netns: &NetNs) -> Result<u64> {
    netns.run(|| {
        let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
        let line = text.lines().filter(|line| line.starts_with("Ip: ")).nth(1);
        let number = line.and_then(|line| line.split(' ').nth(3)).context("no InReceives")?;
        Ok(number.parse()?)
    })
}

fn tell(droppers: &[Dropper<'_>]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let find = |name| droppers.iter().find(|dropper| dropper.name == name);
    for dropper in droppers {
        let rate = Figure::new("drop_kpps", "kpps", &dropper.rates).with("by", dropper.name);
        figures.push(rate);
    }
    let Some(xdp) = find("XDP") else { return figures };
    for name in ["tc", "topo-lb"] {
        let Some(other) = find(name) else { continue };
        let ratio = xdp.rates.by(&other.rates);
        let ratio = Figure::new("xdp_drop_ratio", "ratio", &ratio).with("than", name);
        figures.push(if name == "tc" { ratio.at_least(1.5) } else { ratio });
        let own = other.own.by(&xdp.own);
        figures.push(Figure::new("xdp_drop_own_ratio", "ratio", &own).with("than", name));
    }
    figures
}
