//! Clients behind two devices: what one of them sends does not disturb the other.

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::connection::ANSWERED;
use topo_lb_common::device::REFUSALS;
use topo_lb_tests::frame::{self, Tcp};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs};
use topo_lb_tests::prefix::Prefix;

use super::fragments::fragments;
use super::scene::{A4, A6, B4, B6, CLIENT4, CLIENT6, EMPTY4, WEB4, WEB6, at, scene, tcp, udp};

/// Interface indexes of the two devices.
const OWN: u32 = 7;
const OTHER: u32 = 8;

/// Runs a test in a network namespace with both devices.
fn with_devices(test: impl FnOnce(&mut Programs) -> Result<()> + Send) -> Result<()> {
    let names = [Prefix::new().name("neighbours")];
    let netns = NetNs::make(&names)?.pop().context("a namespace")?;
    netns.ip(&[format!("link add own index {OWN} type veth peer name other index {OTHER}")])?;
    netns.run(|| test(&mut scene()?))
}

/// Runs a packet on a device and checks its verdict and its addresses.
fn expect_on(
    programs: &mut Programs,
    (device, hook): (u32, Hook),
    packet: &[u8],
    (verdict, from, to): (i32, &str, &str),
) -> Result<()> {
    let (got, out) = programs.run_on(device, hook, packet)?;
    let said = frame::says(&out)?;
    ensure!((got, said) == (verdict, (at(from), at(to))), "{hook:?}: verdict {got}, {said:?}");
    Ok(())
}

/// Opens a TCP connection on a device.
fn open(programs: &mut Programs, device: u32, client: &str, web: &str, a: &str) -> Result<()> {
    let (syn, ack) = (tcp(client, web, Tcp::Syn(999)), tcp(client, web, Tcp::Bare));
    expect_on(programs, (device, Hook::Ingress), &syn, (NEXT, client, a))?;
    let syn_ack = tcp(a, client, Tcp::SynAck);
    expect_on(programs, (device, Hook::Egress), &syn_ack, (NEXT, web, client))?;
    expect_on(programs, (device, Hook::Ingress), &ack, (NEXT, client, a))
}

#[test]
fn blind_packets_of_another_device_do_not_touch_a_connection() -> Result<()> {
    with_devices(|programs| {
        for (client, web, a, b) in [(CLIENT4, WEB4, A4, B4), (CLIENT6, WEB6, A6, B6)] {
            open(programs, OWN, client, web, a)?;
            programs.serve(1, at(web), TCP, &[at(b)])?;
            for kind in [Tcp::Syn(5), Tcp::Rst, Tcp::Fin, Tcp::Ack, Tcp::Syn(6), Tcp::Rst] {
                programs.run_on(OTHER, Hook::Ingress, &tcp(client, web, kind))?;
                programs.run_on(OTHER, Hook::Egress, &tcp(a, client, kind))?;
                let data = tcp(client, web, Tcp::Ack);
                expect_on(programs, (OWN, Hook::Ingress), &data, (NEXT, client, a))?;
                let answer = tcp(a, client, Tcp::Ack);
                expect_on(programs, (OWN, Hook::Egress), &answer, (NEXT, web, client))?;
            }
        }
        for (key, entry) in programs.established4()? {
            ensure!(key.device == OWN && entry.state == ANSWERED, "{key:?}: {entry:?}");
        }
        Ok(())
    })
}

#[test]
fn syns_evict_no_idle_connection() -> Result<()> {
    with_devices(|programs| {
        let client = |number: u32| format!("10.244.1.9:{}", 20_000 + number);
        for number in 0..100 {
            open(programs, OWN, &client(number), WEB4, A4)?;
        }
        for number in 0..70_000_u32 {
            let from = format!(
                "10.244.{}.{}:{}",
                100 + number % 50,
                1 + number / 50 % 250,
                1024 + number % 60_000
            );
            let (verdict, _) =
                programs.run_on(OTHER, Hook::Ingress, &tcp(&from, WEB4, Tcp::Syn(number)))?;
            ensure!(verdict == NEXT, "verdict {verdict}");
        }
        for number in 0..100 {
            let client = client(number);
            let (data, answer) = (tcp(&client, WEB4, Tcp::Ack), tcp(A4, &client, Tcp::Ack));
            expect_on(programs, (OWN, Hook::Egress), &answer, (NEXT, WEB4, &client))?;
            expect_on(programs, (OWN, Hook::Ingress), &data, (NEXT, &client, A4))?;
        }
        Ok(())
    })
}

