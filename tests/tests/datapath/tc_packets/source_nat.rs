//! Connections from outside to endpoints of other nodes, where one device leads to both.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4};
use topo_lb_common::address::{SCTP, TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::packets::Packets;
use topo_lb_common::snat::is_source_port;
use topo_lb_tests::frame::{self, NODE_MAC, Tcp, VM_MAC, ip, says, wrong_checksums};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::packets::{BACK, DROP, Hook, MARK, NEXT, Programs};
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements::kernel;

use super::fragments::{addresses6, fragments, fragments6};
use super::scene::{at, tcp, udp};

/// The uplink, and a device that leads to a pod of this node.
pub(super) const UPLINK: u32 = 7;
const POD: u32 = 8;

/// A client, this node, a further address of it, a frontend, an endpoint of another node, and one behind the
/// other device.
pub(super) struct Parts {
    pub(super) client: &'static str,
    pub(super) node: &'static str,
    pub(super) second: &'static str,
    pub(super) port: &'static str,
    pub(super) there: &'static str,
    pub(super) here: &'static str,
    pub(super) is_v6: bool,
}

pub(super) const FAMILIES: [Parts; 2] = [
    Parts {
        client: "203.0.113.9:40000",
        node: "172.18.0.2",
        second: "172.18.0.3:9376",
        port: "172.18.0.2:30080",
        there: "10.244.2.2:9376",
        here: "10.244.1.3:9376",
        is_v6: false,
    },
    Parts {
        client: "[2001:db8::9]:40000",
        node: "fd00:18::2",
        second: "[fd00:18::3]:9376",
        port: "[fd00:18::2]:30080",
        there: "[fd00:244:2::2]:9376",
        here: "[fd00:244:1::3]:9376",
        is_v6: true,
    },
];

/// Runs a test on a node: pods of other nodes and clients outside are behind the uplink.
pub(super) fn on_node(test: impl FnOnce(&mut Programs) -> Result<()> + Send) -> Result<()> {
    on_node_with(1_024, test)
}

/// The same, with `entries` per map.
pub(super) fn on_node_with(
    entries: u32,
    test: impl FnOnce(&mut Programs) -> Result<()> + Send,
) -> Result<()> {
    let names = [Prefix::new().name("uplink")];
    let netns = NetNs::make(&names)?.pop().context("a namespace")?;
    netns.set(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
    netns.ip(&[
        format!(
            "link add uplink address {} index {UPLINK} type veth peer name fabric",
            mac(NODE_MAC)
        ),
        format!("link add pod address {} index {POD} type veth peer name guest", mac(NODE_MAC)),
        "link set uplink up".to_owned(),
        "link set fabric up".to_owned(),
        "link set pod up".to_owned(),
        "link set guest up".to_owned(),
        "address add 172.18.0.2/16 dev uplink".to_owned(),
        "address add fd00:18::2/64 dev uplink nodad".to_owned(),
        "address add 172.18.0.3/16 dev uplink".to_owned(),
        "address add fd00:18::3/64 dev uplink nodad".to_owned(),
        "route add default via 172.18.0.1".to_owned(),
        "route add default via fd00:18::1 dev uplink".to_owned(),
        // XDP leaves packets to unknown neighbours to tc.
        "neigh add 172.18.0.1 lladdr 02:00:00:00:00:01 dev uplink nud permanent".to_owned(),
        "neigh add fd00:18::1 lladdr 02:00:00:00:00:01 dev uplink nud permanent".to_owned(),
        "route add 10.244.1.3/32 dev pod".to_owned(),
        "route add fd00:244:1::3/128 dev pod".to_owned(),
        "route add fd00:244:3::/64 encap seg6 mode encap segs fd00:18::4 dev uplink".to_owned(),
    ])?;
    netns.run(|| {
        let mut programs = Programs::replacing_with_room(entries)?;
        programs.rely_on_marks(true)?;
        programs.give_sources(UPLINK, Ipv4Addr::new(172, 18, 0, 2), "fd00:18::2".parse()?)?;
        test(&mut programs)
    })
}

/// As in `ip link`.
fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Runs a packet on the uplink; checks what becomes of it but for the port of ours.
pub(super) fn on_uplink(
    programs: &mut Programs,
    what: &str,
    packet: &[u8],
    wanted: i32,
) -> Result<(SocketAddr, SocketAddr, Vec<u8>)> {
    let (verdict, out, mark) = programs.run_marked(UPLINK, Hook::ExternalIngress, packet)?;
    let (from, to) = says(&out).with_context(|| what.to_owned())?;
    ensure!((verdict, mark) == (wanted, 0), "{what}: verdict {verdict}, mark {mark:#x}");
    let wrong = wrong_checksums(&out)?;
    ensure!(wrong.is_empty(), "{what}: wrong checksums: {wrong:?}");
    Ok((from, to, out))
}

/// The hops that a packet may still make.
fn hops(packet: &[u8]) -> u8 {
    if packet[14] >> 4 == 4 { packet[22] } else { packet[21] }
}

#[test]
fn both_ways_go_on_by_the_uplink_with_one_hop_less() -> Result<()> {
    on_node(|programs| {
        for Parts { client, node, port, there, .. } in FAMILIES {
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                let row = [(at(there), Locality::Zone)];
                programs.expose(index, at(port), protocol, &row)?;
            }
            let mut source = None;
            for kind in [Tcp::Syn(999), Tcp::Bare, Tcp::Ack] {
                let packet = tcp(client, port, kind);
                let (from, to, out) = on_uplink(programs, "there", &packet, BACK)?;
                ensure!(from.ip() == node.parse::<IpAddr>()? && to == at(there), "{from} {to}");
                ensure!(is_source_port(from.port()), "{from}");
                ensure!(*source.get_or_insert(from) == from, "{from} after {source:?}");
                ensure!(hops(&out) == hops(&packet) - 1, "{} hops", hops(&out));
                if let Tcp::Syn(_) = kind {
                    let answer = frame::tcp(at(there), from, Tcp::SynAck);
                    let (from, to, _) = on_uplink(programs, "SYN-ACK", &answer, BACK)?;
                    ensure!((from, to) == (at(port), at(client)), "{from} {to}");
                }
            }
            let source = source.context("a source")?;
            let answer = frame::tcp(at(there), source, Tcp::Ack);
            let (from, to, out) = on_uplink(programs, "back", &answer, BACK)?;
            ensure!((from, to) == (at(port), at(client)), "{from} {to}");
            ensure!(hops(&out) == hops(&answer) - 1, "{} hops", hops(&out));

            let (from, to, _) = on_uplink(programs, "datagram", &udp(client, port), BACK)?;
            ensure!(to == at(there), "{to}");
            let answer = frame::udp(at(there), from, b"I");
            let (from, to, _) = on_uplink(programs, "its answer", &answer, BACK)?;
            ensure!((from, to) == (at(port), at(client)), "{from} {to}");
            // Only this one establishes the flow.
            on_uplink(programs, "datagram", &udp(client, port), BACK)?;
            on_uplink(programs, "datagram", &udp(client, port), BACK)?;
        }
        // Of each family a segment each way, and a datagram.
        let by_xdp = programs.done_by_xdp()?;
        let wanted = Packets { translated: 6, ..Packets::default() };
        ensure!(kernel() < (5, 14) || by_xdp == wanted, "{by_xdp:?} by XDP");
        Ok(())
    })
}

#[test]
fn a_packet_on_its_last_hop_is_dropped() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            let mut packet = udp(client, port);
            if is_v6 {
                packet[21] = 1;
            } else {
                packet[22] = 1;
                // 63 hops less, at the same place.
                let sum = u16::from_be_bytes([packet[24], packet[25]]);
                let (sum, carry) = sum.overflowing_add(63 << 8);
                packet[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
            }
            ensure!(wrong_checksums(&packet)?.is_empty(), "the packet itself");
            let (verdict, _, _) = programs.run_marked(UPLINK, Hook::ExternalIngress, &packet)?;
            ensure!(verdict == DROP, "verdict {verdict}");
        }
        Ok(())
    })
}

