//! The tc programs, one packet at a time.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etherparse::{
    Icmpv4Type, Icmpv6Type, IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv4Options, Ipv6Header,
    PacketBuilder, SlicedPacket, TransportSlice, icmpv4, icmpv6,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::connection::{ANSWERED, is_closed};
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs, says, wrong_checksums};

const VM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

const CLIENT4: &str = "10.244.1.9:40000";
const WEB4: &str = "10.96.0.1:80";
const OTHER4: &str = "10.96.0.2:80";
const EMPTY4: &str = "10.96.0.3:80";
const A4: &str = "10.244.1.3:9376";
const B4: &str = "10.244.2.2:9376";
const CLIENT6: &str = "[fd00:244:1::9]:40000";
const WEB6: &str = "[fd00:96::1]:80";
const EMPTY6: &str = "[fd00:96::3]:80";
const A6: &str = "[fd00:244:1::3]:9376";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address in a test")
}

/// Flags of a TCP segment.
#[derive(Clone, Copy)]
enum Tcp {
    Syn(u32),
    SynAck,
    Ack,
    Fin,
    Rst,
}

fn tcp(from: &str, to: &str, kind: Tcp) -> Vec<u8> {
    let (from, to) = (at(from), at(to));
    let ip = PacketBuilder::ethernet2(VM_MAC, NODE_MAC).ip(ip(from.ip(), to.ip()));
    let number = if let Tcp::Syn(number) = kind { number } else { 1000 };
    let tcp = ip.tcp(from.port(), to.port(), number, 64_000);
    let (tcp, payload): (_, &[u8]) = match kind {
        Tcp::Syn(_) => (tcp.syn(), b""),
        Tcp::SynAck => (tcp.syn().ack(1), b""),
        Tcp::Ack => (tcp.ack(77), b"an odd number of bytes."),
        Tcp::Fin => (tcp.fin().ack(77), b""),
        Tcp::Rst => (tcp.rst(), b""),
    };
    let mut packet = Vec::new();
    tcp.write(&mut packet, payload).expect("a vector takes everything");
    packet
}

fn udp(from: &str, to: &str) -> Vec<u8> {
    let (from, to) = (at(from), at(to));
    let udp = PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
        .ip(ip(from.ip(), to.ip()))
        .udp(from.port(), to.port());
    let mut packet = Vec::new();
    udp.write(&mut packet, b"who?").expect("a vector takes everything");
    packet
}

fn ip(from: IpAddr, to: IpAddr) -> IpHeaders {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(0, 64, IpNumber(0), from.octets(), to.octets());
            IpHeaders::Ipv4(header.expect("an empty payload fits"), Default::default())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                source: from.octets(),
                destination: to.octets(),
                hop_limit: 64,
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Default::default())
        }
        _ => panic!("addresses of two families"),
    }
}

/// `web` of one endpoint over TCP and UDP, `empty` of none, in both families.
fn scene() -> Result<Programs> {
    let mut programs = Programs::load()?;
    for (index, protocol) in [(1, TCP), (2, UDP)] {
        programs.serve(index, at(WEB4), protocol, &[at(A4)])?;
        programs.serve(index, at(WEB6), protocol, &[at(A6)])?;
    }
    for (index, protocol) in [(3, TCP), (4, UDP)] {
        programs.serve(index, at(EMPTY4), protocol, &[])?;
        programs.serve(index, at(EMPTY6), protocol, &[])?;
    }
    Ok(programs)
}

/// What a packet is to become: verdict, from, to.
type Wanted<'a> = (i32, &'a str, &'a str);

fn expect(
    programs: &mut Programs,
    what: &str,
    hook: Hook,
    packet: &[u8],
    (verdict, from, to): Wanted<'_>,
) -> Result<Vec<u8>> {
    let (got, out) = programs.run(hook, packet).with_context(|| what.to_owned())?;
    ensure!(got == verdict, "{what}: verdict {got}, not {verdict}");
    let said = says(&out).with_context(|| what.to_owned())?;
    ensure!(said == (at(from), at(to)), "{what}: {said:?}, not {from} to {to}");
    let wrong = wrong_checksums(&out)?;
    ensure!(wrong.is_empty(), "{what}: wrong checksums: {wrong:?}");
    Ok(out)
}

fn expect_untouched(programs: &mut Programs, what: &str, hook: Hook, packet: &[u8]) -> Result<()> {
    let (verdict, out) = programs.run(hook, packet)?;
    ensure!(verdict == NEXT, "{what}: verdict {verdict}");
    ensure!(out == packet, "{what}: changed from {packet:02x?} to {out:02x?}");
    Ok(())
}

