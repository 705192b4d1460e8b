//! Direct return: packets that are sent on to the node of their endpoint as they came.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::hop::{PROBE_BYTES, PROBE_HOPS, PROBE_MAGIC, PROBE_PORT, PROVED};
use topo_lb_tests::frame::{self, NODE_MAC, Tcp, VM_MAC, ip, says, wrong_checksums};
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs};
use topo_lb_tests::requirements::kernel;

use super::fragments::{fragments, fragments6};
use super::scene::{self, at};
use super::source_nat::{FAMILIES, Parts, UPLINK, on_node};

/// The tag of the endpoint's node, and the address of its frames: the router's in this test.
const NODE: u16 = 4_711;
const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn tcp(from: &str, to: &str, kind: Tcp) -> Vec<u8> {
    arriving(scene::tcp(from, to, kind))
}

fn udp(from: &str, to: &str) -> Vec<u8> {
    arriving(scene::udp(from, to))
}

/// A load balancer IP of each family.
fn balancer(is_v6: bool) -> &'static str {
    if is_v6 { "[2001:db8:b::1]:80" } else { "198.51.100.1:80" }
}

/// A packet as it arrives from a client, by a router that is no node. The senders of other tests' frames have the
/// address of the node.
fn arriving(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    packet
}

/// Services with direct return and one endpoint, on another node that is proved.
fn scene(programs: &mut Programs) -> Result<()> {
    programs.know_peer(NEIGHBOUR, u32::from(NODE) | PROVED)?;
    for Parts { there, is_v6, .. } in FAMILIES {
        for (index, protocol) in [(1, TCP), (2, UDP)] {
            serve(programs, index, at(balancer(is_v6)), protocol, &[there])?;
            programs.expose_to_peers(index, at(balancer(is_v6)), protocol, &[])?;
        }
    }
    Ok(())
}

/// Endpoints of that node.
fn serve(
    programs: &mut Programs,
    index: u32,
    frontend: SocketAddr,
    protocol: u8,
    endpoints: &[&str],
) -> Result<()> {
    let row: Vec<_> = endpoints.iter().map(|one| (at(one), Locality::Zone)).collect();
    programs.expose_outside(index, frontend, protocol, &row)?;
    row.iter().try_for_each(|&(endpoint, _)| programs.place(index, endpoint, NODE))
}

/// What a packet becomes that is sent on: all but its hops, and IPv4's checksum.
fn sent_on(packet: &[u8]) -> Vec<u8> {
    let mut wanted = packet.to_vec();
    if packet[14] >> 4 == 4 {
        wanted[22] -= 1;
        // The time to live is the higher byte of its word.
        let sum = u32::from(u16::from_be_bytes([packet[24], packet[25]])) + 0x100;
        wanted[24..26].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    } else {
        wanted[21] -= 1;
    }
    wanted
}

fn expect_sent_on(programs: &mut Programs, what: &str, packet: &[u8]) -> Result<()> {
    let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
    ensure!(verdict == BACK, "{what}: verdict {verdict}");
    ensure!(out == sent_on(packet), "{what}: {out:02x?}");
    Ok(())
}

/// Runs a packet; returns its verdict and its addresses after that.
fn run(programs: &mut Programs, packet: &[u8]) -> Result<(i32, SocketAddr, SocketAddr)> {
    let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
    let (from, to) = says(&out).context("the packet")?;
    ensure!(wrong_checksums(&out)?.is_empty(), "{out:02x?}");
    Ok((verdict, from, to))
}

/// Checks that a packet is translated, and gets this node's address as its source.
fn expect_source_nat(
    programs: &mut Programs,
    what: &str,
    packet: &[u8],
    parts: &Parts,
) -> Result<()> {
    let (verdict, from, to) = run(programs, packet)?;
    let wanted = (BACK, parts.node.parse()?, at(parts.there));
    ensure!((verdict, from.ip(), to) == wanted, "{what}: verdict {verdict}, {from} to {to}");
    Ok(())
}

