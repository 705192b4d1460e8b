//! An agent that only observes, beside another proxy: rules in the kernel that send every connection to
//! `web` to one pod, as kube-proxy's do.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::http::Answer;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{EMPTY4, FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, at, idle};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until_is;

/// The metrics of what happened, of what would have, and of what would have been refused.
const HAPPENED: &str = "topo_lb_observed_connections_total";
const WOULD_BE: &str = "topo_lb_would_be_connections_total";
const WOULD_BE_REFUSED: &str = "topo_lb_would_be_refused_connections_total";
/// What an agent that translates counts.
const TRANSLATED: &str = "topo_lb_connections_total";

/// Sends what goes to `web` to this pod, on the agent's node.
pub(crate) fn proxy_to(scene: &Scene<'_>, pod: &str) -> Result<()> {
    requirements::command("nft", "nftables")?;
    let pod = scene.cluster.pod(pod)?;
    let rules = |family: &str, ip: &str, service: &str, endpoint: String| {
        ["tcp", "udp"].map(|protocol| {
            format!("{ip} daddr {service} {protocol} dport 80 dnat {family} to {endpoint}:9376;")
        })
    };
    let four = rules("ip", "ip", WEB4, pod.ipv4.to_string());
    let six = rules("ip6", "ip6", WEB6, format!("[{}]", pod.ipv6));
    let text = format!(
        "table inet proxy {{ chain services {{ type nat hook prerouting priority dstnat; {} {} }}; }}",
        four.concat(),
        six.concat()
    );
    let mut command = Command::new("nft");
    command.arg(text);
    scene.cluster.beside(scene.cluster.node(HERE)?, &mut command)?;
    printed(&mut command).map(drop)
}

/// A scene in which a proxy sends all to `b`, in the same zone, while topo-lb would send all to `a`, on the
/// same node. The agent does not run yet.
fn beside(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    idle(|scene| {
        proxy_to(scene, "b")?;
        let keys = Some("kubernetes.io/hostname,*");
        scene.change(|manifests| manifests.annotate("web", KEYS, keys))?;
        body(scene)
    })
}

/// The same, with an agent that observes.
fn observing(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    beside(|scene| {
        scene.agent.set("--observe", "");
        scene.agent.resume()?;
        body(scene)
    })
}

