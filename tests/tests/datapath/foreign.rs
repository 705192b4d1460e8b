//! A foreign socket load balancer on the same node: topo-lb decides, or reports that it does not.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::thread::CapabilitySet;
use topo_lb_kernel::datapath::hook::Hook;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::foreign::{self, AttachMode, Foreign, NAME, Rule};
use topo_lb_tests::http::Answer;
use topo_lb_tests::scene::{ALL, HERE, NOBODY4, NOBODY6, Scene, WEB4, WEB6, at, idle};
use topo_lb_tests::traffic::Via;

/// The agent reports within two seconds that it does not decide.
const SAYS: Duration = Duration::from_secs(2);
/// It waits before it reports that it decides again.
const SAYS_AGAIN: Duration = Duration::from_secs(12);

/// The address that the self-probe dials.
const PROBED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The foreign rules: all connections to `web` go to addresses where "untouched" answers.
fn rules() -> Result<[Rule; 2]> {
    Ok([
        Rule::Rewrite(WEB4.parse()?, NOBODY4.parse()?),
        Rule::Rewrite(WEB6.parse()?, NOBODY6.parse()?),
    ])
}

fn node(scene: &Scene<'_>) -> Result<PathBuf> {
    Ok(scene.cluster.node(HERE)?.cgroup_path().to_owned())
}

/// A cgroup below the node's; the client is in it.
fn pod(scene: &Scene<'_>) -> Result<PathBuf> {
    Ok(node(scene)?.join("client"))
}

/// Whether connections go where topo-lb sends them; otherwise the foreign programs must decide all.
fn decides(scene: &mut Scene<'_>) -> Result<bool> {
    let mut seen = Vec::new();
    for to in [WEB4, WEB6] {
        let tally = scene.client.call(Via::Http, at(to)?, 20)?;
        ensure!(tally.answered() == tally.requests, "{to}: {tally}");
        let pods = tally.pods();
        seen.push(match pods.iter().filter(|pod| ALL.contains(pod)).count() {
            0 => false,
            count if count == pods.len() => true,
            _ => bail!("{to}: both decide: {tally}"),
        });
    }
    ensure!(seen[0] == seen[1], "the families differ: {seen:?}");
    Ok(seen[0])
}

/// The metric that counts hooks where another program decides.
const OVERRIDDEN: &str = "topo_lb_overridden_hooks";

/// The value of [`OVERRIDDEN`].
fn gauge(scene: &Scene<'_>) -> Result<f64> {
    let metrics = scene.agent.get("/metrics")?;
    metrics.sample(OVERRIDDEN).with_context(|| format!("no {OVERRIDDEN} in {metrics}"))
}

/// Waits until all hooks count. A look of the agent may find some of the programs not attached yet.
fn overrides_four_hooks(scene: &Scene<'_>) -> Result<()> {
    let all = |answer: &Answer| answer.sample(OVERRIDDEN) == Some(4.0);
    scene.agent.wait_for_answer("/metrics", SAYS, all).map(drop)
}

