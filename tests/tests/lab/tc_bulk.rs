//! Large loads through tc: large bodies, fragmented datagrams, a hop with a smaller MTU, a port
//! scan. This process stands for the machine: it is outside every node's cgroup, and its threads
//! enter the network namespace of the pod `client`.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytemuck::{Pod, Zeroable};
use serde_json::Value;
use topo_lb_tests::binary::row;
use topo_lb_tests::http;
use topo_lb_tests::netns::{NetNs, ethtool};
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene, WEB4, WEB6, at, play_with_machines as play};
use topo_lb_tests::traffic::Via;

/// The size of a large body.
const TEN_MB: usize = 10_000_000;
/// The payload of a full segment: the devices' MTU without IPv4 and TCP headers.
const SEGMENT: u64 = 1_448;
/// The limit of every network call.
const LIMIT: Duration = Duration::from_secs(20);

/// Characters of ASCII without equal neighbouring pages.
fn body() -> String {
    (0..TEN_MB)
        .map(|place| char::from((place ^ (place >> 7) ^ (place >> 14)) as u8 & 0x7f))
        .collect()
}

/// Posts a body, and checks that the same body comes back.
fn post(machine: &NetNs, to: SocketAddr, sent: &str) -> Result<()> {
    let answer = http::post(machine, to, "/echo", sent)?;
    ensure!(answer.status == 200, "{}", answer.head);
    let (got, length) = (answer.body.len(), sent.len());
    ensure!(answer.body == sent, "{got} of {length} bytes came back, or others");
    Ok(())
}

/// The counters of a tc hook.
fn packets(scene: &Scene<'_>, hook: &str) -> Result<Packets> {
    let listed = scene.agent.list("hooks")?;
    Ok(Packets(row(&listed["hooks"]["each"], "hook", hook)?["packets"].clone()))
}

struct Packets(Value);

impl Packets {
    fn of(&self, outcome: &str) -> Result<u64> {
        self.0[outcome].as_u64().with_context(|| format!("no {outcome} in {}", self.0))
    }
}

#[test]
fn large_bodies_pass_both_ways_as_the_large_packets_that_they_are() -> Result<()> {
    play(|scene| {
        let machine = scene.cluster.pod("client")?.netns();
        let node = scene.cluster.node_netns(HERE)?;
        let features = || -> Result<Vec<Vec<u32>>> {
            Ok(vec![offloads(node, "pod2")?, offloads(node, "pod3")?, offloads(machine, "eth0")?])
        };
        let before = features()?;
        ensure!(before[0].iter().any(|word| *word != 0), "a veth has features: {before:x?}");
        // Without tc the devices have their original features.
        scene.agent.stop()?;
        scene.agent.unset("--tc-devices");
        scene.agent.resume()?;
        ensure!(features()? == before, "{:x?}, with tc {before:x?}", features()?);
        scene.agent.stop()?;
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.resume()?;

        let sent = body();
        for to in [WEB4, WEB6] {
            let counted = |hook| packets(scene, hook)?.of("translated");
            let (up, down) = (counted("tc ingress")?, counted("tc egress")?);
            post(machine, at(to)?, &sent)?;
            let (up, down) = (counted("tc ingress")? - up, counted("tc egress")? - down);
            // If segments were cut before tc, each way would count them all, plus acknowledgements.
            let cut = TEN_MB as u64 / SEGMENT;
            ensure!(up + down < cut, "{to}: {up} packets up and {down} down, {cut} if cut");
        }
        for hook in ["tc ingress", "tc egress"] {
            let packets = packets(scene, hook)?;
            for none in ["dropped", "malformed", "unanswered", "refused"] {
                ensure!(packets.of(none)? == 0, "{hook}: {}", packets.0);
            }
        }
        ensure!(features()? == before, "{:x?}, not {before:x?}", features()?);
        Ok(())
    })
}

/// The active features of a device, in blocks of 32, as `ethtool -k` shows them.
fn offloads(netns: &NetNs, device: &str) -> Result<Vec<u32>> {
    /// `struct ethtool_gfeatures` with spare room (linux/ethtool.h).
    #[repr(C)]
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct Features {
        command: u32,
        /// In: blocks with room. Out: blocks that exist.
        size: u32,
        /// Available, requested, active, never changed.
        blocks: [[u32; 4]; 16],
    }
    const ETHTOOL_GFEATURES: u32 = 0x3a;
    let mut features = Features { command: ETHTOOL_GFEATURES, size: 16, blocks: [[0; 4]; 16] };
    netns.run(|| ethtool(device, &mut features))?;
    let blocks = features.blocks.iter().take(features.size as usize);
    Ok(blocks.map(|[_, _, active, _]| *active).collect())
}

