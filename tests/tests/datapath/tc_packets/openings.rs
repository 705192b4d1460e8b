//! Connections that are not established yet: each has its time, whatever others send.

use anyhow::{Result, ensure};
use topo_lb_common::maps::{DEFAULT_HALF_OPEN, opened};
use topo_lb_tests::frame::{self, Tcp};
use topo_lb_tests::packets::Hook;

use super::budgets::{FAMILIES, Parts, complete, open, pass, reset, syn};
use super::scene::at;

/// Connections for which `half_open4/6` have room.
const ROOM: u16 = DEFAULT_HALF_OPEN as u16;
/// Twice as many flows.
const FLOWS: u16 = 2 * ROOM;

#[test]
fn openings_that_nobody_completes_leave_room_for_the_same_client_at_another_frontend() -> Result<()>
{
    for parts in FAMILIES {
        let Parts { web, other, a, b, .. } = parts;
        let mut programs = parts.scene()?;
        // An agent counts.
        programs.limit(1 << 20)?;
        for round in 0..4 {
            let at_other = parts.client(0, 1_000 + round)?;
            syn(&mut programs, at_other, other, b)?;
            for port in 0..10_000 {
                let client = parts.client(0, 2_000 + round * 10_000 + port)?;
                syn(&mut programs, client, web, a)?;
                // In every other round the endpoint answers, and nobody completes the handshake.
                if round % 2 == 0 {
                    let answer = frame::tcp(at(a), client, Tcp::SynAck);
                    pass(&mut programs, Hook::ExternalEgress, &answer, (at(web), client))?;
                }
            }
            complete(&mut programs, at_other, other, b)?;
        }
        ensure!(programs.totals(Hook::ExternalIngress)?.limited == 0);
    }
    Ok(())
}

#[test]
fn openings_take_their_room_and_no_more_whether_an_agent_counts_or_not() -> Result<()> {
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        for counts in [true, false] {
            let mut programs = parts.scene()?;
            programs.limit(1 << 20)?;
            if !counts {
                programs.let_the_quota_end()?;
            }
            for port in 0..ROOM + 1_000 {
                syn(&mut programs, parts.client(0, 2_000 + port)?, web, a)?;
            }
            let left = programs.half_open(at(web).is_ipv6())?;
            ensure!(left == 2 * usize::from(ROOM), "{left} entries ({counts})");
        }
    }
    Ok(())
}

#[test]
fn each_opening_waits_for_its_answer_until_as_many_newer_ones_have_come_as_there_is_room_for()
-> Result<()> {
    for parts in FAMILIES {
        let Parts { web, other, a, b, .. } = parts;
        let mut programs = parts.scene()?;
        programs.limit(1 << 20)?;
        let asker = parts.client(7, 40_000)?;
        // Each of another network: no client floods by itself.
        for number in 0..2 * ROOM {
            if number == ROOM + 1 {
                let asks = frame::udp(asker, at(other), b"name?");
                pass(&mut programs, Hook::ExternalIngress, &asks, (asker, at(b)))?;
            }
            let client = parts.client(number, 50_000)?;
            syn(&mut programs, client, web, a)?;
            let answer = frame::tcp(at(a), client, Tcp::SynAck);
            pass(&mut programs, Hook::ExternalEgress, &answer, (at(web), client))?;
        }
        let left = programs.half_open(at(web).is_ipv6())?;
        ensure!(left == 2 * usize::from(ROOM), "{left} entries are left");
        let answer = frame::udp(at(b), asker, b"address");
        pass(&mut programs, Hook::ExternalEgress, &answer, (at(other), asker))?;
        // Both entries of the others, too.
        for number in ROOM + 1..2 * ROOM {
            complete(&mut programs, parts.client(number, 50_000)?, web, a)?;
        }
    }
    Ok(())
}

#[test]
fn a_slow_handshake_outlives_any_number_of_others_that_are_completed() -> Result<()> {
    for parts in FAMILIES {
        let Parts { web, other, a, b, .. } = parts;
        let mut programs = parts.scene()?;
        let slow = parts.client(1, 40_000)?;
        syn(&mut programs, slow, other, b)?;
        for port in 0..opened(DEFAULT_HALF_OPEN) as u16 + 100 {
            let client = parts.client(0, 1_024 + port)?;
            open(&mut programs, client, web, a)?;
            reset(&mut programs, client, web, a)?;
        }
        complete(&mut programs, slow, other, b)?;
    }
    Ok(())
}

#[test]
fn datagrams_that_nobody_answers_all_arrive() -> Result<()> {
    for parts in FAMILIES {
        let mut programs = parts.scene()?;
        for port in 0..FLOWS {
            let client = parts.client(0, 1_024 + port)?;
            let packet = frame::udp(client, at(parts.web), b"a line of a log");
            pass(&mut programs, Hook::ExternalIngress, &packet, (client, at(parts.a)))?;
        }
    }
    Ok(())
}

#[test]
fn answered_datagrams_leave_before_an_opening_of_another_client() -> Result<()> {
    for parts in FAMILIES {
        let Parts { web, other, a, b, .. } = parts;
        let mut programs = parts.scene()?;
        let slow = parts.client(1, 40_000)?;
        syn(&mut programs, slow, other, b)?;
        for port in 0..FLOWS {
            let client = parts.client(0, 1_024 + port)?;
            let packet = frame::udp(client, at(web), b"name?");
            pass(&mut programs, Hook::ExternalIngress, &packet, (client, at(a)))?;
            let answer = frame::udp(at(a), client, b"address");
            pass(&mut programs, Hook::ExternalEgress, &answer, (at(web), client))?;
        }
        let left = programs.half_open(at(web).is_ipv6())?;
        ensure!(left == 2 * usize::from(ROOM), "{left} entries are left");
        complete(&mut programs, slow, other, b)?;
    }
    Ok(())
}
