//! What TCP connections to Services move, as `/metrics` shows it: exactly what the programs in the pods
//! wrote and read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::backend::Locality;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::foreign::FlagSetter;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{
    self, FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, ZONE, at, idle, mapped, play, put_endpoints,
};
use topo_lb_tests::traffic::{Failure, Socket, Via};
use topo_lb_tests::transfer::{Ending, Moved};
use topo_lb_tests::wait::until_is;

/// Sizes of what a client sends: nothing, less than a segment, and more than the first window.
const SIZES: [usize; 3] = [0, 1_000, 300_000];

/// Opens a connection, moves bytes, and ends it.
fn transfer(
    scene: &mut Scene<'_>,
    via: Via,
    to: SocketAddr,
    bytes: usize,
    ending: Ending,
) -> Result<Moved> {
    let socket = scene.client.open(via, to)??;
    let mut moved = scene.client.echo(socket, bytes)?;
    moved.read += scene.client.end(socket, ending)?;
    Ok(moved)
}

/// The sum of a metric's samples of `web`, by the value of a label.
fn sums(scene: &Scene<'_>, metric: &str, label: &str) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for line in scene.agent.get("/metrics")?.body.lines() {
        let Some(rest) = line.strip_prefix(metric).and_then(|rest| rest.strip_prefix('{')) else {
            continue;
        };
        let (labels, value) = rest.split_once("} ").context("a sample has a value")?;
        if !labels.contains("service=\"web\"") {
            continue;
        }
        let key = format!("{label}=\"");
        let key = labels.split_once(&key).and_then(|(_, rest)| rest.split_once('"'));
        let (key, _) = key.with_context(|| format!("{line} has no {label}"))?;
        *all.entry(key.to_owned()).or_default() += value.parse::<u64>()?;
    }
    Ok(all)
}

/// What the agent says that connections to `web` moved.
fn counted(scene: &Scene<'_>) -> Result<Moved> {
    let sum = |metric| Ok::<u64, anyhow::Error>(sums(scene, metric, "port")?.values().sum());
    let written = sum("topo_lb_tcp_sent_bytes_total")?;
    Ok(Moved { written, read: sum("topo_lb_tcp_received_bytes_total")? })
}

/// Waits until as much is counted: a connection ends when the other side has ended it, too.
fn expect(scene: &Scene<'_>, wanted: Moved) -> Result<()> {
    let look = || counted(scene).map(|moved| format!("{moved:?}"));
    let wanted = format!("{wanted:?}");
    until_is(&format!("{wanted} to be counted"), FOLLOWS, look, |now| *now == wanted).map(drop)
}

/// Waits until as many connections to `web` have ended.
fn expect_ended(scene: &Scene<'_>, wanted: u64) -> Result<()> {
    let metric = "topo_lb_tcp_ended_connections_total";
    let look = || Ok(sums(scene, metric, "port")?.into_values().sum::<u64>());
    until_is(&format!("{wanted} ended connections"), FOLLOWS, look, |now| *now == wanted).map(drop)
}

/// What is counted while so many connections are open that have moved this.
fn while_open(moved: Moved, connections: u64) -> Moved {
    if !requirements::walks() {
        return Moved::default();
    }
    Moved { written: moved.written - connections, read: moved.read - connections }
}

#[test]
fn closed_half_closed_and_reset_connections_count_what_programs_wrote_and_read() -> Result<()> {
    play(|scene| {
        let (mut all, mut ended) = (Moved::default(), 0);
        for to in [at(WEB4)?, at(WEB6)?, mapped(WEB4)?] {
            for ending in Ending::ALL {
                for bytes in SIZES {
                    all += transfer(scene, Via::Http, to, bytes, ending)?;
                    ended += 1;
                }
            }
        }
        expect(scene, all)?;
        expect_ended(scene, ended)
    })
}

#[test]
fn mptcp_connections_count_what_programs_wrote_and_read() -> Result<()> {
    play(|scene| {
        let mut all = Moved::default();
        for bytes in SIZES {
            all += transfer(scene, Via::HttpMptcp, at(WEB4)?, bytes, Ending::Close)?;
        }
        expect(scene, all)?;
        expect_ended(scene, 3)
    })
}