#[test]
fn an_established_connection_counts_to_its_client_and_is_followed_to_its_end() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let (source, _, _) =
                on_uplink(programs, "SYN", &tcp(client, port, Tcp::Syn(999)), BACK)?;
            ensure!(programs.established(is_v6)? == 0, "half-open");
            on_uplink(programs, "SYN-ACK", &frame::tcp(at(there), source, Tcp::SynAck), BACK)?;
            on_uplink(programs, "ACK", &tcp(client, port, Tcp::Bare), BACK)?;
            ensure!(programs.established(is_v6)? == 2, "both entries");
            ensure!(programs.connections_outside()? == 1, "counted elsewhere");
            // A second connection to the same frontend after the first one's end.
            let reset = tcp(client, port, Tcp::Rst);
            on_uplink(programs, "RST", &reset, BACK)?;
            ensure!(programs.connections_outside()? == 0, "it still counts");
            let (again, _, _) =
                on_uplink(programs, "SYN again", &tcp(client, port, Tcp::Syn(5)), BACK)?;
            // The reply's entry keeps the first one's port taken.
            ensure!(programs.established(is_v6)? == 1, "the first one is not over");
            let late = frame::tcp(at(there), again, Tcp::SynAck);
            let (from, to, _) = on_uplink(programs, "its SYN-ACK", &late, BACK)?;
            ensure!((from, to) == (at(port), at(client)), "{from} {to}");
        }
        Ok(())
    })
}

