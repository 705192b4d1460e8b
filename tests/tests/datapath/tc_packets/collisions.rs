//! One port of a client, a frontend, and its endpoint directly: both connections work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame::{self, ACK, RST, SYN, Tcp, says, segment, wrong_checksums};
use topo_lb_tests::packets::{Hook, LOOPBACK, NEXT, Programs};

use super::fragments::fragments;
use super::scene::{A4, A6, CLIENT4, CLIENT6, at};

/// A client, two frontends, and their endpoint on this node.
const OUTSIDE: [[&str; 4]; 2] = [
    ["203.0.113.9:40000", "172.18.0.2:30080", "172.18.0.2:30081", A4],
    ["[2001:db8::9]:40000", "[fd00:18::2]:30080", "[fd00:18::2]:30081", A6],
];
/// A guest, two ClusterIPs, and their endpoint.
const GUESTS: [[&str; 4]; 2] = [
    [CLIENT4, "10.96.0.1:80", "10.96.0.2:80", A4],
    [CLIENT6, "[fd00:96::1]:80", "[fd00:96::2]:80", A6],
];

/// A direction: of the client, or of its endpoint.
const IN: usize = 0;
const OUT: usize = 1;

/// Where clients are, and which frontends the programs serve.
#[derive(Clone, Copy, Debug)]
enum Clients {
    /// Outside; all frontends.
    Outside,
    /// Guests, where programs serve all frontends.
    GuestsOfAll,
    /// Guests, where programs serve ClusterIPs alone.
    GuestsOfClusterIps,
}

impl Clients {
    const EACH: [Self; 3] = [Self::Outside, Self::GuestsOfAll, Self::GuestsOfClusterIps];

    fn families(self) -> [[SocketAddr; 4]; 2] {
        let rows = if matches!(self, Self::Outside) { OUTSIDE } else { GUESTS };
        rows.map(|row| row.map(at))
    }

    fn hook(self, way: usize) -> Hook {
        match self {
            Self::Outside => [Hook::ExternalIngress, Hook::ExternalEgress][way],
            Self::GuestsOfAll | Self::GuestsOfClusterIps => [Hook::Ingress, Hook::Egress][way],
        }
    }
}

/// The programs of some clients.
struct Scene {
    clients: Clients,
    programs: Programs,
}

impl Scene {
    /// Both frontends have the endpoint, by both protocols.
    fn of(clients: Clients, frontends: [SocketAddr; 2], endpoint: SocketAddr) -> Result<Self> {
        let mut programs = match clients {
            Clients::Outside | Clients::GuestsOfAll => Programs::replacing()?,
            Clients::GuestsOfClusterIps => Programs::load()?,
        };
        let row = [(endpoint, Locality::Node)];
        for (index, frontend) in [(1, frontends[0]), (3, frontends[1])] {
            for (index, protocol) in [(index, TCP), (index + 1, UDP)] {
                match clients {
                    Clients::Outside | Clients::GuestsOfAll => {
                        programs.expose(index, frontend, protocol, &row)?;
                    }
                    Clients::GuestsOfClusterIps => {
                        programs.serve(index, frontend, protocol, &[endpoint])?;
                    }
                }
            }
        }
        Ok(Self { clients, programs })
    }

    fn run(&mut self, way: usize, packet: &[u8]) -> Result<(i32, Vec<u8>)> {
        self.programs.run(self.clients.hook(way), packet)
    }
}

/// Runs a test for clients of each kind and family.
fn each(
    test: impl Fn(&mut Scene, SocketAddr, [SocketAddr; 2], SocketAddr) -> Result<()>,
) -> Result<()> {
    for clients in Clients::EACH {
        for [client, first, second, endpoint] in clients.families() {
            let mut scene = Scene::of(clients, [first, second], endpoint)?;
            test(&mut scene, client, [first, second], endpoint)
                .with_context(|| format!("from {client}, {clients:?}"))?;
        }
    }
    Ok(())
}

/// What becomes of a packet: its source and destination. It passes on, and its checksums are right.
fn pass(scene: &mut Scene, way: usize, packet: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let hook = scene.clients.hook(way);
    let (verdict, out, mark) = scene.programs.run_marked(LOOPBACK, hook, packet)?;
    let said = says(&out)?;
    ensure!((verdict, mark) == (NEXT, 0), "verdict {verdict}, mark {mark:#x}: {said:?}");
    let wrong = wrong_checksums(&out)?;
    ensure!(wrong.is_empty(), "wrong checksums: {wrong:?}");
    Ok(said)
}