#[test]
fn a_connection_that_its_endpoint_resets_counts_what_programs_wrote_and_read() -> Result<()> {
    play(|scene| {
        let socket = scene.client.open(Via::Http, at(WEB4)?)??;
        let moved = scene.client.echo(socket, 1_000)?;
        for name in scene::ALL {
            let kill = || printed(Command::new("ss").args(["-K", "sport", "= :9376"])).map(drop);
            scene.cluster.pod(name)?.netns().run(kill)?;
        }
        expect(scene, moved)
    })
}

#[test]
fn retransmissions_are_counted_as_segments_and_not_as_bytes() -> Result<()> {
    play(|scene| {
        for name in scene::ALL {
            scene.cluster.pod(name)?.netns().nft(
                "table inet lossy { chain input { type filter hook input priority 0; \
                 tcp dport 9376 numgen inc mod 11 == 10 drop; }; \
                 chain output { type filter hook output priority 0; \
                 tcp sport 9376 numgen inc mod 13 == 12 drop; }; }",
            )?;
        }
        let mut all = Moved::default();
        for ending in Ending::ALL {
            all += transfer(scene, Via::Http, at(WEB4)?, 200_000, ending)?;
        }
        expect(scene, all)?;
        let again = sums(scene, "topo_lb_tcp_retransmitted_segments_total", "port")?;
        ensure!(again.values().sum::<u64>() > 0, "nothing was sent again: {again:?}");
        Ok(())
    })
}

#[test]
fn bytes_and_round_trips_are_told_by_locality_and_tier() -> Result<()> {
    play(|scene| {
        let mut wanted = BTreeMap::new();
        for (pod, locality) in scene::ALL.into_iter().zip(Locality::ALL) {
            scene.set_endpoints("web", &[pod])?;
            scene.wait_for(Via::UdpConnected, at(WEB4)?, &[pod])?;
            let moved = transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::HalfClose)?;
            wanted.insert(locality.name().to_owned(), moved.written);
        }
        let sent = "topo_lb_tcp_sent_bytes_total";
        let look = || sums(scene, sent, "locality").map(|sums| format!("{sums:?}"));
        let told = format!("{wanted:?}");
        until_is(&told, FOLLOWS, look, |now| *now == told)?;
        let answer = scene.agent.get("/metrics")?;
        for locality in Locality::ALL.map(Locality::name) {
            let series = format!("topo_lb_tcp_rtt_seconds_count{{locality=\"{locality}\"}}");
            ensure!(answer.sample(&series) == Some(1.0), "{series}: {answer}");
        }

        // The second key matches: the tier is 1.
        let keys = format!("example.com/nobody,{ZONE}");
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(&keys)))?;
        scene.set_endpoints("web", &["b"])?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["b"])?;
        let moved = transfer(scene, Via::Http, at(WEB4)?, 5_000, Ending::HalfClose)?;
        let before = wanted.values().sum();
        let wanted = BTreeMap::from([("1".to_owned(), moved.written), ("none".to_owned(), before)]);
        let look = || sums(scene, sent, "tier").map(|sums| format!("{sums:?}"));
        let told = format!("{wanted:?}");
        until_is(&told, FOLLOWS, look, |now| *now == told).map(drop)
    })
}

#[test]
fn bytes_are_told_by_the_zones_of_both_ends_since_the_agent_started() -> Result<()> {
    play(|scene| {
        let mut wanted = BTreeMap::<_, Moved>::new();
        // To pods a and b is within the zone. What went to the last endpoint is counted after it is gone.
        for restarted in [false, true] {
            let zones = ["zone-1", "zone-1", "zone-2", "zone-3"];
            for (pod, zone) in scene::ALL.into_iter().zip(zones) {
                scene.set_endpoints("web", &[pod])?;
                scene.wait_for(Via::UdpConnected, at(WEB4)?, &[pod])?;
                scene.wait_for(Via::UdpConnected, at(WEB6)?, &[pod])?;
                for to in [at(WEB4)?, at(WEB6)?, mapped(WEB4)?] {
                    let moved = transfer(scene, Via::Http, to, 1_000, Ending::HalfClose)?;
                    *wanted.entry(zone).or_default() += moved;
                }
            }
            let look = || {
                let answer = scene.agent.get("/metrics")?;
                let of = |direction: &str, zone: &&str| {
                    let zones = format!("source_zone=\"zone-1\",destination_zone=\"{zone}\"");
                    answer.sample(&format!("topo_lb_zone_{direction}_bytes_total{{{zones}}}"))
                };
                let now = wanted.keys().map(|zone| (of("sent", zone), of("received", zone)));
                Ok(format!("{:?}", now.collect::<Vec<_>>()))
            };
            let told = wanted.values().map(|it| (Some(it.written as f64), Some(it.read as f64)));
            let told = format!("{:?}", told.collect::<Vec<_>>());
            until_is(&told, FOLLOWS, look, |now| *now == told)?;
            if !restarted {
                scene.agent.stop()?;
                scene.agent.resume()?;
                wanted.clear();
            }
        }
        Ok(())
    })
}