#[test]
fn packets_go_on_as_they_came_with_one_hop_less_and_take_no_place_of_a_connection() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            for kind in [Tcp::Syn(999), Tcp::Syn(999), Tcp::Bare, Tcp::Ack, Tcp::Fin, Tcp::Rst] {
                expect_sent_on(programs, "a segment", &tcp(client, to, kind))?;
            }
            expect_sent_on(programs, "a datagram", &udp(client, to))?;
            expect_sent_on(programs, "another one", &udp(client, to))?;
            ensure!(programs.half_open(is_v6)? == 0 && programs.established(is_v6)? == 0);
        }
        let counts = programs.totals(Hook::ExternalIngress)?;
        ensure!((counts.sent_on, counts.opened, counts.translated) == (16, 0, 0), "{counts:?}");
        ensure!(programs.hops()? == 4, "{} flows", programs.hops()?);
        Ok(())
    })
}

#[test]
fn xdp_sends_on_what_is_known_and_flows_take_turns_in_going_by_tc() -> Result<()> {
    const FLOWS: u16 = 64;
    /// Half of the period of the programs' `state.rs`.
    const HALF: Duration = Duration::from_nanos(1 << 32);
    if kernel() < (5, 14) {
        return Ok(());
    }
    on_node(|programs| {
        scene(programs)?;
        for (Parts { client, is_v6, .. }, protocol) in
            FAMILIES.iter().flat_map(|parts| [(parts, TCP), (parts, UDP)])
        {
            let to = balancer(*is_v6);
            let of = |port: u16, kind: Tcp| {
                let from = SocketAddr::new(at(client).ip(), port);
                let packet = match protocol {
                    TCP => frame::tcp(from, at(to), kind),
                    _ => frame::udp(from, at(to), b"who?"),
                };
                arriving(packet)
            };
            let send = |programs: &mut Programs, kind: Tcp, port: u16| {
                let before = programs.done_by_xdp()?.sent_on;
                expect_sent_on(programs, "a flow", &of(port, kind))?;
                anyhow::Ok(programs.done_by_xdp()?.sent_on - before)
            };
            let ports = 40_000..40_000 + FLOWS;
            let by_xdp = |programs: &mut Programs, kind: Tcp| {
                ports.clone().try_fold(0, |sum, port| anyhow::Ok(sum + send(programs, kind, port)?))
            };
            ensure!(by_xdp(programs, Tcp::Syn(999))? == 0, "tc chooses");
            let mut by_xdp_of_both = 0;
            for port in ports.clone() {
                // A period ends at any time: the first packet after that goes by tc, and no other before the next one.
                let known = send(programs, Tcp::Ack, port)? + send(programs, Tcp::Ack, port)?;
                ensure!(known >= 1, "port {port}: two packets of a known flow went by tc");
                by_xdp_of_both += known;
            }
            let all = u64::from(FLOWS);
            ensure!(by_xdp_of_both >= all * 2 * 3 / 4, "{by_xdp_of_both} of {} by XDP", all * 2);
            programs.age(HALF * 2)?;
            ensure!(by_xdp(programs, Tcp::Ack)? == 0, "each is due once a period");
            by_xdp(programs, Tcp::Ack)?;
            programs.age(HALF)?;
            let count = by_xdp(programs, Tcp::Ack)?;
            // Their periods begin evenly over a period, two at a time; a quarter more are due if this takes two seconds.
            ensure!(
                (all / 4..=all / 2 + 2).contains(&count),
                "{count} of {all} by XDP after half a period"
            );
        }
        Ok(())
    })
}

