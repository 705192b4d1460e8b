//! Source ports of connections that the programs send on to other nodes.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::{ANSWERED, CLIENT_FIN, ENDPOINT_FIN, REPLY, RESET, SNAT, Tuple4};
use topo_lb_common::maps::closed;
use topo_lb_common::packets::Packets;
use topo_lb_common::snat::{MOST_OF_CLIENT, PORTS};
use topo_lb_tests::frame::{self, Tcp, says};
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs};

use super::fragments::{fragments, fragments6};
use super::scene::{at, tcp, udp};
use super::source_nat::{FAMILIES, Parts, UPLINK, on_node, on_node_with, on_uplink};

#[test]
fn ports_of_connections_that_just_ended_go_to_other_clients_last() -> Result<()> {
    on_node_with(65_536, |programs| {
        let Parts { node, port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        let (node, former) = (node.parse()?, at("198.51.100.1:40000"));
        for number in (PORTS.0..=PORTS.1).step_by(2) {
            let says = (at(there), SocketAddr::new(node, number));
            let kind = (TCP, SNAT | REPLY, ANSWERED | RESET);
            programs.remember_as(Hook::ExternalIngress, says, (at(port), former), kind)?;
        }
        let mut taken = 0;
        for client in 0..=255 {
            let client = format!("203.0.113.{client}:40000");
            let syn = tcp(&client, port, Tcp::Syn(999));
            let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)?;
            taken += u32::from(source.port().is_multiple_of(2));
        }
        // Half of the ports are free: one of 4,096 clients finds none at twelve attempts.
        ensure!(taken < 32, "{taken} of 256 clients got the port of a connection that just ended");
        Ok(())
    })
}

#[test]
fn ports_in_time_wait_at_the_endpoint_are_the_last_and_the_youngest_the_very_last() -> Result<()> {
    const CLOSED: u8 = ANSWERED | CLIENT_FIN | ENDPOINT_FIN;
    on_node_with(65_536, |programs| {
        let Parts { node, port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        let (node, former) = (node.parse()?, at("198.51.100.1:40000"));
        let close = |programs: &mut Programs, first| -> Result<()> {
            for number in (PORTS.0 + first..=PORTS.1).step_by(4) {
                let says = (at(there), SocketAddr::new(node, number));
                let kind = (TCP, SNAT | REPLY, CLOSED);
                programs.remember_as(Hook::ExternalIngress, says, (at(port), former), kind)?;
            }
            Ok(())
        };
        let mut clients = 0..;
        // How many of 128 clients get each quarter of the ports.
        let mut quarters = |programs: &mut Programs| -> Result<[u32; 4]> {
            let mut taken = [0; 4];
            for number in clients.by_ref().take(128) {
                let client = format!("203.0.{}.{}:40000", 113 + number / 256, number % 256);
                let syn = tcp(&client, port, Tcp::Syn(999));
                // The last attempt may meet one of the ports that the others here have: for one client in 700.
                // A client sends its SYN again.
                let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)
                    .or_else(|_| on_uplink(programs, "SYN again", &syn, BACK))?;
                taken[usize::from(source.port() - PORTS.0) % 4] += 1;
            }
            Ok(taken)
        };
        close(programs, 0)?;
        close(programs, 1)?;
        // Longer than tc needs the entries for itself, and half of the time that Linux waits.
        programs.age(Duration::from_secs(30))?;
        let taken = quarters(programs)?;
        ensure!(taken[0] + taken[1] < 8, "{taken:?}: the first two quarters are in TIME-WAIT");

        // All are closed now: the first half for 70 s, the second one for an instant.
        programs.age(Duration::from_secs(40))?;
        close(programs, 2)?;
        close(programs, 3)?;
        let taken = quarters(programs)?;
        // Of three attempts each takes an old one by half; the last one takes any.
        ensure!(taken[2] + taken[3] < 32, "{taken:?}: the last two quarters have just ended");
        Ok(())
    })
}

/// Opens a connection of a client, whose endpoint then closes it first. Returns the source port at the endpoint.
fn open_and_close(programs: &mut Programs, client: &str, port: &str, there: &str) -> Result<u16> {
    let (source, _, _) = on_uplink(programs, "SYN", &tcp(client, port, Tcp::Syn(999)), BACK)?;
    let back = |kind| frame::tcp(at(there), source, kind);
    on_uplink(programs, "SYN-ACK", &back(Tcp::SynAck), BACK)?;
    on_uplink(programs, "ACK", &tcp(client, port, Tcp::Bare), BACK)?;
    on_uplink(programs, "FIN of the endpoint", &back(Tcp::Fin), BACK)?;
    on_uplink(programs, "FIN of the client", &tcp(client, port, Tcp::Fin), BACK)?;
    Ok(source.port())
}

