//! Datagrams that the node itself sends from a port that is a frontend's, too.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_common::address::UDP;
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame;
use topo_lb_tests::packets::{Hook, NEXT, Programs};

use super::scene::{A4, A6, at, expect, expect_untouched};

const IN: Hook = Hook::ExternalIngress;
const OUT: Hook = Hook::ExternalEgress;

/// A server outside, a further client, a frontend, and its endpoint on this node.
const FAMILIES: [[&str; 4]; 2] = [
    ["203.0.113.53:53", "203.0.113.9:40000", "172.18.0.2:30053", A4],
    ["[2001:db8::53]:53", "[2001:db8::9]:40000", "[fd00:18::2]:30053", A6],
];

/// Each family, with `rely` on the marks of endpoints, and without.
fn each(test: impl Fn(&mut Programs, [&str; 4]) -> Result<()>) -> Result<()> {
    for parts in FAMILIES {
        for rely in [true, false] {
            let mut programs = Programs::replacing()?;
            programs.rely_on_marks(rely)?;
            programs.expose(1, at(parts[2]), UDP, &[(at(parts[3]), Locality::Node)])?;
            test(&mut programs, parts)?;
        }
    }
    Ok(())
}

fn udp(from: &str, to: &str) -> Vec<u8> {
    frame::udp(at(from), at(to), b"?")
}

#[test]
fn an_answer_to_the_node_is_not_for_the_service() -> Result<()> {
    each(|programs, [server, client, port, endpoint]| {
        let (asks, answer) = (udp(port, server), udp(server, port));
        for _ in 0..2 {
            expect_untouched(programs, "asks", OUT, &asks)?;
            expect_untouched(programs, "the answer", IN, &answer)?;
            // Long answers: half a minute apart, for longer than the node's own datagram lasts.
            for _ in 0..5 {
                programs.age(Duration::from_secs(100))?;
                expect_untouched(programs, "a late answer", IN, &answer)?;
            }
        }
        // Everybody else is a client of the Service, also another port of the server.
        let other = SocketAddr::new(at(server).ip(), 54).to_string();
        for from in [client, &other] {
            expect(programs, "a client", IN, &udp(from, port), (NEXT, from, endpoint))?;
            expect(programs, "its answer", OUT, &udp(endpoint, from), (NEXT, port, from))?;
        }
        // What is over is forgotten.
        programs.age(Duration::from_secs(130))?;
        expect(programs, "a client now", IN, &answer, (NEXT, server, endpoint))?;
        Ok(())
    })
}

#[test]
fn an_answer_of_the_service_makes_its_client_no_server_of_the_node() -> Result<()> {
    each(|programs, [_, client, port, endpoint]| {
        let asks = udp(client, port);
        for _ in 0..2 {
            expect(programs, "asks", IN, &asks, (NEXT, client, endpoint))?;
            let upper =
                expect(programs, "upper", OUT, &udp(endpoint, client), (NEXT, port, client))?;
            // The packet leaves by a VLAN, and then by the device below it.
            expect_untouched(programs, "lower", OUT, &upper)?;
        }
        ensure!(programs.connections4()?.len() + programs.connections6()?.len() == 2);
        Ok(())
    })
}

#[test]
fn a_port_that_is_no_frontend_is_not_remembered() -> Result<()> {
    each(|programs, [server, _, port, _]| {
        let own = SocketAddr::new(at(port).ip(), 40_000).to_string();
        expect_untouched(programs, "asks", OUT, &udp(&own, server))?;
        expect_untouched(programs, "the answer", IN, &udp(server, &own))?;
        ensure!(programs.connections4()?.len() + programs.connections6()?.len() == 0);
        Ok(())
    })
}