#[test]
fn packets_that_are_no_replies_pass() -> Result<()> {
    on_node(|programs| {
        for Parts { client, node, port, there, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let (source, _, _) =
                on_uplink(programs, "SYN", &tcp(client, port, Tcp::Syn(999)), BACK)?;
            let node: IpAddr = node.parse()?;
            let other_port =
                SocketAddr::new(node, if source.port() == 20_000 { 1 } else { 20_000 });
            let other = SocketAddr::new(at(there).ip(), 80);
            for (what, packet) in [
                ("to another port", frame::tcp(at(there), other_port, Tcp::SynAck)),
                ("from another port", frame::tcp(other, source, Tcp::SynAck)),
                ("from another address", frame::tcp(at(client), source, Tcp::SynAck)),
                ("to another address", frame::tcp(at(there), at(client), Tcp::SynAck)),
                ("of another protocol", frame::udp(at(there), source, b"?")),
            ] {
                let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, &packet)?;
                ensure!((verdict, &out) == (NEXT, &packet), "{what}: verdict {verdict}");
            }
        }
        Ok(())
    })
}

#[test]
fn two_clients_have_sources_of_their_own() -> Result<()> {
    on_node(|programs| {
        let Parts { port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        let mut sources = Vec::new();
        for client in 0..200 {
            let client = format!("203.0.113.{client}:40000");
            let syn = tcp(&client, port, Tcp::Syn(999));
            let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)?;
            sources.push((source, client));
        }
        for (source, client) in &sources {
            let answer = frame::tcp(at(there), *source, Tcp::SynAck);
            let (from, to, _) = on_uplink(programs, "SYN-ACK", &answer, BACK)?;
            ensure!((from, to) == (at(port), at(client)), "{to} for {client}");
        }
        Ok(())
    })
}