#[test]
fn a_connection_is_translated_each_way() -> Result<()> {
    let mut programs = scene()?;
    let families = [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)];
    for (client, web, a) in families {
        let table = [
            ("SYN", Hook::Ingress, tcp(client, web, Tcp::Syn(7)), (NEXT, client, a)),
            ("SYN again", Hook::Ingress, tcp(client, web, Tcp::Syn(7)), (NEXT, client, a)),
            ("SYN-ACK", Hook::Egress, tcp(a, client, Tcp::SynAck), (NEXT, web, client)),
            ("data", Hook::Ingress, tcp(client, web, Tcp::Ack), (NEXT, client, a)),
            ("answer", Hook::Egress, tcp(a, client, Tcp::Ack), (NEXT, web, client)),
            ("FIN", Hook::Ingress, tcp(client, web, Tcp::Fin), (NEXT, client, a)),
            ("FIN back", Hook::Egress, tcp(a, client, Tcp::Fin), (NEXT, web, client)),
            ("last ACK", Hook::Ingress, tcp(client, web, Tcp::Ack), (NEXT, client, a)),
            ("datagram", Hook::Ingress, udp(client, web), (NEXT, client, a)),
            ("its answer", Hook::Egress, udp(a, client), (NEXT, web, client)),
        ];
        for (what, hook, packet, wanted) in table {
            expect(&mut programs, what, hook, &packet, wanted)?;
        }
    }
    let totals = programs.totals(Hook::Ingress)?;
    ensure!((totals.opened, totals.translated) == (4, 12), "{totals:?}");
    Ok(())
}

#[test]
fn what_is_not_of_a_service_is_untouched() -> Result<()> {
    let mut programs = scene()?;
    let table = [
        ("another port", Hook::Ingress, tcp(CLIENT4, "10.96.0.1:81", Tcp::Syn(1))),
        ("another address", Hook::Ingress, udp(CLIENT4, "10.96.0.9:80")),
        ("a pod itself", Hook::Ingress, tcp(CLIENT4, A4, Tcp::Syn(1))),
        ("a pod's answer to that", Hook::Egress, tcp(A4, CLIENT4, Tcp::SynAck)),
        ("an answer to what never was", Hook::Egress, udp(A4, CLIENT4)),
        ("an IPv6 one", Hook::Egress, tcp(A6, CLIENT6, Tcp::Ack)),
        ("the middle of an unknown connection", Hook::Ingress, tcp(CLIENT4, WEB4, Tcp::Ack)),
        ("a RST to a Service without endpoints", Hook::Ingress, tcp(CLIENT4, EMPTY4, Tcp::Rst)),
    ];
    for (what, hook, packet) in table {
        expect_untouched(&mut programs, what, hook, &packet)?;
    }
    let mut echo = Vec::new();
    PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
        .ip(ip(at(CLIENT4).ip(), at(WEB4).ip()))
        .icmpv4_echo_request(1, 1)
        .write(&mut echo, b"ping")?;
    expect_untouched(&mut programs, "a ping of a ClusterIP", Hook::Ingress, &echo)?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    ensure!(programs.totals(Hook::Ingress)?.unknown == 2, "{:?}", programs.totals(Hook::Ingress)?);
    Ok(())
}

#[test]
fn only_packets_of_endpoints_with_connections_are_looked_up() -> Result<()> {
    let mut programs = scene()?;
    let answer = tcp(A4, CLIENT4, Tcp::SynAck);
    let syn = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    let translated = (NEXT, WEB4, CLIENT4);
    expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    expect(&mut programs, "marked", Hook::Egress, &answer, translated)?;
    programs.unmark(at(A4))?;
    expect_untouched(&mut programs, "no mark", Hook::Egress, &answer)?;
    // So it is until an agent has marked what was opened before it came.
    programs.rely_on_marks(false)?;
    expect(&mut programs, "before", Hook::Egress, &answer, translated)?;
    Ok(())
}

#[test]
fn a_service_without_endpoints_answers_a_syn_with_a_rst() -> Result<()> {
    let mut programs = scene()?;
    for (client, empty) in [(CLIENT4, EMPTY4), (CLIENT6, EMPTY6)] {
        let packet = tcp(client, empty, Tcp::Syn(41));
        let out = expect(&mut programs, "RST", Hook::Ingress, &packet, (BACK, empty, client))?;
        let sliced = SlicedPacket::from_ethernet(&out)?;
        let Some(TransportSlice::Tcp(rst)) = sliced.transport else { panic!("no TCP") };
        ensure!(rst.rst() && rst.ack() && !rst.syn(), "{rst:?}");
        ensure!((rst.sequence_number(), rst.acknowledgment_number()) == (0, 42), "{rst:?}");
        ensure!(out[..6] == VM_MAC && out[6..12] == NODE_MAC, "sent to {:x?}", &out[..12]);
    }
    Ok(())
}

#[test]
fn a_service_without_endpoints_answers_a_datagram_with_port_unreachable() -> Result<()> {
    let mut programs = scene()?;
    let packet = udp(CLIENT4, EMPTY4);
    let wanted = (BACK, "10.96.0.3:0", "10.244.1.9:0");
    let out = expect(&mut programs, "ICMP", Hook::Ingress, &packet, wanted)?;
    let sliced = SlicedPacket::from_ethernet(&out)?;
    let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else { panic!("no ICMP") };
    let port = icmpv4::DestUnreachableHeader::Port;
    ensure!(icmp.icmp_type() == Icmpv4Type::DestinationUnreachable(port), "{icmp:?}");
    ensure!(icmp.payload() == &packet[14..14 + 28], "quoted {:x?}", icmp.payload());
    let packet = udp(CLIENT6, EMPTY6);
    let wanted = (BACK, "[fd00:96::3]:0", "[fd00:244:1::9]:0");
    let out = expect(&mut programs, "ICMPv6", Hook::Ingress, &packet, wanted)?;
    let sliced = SlicedPacket::from_ethernet(&out)?;
    let Some(TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!("no ICMPv6") };
    let port = icmpv6::DestUnreachableCode::Port;
    ensure!(icmp.icmp_type() == Icmpv6Type::DestinationUnreachable(port), "{icmp:?}");
    ensure!(icmp.payload() == &packet[14..14 + 48], "quoted {:x?}", icmp.payload());
    Ok(())
}

