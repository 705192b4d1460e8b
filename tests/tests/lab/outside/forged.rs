//! Forged segments of a whole neighbourhood, while its real connections go on.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::flood::flood;
use topo_lb_tests::frame::{ACK, FIN, RST, SYN, segment};
use topo_lb_tests::scene::{ALL, FOLLOWS};
use topo_lb_tests::traffic::Tally;
use topo_lb_tests::wait::patient;

use super::budgets::{DEVICE, to_node};
use super::dialling::{
    ask, client4, client6, dial, expect_no_more_than_dropped, lost, own_networks,
};
use super::scene::{WEB, idle};

/// Flags of the forged segments.
const KINDS: [u8; 7] = [SYN, ACK, RST, FIN, SYN | ACK, RST | ACK, FIN | ACK];
/// Real connections of each family.
const HELD: u16 = 16;
/// Forged segments to send at least.
const FORGED: u64 = 200_000;
/// The node ports of `web` for TCP, by family.
const TO: [&str; 2] = [WEB[0].1, WEB[3].1];

/// The number of the next byte that a connection sends (`TCP_QUEUE_SEQ`, include/uapi/linux/tcp.h). The kernel tells it
/// while the socket is in repair mode, which the connection does not notice.
fn next_number(stream: &TcpStream) -> Result<u32> {
    let option = |option, mut value: libc::c_int, is_get| -> Result<libc::c_int> {
        let (mut length, socket) = (size_of_val(&value) as libc::socklen_t, stream.as_raw_fd());
        let to = (&raw mut value).cast();
        // SAFETY: the value has this length.
        let result = unsafe {
            if is_get {
                libc::getsockopt(socket, libc::IPPROTO_TCP, option, to, &raw mut length)
            } else {
                libc::setsockopt(socket, libc::IPPROTO_TCP, option, to, length)
            }
        };
        ensure!(result == 0, "option {option}: {}", io::Error::last_os_error());
        Ok(value)
    };
    const SEND_QUEUE: libc::c_int = 2;
    const OFF_WITHOUT_PROBE: libc::c_int = -1;
    option(libc::TCP_REPAIR, 1, false)?;
    option(libc::TCP_REPAIR_QUEUE, SEND_QUEUE, false)?;
    let number = option(libc::TCP_QUEUE_SEQ, 0, true)?;
    option(libc::TCP_REPAIR, OFF_WITHOUT_PROBE, false)?;
    Ok(number.cast_unsigned())
}

/// A segment with this number, and perhaps data.
fn forged(from: SocketAddr, to: SocketAddr, kind: usize, number: u32) -> Vec<u8> {
    let flags = KINDS[kind % KINDS.len()];
    let data: &[u8] = if flags == ACK { b"an odd number of bytes." } else { b"" };
    to_node(segment((from, to), flags, number, fastrand::u32(..), data))
}

/// Forged segments: of the real connections' own addresses and ports, of others in their /24 and their /64, and of
/// anybody. Their numbers are at least 2^30 away from those of the real connections: of blind ones, tc takes one RST
/// in 43,690 for the connection's own (`is_in_window`).
fn frames(real: &[(SocketAddr, SocketAddr, u32)]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for round in 0..400 {
        for &(own, to, next) in real {
            let (near, far): (IpAddr, IpAddr) = if own.is_ipv4() {
                (client4(fastrand::u16(..256)), client4(fastrand::u16(256..)))
            } else {
                (client6(0, fastrand::u64(..)), client6(fastrand::u16(1..), fastrand::u64(..)))
            };
            let port = fastrand::u16(1_024..);
            let sources =
                [own, SocketAddr::new(own.ip(), port), (near, port).into(), (far, port).into()];
            let number = next.wrapping_add(1 << 30).wrapping_add(fastrand::u32(..1 << 31));
            frames.extend(sources.into_iter().map(|from| forged(from, to, round, number)));
        }
    }
    fastrand::shuffle(&mut frames);
    frames
}

#[test]
fn forged_segments_end_no_connection_of_their_addresses_and_hold_up_no_other_client() -> Result<()>
{
    idle(|scene| {
        scene.agent.resume()?;
        own_networks(scene)?;
        let fabric = scene.cluster.fabric();
        let mut guest = scene.cluster.guest("outside", fabric)?;
        for (via, to) in WEB {
            guest.wait_for(via, to.parse()?, &ALL, FOLLOWS)?;
        }
        let held: Vec<(TcpStream, String)> = fabric.run(|| {
            (0..2 * HELD)
                .map(|number| {
                    let place = usize::from(number % 2);
                    let from = [client4(number), client6(0, u64::from(number) + 1)][place];
                    let stream = dial(from, TO[place].parse()?)?;
                    let pod = ask(&stream)?;
                    Ok((stream, pod))
                })
                .collect()
        })?;
        let real: Vec<_> = held
            .iter()
            .map(|(stream, _)| {
                Ok((stream.local_addr()?, stream.peer_addr()?, next_number(stream)?))
            })
            .collect::<Result<_>>()?;
        let frames = frames(&real);
        let dropped = scene.cluster.dropped_in_queues()?;
        let (mut tally, mut asked) = (Tally::default(), 0_u64);
        let sent = thread::scope(|scope| {
            let attack = scope.spawn(|| -> Result<u64> {
                let (end, mut sent) = (Instant::now() + patient(Duration::from_secs(20)), 0);
                while sent < FORGED && Instant::now() < end {
                    sent += flood(fabric, DEVICE, &frames, Duration::from_secs(1))?;
                }
                Ok(sent)
            });
            loop {
                let is_over = attack.is_finished();
                for (stream, pod) in &held {
                    let own = stream.local_addr()?;
                    let now =
                        ask(stream).with_context(|| format!("{own} after {asked} answers"))?;
                    ensure!(now == *pod, "{own}: {pod} answered, and then {now}");
                    asked += 1;
                }
                if is_over {
                    break attack.join().expect("no panic");
                }
                for (via, to) in WEB {
                    tally.add(&guest.call(via, to.parse()?, 4)?);
                }
            }
        })?;
        println!(
            "{sent} forged segments, {asked} answers on real connections; beside them {tally}"
        );
        ensure!(sent >= FORGED, "only {sent} segments");
        expect_no_more_than_dropped(scene.cluster, lost(&tally), dropped)
            .with_context(|| tally.to_string())
    })
}
