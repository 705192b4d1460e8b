//! TCP connections: their endpoint, their state, their end.

use std::time::Duration;

use anyhow::{Result, ensure};
use etherparse::{SlicedPacket, TransportSlice};
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{ANSWERED, Connection4, TICK, Tuple4, is_closed};
use topo_lb_tests::frame::{RST, Tcp, VM_MAC, says, segment, wrong_checksums};
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs, uptime};

use super::scene::{
    A4, A6, B4, B6, CLIENT4, CLIENT6, OTHER4, WEB4, WEB6, at, expect, expect_untouched, scene, tcp,
};

#[test]
fn a_client_that_is_its_own_endpoint_hears_the_service() -> Result<()> {
    let mut programs = scene()?;
    let client = "10.244.1.3:40000";
    let from_service = "10.96.0.1:40000";
    let table = [
        ("SYN", tcp(client, WEB4, Tcp::Syn(7)), (BACK, from_service, A4)),
        ("SYN-ACK", tcp(A4, from_service, Tcp::SynAck), (BACK, WEB4, client)),
        ("data", tcp(client, WEB4, Tcp::Ack), (BACK, from_service, A4)),
        ("answer", tcp(A4, from_service, Tcp::Ack), (BACK, WEB4, client)),
    ];
    for (what, packet, wanted) in table {
        let out = expect(&mut programs, what, Hook::Ingress, &packet, wanted)?;
        ensure!(out[..6] == VM_MAC, "{what}: sent to {:x?}", &out[..6]);
        expect_untouched(&mut programs, what, Hook::Egress, &out)?;
    }
    Ok(())
}

#[test]
fn a_syn_follows_an_open_connection_and_chooses_anew_after_its_end() -> Result<()> {
    type Ending = fn(&str, &str, &str) -> Vec<(Hook, Vec<u8>)>;
    let fins: Ending = |client, web, a| {
        let fin = tcp(a, client, Tcp::Fin);
        vec![(Hook::Ingress, tcp(client, web, Tcp::Fin)), (Hook::Egress, fin)]
    };
    let reset: Ending = |client, web, _| vec![(Hook::Ingress, tcp(client, web, Tcp::Rst))];
    let reset_back: Ending = |client, _, a| vec![(Hook::Egress, tcp(a, client, Tcp::Rst))];
    for (client, web, a, b) in [(CLIENT4, WEB4, A4, B4), (CLIENT6, WEB6, A6, B6)] {
        for end in [fins, reset, reset_back] {
            let mut programs = scene()?;
            open(&mut programs, client, web, a)?;
            programs.serve(1, at(web), TCP, &[at(b)])?;
            let data = tcp(client, web, Tcp::Ack);
            let syn = |number| tcp(client, web, Tcp::Syn(number));
            expect(&mut programs, "data", Hook::Ingress, &data, (NEXT, client, a))?;
            // RFC 5961: the endpoint answers by an acknowledgement, and the connection goes on.
            expect(&mut programs, "a SYN", Hook::Ingress, &syn(4_000_000), (NEXT, client, a))?;
            let answer = tcp(a, client, Tcp::Ack);
            expect(&mut programs, "challenge", Hook::Egress, &answer, (NEXT, web, client))?;
            expect(&mut programs, "more data", Hook::Ingress, &data, (NEXT, client, a))?;
            for (hook, packet) in end(client, web, a) {
                programs.run(hook, &packet)?;
            }
            expect(&mut programs, "another SYN", Hook::Ingress, &syn(9), (NEXT, client, b))?;
            expect_untouched(&mut programs, "the old endpoint", Hook::Egress, &answer)?;
        }
    }
    Ok(())
}

/// Opens a connection as [`Tcp`] numbers its segments: from the client 1000, from the endpoint 1001.
pub(super) fn open(programs: &mut Programs, client: &str, web: &str, a: &str) -> Result<()> {
    let (syn, syn_ack) = (tcp(client, web, Tcp::Syn(999)), tcp(a, client, Tcp::SynAck));
    expect(programs, "SYN", Hook::Ingress, &syn, (NEXT, client, a))?;
    expect(programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, web, client))?;
    let ack = tcp(client, web, Tcp::Bare);
    expect(programs, "ACK", Hook::Ingress, &ack, (NEXT, client, a))?;
    Ok(())
}