#[test]
fn without_a_proof_connections_get_a_source() -> Result<()> {
    type Change = fn(&mut Programs, SocketAddr) -> Result<()>;
    let unproved: Change = |programs, _| programs.know_peer(NEIGHBOUR, NODE.into());
    let other: Change = |programs, _| programs.know_peer(NEIGHBOUR, (u32::from(NODE) + 1) | PROVED);
    let unknown: Change = |programs, _| programs.forget_peer(NEIGHBOUR);
    let nowhere: Change =
        |programs, there| [1, 2].into_iter().try_for_each(|index| programs.place(index, there, 0));
    for (what, change) in [
        ("a node that is not proved", unproved),
        ("another node at the next hop", other),
        ("an unknown node", unknown),
        ("an endpoint of a node without direct return", nowhere),
    ] {
        on_node(|programs| {
            scene(programs)?;
            for parts in FAMILIES {
                programs.know_peer(NEIGHBOUR, u32::from(NODE) | PROVED)?;
                change(programs, at(parts.there))?;
                let syn = tcp(parts.client, balancer(parts.is_v6), Tcp::Syn(999));
                expect_source_nat(programs, what, &syn, &parts)?;
                let ack = tcp(parts.client, balancer(parts.is_v6), Tcp::Bare);
                expect_source_nat(programs, what, &ack, &parts)?;
                let datagram = udp(parts.client, balancer(parts.is_v6));
                expect_source_nat(programs, what, &datagram, &parts)?;
            }
            ensure!(programs.hops()? == 0, "{what}: {} flows", programs.hops()?);
            Ok(())
        })?;
    }
    Ok(())
}

/// As somebody has rules for what the kernel forwards.
#[test]
fn packets_go_on_as_they_came_where_the_kernel_gives_connections_their_source() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        programs.stop_giving_sources()?;
        let send = |programs: &mut Programs| {
            for Parts { client, is_v6, .. } in FAMILIES {
                for kind in [Tcp::Syn(999), Tcp::Ack, Tcp::Ack] {
                    expect_sent_on(programs, "a segment", &tcp(client, balancer(is_v6), kind))?;
                }
            }
            anyhow::Ok(())
        };
        send(programs)?;
        send(programs)?;
        let by_xdp = programs.done_by_xdp()?.sent_on;
        ensure!(kernel() < (5, 14) || by_xdp > 0, "{by_xdp} by XDP");
        programs.stop_sending_on()?;
        for Parts { client, is_v6, .. } in FAMILIES {
            for kind in [Tcp::Ack, Tcp::Syn(999)] {
                let packet = tcp(client, balancer(is_v6), kind);
                let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &packet)?;
                ensure!(verdict != BACK, "a segment of a way that is none any more");
            }
        }
        ensure!(programs.done_by_xdp()?.sent_on == by_xdp);
        Ok(())
    })
}

#[test]
fn node_ports_and_services_without_direct_return_get_a_source() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for parts in FAMILIES {
            serve(programs, 3, at(parts.port), TCP, &[parts.there])?;
            let syn = tcp(parts.client, parts.port, Tcp::Syn(999));
            expect_source_nat(programs, "a node port", &syn, &parts)?;
        }
        Ok(())
    })
}

#[test]
fn what_another_node_has_sent_on_gets_an_own_endpoint_or_a_source_and_never_goes_on() -> Result<()>
{
    on_node(|programs| {
        scene(programs)?;
        for parts in FAMILIES {
            let (to, client) = (balancer(parts.is_v6), parts.client);
            expect_sent_on(programs, "a flow", &tcp(client, to, Tcp::Syn(999)))?;
            // The other node sends on what this one has sent on.
            let ack = scene::tcp(client, to, Tcp::Bare);
            let (verdict, from, at_last) = run(programs, &ack)?;
            ensure!((verdict, from, at_last) == (NEXT, at(client), at(to)), "verdict {verdict}");
            let syn = scene::tcp(client, to, Tcp::Syn(1_999));
            expect_source_nat(programs, "no endpoint here", &syn, &parts)?;
            expect_sent_on(programs, "datagrams", &udp(client, to))?;
            let again = scene::udp(client, to);
            expect_source_nat(programs, "of a known flow, by the other node", &again, &parts)?;
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                let own = [(at(parts.here), Locality::Node)];
                programs.expose_to_peers(index, at(to), protocol, &own)?;
            }
            let mut other = at(client);
            other.set_port(40_001);
            for packet in
                [frame::tcp(other, at(to), Tcp::Syn(999)), frame::udp(other, at(to), b"who?")]
            {
                let (verdict, from, at_last) = run(programs, &packet)?;
                let wanted = (NEXT, other, at(parts.here));
                ensure!((verdict, from, at_last) == wanted, "verdict {verdict}: {at_last}");
            }
        }
        Ok(())
    })
}

