//! Packets that are truncated or inconsistent.

use anyhow::{Result, ensure};
use etherparse::Ipv4Header;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use topo_lb_tests::frame::{NODE_MAC, Tcp, VM_MAC};
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{
    A4, A6, CLIENT4, CLIENT6, WEB4, WEB6, expect, expect_untouched, scene, tcp, udp,
};

#[test]
fn headers_that_end_too_early_or_contradict_themselves_are_untouched() -> Result<()> {
    let mut programs = scene()?;
    let (whole, six) = (udp(CLIENT4, WEB4), udp(CLIENT6, WEB6));
    // Newer kernels do not run packets that end within the IP header: they cannot reach a hook.
    for length in 34..whole.len() {
        expect_untouched(
            &mut programs,
            &format!("{length} bytes"),
            Hook::Ingress,
            &whole[..length],
        )?;
    }
    for length in 54..six.len() {
        expect_untouched(&mut programs, &format!("{length} bytes"), Hook::Ingress, &six[..length])?;
    }
    let with = |place: usize, byte: u8| {
        let mut packet = whole.clone();
        packet[place] = byte;
        packet
    };
    let table = [
        ("version 5", with(14, 0x55)),
        ("a header of 16 bytes", with(14, 0x44)),
        ("longer than it is", with(17, 200)),
        ("shorter than its header", with(17, 12)),
        ("UDP longer than its packet", with(39, 200)),
        ("UDP shorter than its header", with(39, 7)),
    ];
    for (what, packet) in table {
        expect_untouched(&mut programs, what, Hook::Ingress, &packet)?;
    }
    let mut short = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    short[46] = 0x40;
    expect_untouched(&mut programs, "a TCP header of 16 bytes", Hook::Ingress, &short)?;
    // Nobody can tell whether it is of a connection.
    let mut elsewhere = udp(CLIENT4, A4);
    elsewhere[14] = 0x44;
    expect_untouched(&mut programs, "not to a Service", Hook::Ingress, &elsewhere)?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    ensure!(
        programs.totals(Hook::Ingress)?.malformed == 32,
        "{:?}",
        programs.totals(Hook::Ingress)?
    );
    Ok(())
}

#[test]
fn fragments_too_small_for_a_header_and_extensions_without_end_are_untouched() -> Result<()> {
    let mut programs = scene()?;
    // RFC 1858: a first fragment that ends within the TCP header.
    let mut tiny = tcp(CLIENT4, WEB4, Tcp::Syn(1))[..14 + 20 + 8].to_vec();
    tiny[16..18].copy_from_slice(&28_u16.to_be_bytes());
    tiny[20] = 0x20;
    let (header, _) = Ipv4Header::from_slice(&tiny[14..])?;
    tiny[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    expect_untouched(&mut programs, "a tiny fragment", Hook::Ingress, &tiny)?;
    let plain = udp(CLIENT6, WEB6);
    for (what, count) in [("as many as are read", 6), ("too many", 7), ("far too many", 100)] {
        let mut packet = plain[..54].to_vec();
        packet[20] = 60;
        for place in 0..count {
            let next = if place + 1 == count { 17 } else { 60 };
            packet.extend_from_slice(&[next, 0, 1, 4, 0, 0, 0, 0]);
        }
        packet.extend_from_slice(&plain[54..]);
        let length = (packet.len() - 54) as u16;
        packet[18..20].copy_from_slice(&length.to_be_bytes());
        expect_untouched(&mut programs, what, Hook::Egress, &packet)?;
        if count < 6 {
            expect(&mut programs, what, Hook::Ingress, &packet, (NEXT, CLIENT6, A6))?;
        } else {
            expect_untouched(&mut programs, what, Hook::Ingress, &packet)?;
        }
    }
    // An extension header with a length beyond the packet.
    let mut long = plain[..54].to_vec();
    long[20] = 60;
    long.extend_from_slice(&[17, 255, 1, 4, 0, 0, 0, 0]);
    long.extend_from_slice(&plain[54..]);
    let length = (long.len() - 54) as u16;
    long[18..20].copy_from_slice(&length.to_be_bytes());
    expect_untouched(&mut programs, "an endless one", Hook::Ingress, &long)
}

#[test]
fn random_bytes_that_are_not_to_a_service_are_never_changed() -> Result<()> {
    let programs = std::cell::RefCell::new(scene()?);
    let strategy = (
        any::<bool>(),
        any::<bool>(),
        proptest::collection::vec(any::<u8>(), 0..200),
        any::<[u8; 4]>(),
    );
    let mut runner = TestRunner::new(Config { cases: 4_000, ..Config::default() });
    runner.run(&strategy, |(is_six, shaped, mut bytes, address)| {
        // Half of them have IP headers, so that only the rest is random.
        if shaped && bytes.len() >= 40 {
            bytes[0] = if is_six { 0x60 } else { 0x45 + (bytes[0] & 3) };
            let length = bytes.len() as u16 - if is_six { 40 } else { 0 };
            let place = if is_six { 4 } else { 2 };
            bytes[place..place + 2].copy_from_slice(&length.to_be_bytes());
            bytes[if is_six { 6 } else { 9 }] = [1, 6, 17, 58, 0, 44][usize::from(address[0] % 6)];
        }
        // Not to a Service: no address in the ranges.
        if bytes.len() >= 20 && !is_six {
            bytes[16] = 172;
        }
        if bytes.len() >= 40 && is_six {
            bytes[24] = 0x20;
        }
        let ether_type: [u8; 2] = if is_six { [0x86, 0xdd] } else { [8, 0] };
        let mut packet = [VM_MAC, NODE_MAC].concat();
        packet.extend_from_slice(&ether_type);
        packet.extend_from_slice(&bytes);
        for hook in [Hook::Ingress, Hook::Egress] {
            // The kernel does not run packets shorter than their IP header claims.
            let Ok((verdict, out)) = programs.borrow_mut().run(hook, &packet) else { continue };
            prop_assert_eq!(verdict, NEXT);
            prop_assert_eq!(&out, &packet);
        }
        Ok(())
    })?;
    Ok(())
}
