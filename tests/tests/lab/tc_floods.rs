//! Two guests on one node: one floods the node with packets, and the other one loses nothing.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etherparse::{Icmpv4Type, Icmpv6Type, IpFragOffset, Ipv4Header, PacketBuilder, icmpv4, icmpv6};
use topo_lb_common::device::SHARE;
use topo_lb_common::maps::DEFAULT_CONNECTIONS;
use topo_lb_common::packets::Outcome;
use topo_lb_tests::binary::row;
use topo_lb_tests::client::Client;
use topo_lb_tests::flood::flood;
use topo_lb_tests::frame::{ACK, RST, Tcp, ip, segment, tcp, udp};
use topo_lb_tests::pod::Pod;
use topo_lb_tests::scene::{ALL, EMPTY4, EMPTY6, FOLLOWS, HERE, Scene, WEB4, WEB6, at, idle};
use topo_lb_tests::traffic::{Socket, Tally, Via};
use topo_lb_tests::wait::until;

/// Ethernet addresses of the guest that floods, and of the node's end of its cable.
const GUEST: [u8; 6] = [2, 0x54, 0x4c, 3, 1, 3];
const NODE: [u8; 6] = [2, 0x54, 0x4c, 2, 1, 3];
/// The ports that Linux gives to clients (`net.ipv4.ip_local_port_range`).
const PORTS: std::ops::Range<u16> = 32_768..61_000;
/// How long each flood takes.
const TIME: Duration = Duration::from_secs(2);
/// New sockets of the other guest during a flood. Closed connections and datagrams hold a place in its
/// quota for a time: all floods together must not use it up, however fast the machine is.
const NEW_SOCKETS: u32 = 3_000;

/// Who a flood's packets say that they are from.
#[derive(Clone, Copy)]
enum From {
    /// Addresses to which the node has no way: nobody hears an answer.
    Nobody,
    /// Addresses behind the guest that floods: answers arrive there, and get no further.
    Own,
    /// The addresses of the other guest.
    Other,
}

impl From {
    /// The address with this number, of the family of `to`.
    fn address(self, to: SocketAddr, number: u16) -> Result<IpAddr> {
        let host = number % 60;
        let text = match (self, to) {
            (Self::Nobody, SocketAddr::V4(_)) => format!("10.244.1.{}", 130 + host),
            (Self::Nobody, SocketAddr::V6(_)) => format!("fd00:244:1::1:{host}"),
            (Self::Own, SocketAddr::V4(_)) => format!("10.244.1.{}", 194 + host),
            (Self::Own, SocketAddr::V6(_)) => format!("fd00:244:1::2:{host}"),
            (Self::Other, SocketAddr::V4(_)) => "10.244.1.2".to_owned(),
            (Self::Other, SocketAddr::V6(_)) => "fd00:244:1::2".to_owned(),
        };
        Ok(text.parse()?)
    }
}

/// Makes the ways that [`From`] describes.
fn route(scene: &Scene<'_>, guest: &Pod) -> Result<()> {
    scene.cluster.node_netns(HERE)?.ip(&[
        "route add blackhole 10.244.1.128/26".to_owned(),
        "route add blackhole fd00:244:1::1:0/112".to_owned(),
        format!("route add 10.244.1.192/26 via {} dev pod3", guest.ipv4),
        format!("route add fd00:244:1::2:0/112 via {} dev pod3", guest.ipv6),
    ])?;
    guest.netns().ip(&[
        "route add blackhole 10.244.1.192/26".to_owned(),
        "route add blackhole fd00:244:1::2:0/112".to_owned(),
    ])
}

