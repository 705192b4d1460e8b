//! `--count all`: what TCP connections move that topo-lb does not translate, as `/metrics` shows it: exactly what the
//! programs in the pods wrote and read.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use topo_lb_tests::foreign::FlagSetter;
use topo_lb_tests::http::Answer;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene, WEB4, WEB6, at, idle, mapped};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::transfer::{Ending, Moved};
use topo_lb_tests::wait::{until, until_is};

use crate::observe::proxy_to;

/// Sizes of what a client sends: nothing, less than a segment, and more than the first window.
const SIZES: [usize; 3] = [0, 1_000, 300_000];

/// A scene in which a proxy sends what goes to `web` to `b`, in the same zone, and an agent leaves `web` alone and
/// counts everything.
fn counting(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    idle(|scene| {
        proxy_to(scene, "b")?;
        scene.change(|manifests| manifests.annotate("web", "topo-lb.io/handle", Some("false")))?;
        scene.agent.set("--count", "all");
        scene.agent.resume()?;
        body(scene)
    })
}

/// Opens connections to an address, one for each size and ending, and moves bytes. Returns what, and how many.
fn transfers(scene: &mut Scene<'_>, to: &[SocketAddr]) -> Result<(Moved, u64)> {
    let (mut all, mut count) = (Moved::default(), 0);
    for to in to {
        for ending in Ending::ALL {
            for bytes in SIZES {
                let socket = scene.client.open(Via::Http, *to)??;
                let mut moved = scene.client.echo(socket, bytes)?;
                moved.read += scene.client.end(socket, ending)?;
                all += moved;
                count += 1;
            }
        }
    }
    Ok((all, count))
}

