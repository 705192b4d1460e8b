//! Services that topo-lb leaves alone: their clients reach whoever else serves the ClusterIP.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::scene::{ECHO4, FOLLOWS, HERE, Scene, WEB4, WEB6, at, play};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

const ALL: [&str; 4] = ["a", "b", "c", "d"];
const HANDLE: &str = "topo-lb.io/handle";
/// Who answers where nobody translates.
const UNTOUCHED: &[&str] = &["untouched"];

/// What `topo-lb explain` says of the first port of `web`.
fn explained(scene: &Scene<'_>) -> Result<Value> {
    let report = scene.binary.explain(scene.manifests.folder(), HERE)?;
    first_of_web(&report)
}

fn first_of_web(report: &Value) -> Result<Value> {
    let services = report["services"].as_array().context("a list of services")?;
    let web = services.iter().find(|service| service["name"] == "web");
    Ok(web.with_context(|| format!("web is not explained: {report}"))?.clone())
}

fn sentence(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn a_service_whose_annotation_says_false_is_left_alone() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        scene.change(|manifests| manifests.annotate("web", HANDLE, Some("false")))?;
        for (via, to) in [(Via::Http, at(WEB4)?), (Via::Http, at(WEB6)?), (Via::Udp, at(WEB4)?)] {
            scene.wait_for(via, to, UNTOUCHED)?;
        }
        scene.expect(Via::Udp, at(ECHO4)?, &ALL)?;
        let web = explained(scene)?;
        ensure!(web["decision"]["verdict"] == "bypass", "{web}");
        ensure!(sentence(&web["decision"]["reason"]).contains(HANDLE), "{web}");

        // What is neither true nor false is ignored, and said.
        scene.change(|manifests| manifests.annotate("web", HANDLE, Some("maybe")))?;
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        let web = explained(scene)?;
        ensure!(web["decision"]["verdict"] == "route", "{web}");
        ensure!(sentence(&web["policy"]["error"]).contains(HANDLE), "{web}");
        Ok(())
    })
}

/// What the agent of this node says of `web`.
fn agent_says(scene: &Scene<'_>) -> Result<Value> {
    let answer = scene.agent.get("/explain?service=default/web")?;
    first_of_web(&serde_json::from_str(&answer.body)?)
}

/// As NodeLocal DNSCache does it: a device of the node bears the ClusterIP, and a process of the
/// node listens there.
#[test]
fn an_address_that_a_device_of_the_node_bears_is_left_alone() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        scene.cluster.ip_on(
            HERE,
            &[
                "link add nodelocaldns type bridge".to_owned(),
                "link set nodelocaldns up".to_owned(),
                format!("address add {WEB4}/32 dev nodelocaldns"),
            ],
        )?;
        let cache: SocketAddr = at(WEB4)?;
        let _cache = scene.cluster.serve_on(HERE, "cache", &[cache])?;
        for via in [Via::Http, Via::Udp, Via::UdpConnected] {
            scene.wait_for(via, at(WEB4)?, &["cache"])?;
        }
        scene.expect(Via::Http, at(WEB6)?, &ALL)?;
        let web = agent_says(scene)?;
        let reason = sentence(&web["decision"]["reason"]);
        ensure!(reason.contains("nodelocaldns") && reason.contains(WEB4), "{web}");
        // Whoever looks at the kernel's maps sees it too.
        let listed = scene.agent.list("services")?.to_string();
        ensure!(!listed.contains(&format!("{WEB4}:")), "{listed}");

        // An agent that starts looks before it writes.
        scene.agent.stop()?;
        scene.agent.resume()?;
        scene.expect(Via::Http, at(WEB4)?, &["cache"])?;

        // The device goes, and the Service is handled again.
        scene.cluster.ip_on(HERE, &["link delete nodelocaldns".to_owned()])?;
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        Ok(())
    })
}

#[test]
fn addresses_of_ipvs_proxies_are_not_taken_for_a_local_services() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        // The second device comes after the first: once its address is left alone, that of the
        // first has been looked at.
        scene.cluster.ip_on(
            HERE,
            &[
                "link add kube-ipvs0 type bridge".to_owned(),
                format!("address add {WEB4}/32 dev kube-ipvs0"),
                "link add other0 type bridge".to_owned(),
                format!("address add {ECHO4}/32 dev other0"),
            ],
        )?;
        let agent = &scene.agent;
        until("echo is withdrawn", FOLLOWS, || {
            let listed = agent.list("services")?.to_string();
            Ok(if listed.contains(&format!("{ECHO4}:")) { Err(listed) } else { Ok(()) })
        })?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)
    })
}
