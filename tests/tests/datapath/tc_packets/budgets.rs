//! Clients outside share the tables of connections: what one of them sends does not harm another.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::maps::closed;
use topo_lb_tests::frame::{self, Tcp};
use topo_lb_tests::packets::{DROP, Hook, NEXT, Programs};

use super::scene::{A4, A6, B4, B6, at};

/// Node ports, each of a Service of its own with one endpoint, and the network of its clients.
pub(super) struct Parts {
    pub(super) web: &'static str,
    pub(super) other: &'static str,
    pub(super) a: &'static str,
    pub(super) b: &'static str,
    network: fn(u16) -> String,
}

pub(super) const FAMILIES: [Parts; 2] = [
    Parts {
        web: "172.18.0.2:30080",
        other: "172.18.0.2:30081",
        a: A4,
        b: B4,
        network: |number| format!("203.0.{}.{}", number >> 8, number & 0xff),
    },
    Parts {
        web: "[fd00:18::2]:30080",
        other: "[fd00:18::2]:30081",
        a: A6,
        b: B6,
        network: |number| format!("2001:db8:0:{number:x}::9"),
    },
];

/// Entries of `connections4/6` in these tests.
pub(super) const ENTRIES: u32 = 1_024;

impl Parts {
    pub(super) fn client(&self, network: u16, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new((self.network)(network).parse()?, port))
    }

    /// Programs with both Services, over TCP and UDP.
    pub(super) fn scene(&self) -> Result<Programs> {
        let mut programs = Programs::replacing_with_room(ENTRIES)?;
        for (index, protocol) in [(1, TCP), (3, UDP)] {
            programs.expose(index, at(self.web), protocol, &[(at(self.a), Locality::Node)])?;
            programs.expose(
                index + 1,
                at(self.other),
                protocol,
                &[(at(self.b), Locality::Node)],
            )?;
        }
        Ok(programs)
    }
}

/// Runs a packet of a client, or to one, and checks that it is translated to these addresses.
pub(super) fn pass(
    programs: &mut Programs,
    hook: Hook,
    packet: &[u8],
    wanted: (SocketAddr, SocketAddr),
) -> Result<()> {
    let (verdict, out) = programs.run(hook, packet)?;
    let said = frame::says(&out)?;
    ensure!((verdict, said) == (NEXT, wanted), "{hook:?}: verdict {verdict}, {said:?}");
    Ok(())
}

pub(super) fn syn(programs: &mut Programs, client: SocketAddr, web: &str, a: &str) -> Result<()> {
    let packet = frame::tcp(client, at(web), Tcp::Syn(999));
    pass(programs, Hook::ExternalIngress, &packet, (client, at(a)))
}

/// Answers a SYN, and completes the handshake.
pub(super) fn complete(
    programs: &mut Programs,
    client: SocketAddr,
    web: &str,
    a: &str,
) -> Result<()> {
    let answer = frame::tcp(at(a), client, Tcp::SynAck);
    pass(programs, Hook::ExternalEgress, &answer, (at(web), client))?;
    let ack = frame::tcp(client, at(web), Tcp::Bare);
    pass(programs, Hook::ExternalIngress, &ack, (client, at(a)))
}

pub(super) fn open(programs: &mut Programs, client: SocketAddr, web: &str, a: &str) -> Result<()> {
    syn(programs, client, web, a)?;
    complete(programs, client, web, a)
}

/// Ends a connection by a RST of the client.
pub(super) fn reset(programs: &mut Programs, client: SocketAddr, web: &str, a: &str) -> Result<()> {
    let packet = frame::tcp(client, at(web), Tcp::Rst);
    pass(programs, Hook::ExternalIngress, &packet, (client, at(a)))
}