/// Checks that neither tc nor XDP sends a packet anywhere.
fn expect_untouched(programs: &mut Programs, what: &str, packet: &[u8]) -> Result<()> {
    let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
    ensure!(verdict == NEXT && out == packet, "{what}: verdict {verdict}, {out:02x?}");
    Ok(())
}

#[test]
fn nothing_goes_back_to_where_it_comes_from() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            expect_sent_on(programs, "opens", &tcp(client, to, Tcp::Syn(999)))?;
            for packet in [tcp(client, to, Tcp::Ack), udp(client, to)] {
                expect_sent_on(programs, "goes on", &packet)?;
            }
        }
        // The route to the endpoint is that to the router by now, which sends the packets here.
        programs.forget_peer(NEIGHBOUR)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            let mut packet = tcp(client, to, Tcp::Ack);
            packet[6..12].copy_from_slice(&NEIGHBOUR);
            expect_untouched(programs, "a segment", &packet)?;
            // Datagrams begin anew.
            let mut packet = udp(client, to);
            packet[6..12].copy_from_slice(&NEIGHBOUR);
            let before = programs.totals(Hook::ExternalIngress)?.sent_on;
            let (verdict, from, _) = run(programs, &packet)?;
            ensure!(from != at(client), "verdict {verdict}: the client's own address");
            ensure!(programs.totals(Hook::ExternalIngress)?.sent_on == before);
        }
        Ok(())
    })
}

#[test]
fn what_answers_a_datagram_of_this_node_is_this_node_s() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            programs.expose(7, at(to), UDP, &[])?;
            programs.run_on(
                UPLINK,
                Hook::ExternalEgress,
                &frame::udp(at(to), at(client), b"who?"),
            )?;
            expect_untouched(programs, "an answer", &udp(client, to))?;
        }
        Ok(())
    })
}

/// A frame between two hosts, with the ports of probes and this payload.
fn like_a_probe(from: &str, to: &str, hops: u8, payload: &[u8]) -> Vec<u8> {
    let at = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), PROBE_PORT);
    let mut packet = frame::udp(at(from), at(to), payload);
    if packet[14] >> 4 == 4 {
        let sum = u16::from_be_bytes([packet[24], packet[25]]);
        let sum = u32::from(sum) + (u32::from(packet[22]) - u32::from(hops)) * 0x100;
        packet[24..26].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
        packet[22] = hops;
    } else {
        packet[21] = hops;
    }
    packet
}

#[test]
fn only_probes_are_taken_for_probes_whatever_else_is_at_their_addresses() -> Result<()> {
    let probe: Vec<u8> = PROBE_MAGIC.into_iter().chain([0; PROBE_BYTES - 8]).collect();
    let other = vec![0; PROBE_BYTES];
    on_node(|programs| {
        scene(programs)?;
        for (client, host, other_host, frontend) in [
            ("192.0.2.1", "10.244.1.3", "10.9.9.9", "198.51.100.1"),
            ("2001:db8::1", "fd00:244:1::3", "fd00:9::9", "2001:db8:b::1"),
        ] {
            // A Service at their port, and one whose mark is that of the other end.
            for (index, address) in [(20, frontend), (21, client)] {
                let at = SocketAddr::new(address.parse()?, PROBE_PORT);
                programs.expose_outside(index, at, TCP, &[])?;
            }
            for (from, to) in [(client, frontend), (frontend, client)] {
                let packet = like_a_probe(from, to, PROBE_HOPS, &probe);
                let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &packet)?;
                ensure!(verdict == DROP, "a probe from {from} to {to}: verdict {verdict}");
                for (what, packet) in [
                    ("one that was forwarded", like_a_probe(from, to, 64, &probe)),
                    ("one that says something else", like_a_probe(from, to, PROBE_HOPS, &other)),
                    ("one of another length", like_a_probe(from, to, PROBE_HOPS, &probe[1..])),
                ] {
                    expect_untouched(programs, what, &packet)?;
                }
            }
            for (from, to) in [(host, frontend), (other_host, host)] {
                let packet = like_a_probe(from, to, PROBE_HOPS, &probe);
                expect_untouched(programs, "between others", &packet)?;
            }
        }
        Ok(())
    })
}

