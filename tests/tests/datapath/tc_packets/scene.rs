//! The Services of these tests, and the expected result of a packet.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_tests::frame::{self, Tcp, says, wrong_checksums};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

pub(super) const CLIENT4: &str = "10.244.1.9:40000";
pub(super) const WEB4: &str = "10.96.0.1:80";
pub(super) const OTHER4: &str = "10.96.0.2:80";
pub(super) const EMPTY4: &str = "10.96.0.3:80";
pub(super) const A4: &str = "10.244.1.3:9376";
pub(super) const B4: &str = "10.244.2.2:9376";
pub(super) const CLIENT6: &str = "[fd00:244:1::9]:40000";
pub(super) const WEB6: &str = "[fd00:96::1]:80";
pub(super) const EMPTY6: &str = "[fd00:96::3]:80";
pub(super) const A6: &str = "[fd00:244:1::3]:9376";
pub(super) const B6: &str = "[fd00:244:2::2]:9376";

pub(super) fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address in a test")
}

pub(super) fn tcp(from: &str, to: &str, kind: Tcp) -> Vec<u8> {
    frame::tcp(at(from), at(to), kind)
}

pub(super) fn udp(from: &str, to: &str) -> Vec<u8> {
    frame::udp(at(from), at(to), b"who?")
}

/// `web` with one endpoint and `empty` with none, over TCP and UDP, in both families.
pub(super) fn scene() -> Result<Programs> {
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

/// The expected verdict, source and destination.
pub(super) type Wanted<'a> = (i32, &'a str, &'a str);

pub(super) fn expect(
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

pub(super) fn expect_untouched(
    programs: &mut Programs,
    what: &str,
    hook: Hook,
    packet: &[u8],
) -> Result<()> {
    let (verdict, out) = programs.run(hook, packet)?;
    ensure!(verdict == NEXT, "{what}: verdict {verdict}");
    ensure!(out == packet, "{what}: changed from {packet:02x?} to {out:02x?}");
    Ok(())
}