/// A metric's samples of `web`: `PORT LABEL`, by a label, and their values.
fn of_web(answer: &Answer, metric: &str, label: &str) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for line in answer.body.lines() {
        let Some(rest) = line.strip_prefix(metric).and_then(|rest| rest.strip_prefix('{')) else {
            continue;
        };
        let (labels, value) = rest.split_once("} ").context("a sample has a value")?;
        let of = |label: &str| {
            let (_, rest) = labels.split_once(&format!("{label}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        if of("service") == Some("web") {
            let key = [of("port"), of(label)].map(|it| it.context("a label")).map(Result::ok);
            let key = key.into_iter().flatten().collect::<Vec<_>>().join(" ");
            all.insert(key, value.parse()?);
        }
    }
    Ok(all)
}

/// Waits until a metric of `web` has exactly these samples.
fn expect(scene: &Scene<'_>, metric: &str, label: &str, wanted: &[(&str, u64)]) -> Result<()> {
    let wanted: BTreeMap<_, _> =
        wanted.iter().map(|(key, count)| ((*key).into(), *count)).collect();
    let wanted: BTreeMap<String, u64> = wanted;
    let look = || {
        let found = of_web(&scene.agent.get("/metrics")?, metric, label)?;
        Ok(format!("{found:?}"))
    };
    let wanted = format!("{wanted:?}");
    until_is(&format!("{metric} to be {wanted}"), FOLLOWS, look, |now| *now == wanted).map(drop)
}

#[test]
fn what_happens_and_what_would_are_counted_and_nothing_is_translated() -> Result<()> {
    observing(|scene| {
        for to in [at(WEB4)?, at(WEB6)?] {
            let tally = scene.client.call(Via::Http, to, 20)?;
            ensure!(tally.is_of(&["b"]), "{tally}");
            ensure!(tally.peers == [to].into(), "{:?}", tally.peers);
        }
        // An unconnected socket is one flow, however many datagrams it sends.
        let socket = scene.client.open(Via::Udp, at(WEB4)?)??;
        for _ in 0..10 {
            let reply = scene.client.ask(socket, Some(at(WEB4)?))??;
            ensure!((reply.pod.as_str(), reply.peer) == ("b", at(WEB4)?), "{reply:?}");
        }
        let connected = scene.client.open(Via::UdpConnected, at(WEB6)?)??;
        let reply = scene.client.ask(connected, None)??;
        ensure!((reply.pod.as_str(), reply.peer) == ("b", at(WEB6)?), "{reply:?}");

        expect(scene, HAPPENED, "locality", &[("http zone", 40), ("udp zone", 2)])?;
        expect(scene, WOULD_BE, "locality", &[("http node", 40), ("udp node", 2)])?;
        let answer = scene.agent.get("/metrics")?;
        ensure!(answer.sample("topo_lb_observing") == Some(1.0), "{answer}");
        ensure!(answer.sample("topo_lb_observer_overruns_total") == Some(0.0), "{answer}");
        for name in [TRANSLATED, "topo_lb_refused_connections_total"] {
            ensure!(!answer.body.contains(&format!("\n{name}{{")), "{name}: {answer}");
        }
        Ok(())
    })
}

#[test]
fn nobody_is_refused() -> Result<()> {
    observing(|scene| {
        let strict = Some("example.com/nobody");
        scene.change(|manifests| manifests.annotate("web", KEYS, strict))?;
        scene.agent.wait_for_verdict("web", "refuse", FOLLOWS)?;
        let tally = scene.client.call(Via::Http, at(WEB4)?, 7)?;
        ensure!(tally.is_of(&["b"]), "{tally}");
        let socket = scene.client.open(Via::Udp, at(WEB4)?)??;
        ensure!(
            scene.client.ask(socket, Some(at(WEB4)?))??.pod == "b",
            "a datagram went elsewhere"
        );
        scene.expect(Via::Http, at(EMPTY4)?, &["untouched"])?;
        expect(scene, HAPPENED, "locality", &[("http zone", 7), ("udp zone", 1)])?;
        let refused = [("http topology-policy", 7), ("udp topology-policy", 1)];
        expect(scene, WOULD_BE_REFUSED, "reason", &refused)
    })
}

#[test]
fn the_agent_is_ready_and_says_that_it_observes() -> Result<()> {
    observing(|scene| {
        let is_it = |answer: &Answer| answer.status == 200 && answer.body.contains("only observes");
        scene.agent.wait_for_answer("/readyz", FOLLOWS, is_it)?;
        let log = scene.agent.log();
        ensure!(log.contains("topo-lb only observes"), "{log}");
        ensure!(!log.contains("\"WARN\""), "an intended state is no warning: {log}");
        let mut check = scene.binary.command(&["check", "--pin-dir"]);
        check.arg(scene.agent.pins());
        let said = String::from_utf8(check.output()?.stdout)?;
        ensure!(said.contains("its programs only observe"), "{said}");
        Ok(())
    })
}

#[test]
fn connections_go_on_when_an_agent_begins_and_ends_to_observe() -> Result<()> {
    beside(|scene| {
        scene.agent.resume()?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a"])?;
        let mut held = Vec::new();
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            held.push((scene.client.open(via, at(WEB4)?)??, via, "a"));
        }
        use_all(scene, &held)?;

        scene.agent.stop()?;
        scene.agent.set("--observe", "");
        scene.agent.resume()?;
        use_all(scene, &held).context("after the agent has begun to observe")?;
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            held.push((scene.client.open(via, at(WEB4)?)??, via, "b"));
        }
        use_all(scene, &held)?;
        // Those of the time before do not count.
        expect(scene, WOULD_BE, "locality", &[("http node", 1), ("udp node", 2)])?;
        expect(scene, HAPPENED, "locality", &[("http zone", 1), ("udp zone", 2)])?;

        scene.agent.stop()?;
        scene.agent.unset("--observe");
        scene.agent.resume()?;
        // An unconnected socket gets an endpoint of the policy, as after every start of topo-lb.
        let (_, _, last) = held.last_mut().context("a socket")?;
        *last = "a";
        use_all(scene, &held).context("after the agent has ended to observe")?;
        let tally = scene.client.call(Via::Http, at(WEB4)?, 5)?;
        ensure!(tally.is_of(&["a"]), "{tally}");
        expect(scene, TRANSLATED, "locality", &[("http node", 5), ("udp node", 1)])
    })
}