#[test]
fn an_endpoint_behind_another_device_or_of_the_node_itself_sees_the_client() -> Result<()> {
    on_node(|programs| {
        for Parts { client, node, second, port, here, .. } in FAMILIES {
            let own = SocketAddr::new(node.parse()?, 9_376);
            // A further address of the node, at which a process listens.
            let second = at(second);
            let _server = TcpListener::bind(second)?;
            let clients = [0, 1, 2].map(|further| {
                let mut client = at(client);
                client.set_port(client.port() + further);
                client
            });
            for (here, client) in [at(here), own, second].into_iter().zip(clients) {
                // Its slice does not say on which node it is.
                programs.expose(1, at(port), TCP, &[(here, Locality::Elsewhere)])?;
                let syn = frame::tcp(client, at(port), Tcp::Syn(1));
                let (from, to, out) = on_uplink(programs, "SYN", &syn, NEXT)?;
                ensure!((from, to) == (client, here), "{from} {to}");
                ensure!(hops(&out) == hops(&syn), "the kernel takes the hop");
                ensure!(programs.snat()?.declined == 0, "declined");
            }
        }
        Ok(())
    })
}

#[test]
fn without_a_source_or_by_another_device_the_kernel_masquerades() -> Result<()> {
    on_node(|programs| {
        let Parts { client, port, there, .. } = FAMILIES[0];
        programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
        let (source, _, _) = on_uplink(programs, "before", &udp(client, port), BACK)?;
        let hook = Hook::ExternalIngress;
        let datagram = udp("203.0.113.10:40000", port);
        let (verdict, _, mark) = programs.run_marked(POD, hook, &datagram)?;
        ensure!((verdict, mark) == (NEXT, MARK), "another device: {verdict}, {mark:#x}");
        programs.stop_giving_sources()?;
        let datagram = udp("203.0.113.11:40000", port);
        let (verdict, _, mark) = programs.run_marked(UPLINK, hook, &datagram)?;
        ensure!((verdict, mark) == (NEXT, MARK), "no more: {verdict}, {mark:#x}");
        // What is open goes on.
        let (from, _, _) = on_uplink(programs, "the first again", &udp(client, port), BACK)?;
        ensure!(from == source, "{from}, not {source}");
        let answer = frame::udp(at(there), source, b"I");
        let (from, to, _) = on_uplink(programs, "its answer", &answer, BACK)?;
        ensure!((from, to) == (at(port), at(client)), "{from} {to}");
        Ok(())
    })
}

#[test]
fn fragments_of_both_ways_follow_their_first() -> Result<()> {
    on_node(|programs| {
        let Parts { client, port, there, .. } = FAMILIES[0];
        programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
        let mut source = None;
        for (number, piece) in fragments(client, port, 1_400).iter().enumerate() {
            let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, piece)?;
            ensure!(verdict == BACK && hops(&out) == hops(piece) - 1, "{number}: {verdict}");
            ensure!(out[26..34] == [172, 18, 0, 2, 10, 244, 2, 2], "{number}: {out:02x?}");
            if number == 0 {
                source = Some(SocketAddr::new(
                    "172.18.0.2".parse()?,
                    u16::from_be_bytes([out[34], out[35]]),
                ));
            }
        }
        let source = source.context("a first fragment")?.to_string();
        for (number, piece) in fragments(there, &source, 1_400).iter().enumerate() {
            let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, piece)?;
            ensure!(verdict == BACK, "{number}: {verdict}");
            ensure!(out[26..34] == [172, 18, 0, 2, 203, 0, 113, 9], "{number}: {out:02x?}");
        }
        Ok(())
    })
}

#[test]
fn ipv6_fragments_of_both_ways_follow_their_first() -> Result<()> {
    on_node(|programs| {
        let Parts { client, node, port, there, .. } = FAMILIES[1];
        programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
        let (source, _, _) = on_uplink(programs, "asks", &udp(client, port), BACK)?;
        let node: IpAddr = node.parse()?;
        for (pieces, wanted) in [
            (fragments6(client, port, 1_400, 7), (node, at(there).ip())),
            (fragments6(there, &source.to_string(), 1_400, 8), (at(port).ip(), at(client).ip())),
        ] {
            for (number, piece) in pieces.iter().enumerate() {
                let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, piece)?;
                ensure!(verdict == BACK && hops(&out) == hops(piece) - 1, "{number}: {verdict}");
                ensure!(addresses6(&out) == wanted, "{number}: {:?}", addresses6(&out));
            }
        }
        Ok(())
    })
}

