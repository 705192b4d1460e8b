//! Endpoints to which this node's connects fail are ejected for a while, as clients see it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::foreign::FlagSetter;
use topo_lb_tests::scene::{
    ALL, FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, ZONE, at, idle, mapped, play,
};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{until, until_is};

const EJECTION: &str = "topo-lb.io/ejection";

/// How long it may take until connects have timed out, or an endpoint is probed a few times, each after
/// twice the time.
const PROBED: Duration = Duration::from_secs(40);

/// What a pod does with connects. Datagrams pass.
fn answer(scene: &Scene<'_>, pod: &str, verdict: &str) -> Result<()> {
    let rule = match verdict {
        "" => String::new(),
        verdict => format!("tcp dport 9376 {verdict};"),
    };
    scene.cluster.pod(pod)?.netns().nft(&format!(
        "table inet broken {{}}; flush table inet broken; table inet broken {{ chain input {{ \
         type filter hook input priority 0; {rule} }}; }}"
    ))
}

const REFUSE: &str = "reject with tcp reset";

fn ask(scene: &mut Scene<'_>, text: &str) -> Result<()> {
    scene.change(|manifests| manifests.annotate("web", EJECTION, Some(text)))
}

/// What the agent says of `web`.
fn explained(agent: &Agent<'_>) -> Result<Value> {
    let answer = agent.get("/explain?service=default/web")?;
    serde_json::from_str(&answer.body).with_context(|| answer.to_string())
}

/// Which addresses the agent says are ejected from the port of TCP.
fn ejected(agent: &Agent<'_>) -> Result<BTreeSet<String>> {
    let report = explained(agent)?;
    let ports = report["services"].as_array().context("a list of ports")?;
    let tcp = ports.iter().filter(|port| port["port"]["protocol"] == "TCP");
    let endpoints = tcp.flat_map(|port| port["endpoints"].as_array().into_iter().flatten());
    let out = endpoints.filter(|one| {
        let reason = one["reason"].as_str().unwrap_or_default();
        reason.starts_with("ejected ") && one["selected"] == false
    });
    Ok(out.filter_map(|one| Some(one["address"].as_str()?.to_owned())).collect())
}

/// The addresses of pods.
fn addresses(scene: &Scene<'_>, pods: &[&str]) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for name in pods {
        let pod = scene.cluster.pod(name)?;
        all.extend([pod.ipv4.to_string(), pod.ipv6.to_string()]);
    }
    Ok(all)
}

/// Waits until these pods, and no others, are ejected. No client connects meanwhile.
fn wait_for(scene: &Scene<'_>, pods: &[&str], limit: Duration) -> Result<()> {
    let wanted = format!("{:?}", addresses(scene, pods)?);
    let look = || ejected(&scene.agent).map(|now| format!("{now:?}"));
    until_is(&format!("{wanted} to be ejected"), limit, look, |now| *now == wanted).map(drop)
}