/// A packet for every port of a client, in both families.
fn each(
    from: From,
    targets: [&str; 2],
    make: impl Fn(SocketAddr, SocketAddr) -> Result<Vec<u8>>,
) -> Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    for port in PORTS {
        for target in targets {
            let to = at(target)?;
            let mut frame = make(SocketAddr::new(from.address(to, port)?, port), to)?;
            frame[..6].copy_from_slice(&NODE);
            frame[6..12].copy_from_slice(&GUEST);
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// "Port unreachable", about a segment that `to` has sent to `from`.
fn error(from: SocketAddr, to: SocketAddr) -> Result<Vec<u8>> {
    let quoted = segment((to, from), ACK, 1, 1, b"");
    let around = PacketBuilder::ethernet2(GUEST, NODE).ip(ip(from.ip(), to.ip()));
    let mut frame = Vec::new();
    if from.is_ipv4() {
        let kind = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
        around.icmpv4(kind).write(&mut frame, &quoted[14..])?;
    } else {
        let kind = Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port);
        around.icmpv6(kind).write(&mut frame, &quoted[14..])?;
    }
    Ok(frame)
}

/// The first fragment of a datagram, or a later one without a first, by turns.
fn fragment(from: SocketAddr, to: SocketAddr) -> Result<Vec<u8>> {
    let mut frame = udp(from, to, &[b'x'; 64]);
    let (mut header, _) = Ipv4Header::from_slice(&frame[14..])?;
    header.identification = from.port();
    header.dont_fragment = false;
    header.more_fragments = true;
    header.fragment_offset = IpFragOffset::try_new(from.port() % 2 * 8)?;
    header.header_checksum = header.calc_header_checksum();
    frame[14..34].copy_from_slice(&header.to_bytes());
    Ok(frame)
}

/// A flood: its packets, and what tc does with most of them.
type Flood = (&'static str, Vec<Vec<u8>>, &'static [Outcome]);

fn floods() -> Result<Vec<Flood>> {
    let web = [WEB4, WEB6];
    let random = || fastrand::u32(..);
    let syn = |from, to| Ok(tcp(from, to, Tcp::Syn(random())));
    let reset = |from, to| Ok(segment((from, to), RST | ACK, random(), random(), b""));
    Ok(vec![
        ("SYNs that nobody completes", each(From::Nobody, web, syn)?, &[Outcome::Translated]),
        ("half-open handshakes", each(From::Own, web, syn)?, &[Outcome::Translated]),
        (
            "datagrams",
            each(From::Nobody, web, |from, to| Ok(udp(from, to, b"who?")))?,
            &[Outcome::Translated],
        ),
        (
            "refused SYNs",
            each(From::Own, [EMPTY4, EMPTY6], syn)?,
            &[Outcome::Refused, Outcome::Unanswered],
        ),
        ("RSTs of the other's", each(From::Other, web, reset)?, &[Outcome::Unknown]),
        ("ICMP errors of the other's", each(From::Other, web, error)?, &[Outcome::Unknown]),
        (
            "fragments",
            each(From::Nobody, [WEB4, WEB4], fragment)?,
            &[Outcome::Translated, Outcome::Unknown],
        ),
    ])
}

/// The other guest, at work.
struct Other {
    client: Client,
    /// Connections with the pod that answers: used all the time, and only after each flood.
    busy: Vec<(Socket, String)>,
    idle: Vec<(Socket, String)>,
    sum: Tally,
    asked: u32,
}

impl Other {
    fn start(scene: &Scene<'_>) -> Result<Self> {
        let client = scene.cluster.machine("client")?;
        let (sum, asked) = (Tally::default(), 0);
        let mut other = Self { client, busy: Vec::new(), idle: Vec::new(), sum, asked };
        for number in 0..60 {
            let to = at([WEB4, WEB6][number % 2])?;
            let via = if number % 6 < 4 { Via::Http } else { Via::UdpConnected };
            let socket = other.client.open(via, to)??;
            let pod = other.client.ask(socket, None)??.pod;
            let kept = if number < 20 { &mut other.busy } else { &mut other.idle };
            kept.push((socket, pod));
        }
        Ok(other)
    }

    /// Asks open connections: the same pod must answer.
    fn ask(client: &mut Client, held: &[(Socket, String)]) -> Result<u32> {
        for (socket, pod) in held {
            let reply = client.ask(*socket, None)?.context("an open connection")?;
            ensure!(reply.pod == *pod, "{pod} answered, and then {}", reply.pod);
        }
        Ok(held.len() as u32)
    }

    /// Uses open connections, opens some new ones, and asks by datagrams.
    fn work(&mut self) -> Result<()> {
        self.asked += Self::ask(&mut self.client, &self.busy)?;
        if self.sum.requests >= NEW_SOCKETS {
            return Ok(());
        }
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            for to in [WEB4, WEB6] {
                self.sum.add(&self.client.call(via, at(to)?, 10)?);
            }
        }
        Ok(())
    }
}

/// How many packets from clients had one of these outcomes.
fn counted(scene: &Scene<'_>, outcomes: &[Outcome]) -> Result<u64> {
    let listed = scene.agent.list("hooks")?;
    let packets = &row(&listed["hooks"]["each"], "hook", "tc ingress")?["packets"];
    let each = outcomes.iter().map(|one| packets[one.name()].as_u64().context("a counter"));
    each.sum()
}

