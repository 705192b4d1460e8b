//! One port of a client, a frontend, and its endpoint directly: both connections work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame::{self, ACK, RST, SYN, Tcp, says, segment, wrong_checksums};
use topo_lb_tests::packets::{Hook, LOOPBACK, NEXT, Programs};

use super::fragments::fragments;
use super::scene::{A4, A6, at};

const IN: Hook = Hook::ExternalIngress;
const OUT: Hook = Hook::ExternalEgress;

/// A client, two frontends, and their endpoint on this node.
const FAMILIES: [[&str; 4]; 2] = [
    ["203.0.113.9:40000", "172.18.0.2:30080", "172.18.0.2:30081", A4],
    ["[2001:db8::9]:40000", "[fd00:18::2]:30080", "[fd00:18::2]:30081", A6],
];

/// Runs a test for each family: both frontends have the endpoint, by both protocols.
fn each(
    test: impl Fn(&mut Programs, SocketAddr, [SocketAddr; 2], SocketAddr) -> Result<()>,
) -> Result<()> {
    for [client, first, second, endpoint] in FAMILIES.map(|row| row.map(at)) {
        let mut programs = Programs::replacing()?;
        for (index, frontend) in [(1, first), (3, second)] {
            let row = [(endpoint, Locality::Node)];
            programs.expose(index, frontend, TCP, &row)?;
            programs.expose(index + 1, frontend, UDP, &row)?;
        }
        test(&mut programs, client, [first, second], endpoint)
            .with_context(|| format!("from {client}"))?;
    }
    Ok(())
}

/// What becomes of a packet: its source and destination. It passes on, and its checksums are right.
fn pass(programs: &mut Programs, hook: Hook, packet: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let (verdict, out, mark) = programs.run_marked(LOOPBACK, hook, packet)?;
    let said = says(&out)?;
    ensure!((verdict, mark) == (NEXT, 0), "verdict {verdict}, mark {mark:#x}: {said:?}");
    let wrong = wrong_checksums(&out)?;
    ensure!(wrong.is_empty(), "wrong checksums: {wrong:?}");
    Ok(said)
}

/// Checks what becomes of a packet.
fn expect(
    programs: &mut Programs,
    (what, hook): (&str, Hook),
    packet: &[u8],
    wanted: (SocketAddr, SocketAddr),
) -> Result<()> {
    let said = pass(programs, hook, packet).with_context(|| what.to_owned())?;
    ensure!(said == wanted, "{what}: {said:?}, not {wanted:?}");
    Ok(())
}

/// Checks a connection from its SYN on, and returns the source that the endpoint sees.
fn open(
    programs: &mut Programs,
    client: SocketAddr,
    to: SocketAddr,
    endpoint: SocketAddr,
) -> Result<SocketAddr> {
    let syn = frame::tcp(client, to, Tcp::Syn(999));
    let (source, there) = pass(programs, IN, &syn).context("SYN")?;
    ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
    let syn_ack = frame::tcp(endpoint, source, Tcp::SynAck);
    let syn_ack = if source == client && to == endpoint {
        syn_ack
    } else {
        // It acknowledges the SYN.
        segment((endpoint, source), SYN | ACK, 1_000, 1_000, b"")
    };
    expect(programs, ("SYN-ACK", OUT), &syn_ack, (to, client))?;
    go_on(programs, (client, source), to, endpoint)?;
    Ok(source)
}

/// Checks that an open connection goes on both ways.
fn go_on(
    programs: &mut Programs,
    (client, source): (SocketAddr, SocketAddr),
    to: SocketAddr,
    endpoint: SocketAddr,
) -> Result<()> {
    let data = segment((client, to), ACK, 1_000, 1_001, b"?");
    expect(programs, ("data", IN), &data, (source, endpoint))?;
    let answer = segment((endpoint, source), ACK, 1_001, 1_001, b"!");
    expect(programs, ("answer", OUT), &answer, (to, client))
}