/// The exit code and output of `topo-lb check`.
fn check(scene: &Scene<'_>, root: &Path) -> Result<(Option<i32>, String)> {
    let mut command = scene.binary.command(&["check", "--cgroup-root"]);
    let output = command.arg(root).arg("--pin-dir").arg(scene.agent.pins()).output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Checks that every channel names a foreign program by its id within two seconds.
fn says(scene: &Scene<'_>, foreign: &Foreign, root: &Path) -> Result<()> {
    let named = |text: &str| foreign.ids().any(|id| text.contains(&format!("program {id} ")));
    scene.agent.wait_for_answer("/readyz", SAYS, |answer| {
        answer.status == 503 && named(&answer.body) && answer.body.contains(NAME)
    })?;
    overrides_four_hooks(scene)?;
    let (code, text) = check(scene, root)?;
    ensure!(code == Some(1) && named(&text) && text.contains(NAME), "check said {code:?}: {text}");
    let hooks = scene.agent.list("hooks")?.to_string();
    let listed = |id| hooks.contains(&format!("\"program\":{id}"));
    ensure!(foreign.ids().all(listed) && hooks.contains(NAME), "list hooks: {hooks}");
    ensure!(scene.agent.log().contains(NAME), "the log has no word: {}", scene.agent.log());
    Ok(())
}

/// Checks that no channel names a foreign program any more.
fn is_content(scene: &Scene<'_>, root: &Path) -> Result<()> {
    scene.agent.wait_for_answer("/readyz", SAYS_AGAIN, |answer| answer.status == 200)?;
    ensure!(gauge(scene)? == 0.0, "{} hooks are overridden", gauge(scene)?);
    let (code, text) = check(scene, root)?;
    ensure!(code == Some(0), "check said {code:?}: {text}");
    Ok(())
}

/// Checks that the self-probe of `topo-lb check` fails.
fn self_probe_fails(scene: &Scene<'_>, root: &Path) -> Result<()> {
    let (code, text) = check(scene, root)?;
    let failed = |line: &str| line.starts_with("FAILED") && line.contains("self-probe");
    ensure!(code == Some(1) && text.lines().any(failed), "check said {code:?}: {text}");
    Ok(())
}

/// Checks that topo-lb decides, or, if the kernel cannot order programs, reports that it does not.
fn decides_or_says(scene: &mut Scene<'_>, foreign: &Foreign, root: &Path) -> Result<()> {
    if decides(scene)? {
        return is_content(scene, root);
    }
    ensure!(!foreign::orders(root)?, "the kernel orders programs, and topo-lb does not decide");
    says(scene, foreign, root)
}

/// A foreign load balancer at `place`, an agent at `root`: both start orders, both modes, restarts.
fn side_by_side(scene: &mut Scene<'_>, place: &Path, root: &Path) -> Result<()> {
    scene.agent.set("--cgroup-root", root);
    let rules = rules()?;
    for mode in [AttachMode::Link, AttachMode::Legacy] {
        let context = |what: &str| format!("{mode:?}, {what}");
        let other = Foreign::attach(place, mode, &rules)?;
        scene.agent.resume()?;
        decides_or_says(scene, &other, root).with_context(|| context("the other one was first"))?;
        scene.agent.stop()?;
        scene.agent.resume()?;
        decides_or_says(scene, &other, root).with_context(|| context("topo-lb came again"))?;
        drop(other);
        ensure!(decides(scene)?, "topo-lb is alone, and does not decide");
        is_content(scene, root).with_context(|| context("the other one has gone"))?;
        let other = Foreign::attach(place, mode, &rules)?;
        decides_or_says(scene, &other, root)
            .with_context(|| context("the other one came again"))?;
        scene.agent.stop()?;
        ensure!(scene.agent.cleanup()?.status.success(), "cleanup failed");
    }
    Ok(())
}

#[test]
fn beside_another_load_balancer_it_decides_or_says_that_it_does_not() -> Result<()> {
    idle(|scene| {
        let (pod, node) = (pod(scene)?, node(scene)?);
        for (what, place, root) in [
            ("on the same cgroup", &node, &node),
            ("on a child cgroup", &pod, &node),
            ("on a cgroup above", &node, &pod),
        ] {
            side_by_side(scene, place, root).context(what)?;
        }
        Ok(())
    })
}

/// Attaches programs that run before topo-lb on every kernel.
fn before(scene: &Scene<'_>, rules: &[Rule]) -> Result<Foreign> {
    Foreign::attach_before(&node(scene)?, &pod(scene)?, rules)
}

#[test]
fn a_load_balancer_that_is_first_is_named_everywhere_until_it_has_gone() -> Result<()> {
    idle(|scene| {
        let node = node(scene)?;
        scene.agent.resume()?;
        is_content(scene, &node)?;
        let other = before(scene, &rules()?)?;
        ensure!(!decides(scene)?, "the other one is not first");
        says(scene, &other, &node)?;
        drop(other);
        come_and_go(scene)?;
        is_content(scene, &node)?;
        ensure!(decides(scene)?, "topo-lb is alone, and does not decide");
        Ok(())
    })
}

/// Programs come and go: the agent stays unready and logs it once, and no connection fails.
fn come_and_go(scene: &Scene<'_>) -> Result<()> {
    let mut caller = scene.cluster.pod("a")?.client()?;
    let (tally, ()) = caller.call_during(Via::Http, at(WEB4)?, || {
        // The programs concern another address than the caller's.
        let rule = [Rule::Deny("203.0.113.1".parse()?)];
        // Longer than the agent stays unready after the last program (`HOLD`, 5 s).
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(8) {
            let other = before(scene, &rule)?;
            // The agent looks every 0.47 s: one look finds the programs, one finds none.
            std::thread::sleep(Duration::from_millis(600));
            drop(other);
            std::thread::sleep(Duration::from_millis(600));
            let answer = scene.agent.get("/readyz")?;
            ensure!(answer.status == 503, "it is ready in between: {}", answer.body);
        }
        Ok(())
    })?;
    ensure!(tally.is_of(&ALL), "{tally}");
    let log = scene.agent.log();
    let said = log.lines().filter(|line| line.contains("runs before topo-lb's")).count();
    ensure!(said == 1, "it is logged {said} times: {log}");
    Ok(())
}

#[test]
fn the_self_probe_dials_where_applications_do() -> Result<()> {
    idle(|scene| {
        let node = node(scene)?;
        // The kubelet's name. Programs there do not affect processes elsewhere.
        let pods = Cgroup::make(&node, "kubepods")?;
        let (code, text) = check(scene, &node)?;
        ensure!(code == Some(0), "check said {code:?}: {text}");
        // Before topo-lb's programs it sees the dialled address, behind them the endpoint.
        let rules = [PROBED, Ipv4Addr::LOCALHOST].map(|address| Rule::Deny(address.into()));
        let denied = Foreign::attach(pods.path(), AttachMode::Link, &rules)?;
        self_probe_fails(scene, &node)?;
        drop(denied);
        let (code, text) = check(scene, &node)?;
        ensure!(code == Some(0), "check said {code:?}: {text}");
        Ok(())
    })
}

#[test]
fn a_program_that_takes_the_probe_s_address_is_met_by_the_probe() -> Result<()> {
    idle(|scene| {
        let (pod, node) = (pod(scene)?, node(scene)?);
        let to = Ipv4Addr::new(192, 0, 2, 2);
        let rule = [Rule::Rewrite(PROBED.into(), to.into())];
        // Without an order, the program is attached before the probe's, on the same cgroup.
        let mode = if foreign::orders(&pod)? { AttachMode::First } else { AttachMode::Link };
        let _other = Foreign::attach(&node, mode, &rule)?;
        self_probe_fails(scene, &node)
    })
}

#[test]
fn links_without_an_order_get_the_first_place_and_no_connection_notices() -> Result<()> {
    idle(|scene| {
        let (pod, node) = (pod(scene)?, node(scene)?);
        scene.agent.resume()?;
        scene.agent.stop()?;
        for hook in Hook::ALL.into_iter().filter(|hook| hook.decides()) {
            foreign::replace_without_order(scene.agent.pins(), hook, &node)?;
        }
        let mut caller = scene.cluster.pod("a")?.client()?;
        let agent = &mut scene.agent;
        // This client is in another cgroup than the foreign program.
        let (tally, other) = caller.call_during(Via::Http, at(WEB4)?, || {
            let other = Foreign::attach(&pod, AttachMode::Link, &rules()?)?;
            agent.resume()?;
            Ok(other)
        })?;
        ensure!(tally.is_of(&ALL), "{tally}");
        if foreign::orders(&node)? {
            let log = scene.agent.log();
            ensure!(log.contains(r#""new":0,"updated":4,"moved":4"#), "no link was moved: {log}");
        }
        decides_or_says(scene, &other, &node)
    })
}

/// Attaches a program on a cgroup above the agent's; also returns the agent's cgroup root for that.
/// Where the kernel orders programs, this one runs before all programs of the child.
fn above(scene: &Scene<'_>) -> Result<(Foreign, PathBuf)> {
    let node = node(scene)?;
    let mode = if foreign::orders(&node)? { AttachMode::First } else { AttachMode::Link };
    Ok((Foreign::attach(&node, mode, &rules()?)?, pod(scene)?))
}

#[test]
fn a_link_that_would_not_run_earlier_is_not_replaced() -> Result<()> {
    idle(|scene| {
        let (_other, pod) = above(scene)?;
        scene.agent.set("--cgroup-root", &pod);
        scene.agent.resume()?;
        scene.agent.stop()?;
        scene.agent.resume()?;
        let log = scene.agent.log();
        ensure!(log.contains(r#""new":0,"updated":8,"moved":0"#), "links are replaced: {log}");
        Ok(())
    })
}

#[test]
fn an_agent_with_few_capabilities_names_programs_by_their_ids() -> Result<()> {
    idle(|scene| {
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
        scene.agent.keep_only(needed);
        scene.agent.resume()?;
        let other = before(scene, &rules()?)?;
        scene.agent.wait_for_answer("/readyz", SAYS, |answer| {
            let is_named = |id| answer.body.contains(&format!("program {id} "));
            answer.status == 503 && other.ids().any(is_named)
        })?;
        overrides_four_hooks(scene)
    })
}

/// Attaches a program that runs before topo-lb, at a place where no agent can run before it. Also
/// returns the agent's cgroup root for that.
fn unbeatable(scene: &Scene<'_>) -> Result<(Foreign, PathBuf)> {
    let node = node(scene)?;
    if foreign::orders(&node)? {
        return above(scene);
    }
    Ok((Foreign::attach(&pod(scene)?, AttachMode::Link, &rules()?)?, node))
}

#[test]
fn the_advice_about_a_program_on_a_cgroup_above_helps() -> Result<()> {
    idle(|scene| {
        let node = node(scene)?;
        let (other, pod) = above(scene)?;
        scene.agent.set("--cgroup-root", &pod);
        scene.agent.resume()?;
        if !foreign::orders(&node)? {
            ensure!(decides(scene)?, "a program of a cgroup above runs first");
            return is_content(scene, &pod);
        }
        says(scene, &other, &pod)?;
        let advice = format!("--cgroup-root {}, where", node.display());
        let log = scene.agent.log();
        ensure!(log.contains(&advice), "{log}");
        let (_, text) = check(scene, &pod)?;
        ensure!(text.contains(&advice), "{text}");
        let hooks = scene.agent.list("hooks")?.to_string();
        ensure!(hooks.contains(&format!("\"above\":\"{}\"", node.display())), "{hooks}");
        scene.agent.stop()?;
        scene.agent.set("--cgroup-root", &node);
        scene.agent.resume()?;
        ensure!(decides(scene)?, "the advice did not help");
        is_content(scene, &node)
    })
}

#[test]
fn a_program_that_is_tolerated_is_no_reason_not_to_be_ready() -> Result<()> {
    idle(|scene| {
        let (_other, root) = unbeatable(scene)?;
        scene.agent.set("--cgroup-root", &root);
        scene.agent.set("--tolerate-programs", "foreign_*");
        // When the agent is ready, its first inspection is over.
        scene.agent.resume()?;
        let answer = scene.agent.get("/readyz?verbose")?;
        ensure!(answer.body.contains("[+] precedence"), "{}", answer.body);
        ensure!(gauge(scene)? == 0.0, "{} hooks are overridden", gauge(scene)?);
        let hooks = scene.agent.list("hooks")?.to_string();
        ensure!(hooks.contains(NAME), "list hooks does not show it: {hooks}");
        Ok(())
    })
}

#[test]
fn programs_without_names_are_tolerated_by_their_ids() -> Result<()> {
    idle(|scene| {
        let (other, root) = unbeatable(scene)?;
        scene.agent.set("--cgroup-root", &root);
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
        scene.agent.keep_only(needed);
        scene.agent.set("--tolerate-programs", "foreign_*");
        scene.agent.resume()?;
        let log = scene.agent.log();
        ensure!(log.contains("--tolerate-programs foreign_* has no effect"), "{log}");
        scene.agent.stop()?;
        let ids: Vec<String> = other.ids().map(|id| format!("id:{id}")).collect();
        for (tolerated, overridden) in [(&ids[1..], 1.0), (&ids[..], 0.0)] {
            scene.agent.set("--tolerate-programs", tolerated.join(","));
            scene.agent.resume()?;
            let answer = scene.agent.get("/readyz?verbose")?;
            let is_content = answer.body.contains("[+] precedence");
            ensure!(is_content == (overridden == 0.0), "{}", answer.body);
            ensure!(gauge(scene)? == overridden, "{} hooks are overridden", gauge(scene)?);
            scene.agent.stop()?;
        }
        Ok(())
    })
}