#[test]
fn connections_stay_half_open_while_an_agent_replaces_the_tables() -> Result<()> {
    for (client, web, a) in [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)] {
        let mut programs = scene()?;
        programs.keep_half_open(true)?;
        open(&mut programs, client, web, a)?;
        let (data, answer) = (tcp(client, web, Tcp::Ack), tcp(a, client, Tcp::Ack));
        let established = |programs: &Programs| programs.established(client.contains('['));
        for times in 0..2 {
            ensure!(established(&programs)? == 0, "established after {times} segments");
            expect(&mut programs, "data", Hook::Ingress, &data, (NEXT, client, a))?;
            expect(&mut programs, "answer", Hook::Egress, &answer, (NEXT, web, client))?;
        }
        programs.keep_half_open(false)?;
        expect(&mut programs, "later data", Hook::Ingress, &data, (NEXT, client, a))?;
        ensure!(established(&programs)? == 2, "both entries: {}", established(&programs)?);
        expect(&mut programs, "later answer", Hook::Egress, &answer, (NEXT, web, client))?;
    }
    Ok(())
}

/// As when the kernel evicts an entry and gives its memory to another connection, after a program
/// has found it.
#[test]
fn an_entry_that_belongs_to_another_connection_by_now_is_left_alone() -> Result<()> {
    let mut programs = scene()?;
    open(&mut programs, CLIENT4, WEB4, A4)?;
    for (key, entry) in programs.established4()? {
        let other = Tuple4 { source_port: key.source_port + 1, ..key };
        programs.restore4(key, Connection4 { key: other, ..entry })?;
    }
    let before = programs.established4()?;
    let data = tcp(CLIENT4, WEB4, Tcp::Ack);
    let (client, web, a) = (at(CLIENT4), at(WEB4), at(A4));
    for (what, hook, packet) in [
        ("data", Hook::Ingress, data.clone()),
        ("answer", Hook::Egress, tcp(A4, CLIENT4, Tcp::Ack)),
        ("FIN", Hook::Ingress, tcp(CLIENT4, WEB4, Tcp::Fin)),
        ("RST", Hook::Ingress, segment((client, web), RST, 1_000, 0, b"")),
        ("RST back", Hook::Egress, segment((a, client), RST, 1_001, 0, b"")),
    ] {
        let (verdict, _) = programs.run(hook, &packet)?;
        ensure!(verdict == DROP, "{what} is translated as another connection's: {verdict}");
        ensure!(programs.established4()? == before, "{what} changes another connection");
    }
    // After a change the program would check the endpoint.
    programs.serve(9, at(OTHER4), TCP, &[at(B4)])?;
    expect_untouched(&mut programs, "data after a change", Hook::Ingress, &data)?;
    ensure!(programs.established4()? == before, "the check changes another connection");
    Ok(())
}

#[test]
fn a_connection_whose_endpoint_is_gone_and_silent_is_reset() -> Result<()> {
    for (client, web, a) in [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)] {
        let mut programs = scene()?;
        let (syn, data) = (tcp(client, web, Tcp::Syn(1)), tcp(client, web, Tcp::Ack));
        let (syn_ack, answer) = (tcp(a, client, Tcp::SynAck), tcp(a, client, Tcp::Ack));
        expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, client, a))?;
        expect(&mut programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, web, client))?;
        programs.remove_member(1, at(a))?;
        expect(&mut programs, "still speaks", Hook::Ingress, &data, (NEXT, client, a))?;
        programs.age(Duration::from_secs(40))?;
        expect(&mut programs, "has answered", Hook::Egress, &answer, (NEXT, web, client))?;
        expect(&mut programs, "goes on", Hook::Ingress, &data, (NEXT, client, a))?;
        programs.age(Duration::from_secs(2))?;
        expect(&mut programs, "sent again", Hook::Ingress, &data, (NEXT, client, a))?;
        programs.age(Duration::from_secs(40))?;
        let out = expect(&mut programs, "is silent", Hook::Ingress, &data, (BACK, web, client))?;
        let sliced = SlicedPacket::from_ethernet(&out)?;
        let Some(TransportSlice::Tcp(rst)) = sliced.transport else { panic!("no TCP") };
        ensure!(rst.rst() && rst.sequence_number() == 77, "{rst:?}");
        ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
        ensure!(programs.connections6()?.is_empty(), "{:?}", programs.connections6()?);
    }
    Ok(())
}