#[test]
fn handshakes_complete_while_another_device_opens_all_it_may() -> Result<()> {
    with_devices(|programs| {
        for round in 0..20_u16 {
            let client = format!("10.244.1.9:{}", 20_000 + round);
            let syn = tcp(&client, WEB4, Tcp::Syn(999));
            expect_on(programs, (OWN, Hook::Ingress), &syn, (NEXT, &client, A4))?;
            for number in 0..2_000_u32 {
                let from = format!("10.244.100.{}:{}", 1 + round, 1024 + number);
                let flood = if number % 2 == 0 {
                    tcp(&from, WEB4, Tcp::Syn(number))
                } else {
                    udp(&from, WEB4)
                };
                programs.run_on(OTHER, Hook::Ingress, &flood)?;
            }
            let syn_ack = tcp(A4, &client, Tcp::SynAck);
            expect_on(programs, (OWN, Hook::Egress), &syn_ack, (NEXT, WEB4, &client))?;
            let ack = tcp(&client, WEB4, Tcp::Bare);
            expect_on(programs, (OWN, Hook::Ingress), &ack, (NEXT, &client, A4))?;
        }
        ensure!(programs.totals(Hook::Ingress)?.limited == 0);
        ensure!(programs.established4()?.len() == 40, "{}", programs.established4()?.len());
        Ok(())
    })
}

#[test]
fn openings_that_are_answered_are_not_replaced() -> Result<()> {
    with_devices(|programs| {
        for number in 0..3_000 {
            let client = format!("10.244.1.9:{}", 20_000 + number);
            if number % 2 == 0 {
                open(programs, OWN, &client, WEB4, A4)?;
            } else {
                let (asks, answer) = (udp(&client, WEB4), udp(A4, &client));
                expect_on(programs, (OWN, Hook::Ingress), &asks, (NEXT, &client, A4))?;
                expect_on(programs, (OWN, Hook::Egress), &answer, (NEXT, WEB4, &client))?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_device_that_has_all_the_connections_it_may_have_leaves_the_others_theirs() -> Result<()> {
    with_devices(|programs| {
        const MOST: u32 = 20;
        programs.limit(MOST)?;
        let client = |number: u32| format!("10.244.1.9:{}", 20_000 + number);
        for number in 0..MOST {
            open(programs, OTHER, &client(number), WEB4, A4)?;
        }
        for number in MOST..MOST + 10 {
            let syn = tcp(&client(number), WEB4, Tcp::Syn(5));
            let (verdict, _) = programs.run_on(OTHER, Hook::Ingress, &syn)?;
            ensure!(verdict == DROP, "verdict {verdict} beyond the quota");
        }
        ensure!(programs.totals(Hook::Ingress)?.limited == 10, "not counted as limited");
        // What is open goes on, and others open theirs.
        for number in 0..MOST {
            let data = tcp(&client(number), WEB4, Tcp::Ack);
            expect_on(programs, (OTHER, Hook::Ingress), &data, (NEXT, &client(number), A4))?;
            open(programs, OWN, &client(number), WEB4, A4)?;
        }
        ensure!(programs.totals(Hook::Ingress)?.limited == 10, "another device is limited");
        Ok(())
    })
}

#[test]
fn fragments_of_another_device_do_not_evict_a_first_one() -> Result<()> {
    with_devices(|programs| {
        programs.serve(2, at(WEB4), UDP, &[at(A4)])?;
        let own = fragments(CLIENT4, WEB4, 1400);
        programs.run_on(OWN, Hook::Ingress, &own[0])?;
        for number in 0..20_000_u16 {
            let mut first = fragments("10.244.1.10:40000", WEB4, 1400).swap_remove(0);
            first[18..20].copy_from_slice(&number.to_be_bytes());
            programs.run_on(OTHER, Hook::Ingress, &first)?;
        }
        let (verdict, out) = programs.run_on(OWN, Hook::Ingress, &own[1])?;
        ensure!(verdict == NEXT && out[30..34] == [10, 244, 1, 3], "{verdict}: {out:02x?}");
        Ok(())
    })
}

#[test]
fn refusals_of_another_device_leave_answers_for_this_one() -> Result<()> {
    with_devices(|programs| {
        let refused = tcp(CLIENT4, EMPTY4, Tcp::Syn(41));
        let mut answered = 0;
        for _ in 0..20_000 {
            let (verdict, _) = programs.run_on(OTHER, Hook::Ingress, &refused)?;
            answered += u64::from(verdict == BACK);
        }
        ensure!((REFUSALS.burst..20_000).contains(&answered), "{answered} answered");
        for _ in 0..100 {
            expect_on(programs, (OWN, Hook::Ingress), &refused, (BACK, EMPTY4, CLIENT4))?;
        }
        Ok(())
    })
}