#[test]
fn a_smaller_mtu_on_the_way_is_reported_and_the_transfer_completes() -> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["d"])?;
        let mut caller = scene.cluster.machine("client")?;
        caller.wait_for(Via::Http, at(WEB4)?, &["d"], FOLLOWS)?;
        let machine = scene.cluster.pod("client")?.netns();
        let sent = body();
        // First the node itself has a smaller MTU, then a hop further away.
        let hops = [
            (HERE, "10.244.4.0/24 via 172.30.0.5", "fd00:244:4::/64 via fd00:172::5", 1450),
            ("beyond", "10.244.4.2 dev pod2", "fd00:244:4::2 dev pod2", 1400),
        ];
        for (node, four, six, mtu) in hops {
            let errors = packets(scene, "tc egress")?.of("errors")?;
            scene.cluster.ip_on(
                node,
                &[
                    format!("route replace {four} mtu lock {mtu}"),
                    format!("route replace {six} mtu lock {mtu}"),
                ],
            )?;
            for to in [WEB4, WEB6] {
                post(machine, at(to)?, &sent).with_context(|| format!("{to}, {mtu} at {node}"))?;
                let known = path_mtu(machine, at(to)?.ip())?;
                ensure!(known == Some(mtu), "{to}, {mtu} at {node}: {known:?}");
            }
            let told = packets(scene, "tc egress")?.of("errors")? - errors;
            ensure!(told >= 2, "{told} ICMP errors from {node}");
        }
        let dropped = packets(scene, "tc egress")?.of("dropped")?;
        ensure!(dropped == 0, "{dropped} dropped");
        Ok(())
    })
}

/// The path MTU that a host has learnt for an address.
fn path_mtu(netns: &NetNs, to: IpAddr) -> Result<Option<u32>> {
    let mut command = Command::new("ip");
    let said = netns.run(|| printed(command.args(["route", "get", &to.to_string()])))?;
    let mut words = said.split_whitespace().skip_while(|word| *word != "mtu");
    Ok(words.nth(1).and_then(|number| number.parse().ok()))
}

#[test]
fn a_datagram_in_fragments_is_asked_and_answered() -> Result<()> {
    play(|scene| {
        let machine = scene.cluster.pod("client")?.netns();
        for to in [WEB4, WEB6] {
            let to = at(to)?;
            let any: IpAddr = match to.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let answered = machine.run(|| {
                let mut answered = 0;
                for _ in 0..50 {
                    let socket = UdpSocket::bind((any, 0))?;
                    socket.set_read_timeout(Some(LIMIT))?;
                    socket.send_to(&[b'?'; 1_900], to)?;
                    let mut name = [0; 64];
                    let (length, from) = socket.recv_from(&mut name)?;
                    ensure!(from == to, "answered by {from}, not {to}");
                    answered += u32::from(matches!(&name[..length], b"a" | b"b" | b"c" | b"d"));
                }
                Ok(answered)
            })?;
            ensure!(answered == 50, "{to}: {answered}");
        }
        // Each datagram was two packets.
        let translated = packets(scene, "tc ingress")?.of("translated")?;
        ensure!(translated >= 200, "{translated}");
        Ok(())
    })
}

#[test]
fn a_scan_of_ports_opens_nothing_and_is_refused_nothing() -> Result<()> {
    const PORTS: std::ops::RangeInclusive<u16> = 1..=1_200;
    play(|scene| {
        let machine = scene.cluster.pod("client")?.netns();
        let before = packets(scene, "tc ingress")?;
        let ip: IpAddr = WEB4.parse()?;
        let ip6: IpAddr = WEB6.parse()?;
        machine.run(|| {
            for port in PORTS.filter(|port| !matches!(port, 80 | 81)) {
                for ip in [ip, ip6] {
                    // The fabric owns these addresses, and refuses.
                    let error = TcpStream::connect_timeout(&(ip, port).into(), LIMIT).err();
                    let kind = error.map(|error| error.kind());
                    ensure!(kind == Some(ErrorKind::ConnectionRefused), "{ip} {port}: {kind:?}");
                }
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.send_to(b"?", (ip, port))?;
            }
            Ok(())
        })?;
        let after = packets(scene, "tc ingress")?;
        for none in ["translated", "opened", "refused", "unanswered", "unknown", "dropped"] {
            ensure!(after.of(none)? == before.of(none)?, "{none}: {}, {}", before.0, after.0);
        }
        let untouched = after.of("untouched")? - before.of("untouched")?;
        ensure!(untouched >= 3 * 1_198, "{untouched} of {}", 3 * 1_198);
        let listed = scene.agent.list("connections")?;
        let rows = listed["connections"].as_array().context("list connections has rows")?;
        ensure!(rows.is_empty(), "{listed}");
        // The Service still answers on its own ports.
        let mut caller = scene.cluster.machine("client")?;
        caller.expect(Via::Http, at(WEB4)?, &ALL)
    })
}
