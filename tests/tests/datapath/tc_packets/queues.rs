//! Queues of what is over: a key that waits there may be that of another connection by now.

use std::time::Duration;

use anyhow::Result;
use topo_lb_common::maps::{DEFAULT_HALF_OPEN, closed};
use topo_lb_tests::frame;
use topo_lb_tests::packets::{Hook, Programs};

use super::budgets::{ENTRIES, FAMILIES, Parts, open, pass, reset};
use super::scene::at;

#[test]
fn a_segment_that_ends_a_connection_arrives_although_the_same_ports_ended_another_one_before()
-> Result<()> {
    for parts in FAMILIES {
        let Parts { web, a, .. } = parts;
        let mut programs = parts.scene()?;
        let again = parts.client(0, 40_000)?;
        open(&mut programs, again, web, a)?;
        reset(&mut programs, again, web, a)?;
        // Its key is the first of a full queue.
        for number in 1..closed(ENTRIES / 2) as u16 {
            let other = parts.client(number, 40_000)?;
            open(&mut programs, other, web, a)?;
            reset(&mut programs, other, web, a)?;
        }
        open(&mut programs, again, web, a)?;
        reset(&mut programs, again, web, a)?;
    }
    Ok(())
}

#[test]
fn a_datagram_gets_its_answer_although_the_same_ports_had_one_before() -> Result<()> {
    for parts in FAMILIES {
        let mut programs = parts.scene()?;
        programs.limit(1 << 20)?;
        exchange(&mut programs, &parts, 0)?;
        for number in 1..DEFAULT_HALF_OPEN as u16 {
            exchange(&mut programs, &parts, number)?;
        }
        programs.age(Duration::from_secs(600))?;
        exchange(&mut programs, &parts, 0)?;
    }
    Ok(())
}

/// A datagram of a client of this network, and its answer.
fn exchange(programs: &mut Programs, parts: &Parts, network: u16) -> Result<()> {
    let (web, a, client) = (at(parts.web), at(parts.a), parts.client(network, 40_000)?);
    pass(programs, Hook::ExternalIngress, &frame::udp(client, web, b"name?"), (client, a))?;
    pass(programs, Hook::ExternalEgress, &frame::udp(a, client, b"address"), (web, client))
}