#[test]
fn an_idle_connection_is_not_taken_for_one_that_is_not_answered() -> Result<()> {
    for (client, web, a) in [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)] {
        let mut programs = scene()?;
        let (syn, syn_ack) = (tcp(client, web, Tcp::Syn(1)), tcp(a, client, Tcp::SynAck));
        let (data, bare) = (tcp(client, web, Tcp::Ack), tcp(client, web, Tcp::Bare));
        let answer = tcp(a, client, Tcp::Ack);
        expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, client, a))?;
        expect(&mut programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, web, client))?;
        programs.remove_member(1, at(a))?;
        for _ in 0..3 {
            expect(&mut programs, "asks", Hook::Ingress, &data, (NEXT, client, a))?;
            expect(&mut programs, "answers", Hook::Egress, &answer, (NEXT, web, client))?;
            programs.age(Duration::from_secs(2))?;
            expect(&mut programs, "acknowledges", Hook::Ingress, &bare, (NEXT, client, a))?;
            // Both sides are idle for longer than an endpoint may leave a packet unanswered.
            programs.age(Duration::from_secs(40))?;
        }
        // Only from here on does the endpoint owe an answer.
        expect(&mut programs, "asks", Hook::Ingress, &data, (NEXT, client, a))?;
        programs.age(Duration::from_secs(25))?;
        expect(&mut programs, "waits", Hook::Ingress, &data, (NEXT, client, a))?;
        programs.age(Duration::from_secs(25))?;
        expect(&mut programs, "is silent", Hook::Ingress, &data, (BACK, web, client))?;
    }
    Ok(())
}

#[test]
fn the_last_packets_of_an_idle_connection_are_translated() -> Result<()> {
    for (client, web, a) in [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)] {
        let there = |kind| (Hook::Ingress, tcp(client, web, kind), (NEXT, client, a));
        let back = |kind| (Hook::Egress, tcp(a, client, kind), (NEXT, web, client));
        for packets in [
            vec![there(Tcp::Rst)],
            vec![back(Tcp::Rst)],
            vec![there(Tcp::Fin), back(Tcp::Fin)],
            vec![back(Tcp::Fin), there(Tcp::Fin)],
        ] {
            let mut programs = scene()?;
            open(&mut programs, client, web, a)?;
            for (hook, packet, wanted) in packets {
                programs.age(Duration::from_secs(20))?;
                expect(&mut programs, "an end", hook, &packet, wanted)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_silent_endpoint_is_noticed_while_services_change() -> Result<()> {
    let mut programs = scene()?;
    let (syn, data) = (tcp(CLIENT4, WEB4, Tcp::Syn(1)), tcp(CLIENT4, WEB4, Tcp::Ack));
    expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    let syn_ack = tcp(A4, CLIENT4, Tcp::SynAck);
    expect(&mut programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, WEB4, CLIENT4))?;
    programs.remove_member(1, at(A4))?;
    programs.age(Duration::from_secs(1))?;
    for _ in 0..2 {
        expect(&mut programs, "asks", Hook::Ingress, &data, (NEXT, CLIENT4, A4))?;
        programs.age(Duration::from_secs(20))?;
        // Another Service changes before each packet.
        programs.serve(9, at(OTHER4), TCP, &[at(B4)])?;
    }
    expect(&mut programs, "is silent", Hook::Ingress, &data, (BACK, WEB4, CLIENT4))?;
    Ok(())
}

#[test]
fn packets_of_one_tick_write_the_time_once() -> Result<()> {
    let mut programs = scene()?;
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Syn(1)))?;
    programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::SynAck))?;
    let tick = || -> Result<u64> { Ok(uptime()? >> TICK) };
    // Repeats until both packets fall into one tick. The programs' clock lags some milliseconds.
    loop {
        let now = tick()?;
        if uptime()? - (now << TICK) < 50_000_000 {
            continue;
        }
        programs.use_at(now << TICK)?;
        programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Ack))?;
        programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::Ack))?;
        if tick()? != now {
            continue;
        }
        for (_, connection) in programs.connections4()? {
            ensure!(connection.last_used == now << TICK, "{connection:?}");
        }
        break;
    }
    // A packet of a later tick writes the time. Three ticks are more than the programs' clock lags.
    programs.age(Duration::from_nanos(3 << TICK))?;
    let before = uptime()? >> TICK;
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Ack))?;
    let used = programs.connections4()?.iter().map(|(_, one)| one.last_used >> TICK).max();
    ensure!(used >= Some(before - 1), "{used:?}, not {before}");
    Ok(())
}

