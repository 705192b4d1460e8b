//! Node ports that processes of the host cannot bind.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::wait::until;

use super::scene::play;

/// What a server says that is to listen at an address; empty if it can.
fn refusal(address: &str, enter: impl FnOnce(&mut Command) -> Result<()>) -> Result<String> {
    let mut server = Command::new(requirements::binary("pod")?);
    server.args(["serve", "--name", "binder", "--listen", address]);
    enter(&mut server)?;
    // It serves until its input ends, which is at once.
    let output = server.stdin(Stdio::null()).output()?;
    Ok(String::from_utf8(output.stderr)?)
}

fn on_host(scene: &Scene<'_>, address: &str) -> Result<String> {
    let node = scene.cluster.node(HERE)?;
    refusal(address, |server| node.enter(server))
}

#[test]
fn a_process_of_the_host_cannot_bind_a_node_port_while_it_is_served() -> Result<()> {
    play(|scene, _| {
        for (address, protocol) in [
            ("0.0.0.0:30080", "TCP"),
            ("[::]:30080", "TCP"),
            ("127.0.0.1:30080", "TCP"),
            ("172.30.0.2:30080", "TCP"),
            ("[::ffff:172.30.0.2]:30080", "TCP"),
            ("[fd00:172::2]:30080", "TCP"),
            // Node port 30053 is one of UDP.
            ("0.0.0.0:30053", "UDP"),
        ] {
            let said = on_host(scene, address)?;
            ensure!(said.contains(&format!(", {protocol}")), "{address}: {said:?}");
            ensure!(said.contains("Operation not permitted"), "{address}: {said:?}");
        }
        for address in ["0.0.0.0:30090", "127.0.0.2:80"] {
            ensure!(on_host(scene, address)?.is_empty(), "{address} is no node port");
        }
        let pod = scene.cluster.pod("a")?;
        let said = refusal("0.0.0.0:30080", |server| pod.enter(server))?;
        ensure!(said.is_empty(), "a pod's ports are its own: {said}");
        scene.agent.stop()?;
        scene.agent.unset("--kube-proxy-replacement");
        scene.agent.resume()?;
        let said = on_host(scene, "0.0.0.0:30080").context("without the flag")?;
        ensure!(said.is_empty(), "without the flag: {said}");
        Ok(())
    })
}

#[test]
fn a_node_port_of_a_service_with_ipv6_alone_is_guarded_for_ipv6_alone() -> Result<()> {
    play(|scene, _| {
        scene.change(|manifests| {
            let spec = &mut manifests.get("Service", "web")?["spec"];
            let six = spec["clusterIPs"][1].take();
            spec["clusterIPs"] = json!([six]);
            spec["clusterIP"] = six;
            spec["ipFamilies"] = json!(["IPv6"]);
            spec["ipFamilyPolicy"] = json!("SingleStack");
            Ok(())
        })?;
        until("a node port of IPv4 that is free", FOLLOWS, || {
            let said = on_host(scene, "172.30.0.2:30080")?;
            Ok(if said.is_empty() { Ok(()) } else { Err(said) })
        })?;
        for address in ["[::]:30080", "[fd00:172::2]:30080"] {
            let said = on_host(scene, address)?;
            ensure!(said.contains("Operation not permitted"), "{address}: {said:?}");
        }
        // Nothing is translated there.
        for address in ["[::1]:30080", "0.0.0.0:30080"] {
            let said = on_host(scene, address)?;
            ensure!(said.is_empty(), "{address}: {said}");
        }
        Ok(())
    })
}

#[test]
fn a_node_port_of_a_service_with_ipv4_alone_is_free_for_a_socket_of_ipv6_alone() -> Result<()> {
    play(|scene, _| {
        let only_ipv6 = |address| {
            let node = scene.cluster.node(HERE)?;
            refusal(address, |server| {
                server.arg("--only-ipv6");
                node.enter(server)
            })
        };
        let said = only_ipv6("[::]:30080")?;
        ensure!(said.contains("Operation not permitted"), "with both families: {said:?}");
        scene.change(|manifests| {
            let spec = &mut manifests.get("Service", "web")?["spec"];
            let four = spec["clusterIPs"][0].take();
            spec["clusterIPs"] = json!([four]);
            spec["clusterIP"] = four;
            spec["ipFamilies"] = json!(["IPv4"]);
            spec["ipFamilyPolicy"] = json!("SingleStack");
            Ok(())
        })?;
        // TCP's, and UDP's.
        for address in ["[::]:30080", "[::]:30053"] {
            until("a node port of IPv6 that is free", FOLLOWS, || {
                let said = only_ipv6(address)?;
                Ok(if said.is_empty() { Ok(()) } else { Err(said) })
            })?;
            let said = on_host(scene, address)?;
            ensure!(said.contains("Operation not permitted"), "{address}: {said:?}");
        }
        let said = on_host(scene, "0.0.0.0:30080")?;
        ensure!(said.contains("Operation not permitted"), "IPv4: {said:?}");
        Ok(())
    })
}

#[test]
fn a_guard_that_somebody_detaches_or_unpins_is_put_back() -> Result<()> {
    requirements::command("bpftool", "bpftool")?;
    play(|scene, _| {
        for (name, address) in [("post_bind4", "0.0.0.0:30080"), ("post_bind6", "[::]:30080")] {
            let pin = scene.agent.pins().join("links").join(name);
            let mut detach = Command::new("bpftool");
            printed(detach.args(["link", "detach", "pinned"]).arg(&pin))?;
            until("the guard", FOLLOWS, || {
                let said = on_host(scene, address)?;
                let is_guarded = said.contains("Operation not permitted");
                Ok(if is_guarded { Ok(()) } else { Err(format!("{address}: {said:?}")) })
            })?;
            let sentence = format!("the program of {name} was detached, by somebody else");
            scene.agent.wait_for_log(&sentence, FOLLOWS)?;
            fs::remove_file(&pin)?;
            until("the pin", FOLLOWS, || Ok(fs::metadata(&pin).map(drop)))?;
        }
        Ok(())
    })
}