#[test]
fn two_frontends_of_one_endpoint_are_told_apart() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for parts in FAMILIES {
            let Parts { client, here, is_v6, .. } = parts;
            let own = [(at(here), Locality::Node)];
            let first = at(balancer(is_v6));
            let second = SocketAddr::new(first.ip(), 81);
            programs.expose_to_peers(1, first, TCP, &own)?;
            serve(programs, 3, second, TCP, &[parts.there])?;
            programs.expose_to_peers(3, second, TCP, &own)?;
            let mut sources = Vec::new();
            for to in [first, second] {
                let syn = frame::tcp(at(client), to, Tcp::Syn(999));
                let (verdict, from, endpoint) = run(programs, &syn)?;
                ensure!((verdict, endpoint) == (NEXT, at(here)), "verdict {verdict}: {endpoint}");
                sources.push(from);
            }
            ensure!(sources[0] == at(client) && sources[1] != sources[0], "{sources:?}");
            for (source, frontend) in sources.into_iter().zip([first, second]) {
                let answer = frame::tcp(at(here), source, Tcp::SynAck);
                let (_, out) = programs.run_on(UPLINK, Hook::ExternalEgress, &answer)?;
                let says = says(&out).context("the answer")?;
                ensure!(says == (frontend, at(client)), "{says:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn an_open_flow_stays_at_its_node_and_a_new_one_goes_where_the_table_says() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, there, here, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            let (syn, ack) = (tcp(client, to, Tcp::Syn(999)), tcp(client, to, Tcp::Ack));
            expect_sent_on(programs, "opens", &syn)?;
            expect_sent_on(programs, "asks", &udp(client, to))?;
            // The only endpoint is here now, and another one is gone.
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                let row = [(at(here), Locality::Node)];
                programs.expose_outside(index, at(to), protocol, &row)?;
            }
            expect_sent_on(programs, "goes on", &ack)?;
            expect_sent_on(programs, "goes on, too", &udp(client, to))?;
            programs.remove_member(2, at(there))?;
            let (_, _, endpoint) = run(programs, &udp(client, to))?;
            ensure!(endpoint == at(here), "a datagram goes to {endpoint}, not to one that serves");
            expect_sent_on(programs, "its node knows best", &ack)?;
            let (_, _, endpoint) = run(programs, &tcp(client, to, Tcp::Syn(5_999)))?;
            ensure!(endpoint == at(here), "another connection goes to {endpoint}");
        }
        Ok(())
    })
}

#[test]
fn a_segment_of_a_flow_that_another_node_has_opened_goes_where_that_one_sent_it() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            expect_sent_on(programs, "in the middle", &tcp(client, balancer(is_v6), Tcp::Ack))?;
        }
        Ok(())
    })
}

/// Which endpoint each port of a client gets.
fn choices(programs: &mut Programs, clients: u16) -> Result<BTreeMap<u16, SocketAddr>> {
    let (client, to) = (at(FAMILIES[0].client), at(balancer(false)));
    let mut all = BTreeMap::new();
    for port in 1..=clients {
        let from = SocketAddr::new(client.ip(), port);
        let (_, _, endpoint) = run(programs, &arriving(frame::tcp(from, to, Tcp::Syn(999))))?;
        all.insert(port, endpoint);
    }
    Ok(all)
}

#[test]
fn every_node_chooses_alike() -> Result<()> {
    let row = ["10.244.1.3:9376", "10.244.1.4:9376", "10.244.1.5:9376", "10.244.1.6:9376"];
    let choose = || {
        let mut found = BTreeMap::new();
        on_node(|programs| {
            scene(programs)?;
            let here: Vec<_> = row.iter().map(|one| (at(one), Locality::Node)).collect();
            programs.expose_outside(1, at(balancer(false)), TCP, &here)?;
            found = choices(programs, 400)?;
            Ok(())
        })?;
        anyhow::Ok(found)
    };
    let first = choose()?;
    ensure!(first == choose()?, "two nodes choose differently");
    for endpoint in row {
        let count = first.values().filter(|one| **one == at(endpoint)).count();
        ensure!((60..=140).contains(&count), "{endpoint} has {count} of 400 flows");
    }
    Ok(())
}