/// What is counted in series whose labels begin like this: bytes sent, received, and connections that ended.
fn found(answer: &Answer, metric: &str, labels: &str) -> String {
    let sum = |name: &str| -> f64 {
        let series = format!("topo_lb_{metric}_{name}_total{{{labels}");
        let lines = answer.body.lines().filter(|line| line.starts_with(&series));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    format!("{} {} {}", sum("sent_bytes"), sum("received_bytes"), sum("ended_connections"))
}

/// Waits until exactly this is counted.
fn expect(
    scene: &Scene<'_>,
    metric: &str,
    labels: &str,
    (moved, connections): (Moved, u64),
) -> Result<()> {
    let wanted = format!("{} {} {connections}", moved.written, moved.read);
    let look = || Ok(found(&scene.agent.get("/metrics")?, metric, labels));
    let what = format!("{metric} with {labels} to be {wanted}");
    until_is(&what, FOLLOWS, look, |now| *now == wanted).map(drop)
}

fn of_web(locality: &str, tier: &str) -> String {
    format!(
        "namespace=\"default\",service=\"web\",port=\"http\",locality=\"{locality}\",tier=\"{tier}\"}}"
    )
}

#[test]
fn connections_that_another_proxy_translates_count_where_they_went() -> Result<()> {
    counting(|scene| {
        let moved = transfers(scene, &[at(WEB4)?, at(WEB6)?, mapped(WEB4)?])?;
        expect(scene, "tcp", &of_web("zone", "left"), moved)?;
        let answer = scene.agent.get("/metrics")?;
        let connections = "topo_lb_connections_total{namespace=\"default\",service=\"web\",port=\"http\",\
                           locality=\"zone\"}";
        ensure!(answer.sample(connections) == Some(moved.1 as f64), "{answer}");
        ensure!(answer.sample("topo_lb_counting_all") == Some(1.0), "{answer}");
        ensure!(answer.sample("topo_lb_uncounted_connections_total") == Some(0.0), "{answer}");
        ensure!(!answer.body.contains("tier=\"direct\""), "{answer}");
        Ok(())
    })
}

#[test]
fn pods_that_are_dialled_directly_count_for_their_service_by_distance() -> Result<()> {
    counting(|scene| {
        for (pod, locality) in [("a", "node"), ("b", "zone"), ("c", "region"), ("d", "elsewhere")] {
            let pod = scene.cluster.pod(pod)?;
            let to: [SocketAddr; 2] = [(pod.ipv4, 9376).into(), (pod.ipv6, 9376).into()];
            let moved = transfers(scene, &to)?;
            expect(scene, "tcp", &of_web(locality, "direct"), moved)?;
        }
        let a = scene.cluster.pod("a")?.ipv4;
        // Nobody listens there.
        let refused = scene.client.open(Via::Http, (a, 9).into())?;
        ensure!(refused.is_err(), "somebody listens");
        let zones =
            "topo_lb_zone_sent_bytes_total{source_zone=\"zone-1\",destination_zone=\"zone-3\"}";
        let sent = transfers(scene, &[(scene.cluster.pod("d")?.ipv4, 9376).into()])?.0.written;
        until("bytes to zone-3", FOLLOWS, || {
            let now = scene.agent.get("/metrics")?.sample(zones);
            Ok(if now == Some((3 * sent) as f64) { Ok(()) } else { Err(format!("{now:?}")) })
        })?;
        // That was counted after the refused connection, which is none of the Service's.
        let failures = "topo_lb_connect_failures_total{namespace=\"default\",service=\"web\"";
        let answer = scene.agent.get("/metrics")?;
        ensure!(!answer.body.contains(failures), "{answer}");
        Ok(())
    })
}

#[test]
fn what_is_no_service_counts_by_itself() -> Result<()> {
    counting(|scene| {
        let beyond: SocketAddr = "10.96.1.9:81".parse()?;
        let _server = scene.cluster.serve_untouched(&[beyond])?;
        let moved = transfers(scene, &[beyond])?;
        expect(scene, "other", "to=\"elsewhere\"}", moved)?;
        // `echo` has the same pods, and no TCP port.
        scene.remove("Service", "web")?;
        scene.agent.wait_for_services(FOLLOWS, |all| !all.to_string().contains("default/web"))?;
        let a: SocketAddr = (scene.cluster.pod("a")?.ipv4, 9376).into();
        let moved = transfers(scene, &[a])?;
        expect(scene, "other", "to=\"pods\"}", moved)
    })
}

#[test]
fn a_service_that_nobody_translates_has_no_known_endpoint() -> Result<()> {
    idle(|scene| {
        scene.change(|manifests| manifests.annotate("web", "topo-lb.io/handle", Some("false")))?;
        scene.agent.set("--count", "all");
        scene.agent.resume()?;
        let moved = transfers(scene, &[at(WEB4)?, at(WEB6)?])?;
        expect(scene, "other", "to=\"unknown\"}", moved)
    })
}

#[test]
fn where_a_ramp_does_not_hold_yet_and_where_it_does_are_counted_alike() -> Result<()> {
    idle(|scene| {
        proxy_to(scene, "b")?;
        scene.change(|manifests| {
            manifests.annotate(
                "web",
                "topo-lb.io/topology-keys",
                Some("kubernetes.io/hostname,*"),
            )?;
            manifests.annotate("web", "topo-lb.io/ramp", Some("0%"))
        })?;
        scene.agent.set("--count", "all");
        scene.agent.set("--scope", "opt-in");
        scene.agent.resume()?;
        let before = transfers(scene, &[at(WEB4)?])?;
        expect(scene, "tcp", &of_web("zone", "left"), before)?;
        scene.change(|manifests| manifests.annotate("web", "topo-lb.io/ramp", Some("100%")))?;
        scene.agent.wait_for_services(FOLLOWS, |all| all.to_string().contains("default/web"))?;
        let after = transfers(scene, &[at(WEB4)?])?;
        expect(scene, "tcp", &of_web("node", "0"), after)?;
        expect(scene, "tcp", &of_web("zone", "left"), before)
    })
}

#[test]
fn connections_that_end_while_no_agent_runs_count_and_a_service_that_is_handled_keeps_its_own()
-> Result<()> {
    counting(|scene| {
        scene.agent.kill();
        let moved = transfers(scene, &[at(WEB4)?])?;
        scene.agent.resume()?;
        expect(scene, "tcp", &of_web("zone", "left"), moved)?;
        scene.change(|manifests| manifests.annotate("web", "topo-lb.io/handle", None))?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["a", "b", "c", "d"])?;
        transfers(scene, &[at(WEB4)?])?;
        let translated = BTreeMap::from([("tier=\"none\"", 9.0)]);
        until("nine translated connections", FOLLOWS, || {
            let answer = scene.agent.get("/metrics")?;
            let ended = |tier: &str| -> f64 {
                let lines = answer.body.lines();
                let lines = lines.filter(|line| {
                    line.starts_with("topo_lb_tcp_ended_connections_total{") && line.contains(tier)
                });
                lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
            };
            let now: BTreeMap<_, _> = translated.keys().map(|tier| (*tier, ended(tier))).collect();
            Ok(if now == translated { Ok(()) } else { Err(format!("{now:?}")) })
        })?;
        expect(scene, "tcp", &of_web("zone", "left"), moved)
    })
}