#[test]
fn connections_that_are_never_established_are_told_by_reason() -> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["c"])?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["c"])?;
        let netns = scene.cluster.pod("c")?.netns();
        // One more SYN, after a second; the kernel gives up two seconds later.
        scene.cluster.pod("client")?.netns().set(&[("ipv4/tcp_syn_retries", "1")])?;
        let rule = |verdict: &str| {
            netns.nft(&format!(
                "flush ruleset; table inet broken {{ chain input {{ type filter hook input \
                     priority 0; tcp dport 9376 {verdict}; }}; }}"
            ))
        };
        let mut wanted = BTreeMap::new();
        for (verdict, reason) in [
            ("reject with tcp reset", "refused"),
            ("drop", "timeout"),
            ("reject with icmp type host-unreachable", "unreachable"),
        ] {
            rule(verdict)?;
            let opened: Result<Socket, Failure> = scene.client.open(Via::Http, at(WEB4)?)?;
            ensure!(opened.is_err(), "{verdict}: {opened:?}");
            wanted.insert(reason.to_owned(), 1);
        }
        rule("drop")?;
        scene.cluster.pod("client")?.netns().set(&[("ipv4/tcp_syn_retries", "6")])?;
        ensure!(scene.client.open(Via::Http, at(WEB4)?)?.is_err(), "a dropped SYN was answered");
        wanted.insert("given_up".to_owned(), 1);
        let told = sums(scene, "topo_lb_connect_failures_total", "reason")?;
        ensure!(told == wanted, "{told:?}, not {wanted:?}");
        ensure!(counted(scene)? == Moved::default(), "bytes without a connection");
        Ok(())
    })
}

#[test]
fn a_connection_that_outlives_agents_is_counted_once() -> Result<()> {
    play(|scene| {
        let mut all = transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::Close)?;
        let socket = scene.client.open(Via::Http, at(WEB4)?)??;
        all += scene.client.echo(socket, 2_000)?;
        scene.agent.stop()?;
        all += scene.client.echo(socket, 3_000)?;
        all += transfer(scene, Via::Http, at(WEB6)?, 4_000, Ending::HalfClose)?;
        scene.agent.resume()?;
        scene.agent.kill();
        scene.agent.resume()?;
        all += scene.client.echo(socket, 5_000)?;
        all.read += scene.client.end(socket, Ending::HalfClose)?;
        expect(scene, all)
    })
}

#[test]
fn a_foreign_program_of_a_pod_that_clears_the_flag_changes_nothing() -> Result<()> {
    play(|scene| {
        // The programs of a cgroup below the agent's run before the agent's.
        let below = Cgroup::make(scene.cluster.node(HERE)?.cgroup_path(), "below")?;
        let _foreign = FlagSetter::attach(below.path())?;
        let mut client = scene.cluster.client_in("client", &below)?;
        std::mem::swap(&mut scene.client, &mut client);
        let mut all = transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::Close)?;
        all += transfer(scene, Via::Http, at(WEB6)?, 1_000, Ending::HalfClose)?;
        std::mem::swap(&mut scene.client, &mut client);
        expect(scene, all)
    })
}

#[test]
fn an_open_connection_is_counted_up_to_a_byte_and_its_end_counts_the_rest() -> Result<()> {
    play(|scene| {
        let mut all = Moved::default();
        let sockets =
            [at(WEB4)?, at(WEB6)?, mapped(WEB4)?].map(|to| scene.client.open(Via::Http, to));
        let mut open = Vec::new();
        for socket in sockets {
            open.push(socket??);
        }
        for bytes in SIZES {
            for &socket in &open {
                all += scene.client.echo(socket, bytes)?;
            }
            let most = open.len() as u64;
            let look = || counted(scene).map(|moved| format!("{moved:?}"));
            let wanted = while_open(all, most);
            let wanted = format!("{wanted:?}");
            until_is(&wanted, FOLLOWS, look, |now| *now == wanted)?;
        }
        scene.agent.kill();
        scene.agent.resume()?;
        for socket in open {
            all.read += scene.client.end(socket, Ending::HalfClose)?;
        }
        expect(scene, all)
    })
}

