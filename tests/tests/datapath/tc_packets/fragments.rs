//! Fragments: only the first has ports.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use etherparse::{IpFragOffset, IpNumber, Ipv4Header};
use topo_lb_common::address::UDP;
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame::{self, says, wrong_checksums};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

use super::scene::{
    A4, A6, CLIENT4, CLIENT6, WEB4, WEB6, at, expect, expect_untouched, scene, udp,
};

/// A datagram in IPv4 fragments; the first has the transport header.
pub(super) fn fragments(from: &str, to: &str, payload: usize) -> Vec<Vec<u8>> {
    let whole = frame::udp(at(from), at(to), &vec![b'x'; payload]);
    let body = &whole[34..];
    let (header, _) = Ipv4Header::from_slice(&whole[14..]).expect("a header");
    let pieces: Vec<&[u8]> = body.chunks(512).collect();
    let last = pieces.len() - 1;
    let cut = pieces.iter().enumerate().map(|(place, piece)| {
        let mut header = header.clone();
        header.identification = 4711;
        header.dont_fragment = false;
        header.more_fragments = place != last;
        header.fragment_offset = IpFragOffset::try_new(place as u16 * 64).expect("a small offset");
        header.total_len = 20 + piece.len() as u16;
        header.header_checksum = header.calc_header_checksum();
        let mut packet = whole[..14].to_vec();
        packet.extend_from_slice(&header.to_bytes());
        packet.extend_from_slice(piece);
        packet
    });
    cut.collect()
}

#[test]
fn later_fragments_follow_the_first() -> Result<()> {
    let mut programs = scene()?;
    let pieces = fragments(CLIENT4, WEB4, 1400);
    expect_untouched(&mut programs, "without its first", Hook::Ingress, &pieces[1])?;
    let mut body = Vec::new();
    for piece in &pieces {
        let (verdict, out) = programs.run(Hook::Ingress, piece)?;
        ensure!(verdict == NEXT && out.len() == piece.len(), "{verdict}");
        let (header, _) = Ipv4Header::from_slice(&out[14..])?;
        ensure!(IpAddr::from(header.destination) == at(A4).ip(), "{header:?}");
        ensure!(header.header_checksum == header.calc_header_checksum(), "{header:?}");
        body.extend_from_slice(&out[34..]);
    }
    // The reassembled datagram has a correct checksum.
    let mut whole = udp(CLIENT4, A4)[..14].to_vec();
    let (a, client) = (at(A4).ip(), at(CLIENT4).ip());
    let (IpAddr::V4(a), IpAddr::V4(client)) = (a, client) else { panic!("IPv4") };
    let header =
        Ipv4Header::new(body.len() as u16, 64, IpNumber::UDP, client.octets(), a.octets())?;
    whole.extend_from_slice(&header.to_bytes());
    whole.extend_from_slice(&body);
    ensure!(says(&whole)? == (at(CLIENT4), at(A4)), "{:?}", says(&whole)?);
    let wrong = wrong_checksums(&whole)?;
    ensure!(!wrong.contains(&"UDP"), "{wrong:?}");
    Ok(())
}

/// A datagram in IPv6 fragments of at most 512 bytes; a short one is a single, complete fragment.
pub(super) fn fragments6(
    from: &str,
    to: &str,
    payload: usize,
    identification: u32,
) -> Vec<Vec<u8>> {
    let whole = frame::udp(at(from), at(to), &vec![b'x'; payload]);
    let pieces: Vec<&[u8]> = whole[54..].chunks(512).collect();
    let last = pieces.len() - 1;
    let cut = pieces.iter().enumerate().map(|(place, piece)| {
        let mut packet = whole[..54].to_vec();
        packet[18..20].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
        packet[20] = 44;
        packet.extend_from_slice(&[17, 0]);
        // Offset in units of eight bytes, and the flag for more fragments.
        let offset = (place as u16 * 64) << 3 | u16::from(place != last);
        packet.extend_from_slice(&offset.to_be_bytes());
        packet.extend_from_slice(&identification.to_be_bytes());
        packet.extend_from_slice(piece);
        packet
    });
    cut.collect()
}

/// The addresses of an IPv6 packet in an Ethernet frame.
pub(super) fn addresses6(packet: &[u8]) -> (IpAddr, IpAddr) {
    let address = |from: usize| {
        let bytes: [u8; 16] = packet[from..from + 16].try_into().expect("sixteen bytes");
        IpAddr::from(bytes)
    };
    (address(22), address(38))
}