/// Waits until the agent has inspected its node, as it does each second: it puts a pin back.
fn wait_for_inspection(scene: &Scene<'_>) -> Result<()> {
    let mut links = fs_err::read_dir(scene.agent.pins().join("links"))?;
    let link = links.next().context("a link is pinned")??.path();
    fs_err::remove_file(&link)?;
    let look = || Ok(link.exists().to_string());
    until_is("the pin", FOLLOWS, look, |is_there| is_there == "true").map(drop)
}

#[test]
fn services_without_series_of_their_own_begin_at_zero_after_a_change_of_mode() -> Result<()> {
    beside(|scene| {
        scene.agent.set("--metrics-services", "0");
        let others = |scene: &Scene<'_>, metric: &str| {
            let answer = scene.agent.get("/metrics")?;
            let lines = answer.body.lines().filter(|it| it.starts_with(&format!("{metric}{{")));
            let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            Ok(counts.sum::<u64>().to_string())
        };
        let expect = |scene: &Scene<'_>, metric: &str, wanted: &str| {
            until_is(metric, FOLLOWS, || others(scene, metric), |now| now == wanted).map(drop)
        };
        scene.agent.resume()?;
        scene.client.call(Via::Http, at(WEB4)?, 5)?;
        scene.agent.stop()?;
        scene.agent.set("--observe", "");
        scene.agent.resume()?;
        scene.client.call(Via::Http, at(WEB4)?, 20)?;
        expect(scene, WOULD_BE, "20")
    })
}

/// Uses each socket: the same pod answers, as the Service.
fn use_all(
    scene: &mut Scene<'_>,
    all: &[(topo_lb_tests::traffic::Socket, Via, &str)],
) -> Result<()> {
    for &(socket, via, pod) in all {
        let to = (via == Via::Udp).then(|| at(WEB4)).transpose()?;
        let reply = scene.client.ask(socket, to)?;
        let reply = reply.with_context(|| format!("{via:?} to {pod}"))?;
        ensure!(
            (reply.pod.as_str(), reply.peer) == (pod, at(WEB4)?),
            "{via:?}: {reply:?}, not {pod}"
        );
    }
    Ok(())
}

#[test]
fn without_events_of_connection_tracking_the_agent_says_so_and_counts_what_would_be() -> Result<()>
{
    beside(|scene| {
        let mut off = Command::new("sysctl");
        off.args(["-w", "net.netfilter.nf_conntrack_events=0"]);
        scene.cluster.beside(scene.cluster.node(HERE)?, &mut off)?;
        printed(&mut off)?;
        scene.agent.set("--observe", "");
        scene.agent.resume()?;
        let log = scene.agent.log();
        ensure!(log.contains("nf_conntrack_events is 0"), "{log}");
        let tally = scene.client.call(Via::Http, at(WEB4)?, 3)?;
        ensure!(tally.is_of(&["b"]), "{tally}");
        expect(scene, WOULD_BE, "locality", &[("http node", 3)])?;
        wait_for_inspection(scene)?;
        expect(scene, HAPPENED, "locality", &[])
    })
}