/// Checks that an established connection goes on.
fn goes_on(programs: &mut Programs, client: SocketAddr, web: &str, a: &str) -> Result<()> {
    let data = frame::tcp(client, at(web), Tcp::Ack);
    pass(programs, Hook::ExternalIngress, &data, (client, at(a)))?;
    let answer = frame::tcp(at(a), client, Tcp::Ack);
    pass(programs, Hook::ExternalEgress, &answer, (at(web), client))
}

#[test]
fn closed_connections_of_many_clients_leave_before_open_ones() -> Result<()> {
    const IDLE: u16 = 100;
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        for port in 0..IDLE {
            open(&mut programs, parts.client(port, 40_000)?, web, a)?;
        }
        for number in 0..4 * ENTRIES as u16 {
            let client = parts.client(1_000 + number % 64, 1_024 + number)?;
            open(&mut programs, client, web, a)?;
            if number % 2 == 0 {
                reset(&mut programs, client, web, a)?;
            } else {
                let fin = frame::tcp(client, at(web), Tcp::Fin);
                pass(&mut programs, Hook::ExternalIngress, &fin, (client, at(a)))?;
                let fin = frame::tcp(at(a), client, Tcp::Fin);
                pass(&mut programs, Hook::ExternalEgress, &fin, (at(web), client))?;
            }
        }
        for port in 0..IDLE {
            goes_on(&mut programs, parts.client(port, 40_000)?, web, a)?;
        }
        let wanted = 2 * (u32::from(IDLE) + closed(ENTRIES / 2));
        let left = programs.established(at(web).is_ipv6())?;
        ensure!(left == wanted as usize, "{left} entries, and not {wanted}");
    }
    Ok(())
}

#[test]
fn a_client_that_dials_in_series_has_its_place_back_at_each_end() -> Result<()> {
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(2)?;
        for port in 0..100 {
            let client = parts.client(0, 40_000 + port)?;
            open(&mut programs, client, web, a)?;
            ensure!(programs.connections_outside()? == 1, "after {port} connections");
            reset(&mut programs, client, web, a)?;
            ensure!(programs.connections_outside()? == 0, "after {port} connections");
        }
        ensure!(programs.totals(Hook::ExternalIngress)?.limited == 0);
    }
    Ok(())
}

#[test]
fn a_connection_that_is_opened_again_needs_a_place_in_the_quota_again() -> Result<()> {
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(1)?;
        let (client, other) = (parts.client(0, 40_000)?, parts.client(0, 40_001)?);
        for _ in 0..2 {
            open(&mut programs, client, web, a)?;
            ensure!(programs.connections_outside()? == 1, "it does not count");
            reset(&mut programs, client, web, a)?;
        }
        open(&mut programs, other, web, a)?;
        let again = frame::tcp(client, at(web), Tcp::Syn(999));
        let (verdict, _) = programs.run(Hook::ExternalIngress, &again)?;
        let totals = programs.totals(Hook::ExternalIngress)?;
        ensure!((verdict, totals.limited) == (DROP, 1), "verdict {verdict}, {totals:?}");
        goes_on(&mut programs, other, web, a)?;
    }
    Ok(())
}

#[test]
fn a_table_full_of_open_connections_refuses_others_and_says_so() -> Result<()> {
    const MOST: u32 = 5;
    const ROOM: u16 = 4 * MOST as u16;
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(MOST)?;
        for network in 0..ROOM {
            open(&mut programs, parts.client(network, 40_000)?, web, a)?;
        }
        let late = parts.client(ROOM, 40_000)?;
        let (verdict, _) =
            programs.run(Hook::ExternalIngress, &frame::tcp(late, at(web), Tcp::Syn(999)))?;
        let totals = programs.totals(Hook::ExternalIngress)?;
        ensure!((verdict, totals.table_full) == (DROP, 1), "verdict {verdict}, {totals:?}");
        for network in 0..ROOM {
            goes_on(&mut programs, parts.client(network, 40_000)?, web, a)?;
        }
        reset(&mut programs, parts.client(0, 40_000)?, web, a)?;
        open(&mut programs, late, web, a)?;
    }
    Ok(())
}