/// Connects to `web` by IPv4 and IPv6 until these pods, and no others, are ejected.
fn connect_until(scene: &mut Scene<'_>, pods: &[&str]) -> Result<()> {
    let wanted = addresses(scene, pods)?;
    until(&format!("{wanted:?} to be ejected"), PROBED, || {
        for to in [at(WEB4)?, at(WEB6)?] {
            scene.client.call(Via::Http, to, 20)?;
        }
        let now = ejected(&scene.agent)?;
        Ok(if now == wanted { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .map(drop)
}

/// A sample of the agent's metrics; zero if there is none.
fn sample(scene: &Scene<'_>, series: &str) -> Result<f64> {
    Ok(scene.agent.get("/metrics")?.sample(series).unwrap_or(0.0))
}

/// The frontends of `web` by every kind of socket.
fn all() -> Result<[SocketAddr; 3]> {
    Ok([at(WEB4)?, at(WEB6)?, mapped(WEB4)?])
}

#[test]
fn endpoints_that_refuse_or_drop_are_left_out_here_and_only_here_until_they_are_mended()
-> Result<()> {
    play(|scene| {
        let mut other =
            Agent::prepare(&scene.binary, scene.cluster, "beside", scene.manifests.folder())?;
        other.resume()?;
        // One more SYN, after a second; the kernel gives up two seconds later.
        scene.cluster.pod("client")?.netns().set(&[("ipv4/tcp_syn_retries", "1")])?;
        answer(scene, "c", REFUSE)?;
        answer(scene, "d", "drop")?;
        ask(scene, "2, 1s")?;
        connect_until(scene, &["c", "d"])?;
        for to in all()? {
            scene.expect(Via::Http, to, &["a", "b"])?;
        }
        // Datagrams to the same address and port are another Service port, whose failures nobody sees.
        scene.expect(Via::UdpConnected, at(WEB4)?, &ALL)?;
        ensure!(ejected(&other)?.is_empty(), "another node leaves them out, too");
        let ejections = |reason: &str| {
            sample(scene, &format!("topo_lb_ejections_total{{reason=\"{reason}\"}}"))
        };
        ensure!(ejections("refused")? >= 2.0 && ejections("timeout")? >= 2.0);
        ensure!(sample(scene, "topo_lb_ejected_endpoints")? == 4.0, "in both families");

        answer(scene, "c", "")?;
        wait_for(scene, &["d"], PROBED)?;
        for to in all()? {
            scene.expect(Via::Http, to, &["a", "b", "c"])?;
        }
        answer(scene, "d", "")?;
        wait_for(scene, &[], PROBED)?;
        for to in all()? {
            scene.expect(Via::Http, to, &ALL)?;
        }
        Ok(())
    })
}

#[test]
fn a_probe_costs_no_connection_of_a_client() -> Result<()> {
    play(|scene| {
        answer(scene, "c", REFUSE)?;
        ask(scene, "2, 1s")?;
        connect_until(scene, &["c"])?;
        let Scene { client, agent, .. } = scene;
        let series = "topo_lb_ejection_probes_total{outcome=\"failed\"}";
        let (tally, _) = client.call_during(Via::Http, at(WEB4)?, || {
            agent.wait_for_answer("/metrics", PROBED, |it| {
                it.sample(series).is_some_and(|probes| probes >= 4.0)
            })
        })?;
        ensure!(tally.is_of(&["a", "b", "d"]), "{tally}");
        ensure!(ejected(agent)?.len() == 2, "it is still ejected");
        Ok(())
    })
}

#[test]
fn the_last_of_a_strict_tier_and_the_other_half_of_a_tier_are_never_left_out() -> Result<()> {
    play(|scene| {
        for pod in ["a", "b"] {
            answer(scene, pod, REFUSE)?;
        }
        ask(scene, "1, 10m, 100%")?;
        let hostname = "kubernetes.io/hostname";
        for (keys, out) in [(hostname, 0), (ZONE, 1)] {
            scene.change(|manifests| manifests.annotate("web", KEYS, Some(keys)))?;
            scene.wait_for(
                Via::UdpConnected,
                at(WEB4)?,
                if out == 0 { &["a"] } else { &["a", "b"] },
            )?;
            for to in all()? {
                for _ in 0..20 {
                    let tally = scene.client.call(Via::Http, to, 5)?;
                    ensure!(tally.refused == tally.requests, "{tally}");
                }
            }
            let look = || ejected(&scene.agent).map(|it| it.len());
            // In both families.
            until_is("so many to be ejected", FOLLOWS, look, |now| *now == 2 * out)?;
            scene.agent.wait_for_verdict("web", "route", FOLLOWS)?;
        }
        Ok(())
    })
}

#[test]
fn an_endpoint_that_refuses_every_second_connect_is_left_out_after_one_failure_but_not_after_two()
-> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["a", "c"])?;
        answer(scene, "c", &alternate())?;
        ask(scene, "2, 10m")?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["a", "c"])?;
        let tally = scene.client.call(Via::Http, at(WEB4)?, 400)?;
        ensure!(tally.refused > 50 && tally.replies["c"] > 50, "{tally}");
        let refused = "topo_lb_ejections_total{reason=\"refused\"}";
        ensure!(sample(scene, refused)? == 0.0, "it was ejected");
        ask(scene, "1, 10m")?;
        connect_until_one(scene, "c")?;
        ensure!(sample(scene, refused)? == 1.0, "it was ejected more than once");
        Ok(())
    })
}

/// An endpoint that refuses every second connect.
fn alternate() -> String {
    format!("tcp flags syn / syn,ack numgen inc mod 2 0 {REFUSE}")
}