/// Each of the guest's connections is established and stays open.
#[test]
fn a_guest_that_has_used_its_quota_of_connections_leaves_the_others_theirs() -> Result<()> {
    const ROOM: u32 = 1_024;
    const MOST: u32 = ROOM / SHARE;
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", ROOM.to_string());
        scene.agent.resume()?;
        let mut other = Other::start(scene)?;
        let mut guest = scene.cluster.machine("a")?;
        let before = counted(scene, &[Outcome::Limited])?;
        let mut opened = 0;
        while opened < 2 * MOST && guest.open(Via::Http, at(WEB4)?)?.is_ok() {
            opened += 1;
        }
        let limited = counted(scene, &[Outcome::Limited])? - before;
        println!("{opened} connections of one guest, and {limited} SYNs dropped");
        // The agent may count some twice that are established while it counts.
        ensure!((MOST - 10..=MOST + 10).contains(&opened), "{opened} of {MOST} connections");
        ensure!(limited > 0, "no opening was limited");
        other.work()?;
        Other::ask(&mut other.client, &other.idle)?;
        ensure!(other.sum.answered() == other.sum.requests, "{}", other.sum);
        // Once the connections are closed, the guest may open others.
        drop(guest);
        scene.cluster.machine("a")?.wait_for(Via::Http, at(WEB4)?, &ALL, FOLLOWS)?;
        Ok(())
    })
}

/// A renewal makes `devices` anew, and keeps the connections.
#[test]
fn connections_of_before_a_renewal_count_for_their_guest() -> Result<()> {
    const OPEN: u64 = 20;
    let counts = |scene: &Scene<'_>| {
        let devices = scene.dump("devices")?;
        let counts = devices.as_array().into_iter().flatten();
        let counts = counts.map(|device| device["formatted"]["value"]["connections"].as_u64());
        let counts: Option<Vec<u64>> = counts.collect();
        Ok::<_, anyhow::Error>(counts.context("a device has no count")?.into_iter().max())
    };
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", "1024");
        scene.agent.resume()?;
        scene.wait_for_quota()?;
        let mut guest = scene.cluster.machine("a")?;
        for _ in 0..OPEN {
            guest.open(Via::Http, at(WEB4)?)?.map_err(anyhow::Error::msg)?;
        }
        ensure!(counts(scene)? == Some(OPEN), "{:?}", counts(scene)?);
        scene.agent.stop()?;
        scene.agent.set("--max-connections", "2048");
        scene.agent.resume()?;
        until("the connections of before", FOLLOWS, || {
            let now = counts(scene)?;
            Ok(if now == Some(OPEN) { Ok(()) } else { Err(format!("{now:?}")) })
        })?;
        drop(guest);
        Ok(())
    })
}

#[test]
fn a_guest_loses_nothing_while_another_floods_the_node() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", DEFAULT_CONNECTIONS.to_string());
        scene.agent.resume()?;
        let guest = scene.cluster.pod("a")?;
        route(scene, guest)?;
        let mut other = Other::start(scene)?;
        for (name, frames, outcomes) in floods()? {
            let (before, dropped) = (counted(scene, outcomes)?, scene.cluster.dropped_in_queues()?);
            (other.sum, other.asked) = (Tally::default(), 0);
            let sent = thread::scope(|scope| {
                let sender = scope.spawn(|| flood(guest.netns(), "eth0", &frames, TIME));
                while !sender.is_finished() {
                    other.work()?;
                }
                sender.join().expect("a flood does not panic")
            })?;
            other.asked += Other::ask(&mut other.client, &other.idle)?;
            let arrived = counted(scene, outcomes)? - before;
            let dropped = scene.cluster.dropped_in_queues()? - dropped;
            let Other { sum, asked, .. } = &other;
            let lost = sum.requests - sum.answered();
            println!(
                "{name}: {sent} packets sent in {TIME:?}; of the other guest {asked} answers on \
                 open connections, lost 0; {} new sockets, lost {lost}, longest {} µs; \
                 {dropped} dropped by full queues of the kernel",
                sum.requests, sum.longest_us
            );
            // The kernel's queue is everybody's: what it drops, no program has seen.
            ensure!(u64::from(lost) <= dropped && sum.requests > 0, "{name}: {sum}");
            ensure!(arrived > sent / 3, "{name}: {arrived} of {sent} packets were {outcomes:?}");
        }
        Ok(())
    })
}