#[test]
fn a_client_that_uses_its_port_again_leaves_those_in_time_wait_taken() -> Result<()> {
    on_node_with(65_536, |programs| {
        for Parts { client, port, there, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let mut in_time_wait = BTreeSet::new();
            // Ports at random would meet one in TIME-WAIT ten times.
            for number in 1..=600 {
                in_time_wait.insert(open_and_close(programs, client, port, there)?);
                let mut other = at(client);
                other.set_port(number);
                let syn = frame::tcp(other, at(port), Tcp::Syn(999));
                let (source, _, _) = on_uplink(programs, "SYN of another", &syn, BACK)?;
                ensure!(!in_time_wait.contains(&source.port()), "{other}: {source}");
            }
        }
        Ok(())
    })
}

#[test]
fn ports_in_time_wait_are_limited_if_a_client_uses_its_own_again_and_again() -> Result<()> {
    const ENTRIES: u32 = 1_024;
    on_node_with(ENTRIES, |programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            for _ in 0..ENTRIES {
                open_and_close(programs, client, port, there)?;
            }
            // One entry of each but the last one. A port that comes again has one, and two places in the queue.
            let most = closed(ENTRIES / 2) as usize + 1;
            let left = programs.established(is_v6)?;
            ensure!(left <= most && left > most - 10, "{left} entries, and not {most}");
        }
        Ok(())
    })
}