#[test]
fn what_a_full_ring_buffer_has_no_room_for_is_told() -> Result<()> {
    counting(|scene| {
        const CONNECTIONS: u32 = 5_000;
        let pause = |signal| -> Result<()> {
            let process = rustix::process::Pid::from_raw(scene.agent.process_id()?.cast_signed());
            Ok(rustix::process::kill_process(process.expect("a process"), signal)?)
        };
        pause(rustix::process::Signal::STOP)?;
        let tally = scene.client.call(Via::Http, at(WEB4)?, CONNECTIONS)?;
        pause(rustix::process::Signal::CONT)?;
        ensure!(tally.is_of(&["b"]), "{tally}");
        until("each connection counted, or said to be not", FOLLOWS, || {
            let answer = scene.agent.get("/metrics")?;
            let lost = answer.sample("topo_lb_uncounted_connections_total").unwrap_or_default();
            let ended = format!("topo_lb_tcp_ended_connections_total{{{}", of_web("zone", "left"));
            let counted = answer.sample(&ended).unwrap_or_default();
            let is_whole = counted + lost == f64::from(CONNECTIONS) && lost > 0.0;
            Ok(if is_whole { Ok(()) } else { Err(format!("{counted} and {lost}")) })
        })
        .map(drop)
    })
}

#[test]
fn accepted_sockets_of_which_another_program_asks_count_for_nothing() -> Result<()> {
    counting(|scene| {
        let _foreign = FlagSetter::of_accepted(scene.cluster.node(HERE)?.cgroup_path())?;
        let a: SocketAddr = (scene.cluster.pod("a")?.ipv4, 9376).into();
        let moved = transfers(scene, &[a])?;
        expect(scene, "tcp", &of_web("node", "direct"), moved)?;
        expect(scene, "other", "to=\"elsewhere\"}", (Moved::default(), 0))
    })
}

#[test]
fn without_the_flag_nothing_of_it_is_counted() -> Result<()> {
    idle(|scene| {
        scene.agent.resume()?;
        let a: SocketAddr = (scene.cluster.pod("a")?.ipv4, 9376).into();
        transfers(scene, &[a])?;
        let (moved, _) = transfers(scene, &[at(WEB4)?])?;
        let sum = |answer: &Answer| -> f64 {
            let lines = answer.body.lines();
            let lines = lines.filter(|line| line.starts_with("topo_lb_tcp_sent_bytes_total{"));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        let look = || scene.agent.get("/metrics");
        let is_whole = |answer: &Answer| sum(answer) == moved.written as f64;
        let answer = until_is("what was translated", FOLLOWS, look, is_whole)?;
        ensure!(answer.sample("topo_lb_counting_all") == Some(0.0), "{answer}");
        ensure!(!answer.body.contains("topo_lb_other_"), "{answer}");
        Ok(())
    })
}