#[test]
fn a_direct_connection_beside_an_open_one_through_a_frontend_gets_another_port() -> Result<()> {
    each(|programs, client, [frontend, _], endpoint| {
        let through = open(programs, client, frontend, endpoint)?;
        ensure!(through == client, "{through}");
        let direct = open(programs, client, endpoint, endpoint).context("direct")?;
        ensure!(direct.port() != client.port(), "{direct}");
        for change in [false, true] {
            go_on(programs, (client, client), frontend, endpoint).context("through")?;
            go_on(programs, (client, direct), endpoint, endpoint).context("direct")?;
            if !change {
                // Another Service changes; this one has no endpoint any more.
                programs.remove_member(1, endpoint)?;
            }
        }
        // Other clients are left alone, with SYNs and without.
        let other = SocketAddr::new(client.ip(), 40_001);
        for kind in [Tcp::Syn(1), Tcp::Ack] {
            let packet = frame::tcp(other, endpoint, kind);
            expect(programs, ("another", IN), &packet, (other, endpoint))?;
        }
        // The direct one is reset, and the other one goes on.
        let reset = segment((client, endpoint), RST, 1_001, 0, b"");
        expect(programs, ("RST", IN), &reset, (direct, endpoint))?;
        go_on(programs, (client, client), frontend, endpoint).context("after the RST")?;
        let again = open(programs, client, endpoint, endpoint).context("direct again")?;
        ensure!(again.port() != client.port(), "{again}");
        Ok(())
    })
}

#[test]
fn a_direct_connection_after_a_closed_one_is_answered_whatever_its_endpoint_remembers() -> Result<()>
{
    each(|programs, client, [frontend, _], endpoint| {
        open(programs, client, frontend, endpoint)?;
        let fin = frame::tcp(endpoint, client, Tcp::Fin);
        expect(programs, ("FIN", OUT), &fin, (frontend, client))?;
        let fin = frame::tcp(client, frontend, Tcp::Fin);
        expect(programs, ("FIN back", IN), &fin, (client, endpoint))?;
        // The endpoint is in TIME-WAIT with this port, and would answer a SYN from it by an ACK.
        let direct = open(programs, client, endpoint, endpoint).context("direct")?;
        ensure!(direct.port() != client.port(), "{direct}");
        Ok(())
    })
}

#[test]
fn a_connection_through_a_frontend_leaves_a_direct_one_open_and_takes_another_port() -> Result<()> {
    each(|programs, client, [frontend, _], endpoint| {
        // The programs do not follow the direct one.
        go_on(programs, (client, client), endpoint, endpoint).context("direct")?;
        let syn = frame::tcp(client, frontend, Tcp::Syn(5_000_000));
        expect(programs, ("SYN", IN), &syn, (client, endpoint))?;
        // The client would answer this from the frontend by a RST.
        let challenge = segment((endpoint, client), ACK, 1_002, 1_001, b"");
        expect(programs, ("challenge", OUT), &challenge, (endpoint, client))?;
        go_on(programs, (client, client), endpoint, endpoint).context("the direct one goes on")?;
        let (source, there) = pass(programs, IN, &syn).context("SYN again")?;
        ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
        ensure!(source.port() != client.port(), "the same port again");
        let syn_ack = segment((endpoint, source), SYN | ACK, 1_000, 5_000_001, b"");
        expect(programs, ("SYN-ACK", OUT), &syn_ack, (frontend, client))?;
        let ack = segment((client, frontend), ACK, 5_000_001, 1_001, b"");
        expect(programs, ("ACK", IN), &ack, (source, endpoint))?;
        go_on(programs, (client, client), endpoint, endpoint).context("direct at the end")
    })
}

#[test]
fn an_answer_to_another_syn_is_not_turned_and_a_refusal_is() -> Result<()> {
    each(|programs, client, [frontend, other], endpoint| {
        let syn = frame::tcp(client, frontend, Tcp::Syn(5_000_000));
        expect(programs, ("SYN", IN), &syn, (client, endpoint))?;
        // Of a direct SYN a moment before.
        let syn_ack = segment((endpoint, client), SYN | ACK, 1_000, 999, b"");
        expect(programs, ("SYN-ACK", OUT), &syn_ack, (endpoint, client))?;
        let reset = segment((endpoint, client), RST, 1_000, 0, b"");
        expect(programs, ("RST", OUT), &reset, (endpoint, client))?;

        let client = SocketAddr::new(client.ip(), 40_001);
        let syn = frame::tcp(client, other, Tcp::Syn(5_000_000));
        expect(programs, ("SYN", IN), &syn, (client, endpoint))?;
        let refusal = segment((endpoint, client), RST | ACK, 0, 5_000_001, b"");
        expect(programs, ("refusal", OUT), &refusal, (other, client))
    })
}