#[test]
fn datagrams_leave_half_of_the_table_to_others() -> Result<()> {
    const MOST: u32 = 8;
    const HALF: u16 = 2 * MOST as u16;
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(MOST)?;
        for network in 0..2 * HALF {
            let client = parts.client(network, 40_000)?;
            let asks = frame::udp(client, at(web), b"?");
            let answer = frame::udp(at(a), client, b"!");
            // What has no room among the established ones goes on all the same.
            for _ in 0..2 {
                pass(&mut programs, Hook::ExternalIngress, &asks, (client, at(a)))?;
                pass(&mut programs, Hook::ExternalEgress, &answer, (at(web), client))?;
            }
        }
        let established = programs.connections_outside()?;
        ensure!(established == u32::from(HALF), "{established} flows are established");
        open(&mut programs, parts.client(2 * HALF, 40_000)?, web, a)?;
        ensure!(programs.connections_outside()? == established + 1, "no room for TCP");
    }
    Ok(())
}

#[test]
fn datagrams_in_a_clients_name_take_no_place_of_its_connections() -> Result<()> {
    const MOST: u16 = 4;
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(MOST.into())?;
        for _ in 0..2 {
            for port in 0..2 * MOST {
                let client = parts.client(0, 40_000 + port)?;
                let (asks, answer) =
                    (frame::udp(client, at(web), b"?"), frame::udp(at(a), client, b"!"));
                pass(&mut programs, Hook::ExternalIngress, &asks, (client, at(a)))?;
                pass(&mut programs, Hook::ExternalEgress, &answer, (at(web), client))?;
            }
        }
        let established = programs.established(at(web).is_ipv6())?;
        ensure!(established == 2 * usize::from(MOST), "{established}: beyond the client's share");
        for port in 0..MOST {
            open(&mut programs, parts.client(0, 50_000 + port)?, web, a)?;
        }
        ensure!(programs.totals(Hook::ExternalIngress)?.limited == 0);
    }
    Ok(())
}

#[test]
fn handshakes_that_are_completed_together_stay_within_the_quota() -> Result<()> {
    const MOST: u32 = 4;
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(MOST)?;
        let clients: Vec<_> = (0..3 * MOST as u16)
            .map(|port| parts.client(0, 40_000 + port))
            .collect::<Result<_>>()?;
        for client in &clients {
            syn(&mut programs, *client, web, a)?;
        }
        for client in &clients {
            complete(&mut programs, *client, web, a)?;
            goes_on(&mut programs, *client, web, a)?;
        }
        ensure!(programs.connections_outside()? == MOST, "more than the quota");
    }
    Ok(())
}

#[test]
fn a_host_with_a_network_of_its_own_counts_as_one_client() -> Result<()> {
    const MOST: u32 = 40;
    let [_, parts] = FAMILIES;
    let Parts { web, a, .. } = parts;
    let mut programs = parts.scene()?;
    programs.limit(MOST)?;
    let host = |number: u32| format!("[2001:db8:0:7:{number:x}::1]:40000");
    for number in 0..MOST {
        open(&mut programs, at(&host(number)), web, a)?;
    }
    let beyond = frame::tcp(at(&host(MOST)), at(web), Tcp::Syn(999));
    let (verdict, _) = programs.run(Hook::ExternalIngress, &beyond)?;
    let totals = programs.totals(Hook::ExternalIngress)?;
    ensure!((verdict, totals.limited) == (DROP, 1), "verdict {verdict}, {totals:?}");
    // One of three others may share its place, but hardly all.
    let others = (8..11).map(|network| parts.client(network, 40_000));
    let opened = others.filter(|client| {
        client.as_ref().is_ok_and(|client| open(&mut programs, *client, web, a).is_ok())
    });
    ensure!(opened.count() > 0, "nobody else may open a connection");
    Ok(())
}