#[test]
fn refusals_are_limited() -> Result<()> {
    let mut programs = scene()?;
    let mut answered = 0;
    for number in 0..2_000 {
        let (verdict, _) = programs.run(Hook::Ingress, &tcp(CLIENT4, EMPTY4, Tcp::Syn(number)))?;
        ensure!(verdict == BACK || verdict == DROP, "verdict {verdict}");
        answered += u64::from(verdict == BACK);
    }
    let totals = programs.totals(Hook::Ingress)?;
    ensure!(totals.refused == answered && totals.unanswered == 2_000 - answered, "{totals:?}");
    ensure!((500..2_000).contains(&answered), "{answered} answered at once");
    Ok(())
}

#[test]
fn a_client_that_is_its_own_endpoint_hears_the_service() -> Result<()> {
    let mut programs = scene()?;
    let client = "10.244.1.3:40000";
    let from_service = "10.96.0.1:40000";
    let table = [
        ("SYN", tcp(client, WEB4, Tcp::Syn(7)), (BACK, from_service, A4)),
        ("SYN-ACK", tcp(A4, from_service, Tcp::SynAck), (BACK, WEB4, client)),
        ("data", tcp(client, WEB4, Tcp::Ack), (BACK, from_service, A4)),
        ("answer", tcp(A4, from_service, Tcp::Ack), (BACK, WEB4, client)),
    ];
    for (what, packet, wanted) in table {
        let out = expect(&mut programs, what, Hook::Ingress, &packet, wanted)?;
        ensure!(out[..6] == VM_MAC, "{what}: sent to {:x?}", &out[..6]);
        expect_untouched(&mut programs, what, Hook::Egress, &out)?;
    }
    Ok(())
}

#[test]
fn a_new_syn_chooses_anew_and_the_old_endpoint_speaks_no_more() -> Result<()> {
    let mut programs = scene()?;
    let syn = |number| tcp(CLIENT4, WEB4, Tcp::Syn(number));
    expect(&mut programs, "SYN", Hook::Ingress, &syn(1), (NEXT, CLIENT4, A4))?;
    expect(
        &mut programs,
        "SYN-ACK",
        Hook::Egress,
        &tcp(A4, CLIENT4, Tcp::SynAck),
        (NEXT, WEB4, CLIENT4),
    )?;
    programs.serve(1, at(WEB4), TCP, &[at(B4)])?;
    // The endpoint serves still, and the connection stays with it.
    expect(
        &mut programs,
        "data",
        Hook::Ingress,
        &tcp(CLIENT4, WEB4, Tcp::Ack),
        (NEXT, CLIENT4, A4),
    )?;
    expect(&mut programs, "another SYN", Hook::Ingress, &syn(2), (NEXT, CLIENT4, B4))?;
    expect_untouched(&mut programs, "the old one", Hook::Egress, &tcp(A4, CLIENT4, Tcp::Ack))?;
    ensure!(programs.connections4()?.len() == 2, "{:?}", programs.connections4()?);
    Ok(())
}

#[test]
fn datagrams_leave_an_endpoint_that_is_gone_and_no_other() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "first", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.serve(2, at(WEB4), UDP, &[at(B4)])?;
    expect(&mut programs, "serves", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.remove_member(2, at(A4))?;
    expect(&mut programs, "gone", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, B4))?;
    Ok(())
}

#[test]
fn a_connection_whose_endpoint_is_gone_and_silent_is_reset() -> Result<()> {
    let mut programs = scene()?;
    let (syn, data) = (tcp(CLIENT4, WEB4, Tcp::Syn(1)), tcp(CLIENT4, WEB4, Tcp::Ack));
    let (syn_ack, answer) = (tcp(A4, CLIENT4, Tcp::SynAck), tcp(A4, CLIENT4, Tcp::Ack));
    expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    expect(&mut programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, WEB4, CLIENT4))?;
    programs.remove_member(1, at(A4))?;
    expect(&mut programs, "still speaks", Hook::Ingress, &data, (NEXT, CLIENT4, A4))?;
    programs.age4(Duration::from_secs(40))?;
    expect(&mut programs, "has answered", Hook::Egress, &answer, (NEXT, WEB4, CLIENT4))?;
    expect(&mut programs, "goes on", Hook::Ingress, &data, (NEXT, CLIENT4, A4))?;
    programs.age4(Duration::from_secs(40))?;
    let out = expect(&mut programs, "is silent", Hook::Ingress, &data, (BACK, WEB4, CLIENT4))?;
    let sliced = SlicedPacket::from_ethernet(&out)?;
    let Some(TransportSlice::Tcp(rst)) = sliced.transport else { panic!("no TCP") };
    ensure!(rst.rst() && rst.sequence_number() == 77, "{rst:?}");
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    Ok(())
}