/// A packet of SCTP over IPv6, which has no checksum of the addresses.
fn sctp6(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut packet = frame::udp(from, to, b"who?");
    packet[20] = SCTP;
    packet
}

#[test]
fn sctp_keeps_its_port_and_a_second_client_with_it_has_no_connection() -> Result<()> {
    on_node(|programs| {
        let Parts { client, node, port, there, .. } = FAMILIES[1];
        let there = SocketAddr::new(at(there).ip(), at(port).port());
        programs.expose(2, at(port), SCTP, &[(there, Locality::Zone)])?;
        let node: IpAddr = node.parse()?;
        let packet = sctp6(at(client), at(port));
        let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, &packet)?;
        ensure!(verdict == BACK && addresses6(&out) == (node, there.ip()), "{verdict}");
        ensure!(out[54..] == packet[54..], "{:02x?}", &out[54..]);
        let second = SocketAddr::new("2001:db8::10".parse()?, at(client).port());
        let packet = sctp6(second, at(port));
        let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &packet)?;
        ensure!(verdict == DROP, "{verdict}");
        Ok(())
    })
}

#[test]
fn a_connection_by_an_encapsulated_route_is_not_opened_and_the_agent_is_told() -> Result<()> {
    on_node(|programs| {
        let Parts { client, port, there, .. } = FAMILIES[1];
        let far = at("[fd00:244:3::2]:9376");
        programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
        on_uplink(programs, "a plain route", &udp(client, port), BACK)?;
        ensure!(programs.snat()?.declined == 0, "declined");
        programs.expose(2, at(port), UDP, &[(far, Locality::Zone)])?;
        let datagram = udp("[2001:db8::10]:40000", port);
        expect_drop(programs, "before the agent knows", &datagram)?;
        ensure!(programs.snat()?.declined != 0, "not declined");
        programs.stop_giving_sources()?;
        let (verdict, out, mark) = programs.run_marked(UPLINK, Hook::ExternalIngress, &datagram)?;
        ensure!((verdict, mark) == (NEXT, MARK), "verdict {verdict}, mark {mark:#x}");
        ensure!(says(&out)? == (at("[2001:db8::10]:40000"), far), "{:?}", says(&out)?);
        Ok(())
    })
}

#[test]
fn a_connection_without_a_route_is_not_opened_and_its_next_packet_opens_it() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            let family = if is_v6 { "-6" } else { "-4" };
            let network = if is_v6 { "fd00:244:2::/64" } else { "10.244.2.0/24" };
            let route = |command: &str, kind: &str| {
                let mut ip = Command::new("ip");
                ip.args([family, "route", command]).args(kind.split_whitespace()).arg(network);
                printed(&mut ip)
            };
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let syn = tcp(client, port, Tcp::Syn(999));
            for kind in ["throw", "blackhole", "unreachable", "prohibit"] {
                route("add", kind)?;
                expect_drop(programs, kind, &syn)?;
                route("delete", kind)?;
            }
            let (from, to, _) = on_uplink(programs, "the next SYN", &syn, BACK)?;
            ensure!(is_source_port(from.port()) && to == at(there), "{from} {to}");
        }
        Ok(())
    })
}

/// Checks that a packet on the uplink is dropped.
fn expect_drop(programs: &mut Programs, what: &str, packet: &[u8]) -> Result<()> {
    let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
    ensure!(verdict == DROP, "{what}: verdict {verdict}");
    Ok(())
}