#[test]
fn what_a_foreign_program_of_the_same_cgroup_hides_is_counted_while_the_connection_is_open()
-> Result<()> {
    play(|scene| {
        let _foreign = FlagSetter::attach(scene.cluster.node(HERE)?.cgroup_path())?;
        let socket = scene.client.open(Via::Http, at(WEB4)?)??;
        let moved = scene.client.echo(socket, 1_000)?;
        expect(scene, while_open(moved, 1))?;
        // Its end is not seen, and counts nothing twice.
        scene.client.end(socket, Ending::HalfClose)?;
        // What the next connection moves is counted after that end.
        let socket = scene.client.open(Via::Http, at(WEB4)?)??;
        let mut all = moved;
        all += scene.client.echo(socket, 2_000)?;
        expect(scene, while_open(all, 2))
    })
}

#[test]
fn accounting_goes_on_after_somebody_has_removed_its_pin() -> Result<()> {
    play(|scene| {
        let link = scene.agent.pins().join("links/accounting");
        fs_err::remove_file(&link)?;
        let look = || Ok(link.exists().to_string());
        until_is("the pin of accounting", FOLLOWS, look, |is_there| is_there == "true")?;
        let moved = transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::HalfClose)?;
        expect(scene, moved)
    })
}

#[test]
fn a_service_that_is_made_again_begins_at_zero() -> Result<()> {
    play(|scene| {
        let moved = transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::HalfClose)?;
        expect(scene, moved)?;
        let web = scene.manifests.get("Service", "web")?.clone();
        scene.remove("Service", "web")?;
        scene.wait_for(Via::Http, at(WEB4)?, &["untouched"])?;
        scene.put(web)?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &scene::ALL)?;
        expect(scene, Moved::default())?;
        let moved = transfer(scene, Via::Http, at(WEB4)?, 500, Ending::HalfClose)?;
        expect(scene, moved)
    })
}

#[test]
fn without_accounting_nothing_is_attached_and_nothing_counted() -> Result<()> {
    idle(|scene| {
        put_endpoints(&mut scene.manifests, scene.cluster, "web", &["a"])?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        let link = scene.agent.pins().join("links/accounting");
        ensure!(link.exists(), "accounting is on by default");
        scene.agent.stop()?;
        scene.agent.set("--accounting", "off");
        scene.agent.resume()?;
        ensure!(!link.exists(), "the program stays attached");
        for _ in 0..2 {
            transfer(scene, Via::Http, at(WEB4)?, 1_000, Ending::HalfClose)?;
        }
        // By then, at least the first one's end would be counted.
        let look = || sums(scene, "topo_lb_connections_total", "service");
        let look = || look().map(|sums| sums.values().sum::<u64>().to_string());
        until_is("both connections", FOLLOWS, look, |now| now == "2")?;
        ensure!(counted(scene)? == Moved::default(), "something was counted");
        Ok(())
    })
}

#[test]
fn with_all_counted_pods_that_are_dialled_directly_count_what_programs_wrote_and_read() -> Result<()>
{
    idle(|scene| {
        scene.agent.set("--count", "all");
        scene.agent.resume()?;
        let pod = scene.cluster.pod("c")?;
        let to: [SocketAddr; 2] = [(pod.ipv4, 9376).into(), (pod.ipv6, 9376).into()];
        let (mut moved, mut connections) = (Moved::default(), 0);
        for to in to {
            for ending in Ending::ALL {
                for bytes in SIZES {
                    moved += transfer(scene, Via::Http, to, bytes, ending)?;
                    connections += 1;
                }
            }
        }
        expect(scene, moved)?;
        let tiers = sums(scene, "topo_lb_tcp_ended_connections_total", "tier")?;
        ensure!(tiers == [("direct".to_owned(), connections)].into(), "{tiers:?}");
        Ok(())
    })
}