#[test]
fn two_services_with_one_endpoint_are_told_apart() -> Result<()> {
    let mut programs = scene()?;
    programs.serve(9, at(OTHER4), TCP, &[at(A4)])?;
    let (web, other) = (tcp(CLIENT4, WEB4, Tcp::Syn(1)), tcp(CLIENT4, OTHER4, Tcp::Syn(2)));
    expect(&mut programs, "web", Hook::Ingress, &web, (NEXT, CLIENT4, A4))?;
    let (verdict, out) = programs.run(Hook::Ingress, &other)?;
    let (from, to) = says(&out)?;
    ensure!(verdict == NEXT && to == at(A4), "{verdict}: {from} to {to}");
    ensure!(from.ip() == at(CLIENT4).ip() && from.port() != 40_000, "{from}");
    ensure!(wrong_checksums(&out)?.is_empty(), "{:?}", wrong_checksums(&out)?);
    let answers = [(CLIENT4.to_owned(), WEB4), (from.to_string(), OTHER4)];
    for (client, service) in answers {
        let answer = tcp(A4, &client, Tcp::SynAck);
        expect(&mut programs, service, Hook::Egress, &answer, (NEXT, service, CLIENT4))?;
    }
    Ok(())
}

#[test]
fn the_state_of_a_connection_is_followed_on_both_entries() -> Result<()> {
    let mut programs = scene()?;
    let states = |programs: &Programs| -> Result<Vec<u8>> {
        Ok(programs.connections4()?.iter().map(|(_, connection)| connection.state).collect())
    };
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Syn(1)))?;
    ensure!(states(&programs)? == [0, 0], "{:?}", states(&programs)?);
    programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::SynAck))?;
    ensure!(states(&programs)? == [ANSWERED; 2], "{:?}", states(&programs)?);
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Fin))?;
    programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::Fin))?;
    ensure!(states(&programs)?.iter().all(|state| is_closed(*state)), "{:?}", states(&programs)?);
    // A connection of the client with the endpoint itself, from the same port.
    expect_untouched(&mut programs, "direct", Hook::Egress, &tcp(A4, CLIENT4, Tcp::SynAck))?;
    // What follows is not of the connection that is over, either.
    expect_untouched(&mut programs, "direct", Hook::Egress, &tcp(A4, CLIENT4, Tcp::Ack))?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    Ok(())
}

/// A datagram in fragments: the transport header is in the first.
fn fragments(from: &str, to: &str, payload: usize) -> Vec<Vec<u8>> {
    let whole = {
        let (from, to) = (at(from), at(to));
        let mut packet = Vec::new();
        PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
            .ip(ip(from.ip(), to.ip()))
            .udp(from.port(), to.port())
            .write(&mut packet, &vec![b'x'; payload])
            .expect("a vector takes everything");
        packet
    };
    let body = &whole[34..];
    let (header, _) = Ipv4Header::from_slice(&whole[14..]).expect("a header");
    let pieces: Vec<&[u8]> = body.chunks(512).collect();
    let last = pieces.len() - 1;
    let cut = pieces.iter().enumerate().map(|(place, piece)| {
        let mut header = header.clone();
        header.identification = 4711;
        header.dont_fragment = false;
        header.more_fragments = place != last;
        header.fragment_offset = IpFragOffset::try_new(place as u16 * 64).expect("a small offset");
        header.total_len = 20 + piece.len() as u16;
        header.header_checksum = header.calc_header_checksum();
        let mut packet = whole[..14].to_vec();
        packet.extend_from_slice(&header.to_bytes());
        packet.extend_from_slice(piece);
        packet
    });
    cut.collect()
}

#[test]
fn later_fragments_follow_the_first() -> Result<()> {
    let mut programs = scene()?;
    let pieces = fragments(CLIENT4, WEB4, 1400);
    expect_untouched(&mut programs, "without its first", Hook::Ingress, &pieces[1])?;
    let mut body = Vec::new();
    for piece in &pieces {
        let (verdict, out) = programs.run(Hook::Ingress, piece)?;
        ensure!(verdict == NEXT && out.len() == piece.len(), "{verdict}");
        let (header, _) = Ipv4Header::from_slice(&out[14..])?;
        ensure!(IpAddr::from(header.destination) == at(A4).ip(), "{header:?}");
        ensure!(header.header_checksum == header.calc_header_checksum(), "{header:?}");
        body.extend_from_slice(&out[34..]);
    }
    // Put together again, the datagram has a checksum that is right.
    let mut whole = udp(CLIENT4, A4)[..14].to_vec();
    let (a, client) = (at(A4).ip(), at(CLIENT4).ip());
    let (IpAddr::V4(a), IpAddr::V4(client)) = (a, client) else { panic!("IPv4") };
    let header =
        Ipv4Header::new(body.len() as u16, 64, IpNumber::UDP, client.octets(), a.octets())?;
    whole.extend_from_slice(&header.to_bytes());
    whole.extend_from_slice(&body);
    ensure!(says(&whole)? == (at(CLIENT4), at(A4)), "{:?}", says(&whole)?);
    let wrong = wrong_checksums(&whole)?;
    ensure!(!wrong.contains(&"UDP"), "{wrong:?}");
    Ok(())
}

