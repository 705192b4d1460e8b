//! Idle connections that a fail-over has left in another zone end gently once a nearer endpoint is back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use topo_lb_tests::manifest::service;
use topo_lb_tests::scene::{
    FOLLOWS, KEYS, Scene, WEB4, WEB6, ZONE, at, idle, mapped, play, put_endpoints,
};
use topo_lb_tests::traffic::{Socket, Step, Via};
use topo_lb_tests::transfer::Ending;
use topo_lb_tests::wait::until;

const RETURN: &str = "topo-lb.io/return";
/// A Service that does not ask for it.
const PLAIN: &str = "10.96.1.9";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n";

/// Within how long few connections return: their time, five seconds without a byte, and a round for each of a
/// Service's, or a later search.
const RETURNED: Duration = Duration::from_secs(120);

/// Within how long they are counted anew.
const COUNTED: Duration = Duration::from_secs(75);

/// `web` and `plain` prefer this zone, and have these pods; waits until new connections go to one.
fn lead_to(scene: &mut Scene<'_>, pods: &[&str], to: &str) -> Result<()> {
    let cluster = scene.cluster;
    scene.change(|manifests| {
        ["web", "plain"].iter().try_for_each(|name| put_endpoints(manifests, cluster, name, pods))
    })?;
    for address in [at(WEB4)?, at(WEB6)?, at(PLAIN)?] {
        scene.wait_for(Via::Http, address, &[to])?;
    }
    Ok(())
}

fn ask_for_it(scene: &mut Scene<'_>, after: &str) -> Result<()> {
    let keys = format!("{ZONE},*");
    scene.manifests.put(service("plain", &[PLAIN], &[("http", 80, "TCP")], &[(KEYS, &keys)]));
    scene.change(|manifests| {
        manifests.annotate("web", KEYS, Some(&keys))?;
        manifests.annotate("web", RETURN, Some(after))
    })
}

/// A connection to a pod, after one exchange.
fn pooled(scene: &mut Scene<'_>, to: SocketAddr, pod: &str) -> Result<Socket> {
    let socket = scene.client.open(Via::Http, to)??;
    expect(scene, socket, pod)?;
    Ok(socket)
}

fn expect(scene: &mut Scene<'_>, socket: Socket, pod: &str) -> Result<()> {
    let reply = scene.client.ask(socket, None)??;
    ensure!(reply.pod == pod, "{} answers, and not {pod}", reply.pod);
    Ok(())
}

/// Whether a stream has ended, and not by a reset.
fn has_ended(scene: &mut Scene<'_>, socket: Socket) -> Result<bool> {
    Ok(scene.client.look(socket)?? == Some(0))
}

/// Waits until all of these have ended. Meanwhile `busy` is used once a second.
fn wait_for_the_end(scene: &mut Scene<'_>, pool: &[Socket], busy: Option<Socket>) -> Result<()> {
    let (mut left, mut used) = (pool.to_vec(), Instant::now());
    until("the end of idle connections", RETURNED, || {
        if let Some(busy) = busy
            && used.elapsed() > Duration::from_secs(1)
        {
            used = Instant::now();
            expect(scene, busy, "c")?;
        }
        let mut open = Vec::new();
        for socket in left.drain(..) {
            if !has_ended(scene, socket)? {
                open.push(socket);
            }
        }
        left = open;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{} are open", left.len())) })
    })
    .map(drop)
}

fn returned(scene: &Scene<'_>) -> Result<f64> {
    let answer = scene.agent.get("/metrics")?;
    answer.sample("topo_lb_returned_sockets_total").context("a sample")
}

#[test]
fn idle_connections_end_when_the_zone_is_back_and_nothing_else_does() -> Result<()> {
    play(|scene| {
        ask_for_it(scene, "5s")?;
        lead_to(scene, &["c"], "c")?;
        let mut pool = vec![
            pooled(scene, at(WEB4)?, "c")?,
            pooled(scene, at(WEB6)?, "c")?,
            pooled(scene, mapped(WEB4)?, "c")?,
        ];
        // Never used.
        pool.push(scene.client.open(Via::Http, at(WEB6)?)??);
        let busy = pooled(scene, at(WEB4)?, "c")?;
        let unread = scene.client.open(Via::Http, at(WEB4)?)??;
        scene.client.say(unread, REQUEST)?;
        let unanswered = pooled(scene, at(WEB4)?, "c")?;
        scene.client.say(unanswered, &REQUEST[..9])?;
        let plain = pooled(scene, at(PLAIN)?, "c")?;
        let direct = scene.cluster.pod("c")?.address4();
        let direct = pooled(scene, direct, "c")?;
        lead_to(scene, &["a", "c"], "a")?;
        let near = pooled(scene, at(WEB4)?, "a")?;

        wait_for_the_end(scene, &pool, Some(busy))?;
        ensure!(returned(scene)? == 4.0, "{}", returned(scene)?);
        scene.agent.wait_for_log("ended idle connections to a wider tier", FOLLOWS)?;
        // What is written afterwards reaches nobody, so a client may repeat it.
        let failure = scene.client.ask(pool[0], None)?.err().context("an answer after the end")?;
        let wanted = [Errno::PIPE, Errno::NOTCONN].map(Errno::raw_os_error);
        ensure!(wanted.contains(&failure.errno) && failure.step != Step::Receive, "{failure}");
        pooled(scene, at(WEB4)?, "a")?;
        for (socket, pod) in [(busy, "c"), (plain, "c"), (direct, "c"), (near, "a")] {
            expect(scene, socket, pod)?;
        }
        ensure!(scene.client.look(unread)?? == Some(1), "its answer is lost");
        scene.client.say(unread, REQUEST)?;
        scene.client.say(unanswered, &REQUEST[9..])?;
        // What is used no more follows.
        wait_for_the_end(scene, &[busy], None)?;
        for socket in [plain, direct, near] {
            ensure!(scene.client.look(socket)??.is_none(), "it has ended");
        }
        Ok(())
    })
}