#[test]
fn a_foreign_program_that_sets_its_own_flags_hides_no_success() -> Result<()> {
    /// include/uapi/linux/bpf.h
    const STATE_CB: i32 = 1 << 2;
    play(|scene| {
        // The programs of a cgroup below the agent's run before the agent's.
        let below = Cgroup::make(scene.cluster.node(HERE)?.cgroup_path(), "below")?;
        scene.client = scene.cluster.client_in("client", &below)?;
        scene.set_endpoints("web", &["a", "c"])?;
        answer(scene, "c", &alternate())?;
        ask(scene, "4, 10m")?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["a", "c"])?;
        for flags in [0, STATE_CB] {
            let _foreign = FlagSetter::attach_setting(below.path(), flags)?;
            let tally = scene.client.call(Via::Http, at(WEB4)?, 400)?;
            ensure!(tally.refused > 50 && tally.replies["c"] > 50, "{tally}");
            let ejections = sample(scene, "topo_lb_ejections_total{reason=\"refused\"}")?;
            ensure!(ejections == 0.0, "it was ejected, with flags {flags}");
        }
        let _foreign = FlagSetter::attach_setting(below.path(), STATE_CB)?;
        answer(scene, "c", REFUSE)?;
        connect_until_one(scene, "c")
    })
}

/// Connects to `web` by IPv4 until this pod is ejected there.
fn connect_until_one(scene: &mut Scene<'_>, pod: &str) -> Result<()> {
    let address = scene.cluster.pod(pod)?.ipv4.to_string();
    until(&format!("{address} to be ejected"), FOLLOWS, || {
        scene.client.call(Via::Http, at(WEB4)?, 20)?;
        let now = ejected(&scene.agent)?;
        Ok(if now.contains(&address) { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .map(drop)
}

#[test]
fn readiness_wins_and_what_becomes_ready_is_judged_afresh() -> Result<()> {
    play(|scene| {
        answer(scene, "c", REFUSE)?;
        ask(scene, "2, 10m")?;
        connect_until(scene, &["c"])?;
        answer(scene, "c", "")?;
        scene.set_ready("c", false)?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["a", "b", "d"])?;
        scene.set_ready("c", true)?;
        // Long before its time is over.
        for to in all()? {
            scene.wait_for(Via::Http, to, &ALL)?;
        }
        ensure!(ejected(&scene.agent)?.is_empty());
        // As does a Service that asks no more.
        answer(scene, "c", REFUSE)?;
        connect_until(scene, &["c"])?;
        scene.change(|manifests| manifests.annotate("web", EJECTION, None))?;
        wait_for(scene, &[], FOLLOWS)
    })
}

#[test]
fn what_is_left_out_stays_out_while_no_agent_runs_and_the_next_one_judges_afresh() -> Result<()> {
    play(|scene| {
        answer(scene, "c", REFUSE)?;
        ask(scene, "2, 10m")?;
        connect_until(scene, &["c"])?;
        scene.agent.kill();
        for to in all()? {
            scene.expect(Via::Http, to, &["a", "b", "d"])?;
        }
        // What fails meanwhile is old when the next agent starts.
        answer(scene, "d", REFUSE)?;
        let tally = scene.client.call(Via::Http, at(WEB4)?, 100)?;
        ensure!(tally.refused >= 10, "{tally}");
        answer(scene, "d", "")?;
        scene.agent.resume()?;
        let ejections = sample(scene, "topo_lb_ejections_total{reason=\"refused\"}")?;
        ensure!(ejected(&scene.agent)?.is_empty() && ejections == 0.0, "it cannot know");
        connect_until(scene, &["c"])
    })
}

#[test]
fn without_accounting_a_service_is_told_that_its_annotation_has_no_effect() -> Result<()> {
    for (flag, value) in [("--accounting", "off"), ("--observe", "")] {
        idle(|scene| {
            scene.manifests.annotate("web", EJECTION, Some("1, 10m"))?;
            scene.manifests.write()?;
            scene.agent.set(flag, value);
            scene.agent.resume()?;
            let reason = "annotation topo-lb.io/ejection is ignored: this node does not see that \
                          connects fail: ";
            let report = explained(&scene.agent)?;
            let error = report["services"][0]["policy"]["error"].as_str().unwrap_or_default();
            ensure!(error.starts_with(reason) && error.contains(flag), "{report}");
            scene.agent.wait_for_log(reason, FOLLOWS)
        })?;
    }
    Ok(())
}

#[test]
fn few_connects_fail_before_an_endpoint_is_left_out() -> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["a", "c"])?;
        answer(scene, "c", REFUSE)?;
        ask(scene, "3, 10m")?;
        scene.wait_for(Via::UdpConnected, at(WEB4)?, &["a", "c"])?;
        // As fast as one client can. Without, half of them fail; as a rule, three or four do.
        let tally = scene.client.call(Via::Http, at(WEB4)?, 2_000)?;
        ensure!((3..=200).contains(&tally.refused) && tally.answered() >= 1_800, "{tally}");
        Ok(())
    })
}