/// A datagram as IPv6 packets of 512 bytes each: how the last of them may be, all of it.
fn fragments6(from: &str, to: &str, payload: usize, identification: u32) -> Vec<Vec<u8>> {
    let whole = {
        let (from, to) = (at(from), at(to));
        let mut packet = Vec::new();
        PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
            .ip(ip(from.ip(), to.ip()))
            .udp(from.port(), to.port())
            .write(&mut packet, &vec![b'x'; payload])
            .expect("a vector takes everything");
        packet
    };
    let pieces: Vec<&[u8]> = whole[54..].chunks(512).collect();
    let last = pieces.len() - 1;
    let cut = pieces.iter().enumerate().map(|(place, piece)| {
        let mut packet = whole[..54].to_vec();
        packet[18..20].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
        packet[20] = 44;
        packet.extend_from_slice(&[17, 0]);
        // Offset in units of eight bytes, and whether more follow.
        let offset = (place as u16 * 64) << 3 | u16::from(place != last);
        packet.extend_from_slice(&offset.to_be_bytes());
        packet.extend_from_slice(&identification.to_be_bytes());
        packet.extend_from_slice(piece);
        packet
    });
    cut.collect()
}

/// Addresses of an IPv6 packet behind Ethernet.
fn addresses6(packet: &[u8]) -> (IpAddr, IpAddr) {
    let address = |from: usize| {
        let bytes: [u8; 16] = packet[from..from + 16].try_into().expect("sixteen bytes");
        IpAddr::from(bytes)
    };
    (address(22), address(38))
}

#[test]
fn ipv6_fragments_follow_the_first_each_way() -> Result<()> {
    let mut programs = scene()?;
    let (client, web, a) = (at(CLIENT6).ip(), at(WEB6).ip(), at(A6).ip());
    let asked = fragments6(CLIENT6, WEB6, 1400, 7);
    let answered = fragments6(A6, CLIENT6, 1400, 7);
    expect_untouched(&mut programs, "without its first", Hook::Ingress, &asked[1])?;
    expect_untouched(&mut programs, "without its first", Hook::Egress, &answered[1])?;
    for (hook, pieces, wanted) in
        [(Hook::Ingress, &asked, (client, a)), (Hook::Egress, &answered, (web, client))]
    {
        let mut body = Vec::new();
        for piece in pieces {
            let (verdict, out) = programs.run(hook, piece)?;
            ensure!(verdict == NEXT && out.len() == piece.len(), "{hook:?}: {verdict}");
            ensure!(addresses6(&out) == wanted, "{hook:?}: {:?}", addresses6(&out));
            // The fragment header stays as it was.
            ensure!(out[54..62] == piece[54..62], "{hook:?}: {:02x?}", &out[54..62]);
            body.extend_from_slice(&out[62..]);
        }
        let mut whole = pieces[0][..54].to_vec();
        let (_, out) = programs.run(hook, &pieces[0])?;
        whole[22..54].copy_from_slice(&out[22..54]);
        whole[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
        whole[20] = 17;
        whole.extend_from_slice(&body);
        let wrong = wrong_checksums(&whole)?;
        ensure!(wrong.is_empty(), "{hook:?}: put together again, {wrong:?} are wrong");
    }
    // Another datagram's fragments are not its.
    let other = fragments6(CLIENT6, WEB6, 1400, 8);
    expect_untouched(&mut programs, "another datagram's", Hook::Ingress, &other[1])?;
    Ok(())
}

#[test]
fn a_fragment_that_is_all_of_its_datagram_is_translated_and_not_remembered() -> Result<()> {
    let mut programs = scene()?;
    let pieces = fragments6(CLIENT6, WEB6, 100, 9);
    ensure!(pieces.len() == 1);
    let wanted = (NEXT, CLIENT6, A6);
    expect(&mut programs, "RFC 6946", Hook::Ingress, &pieces[0], wanted)?;
    let later = &fragments6(CLIENT6, WEB6, 1400, 9)[1];
    expect_untouched(&mut programs, "one with its number", Hook::Ingress, later)
}

#[test]
fn fragments_of_answers_follow_the_first() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "asks", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    for piece in fragments(A4, CLIENT4, 1400) {
        let (verdict, out) = programs.run(Hook::Egress, &piece)?;
        let (header, _) = Ipv4Header::from_slice(&out[14..])?;
        ensure!(verdict == NEXT && IpAddr::from(header.source) == at(WEB4).ip(), "{header:?}");
        ensure!(header.header_checksum == header.calc_header_checksum(), "{header:?}");
    }
    Ok(())
}

#[test]
fn a_datagram_that_is_not_ours_takes_its_fragments_along() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "asks", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.run(Hook::Egress, &fragments(A4, CLIENT4, 1400)[0])?;
    // Another one between the same hosts, to a port that asked no Service, with the same number.
    for piece in fragments("10.244.1.3:53", "10.244.1.9:41000", 1400) {
        expect_untouched(&mut programs, "direct", Hook::Egress, &piece)?;
    }
    // And towards the Service's address, to a port that is none of its.
    programs.run(Hook::Ingress, &fragments(CLIENT4, WEB4, 1400)[0])?;
    for piece in fragments("10.244.1.9:41000", "10.96.0.1:53", 1400) {
        expect_untouched(&mut programs, "no Service", Hook::Ingress, &piece)?;
    }
    programs.run(Hook::Egress, &fragments6(A6, CLIENT6, 1400, 5)[0])?;
    for piece in fragments6("[fd00:244:1::3]:53", "[fd00:244:1::9]:41000", 1400, 5) {
        expect_untouched(&mut programs, "direct, IPv6", Hook::Egress, &piece)?;
    }
    Ok(())
}