/// Checks what becomes of a packet.
fn expect(
    scene: &mut Scene,
    (what, way): (&str, usize),
    packet: &[u8],
    wanted: (SocketAddr, SocketAddr),
) -> Result<()> {
    let said = pass(scene, way, packet).with_context(|| what.to_owned())?;
    ensure!(said == wanted, "{what}: {said:?}, not {wanted:?}");
    Ok(())
}

/// Checks a connection from its SYN on, and returns the source that the endpoint sees.
fn open(
    scene: &mut Scene,
    client: SocketAddr,
    to: SocketAddr,
    endpoint: SocketAddr,
) -> Result<SocketAddr> {
    let syn = frame::tcp(client, to, Tcp::Syn(999));
    let (source, there) = pass(scene, IN, &syn).context("SYN")?;
    ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
    let syn_ack = frame::tcp(endpoint, source, Tcp::SynAck);
    let syn_ack = if source == client && to == endpoint {
        syn_ack
    } else {
        // It acknowledges the SYN.
        segment((endpoint, source), SYN | ACK, 1_000, 1_000, b"")
    };
    expect(scene, ("SYN-ACK", OUT), &syn_ack, (to, client))?;
    go_on(scene, (client, source), to, endpoint)?;
    Ok(source)
}

/// Checks that an open connection goes on both ways.
fn go_on(
    scene: &mut Scene,
    (client, source): (SocketAddr, SocketAddr),
    to: SocketAddr,
    endpoint: SocketAddr,
) -> Result<()> {
    let data = segment((client, to), ACK, 1_000, 1_001, b"?");
    expect(scene, ("data", IN), &data, (source, endpoint))?;
    let answer = segment((endpoint, source), ACK, 1_001, 1_001, b"!");
    expect(scene, ("answer", OUT), &answer, (to, client))
}

#[test]
fn a_direct_connection_beside_an_open_one_through_a_frontend_gets_another_port() -> Result<()> {
    each(|scene, client, [frontend, _], endpoint| {
        let through = open(scene, client, frontend, endpoint)?;
        ensure!(through == client, "{through}");
        let direct = open(scene, client, endpoint, endpoint).context("direct")?;
        ensure!(direct.port() != client.port(), "{direct}");
        for change in [false, true] {
            go_on(scene, (client, client), frontend, endpoint).context("through")?;
            go_on(scene, (client, direct), endpoint, endpoint).context("direct")?;
            if !change {
                // Another Service changes; this one has no endpoint any more.
                scene.programs.remove_member(1, endpoint)?;
            }
        }
        // Other clients are left alone, with SYNs and without.
        let other = SocketAddr::new(client.ip(), 40_001);
        for kind in [Tcp::Syn(1), Tcp::Ack] {
            let packet = frame::tcp(other, endpoint, kind);
            expect(scene, ("another", IN), &packet, (other, endpoint))?;
        }
        // The direct one is reset, and the other one goes on.
        let reset = segment((client, endpoint), RST, 1_001, 0, b"");
        expect(scene, ("RST", IN), &reset, (direct, endpoint))?;
        go_on(scene, (client, client), frontend, endpoint).context("after the RST")?;
        let again = open(scene, client, endpoint, endpoint).context("direct again")?;
        ensure!(again.port() != client.port(), "{again}");
        Ok(())
    })
}

#[test]
fn a_direct_connection_after_a_closed_one_is_answered_whatever_its_endpoint_remembers() -> Result<()>
{
    each(|scene, client, [frontend, _], endpoint| {
        open(scene, client, frontend, endpoint)?;
        let fin = frame::tcp(endpoint, client, Tcp::Fin);
        expect(scene, ("FIN", OUT), &fin, (frontend, client))?;
        let fin = frame::tcp(client, frontend, Tcp::Fin);
        expect(scene, ("FIN back", IN), &fin, (client, endpoint))?;
        // The endpoint is in TIME-WAIT with this port, and would answer a SYN from it by an ACK.
        let direct = open(scene, client, endpoint, endpoint).context("direct")?;
        ensure!(direct.port() != client.port(), "{direct}");
        Ok(())
    })
}

#[test]
fn a_connection_through_a_frontend_leaves_a_direct_one_open_and_takes_another_port() -> Result<()> {
    each(|scene, client, [frontend, _], endpoint| {
        // The programs do not follow the direct one.
        go_on(scene, (client, client), endpoint, endpoint).context("direct")?;
        let syn = frame::tcp(client, frontend, Tcp::Syn(5_000_000));
        expect(scene, ("SYN", IN), &syn, (client, endpoint))?;
        // The client would answer this from the frontend by a RST.
        let challenge = segment((endpoint, client), ACK, 1_002, 1_001, b"");
        expect(scene, ("challenge", OUT), &challenge, (endpoint, client))?;
        go_on(scene, (client, client), endpoint, endpoint).context("the direct one goes on")?;
        let (source, there) = pass(scene, IN, &syn).context("SYN again")?;
        ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
        ensure!(source.port() != client.port(), "the same port again");
        let syn_ack = segment((endpoint, source), SYN | ACK, 1_000, 5_000_001, b"");
        expect(scene, ("SYN-ACK", OUT), &syn_ack, (frontend, client))?;
        let ack = segment((client, frontend), ACK, 5_000_001, 1_001, b"");
        expect(scene, ("ACK", IN), &ack, (source, endpoint))?;
        go_on(scene, (client, client), endpoint, endpoint).context("direct at the end")
    })
}

