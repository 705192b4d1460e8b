//! Devices on which no program serves clients outside, as packets there have no Ethernet header.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::binary::row;
use topo_lb_tests::http::Answer;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};

use super::scene::{play, wait_at_each};

/// What `topo-lb check` says of the devices, and whether it succeeds.
fn checked(scene: &Scene<'_>, more: &[&str]) -> Result<(bool, Value)> {
    let (is_ok, findings) = all_checked(scene, more)?;
    Ok((is_ok, row(&findings, "name", "devices")?.clone()))
}

fn all_checked(scene: &Scene<'_>, more: &[&str]) -> Result<(bool, Value)> {
    let mut check = scene.binary.command(&["check", "-o", "json", "--kube-proxy-replacement"]);
    check.args(more).arg("--pin-dir").arg(scene.agent.pins());
    check.arg("--cgroup-root").arg(scene.cluster.node(HERE)?.cgroup_path());
    let Output { status, stdout, stderr } =
        scene.cluster.node_netns(HERE)?.run(|| Ok(check.output()?))?;
    let report: Value = serde_json::from_slice(&stdout)
        .with_context(|| String::from_utf8_lossy(&stderr).into_owned())?;
    Ok((status.success(), report["findings"].clone()))
}

/// Waits until the agent is ready, and says nothing else or that clients by `vpn0` are not served.
fn wait_until_ready(scene: &Scene<'_>, without_vpn: bool) -> Result<()> {
    let said = |answer: &Answer| match without_vpn {
        true => answer.body == "ready\n",
        false => answer.body.starts_with("ready: clients that come by vpn0 are not served"),
    };
    let is_so = |answer: &Answer| answer.status == 200 && said(answer);
    scene.agent.wait_for_answer("/readyz", FOLLOWS, is_so)?;
    let metrics = scene.agent.get("/metrics")?;
    let wanted = if without_vpn { 0.0 } else { 1.0 };
    ensure!(metrics.sample("topo_lb_unserved_devices") == Some(wanted), "{metrics}");
    Ok(())
}

#[test]
fn a_device_without_ethernet_headers_is_told_while_clients_may_come_by_it() -> Result<()> {
    const SENTENCE: &str = "clients that come by vpn0 are not served";
    play(|scene, client| {
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        let make = |name: &str, address: &str, state: &str| {
            ip(&format!("tuntap add dev {name} mode tun"))?;
            if !address.is_empty() {
                ip(&format!("address add {address} dev {name}"))?;
            }
            ip(&format!("link set {name} {state}"))
        };
        wait_until_ready(scene, true)?;
        // No client comes by these: Flannel's way to Pods, one that is down, one without an address.
        make("flannel-wg", "10.244.1.0/32", "up")?;
        make("vpn1", "198.51.100.8/24", "down")?;
        make("vpn2", "", "up")?;
        make("vpn0", "198.51.100.7/24", "up")?;
        scene.agent.wait_for_log(SENTENCE, FOLLOWS)?;
        wait_until_ready(scene, false)?;
        let (is_ok, finding) = checked(scene, &[])?;
        ensure!(!is_ok && finding["status"] == "failed", "{finding}");
        ensure!(finding["sentence"].as_str().is_some_and(|it| it.contains(SENTENCE)), "{finding}");
        wait_at_each(client, &ALL)?;

        ip("link set vpn0 down")?;
        wait_until_ready(scene, true)?;
        ip("link set vpn0 up")?;
        wait_until_ready(scene, false)?;
        let log = scene.agent.log();
        let said: Vec<_> = log.lines().filter(|line| line.contains("are not served")).collect();
        ensure!(said.len() == 1, "it is logged once: {said:?}");

        // Whoever names the devices of clients has none here.
        scene.agent.stop()?;
        scene.agent.set("--external-devices", "eth*");
        scene.agent.resume()?;
        wait_until_ready(scene, true)?;
        let (is_ok, finding) = checked(scene, &["--external-devices", "eth*"])?;
        ensure!(is_ok && finding["status"] == "ok", "{finding}");
        ensure!(finding["sentence"] == "clients outside are served at eth0", "{finding}");
        let (is_ok, finding) = checked(scene, &["--external-devices", "enp5s0"])?;
        ensure!(!is_ok && finding["status"] == "failed", "{finding}");
        let named = "no Ethernet device matches --external-devices enp5s0";
        ensure!(finding["sentence"].as_str().is_some_and(|it| it.ends_with(named)), "{finding}");
        scene.agent.stop()?;
        scene.agent.set("--external-devices", "enp5s0");
        scene.agent.resume()?;
        let nowhere = "ready: clients outside of this node are not served, as no Ethernet device \
                       matches --external-devices";
        let is_told = |answer: &Answer| answer.status == 200 && answer.body.starts_with(nowhere);
        scene.agent.wait_for_answer("/readyz", FOLLOWS, is_told)?;
        let devices = "topo_lb_devices{role=\"external\"}";
        ensure!(scene.agent.get("/metrics")?.sample(devices) == Some(0.0), "it has no device");
        scene.agent.stop()?;
        scene.agent.set("--external-devices", "eth*,vpn*");
        scene.agent.resume()?;
        let is_told =
            |answer: &Answer| answer.body.contains(" (and 1 more like that) are not served");
        scene.agent.wait_for_answer("/readyz", FOLLOWS, is_told).map(drop)
    })
}

/// It is no fault, and whether its rules accept what goes to Pods is not known.
#[test]
fn a_chain_that_drops_what_is_forwarded_is_named_by_check_and_one_that_accepts_is_not() -> Result<()>
{
    play(|scene, _| {
        let nft = |policy: &str| {
            scene.cluster.node_netns(HERE)?.nft(&format!(
                "add table inet wall; delete table inet wall; add table inet wall; \
                 add chain inet wall ways {{ type filter hook forward priority 0; policy {policy}; }}; \
                 add chain inet wall door {{ type filter hook input priority 0; policy drop; }}; \
                 add rule inet wall door iif lo accept"
            ))
        };
        nft("accept")?;
        ensure!(row(&all_checked(scene, &[])?.1, "name", "firewall").is_err());
        nft("drop")?;
        let (is_ok, findings) = all_checked(scene, &[])?;
        let found = row(&findings, "name", "firewall")?;
        let sentence = found["sentence"].as_str().unwrap_or_default();
        ensure!(is_ok && found["status"] == "ok", "{found}");
        ensure!(sentence.ends_with("drop what no rule accepts: inet wall ways"), "{found}");
        Ok(())
    })
}