#[test]
fn the_end_of_a_connection_leaves_the_next_one_at_its_port_open() -> Result<()> {
    on_node(|programs| {
        let Parts { client, port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        let (source, _, _) = on_uplink(programs, "SYN", &tcp(client, port, Tcp::Syn(999)), BACK)?;
        on_uplink(programs, "SYN-ACK", &frame::tcp(at(there), source, Tcp::SynAck), BACK)?;
        on_uplink(programs, "ACK", &tcp(client, port, Tcp::Bare), BACK)?;
        let before = programs.established4()?;
        // An earlier client that had this port keeps its own entry.
        let earlier = "203.0.113.77:40000";
        let (says, becomes) = ((at(earlier), at(port)), (source, at(there)));
        programs.remember_as(Hook::ExternalIngress, says, becomes, (TCP, SNAT, ANSWERED))?;
        on_uplink(programs, "RST", &tcp(earlier, port, Tcp::Rst), BACK)?;
        for (key, entry) in before {
            let now = programs.established4()?.into_iter().find(|(other, _)| *other == key);
            let state = now.context("an entry")?.1.state;
            ensure!(state == entry.state, "{key:?}: state {state}, not {}", entry.state);
        }
        Ok(())
    })
}

#[test]
fn ports_of_idle_connections_go_to_other_clients_last() -> Result<()> {
    on_node_with(131_072, |programs| {
        let Parts { client, node, port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
        let (node, hook) = (node.parse()?, Hook::ExternalIngress);
        for (protocol, state, opens) in [
            (TCP, 0, tcp(client, port, Tcp::Syn(999))),
            (UDP, 0, udp(client, port)),
            (UDP, ANSWERED, udp("203.0.113.10:40000", port)),
        ] {
            for number in PORTS.0..=PORTS.1 {
                let source = SocketAddr::new(node, number);
                let former = SocketAddr::new("198.51.100.1".parse()?, number);
                let (there, back) = ((source, at(there)), (at(there), source));
                let of = |kind| (protocol, kind, state);
                programs.remember_as(hook, (former, at(port)), there, of(SNAT))?;
                programs.remember_as(hook, back, (at(port), former), of(SNAT | REPLY))?;
            }
            let before = programs.totals(hook)?;
            let (verdict, _) = programs.run_on(UPLINK, hook, &opens)?;
            ensure!(verdict == DROP, "{protocol}, {state}: verdict {verdict}");
            let totals = programs.totals(hook)?;
            ensure!(totals == Packets { no_port: before.no_port + 1, ..before }, "{totals:?}");
            programs.age(Duration::from_secs(11))?;
            let (source, _, _) = on_uplink(programs, "opens", &opens, BACK)?;
            // The other client's connection is over, also for its own packets.
            let left = programs.established4()?;
            let is_former =
                |key: &Tuple4| key.protocol == protocol && key.source_port == source.port();
            ensure!(!left.iter().any(|(key, _)| is_former(key)), "the entry of the former client");
        }
        Ok(())
    })
}

#[test]
fn ports_of_openings_that_nobody_completes_go_to_other_clients_last() -> Result<()> {
    on_node_with(65_536, |programs| {
        let Parts { node, port, there, .. } = FAMILIES[0];
        programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
        let (node, former) = (node.parse()?, at("198.51.100.1:40000"));
        let answered = |programs: &mut Programs, mut ports: RangeInclusive<u16>| {
            ports.try_for_each(|number| {
                let says = (at(there), SocketAddr::new(node, number));
                let kind = (TCP, SNAT | REPLY, ANSWERED);
                programs.remember_as(Hook::ExternalIngress, says, (at(port), former), kind)
            })
        };
        // Half of the ports are of openings, and the other half of connections in use.
        let half = PORTS.0 + (PORTS.1 - PORTS.0) / 2;
        answered(programs, PORTS.0..=half)?;
        programs.make_half_open4()?;
        programs.age(Duration::from_secs(11))?;
        answered(programs, half + 1..=PORTS.1)?;
        let mut opened = 0;
        for client in 0..32 {
            let syn = tcp(&format!("203.0.113.{client}:40000"), port, Tcp::Syn(999));
            let (verdict, out) = programs.run_on(UPLINK, Hook::ExternalIngress, &syn)?;
            if verdict == BACK {
                let source = says(&out)?.0.port();
                ensure!(source <= half, "the port {source} of a connection in use");
                opened += 1;
            }
        }
        // Of four attempts each meets an opening by half: 30 of 32 clients.
        ensure!(opened > 16, "{opened} of 32 clients get a port");
        Ok(())
    })
}

#[test]
fn a_client_with_most_of_the_ports_leaves_the_others_to_other_clients() -> Result<()> {
    on_node(|programs| {
        programs.limit(1 << 20)?;
        for Parts { client, port, there, here, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            let syn = |further| {
                let client = SocketAddr::new(at(client).ip(), at(client).port() + further);
                frame::tcp(client, at(port), Tcp::Syn(999))
            };
            on_uplink(programs, "the first", &syn(0), BACK)?;
            programs.count_outside(MOST_OF_CLIENT - 1)?;
            on_uplink(programs, "the last", &syn(1), BACK)?;
            programs.count_outside(MOST_OF_CLIENT)?;
            let before = programs.totals(Hook::ExternalIngress)?;
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &syn(2))?;
            let totals = programs.totals(Hook::ExternalIngress)?;
            let limited = before.limited + 1;
            ensure!((verdict, totals.limited) == (DROP, limited), "{verdict}: {totals:?}");
            // One of three others may share its place, but hardly all.
            let others = (1..4_u8).filter(|number| {
                let other = match at(client) {
                    SocketAddr::V4(_) => format!("198.51.100.{number}:40000"),
                    SocketAddr::V6(_) => format!("[2001:db8:0:{number}::9]:40000"),
                };
                let syn = tcp(&other, port, Tcp::Syn(999));
                on_uplink(programs, "another client", &syn, BACK).is_ok()
            });
            ensure!(others.count() > 0, "nobody else gets a port");
            // An endpoint of this node sees the client's own port.
            programs.expose(1, at(port), TCP, &[(at(here), Locality::Node)])?;
            on_uplink(programs, "to this node", &syn(3), NEXT)?;
        }
        Ok(())
    })
}

#[test]
fn ports_of_processes_are_left_to_them() -> Result<()> {
    on_node_with(65_536, |programs| {
        let every = |step| (PORTS.0..=PORTS.1).step_by(step);
        let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        // A thirtieth of all ports, or 600.
        let tcp_sockets = every(30).map(|port| TcpListener::bind(any(port)));
        let _tcp = tcp_sockets.collect::<Result<Vec<_>, _>>()?;
        for Parts { client, port, there, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            let udp_sockets = every(60).map(|port| UdpSocket::bind(any(port)));
            let _udp = udp_sockets.collect::<Result<Vec<_>, _>>()?;
            for number in 1..=500 {
                let mut client = at(client);
                client.set_port(number);
                let syn = frame::tcp(client, at(port), Tcp::Syn(999));
                let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)?;
                ensure!(!(source.port() - PORTS.0).is_multiple_of(30), "TCP: {source}");
                let datagram = frame::udp(client, at(port), b"?");
                let (source, _, _) = on_uplink(programs, "datagram", &datagram, BACK)?;
                ensure!(!(source.port() - PORTS.0).is_multiple_of(60), "UDP: {source}");
            }
        }
        Ok(())
    })
}