#[test]
fn a_second_frontend_of_an_endpoint_leaves_it_the_port_of_a_closed_connection() -> Result<()> {
    each(|programs, client, [first, second], endpoint| {
        open(programs, client, first, endpoint)?;
        programs.run(OUT, &frame::tcp(endpoint, client, Tcp::Fin))?;
        programs.run(IN, &frame::tcp(client, first, Tcp::Fin))?;
        let other = open(programs, client, second, endpoint)?;
        ensure!(other.port() != client.port(), "the endpoint may remember {other}");
        // The same frontend again: for the endpoint, too, this is the same client going on.
        let same = open(programs, client, first, endpoint)?;
        ensure!(same == client, "{same}");
        Ok(())
    })
}

#[test]
fn datagrams_to_a_frontend_and_to_its_endpoint_are_told_apart() -> Result<()> {
    each(|programs, client, [frontend, _], endpoint| {
        let mut sources = [client; 2];
        for round in 0..3 {
            for (place, to) in [frontend, endpoint].into_iter().enumerate() {
                let (source, there) = pass(programs, IN, &frame::udp(client, to, b"?"))?;
                ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
                ensure!(round == 0 || source == sources[place], "{source} after {sources:?}");
                sources[place] = source;
            }
            ensure!(sources[0] == client && sources[1] != client, "{sources:?}");
            // Both are answered after both were asked.
            for (place, to) in [frontend, endpoint].into_iter().enumerate() {
                let answer = frame::udp(endpoint, sources[place], b"!");
                expect(programs, ("answer", OUT), &answer, (to, client))?;
            }
        }
        // Once both are over, a direct datagram is nobody's.
        programs.age(Duration::from_secs(130))?;
        let direct = frame::udp(client, endpoint, b"?");
        expect(programs, ("direct alone", IN), &direct, (client, endpoint))?;
        let answer = frame::udp(endpoint, client, b"!");
        expect(programs, ("its answer", OUT), &answer, (endpoint, client))
    })
}

#[test]
fn guests_have_direct_connections_too() -> Result<()> {
    each(|programs, client, [frontend, _], endpoint| {
        let (inward, outward) = (Hook::Ingress, Hook::Egress);
        let syn = frame::tcp(client, frontend, Tcp::Syn(999));
        expect(programs, ("SYN", inward), &syn, (client, endpoint))?;
        let direct = frame::tcp(client, endpoint, Tcp::Syn(7));
        let (source, there) = pass(programs, inward, &direct)?;
        ensure!(there == endpoint && source.port() != client.port(), "{source} to {there}");
        let syn_ack = segment((endpoint, source), SYN | ACK, 1_000, 8, b"");
        expect(programs, ("SYN-ACK", outward), &syn_ack, (endpoint, client))?;
        let syn_ack = segment((endpoint, client), SYN | ACK, 1_000, 1_000, b"");
        expect(programs, ("of the Service", outward), &syn_ack, (frontend, client))
    })
}

#[test]
fn a_direct_datagram_in_fragments_gets_another_port_too() -> Result<()> {
    let [client, frontend, _, endpoint] = FAMILIES[0];
    let mut programs = Programs::replacing()?;
    programs.expose(2, at(frontend), UDP, &[(at(endpoint), Locality::Node)])?;
    let through = frame::udp(at(client), at(frontend), b"?");
    expect(&mut programs, ("through", IN), &through, (at(client), at(endpoint)))?;
    for (number, piece) in fragments(client, endpoint, 1_400).iter().enumerate() {
        let (verdict, out) = programs.run(IN, piece)?;
        ensure!(verdict == NEXT && out[26..34] == piece[26..34], "{number}: {verdict}, {out:02x?}");
        ensure!(number != 0 || out[34..36] != piece[34..36], "the client's own port");
    }
    Ok(())
}