#[test]
fn a_syn_that_nobody_has_answered_leaves_an_endpoint_that_is_gone() -> Result<()> {
    for (client, web, a, b) in [(CLIENT4, WEB4, A4, B4), (CLIENT6, WEB6, A6, B6)] {
        let mut programs = scene()?;
        let (syn, data) = (tcp(client, web, Tcp::Syn(1)), tcp(client, web, Tcp::Ack));
        expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, client, a))?;
        programs.serve(1, at(web), TCP, &[at(b)])?;
        programs.remove_member(1, at(a))?;
        expect(&mut programs, "sent again", Hook::Ingress, &syn, (NEXT, client, b))?;
        programs.serve(1, at(web), TCP, &[at(a)])?;
        expect(&mut programs, "what is open stays", Hook::Ingress, &data, (NEXT, client, b))?;
    }
    Ok(())
}

#[test]
fn two_services_with_one_endpoint_are_told_apart() -> Result<()> {
    let mut programs = scene()?;
    programs.serve(9, at(OTHER4), TCP, &[at(A4)])?;
    let (web, other) = (tcp(CLIENT4, WEB4, Tcp::Syn(1)), tcp(CLIENT4, OTHER4, Tcp::Syn(2)));
    expect(&mut programs, "web", Hook::Ingress, &web, (NEXT, CLIENT4, A4))?;
    let (verdict, out) = programs.run(Hook::Ingress, &other)?;
    let (from, to) = says(&out)?;
    ensure!(verdict == NEXT && to == at(A4), "{verdict}: {from} to {to}");
    ensure!(from.ip() == at(CLIENT4).ip() && from.port() != 40_000, "{from}");
    ensure!(wrong_checksums(&out)?.is_empty(), "{:?}", wrong_checksums(&out)?);
    let answers = [(CLIENT4.to_owned(), WEB4), (from.to_string(), OTHER4)];
    for (client, service) in answers {
        let answer = tcp(A4, &client, Tcp::SynAck);
        expect(&mut programs, service, Hook::Egress, &answer, (NEXT, service, CLIENT4))?;
    }
    Ok(())
}

#[test]
fn the_state_of_a_connection_is_followed_on_both_entries() -> Result<()> {
    let mut programs = scene()?;
    let states = |programs: &Programs| -> Result<Vec<u8>> {
        Ok(programs.connections4()?.iter().map(|(_, connection)| connection.state).collect())
    };
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Syn(1)))?;
    ensure!(states(&programs)? == [0, 0], "{:?}", states(&programs)?);
    programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::SynAck))?;
    ensure!(states(&programs)? == [ANSWERED; 2], "{:?}", states(&programs)?);
    programs.run(Hook::Ingress, &tcp(CLIENT4, WEB4, Tcp::Fin))?;
    programs.run(Hook::Egress, &tcp(A4, CLIENT4, Tcp::Fin))?;
    ensure!(states(&programs)?.iter().all(|state| is_closed(*state)), "{:?}", states(&programs)?);
    // A direct connection of the client to the endpoint from the same port.
    expect_untouched(&mut programs, "direct", Hook::Egress, &tcp(A4, CLIENT4, Tcp::SynAck))?;
    // Later packets do not belong to the closed connection either.
    expect_untouched(&mut programs, "direct", Hook::Egress, &tcp(A4, CLIENT4, Tcp::Ack))?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    Ok(())
}
