//! The fast path in the driver of the uplink (`--xdp any`, as it is a veth device): what tc has opened, XDP carries.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_kernel::datapath::maps::trace::Ring;
use topo_lb_tests::card::{index, is_asked, pass_all};
use topo_lb_tests::client::Client;
use topo_lb_tests::frame;
use topo_lb_tests::generator::Generator;
use topo_lb_tests::outside::{
    ASKS, begin, carried, carried_of, expect_by_tc, expect_by_xdp, open, outlive, pin, resume,
    uplink,
};
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene, at};
use topo_lb_tests::wait::{patient, until};

use super::scene::{BALANCER, FAR_END, OUTSIDE, at_cable, packets_at, set, wait_at_each};
use super::source_ranges::wait_for_sources;
use super::sources::{SEEN, bound, put_seen, wait_for_udp};

/// The scene with an endpoint on another node alone, an agent with this value of `--xdp`, and an uplink like a card.
fn play(xdp: &str, body: impl FnOnce(&mut Scene<'_>, &mut Client) -> Result<()>) -> Result<()> {
    at_cable(true, |scene| {
        let mut client = begin(scene, xdp)?;
        body(scene, &mut client)
    })
}

#[test]
fn what_tc_has_opened_is_carried_by_xdp() -> Result<()> {
    play("any", |scene, client| {
        let all = open(client)?;
        expect_by_xdp(scene, client, &all)?;
        let metrics = scene.agent.get("/metrics")?;
        ensure!(metrics.sample("topo_lb_xdp_devices") == Some(1.0), "{metrics}");
        let counted = metrics.sample("topo_lb_packets_total{hook=\"xdp\",outcome=\"translated\"}");
        ensure!(counted >= Some(ASKS as f64), "{metrics}");
        // More bytes than a window, each way.
        for &(socket, _) in all.iter().filter(|(_, to)| to.port() == 30_080) {
            client.echo(socket, 4 << 20)?;
        }
        // Endpoints of this node are the kernel's and tc's.
        scene.set_endpoints("web", &ALL)?;
        wait_at_each(client, &ALL)
    })
}

#[test]
fn without_the_flag_tc_does_all() -> Result<()> {
    play("off", |scene, client| {
        let all = open(client)?;
        expect_by_tc(scene, client, &all)?;
        ensure!(pin(scene)?.is_none() && !uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        Ok(())
    })
}

#[test]
fn a_frame_whose_checksum_a_device_has_yet_to_compute_is_tcs() -> Result<()> {
    if is_asked() {
        eprintln!(
            "not run: all uplinks are like those of cards, whose frames have their checksums"
        );
        return Ok(());
    }
    at_cable(false, |scene| {
        let mut client = begin(scene, "any")?;
        ensure!(pin(scene)?.is_some() && uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        let all = open(&mut client)?;
        expect_by_tc(scene, &mut client, &all)
    })
}

#[test]
fn a_device_that_may_lose_what_is_sent_back_is_left_to_tc() -> Result<()> {
    at_cable(true, |scene| {
        let mut client = begin(scene, "auto")?;
        scene.agent.wait_for_log("it is a veth device, which loses", FOLLOWS)?;
        ensure!(pin(scene)?.is_none() && !uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        let all = open(&mut client)?;
        expect_by_tc(scene, &mut client, &all)
    })
}

#[test]
fn a_firewall_for_forwarded_packets_switches_it_off_and_its_end_on() -> Result<()> {
    play("any", |scene, client| {
        let all = open(client)?;
        expect_by_xdp(scene, client, &all)?;
        let node = scene.cluster.node_netns(HERE)?;
        for rule in [
            "add table inet wall",
            "add chain inet wall out { type filter hook forward priority 0 ; }",
            "add rule inet wall out ip saddr 198.51.100.0/24 drop",
        ] {
            node.nft(rule)?;
        }
        let is_by = |what: &str, expect: &mut dyn FnMut() -> Result<()>| {
            until(what, FOLLOWS * 4, || Ok(expect().map_err(|error| format!("{error:#}"))))
                .map(drop)
        };
        is_by("packets by tc", &mut || expect_by_tc(scene, client, &all))?;
        node.nft("delete table inet wall")?;
        is_by("packets by XDP", &mut || expect_by_xdp(scene, client, &all))
    })
}

#[test]
fn tc_finds_a_neighbour_that_the_kernel_has_forgotten() -> Result<()> {
    play("any", |scene, client| {
        let all = open(client)?;
        expect_by_xdp(scene, client, &all)?;
        // The client, and the endpoint's node.
        let forget = ["172.30.0.254", "fd00:172::ff", "172.30.0.3", "fd00:172::3"];
        let forget = forget.map(|address| format!("neigh delete {address} dev eth0"));
        scene.cluster.ip_on(HERE, &forget)?;
        let (_, by_tc) = carried_of(scene, client, &all)?;
        ensure!(by_tc > 0, "XDP knows neighbours that the kernel does not");
        expect_by_xdp(scene, client, &all).context("once it is found")
    })
}

#[test]
fn it_outlives_the_agent_and_the_next_one_replaces_the_program_in_its_link() -> Result<()> {
    play("any", |scene, client| {
        let all = open(client)?;
        outlive(scene, client, &all)?;
        scene.agent.stop()?;
        // Its maps do not fit: they are made anew.
        scene.agent.set("--max-connections", "32768");
        resume(scene, client).context("while the maps are replaced")?;
        expect_by_xdp(scene, client, &all).context("with new maps")?;
        scene.agent.stop()?;
        scene.agent.set("--xdp", "off");
        resume(scene, client).context("while it is detached")?;
        ensure!(pin(scene)?.is_none() && !uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        expect_by_tc(scene, client, &all).context("switched off")
    })
}

#[test]
fn another_program_is_left_alone_and_said_once() -> Result<()> {
    at_cable(true, |scene| {
        let other = pass_all(scene.cluster.node_netns(HERE)?, "eth0")?;
        scene.agent.set("--xdp", "any");
        scene.agent.set("--tolerate-programs", "pass_all");
        scene.set_endpoints("web", &["b"])?;
        scene.agent.resume()?;
        let before = uplink(scene)?;
        scene.agent.wait_for_log("eth0 is without the fast path of XDP", FOLLOWS)?;
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        wait_at_each(&mut client, &["b"])?;
        let all = open(&mut client)?;
        expect_by_tc(scene, &mut client, &all)?;
        ensure!(uplink(scene)? == before, "{}", uplink(scene)?);
        drop(other);
        until("packets by XDP", FOLLOWS * 4, || {
            let by_xdp = expect_by_xdp(scene, &mut client, &all);
            Ok(by_xdp.map_err(|error| format!("{error:#}")))
        })?;
        let said = scene.agent.log().matches("another program of XDP is there").count();
        ensure!(said == 1, "said {said} times");
        Ok(())
    })
}

#[test]
fn cleanup_and_a_device_that_vanishes_leave_nothing() -> Result<()> {
    play("any", |scene, _| {
        ensure!(pin(scene)?.is_some() && uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        ip("link add veth7 type veth peer name veth8")?;
        ip("address add 172.30.0.2/32 dev veth7")?;
        let pins =
            || Ok::<_, anyhow::Error>(fs::read_dir(scene.agent.pins().join("links"))?.count());
        let one = pins()?;
        until("programs on another uplink", FOLLOWS, || {
            let now = pins()?;
            Ok(if now == one + 3 { Ok(()) } else { Err(now) })
        })?;
        ip("link delete veth7")?;
        until("pins of one uplink", FOLLOWS, || {
            let now = pins()?;
            Ok(if now == one { Ok(()) } else { Err(now) })
        })?;
        scene.agent.stop()?;
        let cleanup = scene.agent.cleanup()?;
        ensure!(cleanup.status.success() && !scene.agent.pins().exists(), "{cleanup:?}");
        ensure!(!uplink(scene)?.contains("xdp"), "{}", uplink(scene)?);
        Ok(())
    })
}

/// The first source port of [`flows`].
const FIRST: u16 = 40_960;

/// Opens so many established flows of datagrams from [`FIRST`] on to an endpoint in pod b. Returns the endpoint's and
/// the clients' sockets.
fn flows(scene: &mut Scene<'_>, count: u16) -> Result<(UdpSocket, Vec<UdpSocket>)> {
    put_seen(scene, "b")?;
    let to: SocketAddr = SEEN[0].parse()?;
    wait_for_udp(scene, "b", to)?;
    let server = bound(scene, "b", UdpSocket::bind)?;
    let limit = Some(patient(Duration::from_secs(2)));
    server.set_read_timeout(limit)?;
    let clients = scene.cluster.fabric().run(|| {
        let open = |port| -> Result<UdpSocket> {
            let client = UdpSocket::bind((OUTSIDE[0], port))?;
            client.connect(to)?;
            client.set_read_timeout(limit)?;
            Ok(client)
        };
        (FIRST..FIRST + count).map(open).collect::<Result<Vec<_>>>()
    })?;
    let mut byte = [0];
    for client in &clients {
        client.send(b"?")?;
        let (_, source) = server.recv_from(&mut byte).context("the server hears nothing")?;
        server.send_to(b"!", source)?;
        client.recv(&mut byte).context("the client hears nothing")?;
        // Only this one establishes the flow.
        client.send(b"?")?;
        server.recv(&mut byte).context("the server hears no more")?;
    }
    Ok((server, clients))
}

/// A generator of these flows' datagrams.
fn generator(scene: &Scene<'_>, count: u16) -> Result<Generator> {
    frames(scene, SocketAddr::new(OUTSIDE[0].parse()?, FIRST), SEEN[0].parse()?, count)
}

/// A generator of datagrams to the node. UDP's zero means that there is no checksum.
fn frames(scene: &Scene<'_>, from: SocketAddr, to: SocketAddr, count: u16) -> Result<Generator> {
    let mut frame = frame::udp(from, to, &[7; 22]);
    frame[..6].copy_from_slice(&NODE_MAC);
    frame[40..42].copy_from_slice(&[0, 0]);
    Generator::new(&frame, count, index(scene.cluster.fabric(), FAR_END)?)
}

/// The address of the agent's uplink.
const NODE_MAC: [u8; 6] = [2, 0x54, 0x4c, 1, 1, 0];

#[test]
fn frames_that_no_kernel_has_seen_are_carried_at_any_rate() -> Result<()> {
    const FLOWS: u16 = 64;
    const FRAMES: u32 = 1 << 17;
    play("any", |scene, _| {
        let (server, clients) = flows(scene, FLOWS)?;
        let generator = generator(scene, FLOWS)?;
        let before = carried(scene)?;
        generator.send(scene.cluster.fabric(), FRAMES)?;
        // A ring of 256 frames between network namespaces drops, before either sees it, what comes too fast: on a busy
        // machine most of it. So it is not about how many frames come, but about who takes those that do: tc gets those that
        // open a flow, and once in 8.6 s of each what comes before tc has noted the time.
        let (least, most) = (u64::from(FRAMES) / 64, u64::from(FLOWS) * 4);
        until("packets by XDP", FOLLOWS, || {
            let now = carried(scene)?;
            let (by_xdp, by_tc) = (now.0 - before.0, now.1 - before.1);
            let is_by_xdp = by_xdp > least && by_tc < most;
            Ok(if is_by_xdp { Ok(()) } else { Err(format!("XDP {by_xdp}, tc {by_tc}")) })
        })?;
        let mut datagram = [0; 64];
        let (bytes, _) = server.recv_from(&mut datagram).context("the endpoint gets none")?;
        ensure!(datagram[..bytes] == [7; 22], "{datagram:?}");
        drop(clients);
        Ok(())
    })
}

/// How long XDP carries a flow until one packet each way is tc's.
const PERIOD: Duration = Duration::from_nanos(1 << 33);

#[test]
fn flows_are_tcs_one_after_the_other() -> Result<()> {
    const FLOWS: u16 = 64;
    play("any", |scene, _| {
        let sockets = flows(scene, FLOWS)?;
        let generator = generator(scene, FLOWS)?;
        let (begun, first) = (Instant::now(), carried(scene)?.1);
        let (mut before, mut most) = (first, 0);
        while begun.elapsed() < PERIOD {
            // Of each flow some.
            generator.send(scene.cluster.fabric(), 1 << 10)?;
            let now = carried(scene)?.1;
            most = most.max(now - before);
            before = now;
        }
        drop(sockets);
        let all = before - first;
        ensure!(all >= u64::from(FLOWS) / 2, "tc gets {all} packets of {FLOWS} flows");
        ensure!(most <= all / 2, "tc gets {most} of {all} packets at once");
        Ok(())
    })
}

#[test]
fn what_source_ranges_deny_is_dropped_by_xdp_and_counted_to_the_packet() -> Result<()> {
    // Fewer than the ring between two network namespaces takes.
    const AT_ONCE: u32 = 128;
    play("any", |scene, client| {
        let all = open(client)?;
        let ranges = json!(["198.51.100.0/24", "2001:db8:100::/48"]);
        scene.change(|it| set(it, "loadBalancerSourceRanges", ranges))?;
        let denied = || packets_at(scene, "xdp", "denied");
        wait_for_sources(scene, 8)?;
        let generator = frames(scene, "192.0.2.77:40960".parse()?, at(BALANCER[0])?, 64)?;
        let by_tc = packets_at(scene, "tc ingress", "denied")?;
        for _ in 0..16 {
            let wanted = denied()? + u64::from(AT_ONCE);
            generator.send(scene.cluster.fabric(), AT_ONCE)?;
            until("all to be dropped", FOLLOWS, || {
                let now = denied()?;
                Ok(if now == wanted { Ok(()) } else { Err(format!("{now} of {wanted}")) })
            })?;
        }
        ensure!(packets_at(scene, "tc ingress", "denied")? == by_tc, "tc dropped some");
        // A tracer is to see each of them.
        let by_xdp = denied()?;
        let mut trace = Ring::open(scene.agent.pins(), 1 << 20)?;
        generator.send(scene.cluster.fabric(), AT_ONCE)?;
        let mut told = 0;
        until("all to be told", FOLLOWS, || {
            while trace.take()?.is_some() {
                told += 1;
            }
            Ok(if told == AT_ONCE { Ok(()) } else { Err(format!("{told} of {AT_ONCE}")) })
        })?;
        ensure!(denied()? == by_xdp, "XDP dropped some beside a tracer");
        drop(trace);
        // What is open goes on.
        expect_by_xdp(scene, client, &all)
    })
}