/// A router tells a frontend that its endpoint's answer is too large.
fn too_big(is_v6: bool, answer: &[u8], frontend: SocketAddr) -> Result<Vec<u8>> {
    let mut error = Vec::new();
    let router = if is_v6 { "2001:db8::1" } else { "192.0.2.1" };
    let packet = PacketBuilder::ethernet2(VM_MAC, NODE_MAC).ip(ip(router.parse()?, frontend.ip()));
    let quote = &answer[14..14 + ip_header(is_v6) + 8];
    if is_v6 {
        packet.icmpv6(Icmpv6Type::PacketTooBig { mtu: 1_280 }).write(&mut error, quote)?;
    } else {
        let kind = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1_280 };
        packet.icmpv4(Icmpv4Type::DestinationUnreachable(kind)).write(&mut error, quote)?;
    }
    Ok(arriving(error))
}

/// The length of an IP header, in bytes.
const fn ip_header(is_v6: bool) -> usize {
    if is_v6 { 40 } else { 20 }
}

#[test]
fn fragments_and_icmp_errors_take_the_same_way() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            let pieces =
                if is_v6 { fragments6(client, to, 1_400, 7) } else { fragments(client, to, 1_400) };
            for fragment in pieces.into_iter().map(arriving) {
                expect_sent_on(programs, "a fragment", &fragment)?;
            }
            expect_sent_on(programs, "opens", &tcp(client, to, Tcp::Syn(999)))?;
            let answer = tcp(to, client, Tcp::Ack);
            let mut error = too_big(is_v6, &answer, at(to))?;
            expect_sent_on(programs, "an error", &error)?;
            // By another node than the flow itself. The ports that are quoted are behind two IP headers and one of
            // ICMP.
            let ports = 14 + 2 * ip_header(is_v6) + 8;
            let mut elsewhere = error.clone();
            elsewhere[ports + 3] ^= 1;
            expect_sent_on(programs, "an error by the table", &elsewhere)?;
            programs.know_peer(NEIGHBOUR, NODE.into())?;
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &elsewhere)?;
            ensure!(verdict == NEXT, "a node that is not proved: verdict {verdict}");
            // About an answer of no Service.
            programs.know_peer(NEIGHBOUR, u32::from(NODE) | PROVED)?;
            error[ports + 1] ^= 1;
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &error)?;
            ensure!(verdict == NEXT, "an error about nothing of ours: verdict {verdict}");
        }
        Ok(())
    })
}

#[test]
fn source_ranges_and_the_hop_limit_hold() -> Result<()> {
    on_node(|programs| {
        scene(programs)?;
        for Parts { client, is_v6, .. } in FAMILIES {
            let to = balancer(is_v6);
            let range = if is_v6 { ("2001:db8:1::", 48) } else { ("192.0.2.0", 24) };
            programs.allow_only(at(to), TCP, (range.0.parse()?, range.1))?;
            let syn = tcp(client, to, Tcp::Syn(999));
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &syn)?;
            ensure!(verdict == DROP, "a source that may not dial: verdict {verdict}");
            let by_peer = scene::tcp(client, to, Tcp::Syn(999));
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &by_peer)?;
            ensure!(verdict == DROP, "the same by another node: verdict {verdict}");
            ensure!(programs.hops()? == 0, "{} flows", programs.hops()?);
        }
        for Parts { client, is_v6, .. } in FAMILIES {
            let mut last_hop = udp(client, balancer(is_v6));
            last_hop[if is_v6 { 21 } else { 22 }] = 1;
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &last_hop)?;
            ensure!(verdict == DROP, "on its last hop: verdict {verdict}");
        }
        Ok(())
    })
}