/// Open connections to a wider tier, by Service: of `web` and of `plain`; `None`: the agent does not know.
fn wider(scene: &Scene<'_>) -> Result<[Option<f64>; 2]> {
    let answer = scene.agent.get("/metrics")?;
    let of = |name: &str| {
        let labels = format!("{{namespace=\"default\",service=\"{name}\",port=\"http\"}}");
        answer.sample(&format!("topo_lb_wider_tier_connections{labels}"))
    };
    Ok(["web", "plain"].map(of))
}

fn wait_for_wider(scene: &Scene<'_>, wanted: [Option<f64>; 2]) -> Result<()> {
    until("the count of connections to a wider tier", COUNTED, || {
        let found = wider(scene)?;
        Ok(if found == wanted { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .map(drop)
}

#[test]
fn what_would_come_home_is_counted_whether_or_not_it_asks_for_it() -> Result<()> {
    play(|scene| {
        ask_for_it(scene, "1h")?;
        lead_to(scene, &["c"], "c")?;
        let web = [
            pooled(scene, at(WEB4)?, "c")?,
            pooled(scene, at(WEB6)?, "c")?,
            pooled(scene, mapped(WEB4)?, "c")?,
        ];
        let plain = [pooled(scene, at(PLAIN)?, "c")?, pooled(scene, at(PLAIN)?, "c")?];
        let direct = scene.cluster.pod("c")?.address4();
        pooled(scene, direct, "c")?;
        lead_to(scene, &["a", "c"], "a")?;
        pooled(scene, at(PLAIN)?, "a")?;
        wait_for_wider(scene, [Some(3.0), Some(2.0)])?;
        scene.client.end(plain[0], Ending::Close)?;
        scene.change(|manifests| manifests.annotate("web", RETURN, Some("5s")))?;
        wait_for_the_end(scene, &web, None)?;
        wait_for_wider(scene, [Some(0.0), Some(1.0)])?;
        let bytes = scene.agent.get("/metrics")?.sample("topo_lb_returned_bytes_total");
        ensure!(bytes.context("a sample")? > 3.0 * REQUEST.len() as f64, "{bytes:?}");
        Ok(())
    })
}

#[test]
fn a_zone_that_flaps_moves_nothing_until_it_stays() -> Result<()> {
    /// Of a phase at most, or this machine shows nothing.
    const AFTER: Duration = Duration::from_secs(10);
    play(|scene| {
        ask_for_it(scene, "10s")?;
        lead_to(scene, &["c"], "c")?;
        let pool = [pooled(scene, at(WEB4)?, "c")?];
        let began = Instant::now();
        while began.elapsed() < AFTER * 2 {
            let back = Instant::now();
            lead_to(scene, &["a", "c"], "a")?;
            while back.elapsed() < AFTER / 4 {
                ensure!(!has_ended(scene, pool[0])?, "it has ended");
            }
            lead_to(scene, &["c"], "c")?;
            ensure!(back.elapsed() < AFTER, "this machine is too slow to show anything");
            ensure!(!has_ended(scene, pool[0])?, "it has ended");
        }
        ensure!(returned(scene)? == 0.0);
        let back = Instant::now();
        lead_to(scene, &["a", "c"], "a")?;
        wait_for_the_end(scene, &pool, None)?;
        ensure!(back.elapsed() >= AFTER, "after {:?}", back.elapsed());
        Ok(())
    })
}

#[test]
fn an_agent_that_may_not_open_sockets_says_so_once_and_leaves_them() -> Result<()> {
    idle(|scene| {
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
        scene.agent.keep_only(needed | CapabilitySet::SYS_ADMIN);
        scene.agent.resume()?;
        ask_for_it(scene, "5s")?;
        lead_to(scene, &["c"], "c")?;
        let socket = pooled(scene, at(WEB4)?, "c")?;
        lead_to(scene, &["a", "c"], "a")?;
        scene.agent.wait_for_answer("/metrics", RETURNED, |answer| {
            answer.sample("topo_lb_hidden_processes").is_some_and(|hidden| hidden > 0.0)
        })?;
        let log = scene.agent.log();
        let said = log.lines().filter(|line| line.contains("connections to a wider tier stay"));
        ensure!(said.count() == 1, "{log}");
        ensure!(returned(scene)? == 0.0);
        ensure!(
            wider(scene)? == [None, None],
            "who may not look does not know: {:?}",
            wider(scene)?
        );
        expect(scene, socket, "c")
    })
}
