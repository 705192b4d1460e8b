//! How a TCP connection ends: which segments count, and how long it is remembered.

use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_common::connection::{ANSWERED, Connection4, LAG, LONGEST_ACK, REPLY, is_closed};
use topo_lb_tests::frame::{ACK, FIN, RST, SYN, Tcp, segment};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

use super::scene::{A4, CLIENT4, WEB4, at, scene, tcp};
use super::tcp::open;

/// Numbers of the client and of the endpoint after the handshake of [`open_at`].
const OURS: u32 = u32::MAX - 50_000;
const THEIRS: u32 = 7_000_000;

fn from_client(flags: u8, sequence: u32, acknowledged: u32, payload: &[u8]) -> (Hook, Vec<u8>) {
    let ends = (at(CLIENT4), at(WEB4));
    (Hook::Ingress, segment(ends, flags, sequence, acknowledged, payload))
}

fn from_endpoint(flags: u8, sequence: u32, acknowledged: u32, payload: &[u8]) -> (Hook, Vec<u8>) {
    (Hook::Egress, segment((at(A4), at(CLIENT4)), flags, sequence, acknowledged, payload))
}

/// Runs packets, all of which are translated or left alone.
fn run_all(
    programs: &mut Programs,
    packets: impl IntoIterator<Item = (Hook, Vec<u8>)>,
) -> Result<()> {
    for (hook, packet) in packets {
        let (verdict, _) = programs.run(hook, &packet)?;
        ensure!(verdict == NEXT, "verdict {verdict}");
    }
    Ok(())
}

/// Opens a connection with the numbers [`OURS`] and [`THEIRS`].
fn open_at(programs: &mut Programs) -> Result<()> {
    let handshake = [
        from_client(SYN, OURS.wrapping_sub(1), 0, b""),
        from_endpoint(SYN | ACK, THEIRS.wrapping_sub(1), OURS, b""),
        from_client(ACK, OURS, THEIRS, b""),
    ];
    run_all(programs, handshake)
}

#[test]
fn a_reset_or_fin_counts_only_inside_the_window() -> Result<()> {
    const SENT: u32 = 100_000;
    let mut programs = scene()?;
    open_at(&mut programs)?;
    // The client sends 100,000 bytes over the end of the numbers; nothing is acknowledged yet.
    let data = vec![b'x'; 1_000];
    let sent = (0..SENT).step_by(data.len());
    let sent = sent.map(|sent| from_client(ACK, OURS.wrapping_add(sent), THEIRS, &data));
    run_all(&mut programs, sent)?;
    let end = OURS.wrapping_add(SENT);
    let far = 3 * LAG;
    let outside = [
        from_client(RST, OURS.wrapping_sub(far), 0, b""),
        from_client(RST | ACK, end.wrapping_add(far), THEIRS, b""),
        from_client(RST, OURS ^ 1 << 31, 0, b""),
        from_client(FIN | ACK, end.wrapping_add(far), THEIRS, b""),
        from_endpoint(RST, THEIRS.wrapping_sub(far), 0, b""),
        from_endpoint(RST | ACK, THEIRS.wrapping_add(far), OURS, b""),
        from_endpoint(FIN | ACK, THEIRS ^ 1 << 31, OURS, b""),
        // Numbers that do not follow what was sent move no window.
        from_client(ACK, end.wrapping_add(1 << 30), THEIRS, &data),
        from_client(RST, end.wrapping_add(1 << 30), 0, b""),
        from_endpoint(ACK, THEIRS.wrapping_add(1 << 30), OURS, &data),
        from_endpoint(RST, THEIRS.wrapping_add(1 << 30), 0, b""),
    ];
    for (place, (hook, packet)) in outside.into_iter().enumerate() {
        programs.run(hook, &packet)?;
        for (_, entry) in programs.connections4()? {
            ensure!(entry.state == ANSWERED, "packet {place}: state {}", entry.state);
        }
    }
    ensure!(programs.established4()?.len() == 2, "{:?}", programs.established4()?);
    let inside = [
        from_client(RST, OURS, 0, b""),
        from_client(RST | ACK, end, THEIRS, b""),
        from_endpoint(RST, THEIRS, 0, b""),
        from_endpoint(RST | ACK, THEIRS, end, b""),
    ];
    for (place, (hook, packet)) in inside.into_iter().enumerate() {
        programs.run(hook, &packet)?;
        for (key, entry) in programs.connections4()? {
            ensure!(is_closed(entry.state), "packet {place}: state {}", entry.state);
            programs.restore4(key, Connection4 { state: ANSWERED, ..entry })?;
        }
    }
    for (hook, packet) in
        [from_client(FIN | ACK, end, THEIRS, b""), from_endpoint(FIN | ACK, THEIRS, end, b"")]
    {
        programs.run(hook, &packet)?;
    }
    ensure!(programs.connections4()?.iter().all(|(_, entry)| is_closed(entry.state)));
    Ok(())
}