#[test]
fn the_last_packets_of_an_idle_connection_pass() -> Result<()> {
    on_node(|programs| {
        for (number, Parts { client, port, there, .. }) in FAMILIES.into_iter().enumerate() {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let ends: [(&str, &[(bool, Tcp)]); 4] = [
                ("RST", &[(true, Tcp::Rst)]),
                ("RST back", &[(false, Tcp::Rst)]),
                ("the client's FIN", &[(false, Tcp::Fin), (true, Tcp::Fin)]),
                ("the endpoint's FIN", &[(true, Tcp::Fin), (false, Tcp::Fin)]),
            ];
            for (place, (what, packets)) in ends.into_iter().enumerate() {
                let mut client = at(client);
                client.set_port(41_000 + (number * 10 + place) as u16);
                let syn = frame::tcp(client, at(port), Tcp::Syn(999));
                let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)?;
                on_uplink(programs, "SYN-ACK", &frame::tcp(at(there), source, Tcp::SynAck), BACK)?;
                on_uplink(programs, "ACK", &frame::tcp(client, at(port), Tcp::Bare), BACK)?;
                for &(is_client, kind) in packets {
                    programs.age(Duration::from_secs(20))?;
                    let (packet, wanted) = if is_client {
                        (frame::tcp(client, at(port), kind), (source, at(there)))
                    } else {
                        (frame::tcp(at(there), source, kind), (at(port), client))
                    };
                    let (from, to, _) = on_uplink(programs, what, &packet, BACK)?;
                    ensure!((from, to) == wanted, "{what}: {from} {to}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn icmp_errors_of_both_ways_are_told_in_the_words_of_their_receiver() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            let asked = udp(client, port);
            let (source, _, sent) = on_uplink(programs, "asks", &asked, BACK)?;
            let error = |from: SocketAddr, to: SocketAddr, quoted: &[u8]| -> Result<Vec<u8>> {
                let mut error = Vec::new();
                let ip = PacketBuilder::ethernet2(VM_MAC, NODE_MAC).ip(ip(from.ip(), to.ip()));
                if is_v6 {
                    let too_big = Icmpv6Type::PacketTooBig { mtu: 1_280 };
                    ip.icmpv6(too_big).write(&mut error, &quoted[14..])?;
                } else {
                    let port = icmpv4::DestUnreachableHeader::Port;
                    let unreachable = Icmpv4Type::DestinationUnreachable(port);
                    ip.icmpv4(unreachable).write(&mut error, &quoted[14..])?;
                }
                Ok(error)
            };
            let header = if is_v6 { 14 + 48 } else { 14 + 28 };
            let router = at(if is_v6 { "[2001:db8:9::9]:0" } else { "9.9.9.9:0" });
            // About a packet of the client.
            for teller in [at(there), router] {
                let (from, to, out) =
                    on_uplink(programs, "there", &error(teller, source, &sent)?, BACK)?;
                ensure!((from.ip(), to.ip()) == (at(port).ip(), at(client).ip()), "{from} {to}");
                let quoted = [&sent[..14], &out[header..]].concat();
                ensure!(says(&quoted)? == (at(client), at(port)), "{:?}", says(&quoted)?);
                ensure!(wrong_checksums(&quoted)?.is_empty(), "{:?}", wrong_checksums(&quoted)?);
            }
            // About an answer.
            let answer = frame::udp(at(there), source, b"I");
            let (_, _, got) = on_uplink(programs, "answer", &answer, BACK)?;
            for teller in [at(client), router] {
                let (from, to, out) =
                    on_uplink(programs, "client's", &error(teller, at(port), &got)?, BACK)?;
                ensure!((from.ip(), to.ip()) == (source.ip(), at(there).ip()), "{from} {to}");
                let quoted = [&got[..14], &out[header..]].concat();
                ensure!(says(&quoted)? == (at(there), source), "{:?}", says(&quoted)?);
            }
        }
        Ok(())
    })
}