#[test]
fn ipv6_fragments_follow_the_first_each_way() -> Result<()> {
    let mut programs = scene()?;
    let (client, web, a) = (at(CLIENT6).ip(), at(WEB6).ip(), at(A6).ip());
    let asked = fragments6(CLIENT6, WEB6, 1400, 7);
    let answered = fragments6(A6, CLIENT6, 1400, 7);
    expect_untouched(&mut programs, "without its first", Hook::Ingress, &asked[1])?;
    expect_untouched(&mut programs, "without its first", Hook::Egress, &answered[1])?;
    for (hook, pieces, wanted) in
        [(Hook::Ingress, &asked, (client, a)), (Hook::Egress, &answered, (web, client))]
    {
        let mut body = Vec::new();
        for piece in pieces {
            let (verdict, out) = programs.run(hook, piece)?;
            ensure!(verdict == NEXT && out.len() == piece.len(), "{hook:?}: {verdict}");
            ensure!(addresses6(&out) == wanted, "{hook:?}: {:?}", addresses6(&out));
            // The fragment header does not change.
            ensure!(out[54..62] == piece[54..62], "{hook:?}: {:02x?}", &out[54..62]);
            body.extend_from_slice(&out[62..]);
        }
        let mut whole = pieces[0][..54].to_vec();
        let (_, out) = programs.run(hook, &pieces[0])?;
        whole[22..54].copy_from_slice(&out[22..54]);
        whole[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
        whole[20] = 17;
        whole.extend_from_slice(&body);
        let wrong = wrong_checksums(&whole)?;
        ensure!(wrong.is_empty(), "{hook:?}: put together again, {wrong:?} are wrong");
    }
    // Fragments of another datagram are not translated.
    let other = fragments6(CLIENT6, WEB6, 1400, 8);
    expect_untouched(&mut programs, "another datagram's", Hook::Ingress, &other[1])?;
    Ok(())
}

#[test]
fn a_fragment_that_is_all_of_its_datagram_is_translated_and_not_remembered() -> Result<()> {
    let mut programs = scene()?;
    let pieces = fragments6(CLIENT6, WEB6, 100, 9);
    ensure!(pieces.len() == 1);
    let wanted = (NEXT, CLIENT6, A6);
    expect(&mut programs, "RFC 6946", Hook::Ingress, &pieces[0], wanted)?;
    let later = &fragments6(CLIENT6, WEB6, 1400, 9)[1];
    expect_untouched(&mut programs, "one with its number", Hook::Ingress, later)
}

#[test]
fn fragments_of_answers_follow_the_first() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "asks", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    for piece in fragments(A4, CLIENT4, 1400) {
        let (verdict, out) = programs.run(Hook::Egress, &piece)?;
        let (header, _) = Ipv4Header::from_slice(&out[14..])?;
        ensure!(verdict == NEXT && IpAddr::from(header.source) == at(WEB4).ip(), "{header:?}");
        ensure!(header.header_checksum == header.calc_header_checksum(), "{header:?}");
    }
    Ok(())
}

#[test]
fn a_datagram_that_is_not_ours_takes_its_fragments_along() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "asks", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.run(Hook::Egress, &fragments(A4, CLIENT4, 1400)[0])?;
    // Another datagram with the same number and hosts, to a port that called no Service.
    for piece in fragments("10.244.1.3:53", "10.244.1.9:41000", 1400) {
        expect_untouched(&mut programs, "direct", Hook::Egress, &piece)?;
    }
    // A datagram to the Service's address, to a port that is not the Service's.
    programs.run(Hook::Ingress, &fragments(CLIENT4, WEB4, 1400)[0])?;
    for piece in fragments("10.244.1.9:41000", "10.96.0.1:53", 1400) {
        expect_untouched(&mut programs, "no Service", Hook::Ingress, &piece)?;
    }
    programs.run(Hook::Egress, &fragments6(A6, CLIENT6, 1400, 5)[0])?;
    for piece in fragments6("[fd00:244:1::3]:53", "[fd00:244:1::9]:41000", 1400, 5) {
        expect_untouched(&mut programs, "direct, IPv6", Hook::Egress, &piece)?;
    }
    Ok(())
}

#[test]
fn a_datagram_of_others_takes_no_fragments_along() -> Result<()> {
    let mut programs = scene()?;
    let pieces = fragments(CLIENT4, WEB4, 1400);
    programs.run(Hook::Ingress, &pieces[0])?;
    // With the same number, and so the same place.
    let other = &fragments("10.244.1.10:41000", "10.96.0.1:53", 1400)[0];
    expect_untouched(&mut programs, "no Service", Hook::Ingress, other)?;
    for piece in &pieces[1..] {
        let (_, out) = programs.run(Hook::Ingress, piece)?;
        ensure!(out[30..34] == [10, 244, 1, 3], "{out:02x?}");
    }
    Ok(())
}

#[test]
fn clients_outside_do_not_take_the_places_of_each_other() -> Result<()> {
    const PORT4: &str = "172.18.0.2:30080";
    const PORT6: &str = "[fd00:18::2]:30080";
    // All with one number, and over IPv6 beside a client that sends many first fragments.
    let of4 = (0..64).map(|host| fragments(&format!("203.0.113.{}:40000", 1 + host), PORT4, 600));
    let of6 = (0..64)
        .map(|network| fragments6(&format!("[2001:db8:0:{network:x}::9]:40000"), PORT6, 600, 7));
    let flood = (0..512)
        .map(|number| fragments6("[2001:db8:0:ffff::9]:40000", PORT6, 600, number).swap_remove(0));
    for (web, a, datagrams, flood) in [
        (PORT4, A4, of4.collect::<Vec<_>>(), Vec::new()),
        (PORT6, A6, of6.collect(), flood.collect()),
    ] {
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(web), UDP, &[(at(a), Locality::Node)])?;
        for first in datagrams.iter().map(|pieces| &pieces[0]).chain(&flood) {
            let (_, out) = programs.run(Hook::ExternalIngress, first)?;
            ensure!(out != *first, "a first fragment to {web} is not translated");
        }
        let mut translated = 0;
        for pieces in &datagrams {
            let (_, out) = programs.run(Hook::ExternalIngress, &pieces[1])?;
            translated += u32::from(out != pieces[1]);
        }
        // Of the 64, 8 lose their places by chance; more than 24 never do.
        ensure!(translated >= 40, "{translated} of 64 later fragments to {web} are translated");
    }
    Ok(())
}