#[test]
fn a_blind_acknowledgement_does_not_keep_a_connection_open() -> Result<()> {
    let mut programs = scene()?;
    open_at(&mut programs)?;
    let recorded = |programs: &Programs| -> Result<Vec<u32>> {
        let mut entries = programs.established4()?;
        entries.sort_by_key(|(_, entry)| entry.kind & REPLY);
        Ok(entries.iter().map(|(_, entry)| entry.acknowledged).collect())
    };
    // What was not sent, in segments with old numbers.
    for before in [3 * LAG, 1 << 20, 1 << 30] {
        for ahead in [LAG, 1 << 20, LONGEST_ACK] {
            let (ours, theirs) = (OURS.wrapping_sub(before), THEIRS.wrapping_sub(before));
            let forged = [
                from_client(ACK, ours, THEIRS + ahead, b""),
                from_endpoint(ACK, theirs, OURS.wrapping_add(ahead), b""),
            ];
            run_all(&mut programs, forged)?;
            let recorded = recorded(&programs)?;
            ensure!(recorded == [THEIRS, OURS], "{before} before, {ahead} ahead: {recorded:?}");
        }
    }
    // One that guesses the number, too, moves what was acknowledged; but not what was sent.
    let (ours, theirs) = (OURS.wrapping_add(LONGEST_ACK), THEIRS + LONGEST_ACK);
    let guessed = [from_client(ACK, OURS, theirs, b""), from_endpoint(ACK, THEIRS, ours, b"")];
    run_all(&mut programs, guessed)?;
    ensure!(recorded(&programs)? == [theirs, ours], "{:?}", recorded(&programs)?);
    let fins =
        [from_endpoint(FIN | ACK, THEIRS, OURS, b""), from_client(FIN | ACK, OURS, THEIRS, b"")];
    run_all(&mut programs, fins)?;
    let states: Vec<u8> = programs.connections4()?.iter().map(|(_, entry)| entry.state).collect();
    ensure!(states.len() == 2 && states.iter().all(|state| is_closed(*state)), "{states:?}");
    Ok(())
}

#[test]
fn a_connection_whose_fin_is_sent_again_is_forgotten_as_by_connection_tracking() -> Result<()> {
    let there = |kind| (Hook::Ingress, tcp(CLIENT4, WEB4, kind));
    let back = |kind| (Hook::Egress, tcp(A4, CLIENT4, kind));
    type Packet = fn(Tcp) -> (Hook, Vec<u8>);
    let both: [(Packet, Packet); 2] = [(there, back), (back, there)];
    for (closes, other) in both {
        for is_again in [false, true] {
            let mut programs = scene()?;
            open(&mut programs, CLIENT4, WEB4, A4)?;
            run_all(&mut programs, [closes(Tcp::Fin)])?;
            if is_again {
                programs.age(Duration::from_secs(1))?;
                run_all(&mut programs, [closes(Tcp::Fin)])?;
            }
            let before = programs.established4()?.len();
            // With one FIN, the other side may still send, also after a long pause.
            programs.age(Duration::from_secs(125))?;
            programs.run(Hook::Ingress, &there(Tcp::Bare).1)?;
            programs.run(other(Tcp::Ack).0, &other(Tcp::Ack).1)?;
            let left = programs.established4()?.len();
            let wanted = if is_again { 0 } else { 2 };
            ensure!(before == 2 && left == wanted, "sent again: {is_again}: {left} entries left");
        }
    }
    Ok(())
}