#[test]
fn an_answer_to_another_syn_is_not_turned_and_a_refusal_is() -> Result<()> {
    each(|scene, client, [frontend, other], endpoint| {
        let syn = frame::tcp(client, frontend, Tcp::Syn(5_000_000));
        expect(scene, ("SYN", IN), &syn, (client, endpoint))?;
        // Of a direct SYN a moment before.
        let syn_ack = segment((endpoint, client), SYN | ACK, 1_000, 999, b"");
        expect(scene, ("SYN-ACK", OUT), &syn_ack, (endpoint, client))?;
        let reset = segment((endpoint, client), RST, 1_000, 0, b"");
        expect(scene, ("RST", OUT), &reset, (endpoint, client))?;

        let client = SocketAddr::new(client.ip(), 40_001);
        let syn = frame::tcp(client, other, Tcp::Syn(5_000_000));
        expect(scene, ("SYN", IN), &syn, (client, endpoint))?;
        let refusal = segment((endpoint, client), RST | ACK, 0, 5_000_001, b"");
        expect(scene, ("refusal", OUT), &refusal, (other, client))
    })
}

#[test]
fn a_second_frontend_of_an_endpoint_leaves_it_the_port_of_a_closed_connection() -> Result<()> {
    each(|scene, client, [first, second], endpoint| {
        open(scene, client, first, endpoint)?;
        scene.run(OUT, &frame::tcp(endpoint, client, Tcp::Fin))?;
        scene.run(IN, &frame::tcp(client, first, Tcp::Fin))?;
        let other = open(scene, client, second, endpoint)?;
        ensure!(other.port() != client.port(), "the endpoint may remember {other}");
        // The same frontend again: for the endpoint, too, this is the same client going on.
        let same = open(scene, client, first, endpoint)?;
        ensure!(same == client, "{same}");
        Ok(())
    })
}

#[test]
fn datagrams_to_a_frontend_and_to_its_endpoint_are_told_apart() -> Result<()> {
    each(|scene, client, [frontend, _], endpoint| {
        let mut sources = [client; 2];
        for round in 0..3 {
            for (place, to) in [frontend, endpoint].into_iter().enumerate() {
                let (source, there) = pass(scene, IN, &frame::udp(client, to, b"?"))?;
                ensure!(there == endpoint && source.ip() == client.ip(), "{source} to {there}");
                ensure!(round == 0 || source == sources[place], "{source} after {sources:?}");
                sources[place] = source;
            }
            ensure!(sources[0] == client && sources[1] != client, "{sources:?}");
            // Both are answered after both were asked.
            for (place, to) in [frontend, endpoint].into_iter().enumerate() {
                let answer = frame::udp(endpoint, sources[place], b"!");
                expect(scene, ("answer", OUT), &answer, (to, client))?;
            }
        }
        // Once both are over, a direct datagram is nobody's.
        scene.programs.age(Duration::from_secs(130))?;
        let direct = frame::udp(client, endpoint, b"?");
        expect(scene, ("direct alone", IN), &direct, (client, endpoint))?;
        let answer = frame::udp(endpoint, client, b"!");
        expect(scene, ("its answer", OUT), &answer, (endpoint, client))
    })
}

#[test]
fn a_direct_datagram_in_fragments_gets_another_port_too() -> Result<()> {
    for clients in Clients::EACH {
        let [client, frontend, other, endpoint] = clients.families()[0];
        let mut scene = Scene::of(clients, [frontend, other], endpoint)?;
        let through = frame::udp(client, frontend, b"?");
        expect(&mut scene, ("through", IN), &through, (client, endpoint))?;
        let [from, to] = [client, endpoint].map(|it| it.to_string());
        for (number, piece) in fragments(&from, &to, 1_400).iter().enumerate() {
            let (verdict, out) = scene.run(IN, piece)?;
            let is_same = out[26..34] == piece[26..34];
            ensure!(verdict == NEXT && is_same, "{clients:?} {number}: {verdict}, {out:02x?}");
            ensure!(
                number != 0 || out[34..36] != piece[34..36],
                "{clients:?}: the client's own port"
            );
        }
    }
    Ok(())
}
