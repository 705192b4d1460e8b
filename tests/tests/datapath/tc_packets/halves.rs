//! A half-open connection whose entry for replies is missing: the client's next packet opens it again.

use std::time::Duration;

use anyhow::Result;
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame::{self, Tcp};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

use super::scene::{A4, at, expect, tcp, udp};

const CLIENT: &str = "203.0.113.9:40000";
const PORT: &str = "172.18.0.2:30053";
/// Longer than `REFRESH` of the programs' `state.rs`, and shorter than a datagram's lifetime.
const LATER: Duration = Duration::from_secs(10);

fn is_answered_without_its_reply_entry(protocol: u8) -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT), protocol, &[(at(A4), Locality::Node)])?;
    let (asks, answer) = if protocol == UDP {
        (udp(CLIENT, PORT), udp(A4, CLIENT))
    } else {
        (tcp(CLIENT, PORT, Tcp::Syn(999)), frame::tcp(at(A4), at(CLIENT), Tcp::SynAck))
    };
    expect(&mut programs, "asks", Hook::ExternalIngress, &asks, (NEXT, CLIENT, A4))?;
    programs.lose_replies4()?;
    programs.age(LATER)?;
    expect(&mut programs, "asks again", Hook::ExternalIngress, &asks, (NEXT, CLIENT, A4))?;
    expect(&mut programs, "the answer", Hook::ExternalEgress, &answer, (NEXT, PORT, CLIENT))?;
    Ok(())
}

#[test]
fn a_datagram_whose_reply_entry_is_missing_is_answered() -> Result<()> {
    is_answered_without_its_reply_entry(UDP)
}

#[test]
fn a_syn_whose_reply_entry_is_missing_is_answered() -> Result<()> {
    is_answered_without_its_reply_entry(TCP)
}