#[test]
fn fragments_too_small_for_a_header_and_extensions_without_end_are_untouched() -> Result<()> {
    let mut programs = scene()?;
    // RFC 1858: a first fragment that ends within TCP's header.
    let mut tiny = tcp(CLIENT4, WEB4, Tcp::Syn(1))[..14 + 20 + 8].to_vec();
    tiny[16..18].copy_from_slice(&28_u16.to_be_bytes());
    tiny[20] = 0x20;
    let (header, _) = Ipv4Header::from_slice(&tiny[14..])?;
    tiny[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    expect_untouched(&mut programs, "a tiny fragment", Hook::Ingress, &tiny)?;
    let plain = udp(CLIENT6, WEB6);
    for (what, count) in [("as many as are read", 6), ("too many", 7), ("far too many", 100)] {
        let mut packet = plain[..54].to_vec();
        packet[20] = 60;
        for place in 0..count {
            let next = if place + 1 == count { 17 } else { 60 };
            packet.extend_from_slice(&[next, 0, 1, 4, 0, 0, 0, 0]);
        }
        packet.extend_from_slice(&plain[54..]);
        let length = (packet.len() - 54) as u16;
        packet[18..20].copy_from_slice(&length.to_be_bytes());
        expect_untouched(&mut programs, what, Hook::Egress, &packet)?;
        if count < 6 {
            expect(&mut programs, what, Hook::Ingress, &packet, (NEXT, CLIENT6, A6))?;
        } else {
            expect_untouched(&mut programs, what, Hook::Ingress, &packet)?;
        }
    }
    // An extension header that says that it goes on behind the packet.
    let mut long = plain[..54].to_vec();
    long[20] = 60;
    long.extend_from_slice(&[17, 255, 1, 4, 0, 0, 0, 0]);
    long.extend_from_slice(&plain[54..]);
    let length = (long.len() - 54) as u16;
    long[18..20].copy_from_slice(&length.to_be_bytes());
    expect_untouched(&mut programs, "an endless one", Hook::Ingress, &long)
}

#[test]
fn ip_options_to_the_limit_are_passed_over() -> Result<()> {
    let mut programs = scene()?;
    for words in [1, 5, 10] {
        let IpHeaders::Ipv4(mut header, extensions) = ip(at(CLIENT4).ip(), at(WEB4).ip()) else {
            panic!("IPv4")
        };
        header.options = Ipv4Options::try_from(vec![1; words * 4].as_slice())?;
        let mut packet = Vec::new();
        PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
            .ip(IpHeaders::Ipv4(header, extensions))
            .udp(40_000, 80)
            .write(&mut packet, b"who?")?;
        let what = format!("{words} words of options");
        expect(&mut programs, &what, Hook::Ingress, &packet, (NEXT, CLIENT4, A4))?;
    }
    Ok(())
}

#[test]
fn ipv6_extension_headers_are_passed_over() -> Result<()> {
    let mut programs = scene()?;
    let plain = udp(CLIENT6, WEB6);
    // Hop-by-hop, then destination options, each of padding only.
    let mut packet = plain[..54].to_vec();
    packet[20] = 0;
    packet.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend_from_slice(&[17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend_from_slice(&plain[54..]);
    let length = (packet.len() - 54) as u16;
    packet[18..20].copy_from_slice(&length.to_be_bytes());
    expect(&mut programs, "extensions", Hook::Ingress, &packet, (NEXT, CLIENT6, A6))?;
    Ok(())
}

#[test]
fn an_icmp_error_is_told_in_the_client_s_words() -> Result<()> {
    let mut programs = scene()?;
    let opened =
        expect(&mut programs, "opens", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    for (teller, told) in [("192.0.2.1:0", "192.0.2.1:0"), ("10.244.1.3:0", "10.96.0.1:0")] {
        let mut error = Vec::new();
        let next_hop_mtu = 1280;
        let too_big = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
        PacketBuilder::ethernet2(NODE_MAC, VM_MAC)
            .ip(ip(at(teller).ip(), at(CLIENT4).ip()))
            .icmpv4(Icmpv4Type::DestinationUnreachable(too_big))
            .write(&mut error, &opened[14..])?;
        let out =
            expect(&mut programs, teller, Hook::Egress, &error, (NEXT, told, "10.244.1.9:0"))?;
        // The quote, behind a new Ethernet header, is the packet that the client has sent.
        let mut quoted = opened[..14].to_vec();
        quoted.extend_from_slice(&out[14 + 28..]);
        ensure!(says(&quoted)? == (at(CLIENT4), at(WEB4)), "{:?}", says(&quoted)?);
        ensure!(wrong_checksums(&quoted)?.is_empty(), "{:?}", wrong_checksums(&quoted)?);
        ensure!(quoted[14..] == udp(CLIENT4, WEB4)[14..], "{quoted:02x?}");
    }
    // What the client has to say of an answer reaches the endpoint in the endpoint's words.
    let answer = udp(A4, CLIENT4);
    let answer = expect(&mut programs, "answer", Hook::Egress, &answer, (NEXT, WEB4, CLIENT4))?;
    let mut error = Vec::new();
    let port = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
    PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
        .ip(ip(at(CLIENT4).ip(), at(WEB4).ip()))
        .icmpv4(port)
        .write(&mut error, &answer[14..14 + 28])?;
    let wanted = (NEXT, "10.244.1.9:0", "10.244.1.3:0");
    let out = expect(&mut programs, "client's error", Hook::Ingress, &error, wanted)?;
    let (inner, rest) = Ipv4Header::from_slice(&out[42..])?;
    ensure!(IpAddr::from(inner.source) == at(A4).ip(), "{inner:?}");
    ensure!(inner.header_checksum == inner.calc_header_checksum(), "{inner:?}");
    ensure!(rest[..2] == 9376_u16.to_be_bytes(), "{rest:02x?}");
    Ok(())
}

#[test]
fn an_icmp_error_may_quote_no_more_than_ports_and_what_is_behind_it_is_nothing() -> Result<()> {
    let mut programs = scene()?;
    let syn = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    let opened = expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    let port = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
    // Of what was sent: headers, then as much of TCP as RFC 792 wants, then less and less.
    for (quoted, told) in [(40, true), (28, true), (24, true), (23, false), (20, false), (8, false)]
    {
        for trailer in [0, 40] {
            let what = format!("{quoted} bytes quoted, {trailer} behind");
            let mut error = Vec::new();
            PacketBuilder::ethernet2(NODE_MAC, VM_MAC)
                .ip(ip(at("192.0.2.1:0").ip(), at(CLIENT4).ip()))
                .icmpv4(port.clone())
                .write(&mut error, &opened[14..14 + quoted])?;
            let end = error.len();
            error.resize(end + trailer, 0xab);
            if !told {
                expect_untouched(&mut programs, &what, Hook::Egress, &error)?;
                continue;
            }
            let wanted = (NEXT, "192.0.2.1:0", "10.244.1.9:0");
            let out = expect(&mut programs, &what, Hook::Egress, &error, wanted)?;
            ensure!(out[42..end] == syn[14..14 + quoted], "{what}: {:02x?}", &out[42..]);
            ensure!(out[end..] == error[end..], "{what}: {:02x?}", &out[end..]);
        }
    }
    Ok(())
}

#[test]
fn an_icmp_error_about_what_is_over_is_untouched() -> Result<()> {
    let mut programs = scene()?;
    let asked = udp(CLIENT4, WEB4);
    let opened = expect(&mut programs, "asks", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
    programs.age4(Duration::from_secs(40))?;
    let port = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
    let mut error = Vec::new();
    PacketBuilder::ethernet2(NODE_MAC, VM_MAC)
        .ip(ip(at(A4).ip(), at(CLIENT4).ip()))
        .icmpv4(port)
        .write(&mut error, &opened[14..])?;
    // By now the client may have asked the endpoint itself, from the same port.
    expect_untouched(&mut programs, "late", Hook::Egress, &error)
}

#[test]
fn datagrams_of_one_way_keep_the_other_way_too() -> Result<()> {
    let mut programs = scene()?;
    let (asked, answered) = (udp(CLIENT4, WEB4), udp(A4, CLIENT4));
    for _ in 0..5 {
        expect(&mut programs, "asks", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
        programs.age4(Duration::from_secs(20))?;
    }
    expect(&mut programs, "answers late", Hook::Egress, &answered, (NEXT, WEB4, CLIENT4))?;
    programs.serve(2, at(WEB4), UDP, &[at(A4), at(B4)])?;
    for _ in 0..5 {
        programs.age4(Duration::from_secs(100))?;
        expect(&mut programs, "goes on", Hook::Egress, &answered, (NEXT, WEB4, CLIENT4))?;
    }
    expect(&mut programs, "the same one", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
    // Silence of both ends it.
    programs.age4(Duration::from_secs(130))?;
    expect_untouched(&mut programs, "too late", Hook::Egress, &answered)
}

#[test]
fn an_icmpv6_error_is_told_in_the_client_s_words() -> Result<()> {
    let mut programs = scene()?;
    let opened =
        expect(&mut programs, "opens", Hook::Ingress, &udp(CLIENT6, WEB6), (NEXT, CLIENT6, A6))?;
    for (teller, told) in [("[fd00::1]:0", "[fd00::1]:0"), ("[fd00:244:1::3]:0", "[fd00:96::1]:0")]
    {
        let mut error = Vec::new();
        PacketBuilder::ethernet2(NODE_MAC, VM_MAC)
            .ip(ip(at(teller).ip(), at(CLIENT6).ip()))
            .icmpv6(Icmpv6Type::PacketTooBig { mtu: 1280 })
            .write(&mut error, &opened[14..])?;
        let wanted = (NEXT, told, "[fd00:244:1::9]:0");
        let out = expect(&mut programs, teller, Hook::Egress, &error, wanted)?;
        ensure!(out[14 + 48..] == udp(CLIENT6, WEB6)[14..], "{out:02x?}");
    }
    Ok(())
}

#[test]
fn a_wrong_checksum_stays_wrong() -> Result<()> {
    let mut programs = scene()?;
    for (client, web, place, name) in
        [(CLIENT4, WEB4, 24, "IPv4"), (CLIENT4, WEB4, 40, "UDP"), (CLIENT6, WEB6, 60, "UDP")]
    {
        let mut packet = udp(client, web);
        packet[place] ^= 0x55;
        ensure!(wrong_checksums(&packet)? == [name]);
        let (verdict, out) = programs.run(Hook::Ingress, &packet)?;
        ensure!(verdict == NEXT, "{name}: verdict {verdict}");
        ensure!(wrong_checksums(&out)? == [name], "{name}: {:?}", wrong_checksums(&out)?);
    }
    // A datagram without a checksum still has none.
    let mut packet = udp(CLIENT4, WEB4);
    packet[40..42].fill(0);
    let (_, out) = programs.run(Hook::Ingress, &packet)?;
    ensure!(out[40..42] == [0, 0] && says(&out)?.1 == at(A4), "{out:02x?}");
    // Over IPv6 it may have none where it is a tunnel (RFC 6935).
    let mut packet = udp(CLIENT6, WEB6);
    packet[60..62].fill(0);
    let (_, out) = programs.run(Hook::Ingress, &packet)?;
    ensure!(out[60..62] == [0, 0] && says(&out)?.1 == at(A6), "{out:02x?}");
    // One that would become zero becomes the other zero.
    for number in 0..=u16::MAX {
        let mut packet = udp(CLIENT4, WEB4);
        packet[42..44].copy_from_slice(&number.to_be_bytes());
        packet[40..42].fill(0);
        let (headers, payload) = {
            let sliced = etherparse::PacketHeaders::from_ethernet_slice(&packet)?;
            ((sliced.net, sliced.transport), sliced.payload.slice().to_vec())
        };
        let (Some(etherparse::NetHeaders::Ipv4(ip, _)), Some(transport)) = headers else {
            panic!("UDP over IPv4")
        };
        let checksum = transport.udp().expect("UDP").calc_checksum_ipv4(&ip, &payload)?;
        // The sum of A's address and port instead of the Service's, in ones' complement.
        packet[40..42].copy_from_slice(&checksum.to_be_bytes());
        let (_, out) = programs.run(Hook::Ingress, &packet)?;
        ensure!(out[40..42] != [0, 0], "{number}: a datagram lost its checksum");
        if out[40..42] == [0xff, 0xff] {
            ensure!(wrong_checksums(&out)?.is_empty(), "{number}: {:?}", wrong_checksums(&out)?);
            return Ok(());
        }
    }
    panic!("no payload made the checksum zero")
}

#[test]
fn headers_that_end_too_early_or_contradict_themselves_are_untouched() -> Result<()> {
    let mut programs = scene()?;
    let (whole, six) = (udp(CLIENT4, WEB4), udp(CLIENT6, WEB6));
    // Newer kernels do not run what ends within its IP header: it cannot get to a hook.
    for length in 34..whole.len() {
        expect_untouched(
            &mut programs,
            &format!("{length} bytes"),
            Hook::Ingress,
            &whole[..length],
        )?;
    }
    for length in 54..six.len() {
        expect_untouched(&mut programs, &format!("{length} bytes"), Hook::Ingress, &six[..length])?;
    }
    let with = |place: usize, byte: u8| {
        let mut packet = whole.clone();
        packet[place] = byte;
        packet
    };
    let table = [
        ("version 5", with(14, 0x55)),
        ("a header of 16 bytes", with(14, 0x44)),
        ("longer than it is", with(17, 200)),
        ("shorter than its header", with(17, 12)),
        ("UDP longer than its packet", with(39, 200)),
        ("UDP shorter than its header", with(39, 7)),
    ];
    for (what, packet) in table {
        expect_untouched(&mut programs, what, Hook::Ingress, &packet)?;
    }
    let mut short = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    short[46] = 0x40;
    expect_untouched(&mut programs, "a TCP header of 16 bytes", Hook::Ingress, &short)?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    ensure!(
        programs.totals(Hook::Ingress)?.malformed == 31,
        "{:?}",
        programs.totals(Hook::Ingress)?
    );
    Ok(())
}

#[test]
fn random_bytes_that_are_not_to_a_service_are_never_changed() -> Result<()> {
    let programs = std::cell::RefCell::new(scene()?);
    let strategy = (
        any::<bool>(),
        any::<bool>(),
        proptest::collection::vec(any::<u8>(), 0..200),
        any::<[u8; 4]>(),
    );
    let mut runner = TestRunner::new(Config { cases: 4_000, ..Config::default() });
    runner.run(&strategy, |(is_six, shaped, mut bytes, address)| {
        // Half of them look like IP, so that what is random is what comes behind.
        if shaped && bytes.len() >= 40 {
            bytes[0] = if is_six { 0x60 } else { 0x45 + (bytes[0] & 3) };
            let length = bytes.len() as u16 - if is_six { 40 } else { 0 };
            let place = if is_six { 4 } else { 2 };
            bytes[place..place + 2].copy_from_slice(&length.to_be_bytes());
            bytes[if is_six { 6 } else { 9 }] = [1, 6, 17, 58, 0, 44][usize::from(address[0] % 6)];
        }
        // Not to a Service: no address of the ranges.
        if bytes.len() >= 20 && !is_six {
            bytes[16] = 172;
        }
        if bytes.len() >= 40 && is_six {
            bytes[24] = 0x20;
        }
        let ether_type: [u8; 2] = if is_six { [0x86, 0xdd] } else { [8, 0] };
        let mut packet = [VM_MAC, NODE_MAC].concat();
        packet.extend_from_slice(&ether_type);
        packet.extend_from_slice(&bytes);
        for hook in [Hook::Ingress, Hook::Egress] {
            // The kernel itself refuses to run what is shorter than an IP header says it is.
            let Ok((verdict, out)) = programs.borrow_mut().run(hook, &packet) else { continue };
            prop_assert_eq!(verdict, NEXT);
            prop_assert_eq!(&out, &packet);
        }
        Ok(())
    })?;
    Ok(())
}