#[test]
fn a_process_that_takes_the_port_of_a_connection_gets_the_answers() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, is_v6, .. } in FAMILIES {
            programs.expose(1, at(port), TCP, &[(at(there), Locality::Zone)])?;
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            let pass = |programs: &mut Programs, hook, packet: &[u8]| -> Result<()> {
                let (verdict, out) = programs.run_on(UPLINK, hook, packet)?;
                ensure!((verdict, &*out) == (NEXT, packet), "{verdict}: {:?}", says(&out)?);
                Ok(())
            };
            // A datagram of the process ends the connection; the client's next one opens another.
            let (source, _, _) = on_uplink(programs, "datagram", &udp(client, port), BACK)?;
            let answer = frame::udp(at(there), source, b"I");
            on_uplink(programs, "answer", &answer, BACK)?;
            let of_process = frame::udp(source, at(there), b"who?");
            pass(programs, Hook::ExternalEgress, &of_process).context("to the endpoint")?;
            pass(programs, Hook::ExternalIngress, &answer).context("to the process")?;
            let (source, _, _) = on_uplink(programs, "datagram", &udp(client, port), BACK)?;
            let answer = frame::udp(at(there), source, b"I");
            let (from, to, _) = on_uplink(programs, "answer", &answer, BACK)?;
            ensure!((from, to) == (at(port), at(client)), "{from} {to}");

            // The same in fragments.
            let from = source.to_string();
            let pieces = match is_v6 {
                true => fragments6(&from, there, 1_400, 7),
                false => fragments(&from, there, 1_400),
            };
            for piece in &pieces {
                pass(programs, Hook::ExternalEgress, piece).context("a fragment")?;
            }
            pass(programs, Hook::ExternalIngress, &answer).context("to the process again")?;

            // TCP: once the client's connection is over.
            let syn = tcp(client, port, Tcp::Syn(999));
            let (source, _, _) = on_uplink(programs, "SYN", &syn, BACK)?;
            let answer = frame::tcp(at(there), source, Tcp::SynAck);
            on_uplink(programs, "SYN-ACK", &answer, BACK)?;
            on_uplink(programs, "ACK", &tcp(client, port, Tcp::Bare), BACK)?;
            on_uplink(programs, "RST", &tcp(client, port, Tcp::Rst), BACK)?;
            let of_process = frame::tcp(source, at(there), Tcp::Syn(5));
            pass(programs, Hook::ExternalEgress, &of_process).context("SYN of the process")?;
            pass(programs, Hook::ExternalIngress, &answer).context("SYN-ACK to the process")?;
        }
        Ok(())
    })
}

#[test]
fn an_answer_that_leaves_by_two_uplinks_keeps_its_connection() -> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, here, .. } in FAMILIES {
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            on_uplink(programs, "marks the endpoint", &udp(client, port), BACK)?;
            // This endpoint dials a frontend at a port of ours.
            let frontend = SocketAddr::new(at(port).ip(), PORTS.0);
            programs.expose(3, frontend, UDP, &[(at(here), Locality::Node)])?;
            let asks = frame::udp(at(there), frontend, b"who?");
            on_uplink(programs, "asks", &asks, NEXT)?;
            let answer = frame::udp(at(here), at(there), b"I");
            for _ in 0..2 {
                let (verdict, upper) = programs.run_on(UPLINK, Hook::ExternalEgress, &answer)?;
                ensure!((verdict, says(&upper)?) == (NEXT, (frontend, at(there))), "{verdict}");
                let (verdict, lower) = programs.run_on(UPLINK, Hook::ExternalEgress, &upper)?;
                ensure!((verdict, &lower) == (NEXT, &upper), "{verdict}: {:?}", says(&lower)?);
            }
        }
        Ok(())
    })
}
