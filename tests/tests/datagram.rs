//! The hooks sendmsg4, sendmsg6, recvmsg4 and recvmsg6: unconnected UDP sockets.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::pod::PORT;
use topo_lb_tests::scene::{
    ALL, ECHO4, FOLLOWS, KEYS, NOBODY4, Scene, WEB4, WEB6, ZONE, at, mapped, pairs, play,
};
use topo_lb_tests::traffic::{Socket, Via};
use topo_lb_tests::wait::until;

/// One exchange through an open socket. Checks the source address, and returns the pod.
fn ask(scene: &mut Scene<'_>, socket: Socket, to: SocketAddr) -> Result<String> {
    let reply = scene.client.ask(socket, Some(to))?.with_context(|| to.to_string())?;
    ensure!(reply.peer == to, "sent to {to}, answered from {}", reply.peer);
    Ok(reply.pod)
}

fn open(scene: &mut Scene<'_>, like: SocketAddr) -> Result<Socket> {
    Ok(scene.client.open(Via::Udp, like)??)
}

#[test]
fn every_endpoint_answers_as_the_service() -> Result<()> {
    play(|scene| {
        for (web, echo) in pairs()? {
            scene.expect(Via::Udp, web, &ALL)?;
            scene.expect(Via::Udp, echo, &ALL)?;
        }
        Ok(())
    })
}

#[test]
fn one_socket_talks_to_two_services_and_each_answers_as_itself() -> Result<()> {
    play(|scene| {
        for (web, echo) in pairs()? {
            // Several sockets: a socket's two flows may have the same endpoint or different ones.
            for _ in 0..8 {
                let socket = open(scene, web)?;
                let first = (ask(scene, socket, web)?, ask(scene, socket, echo)?);
                for _ in 0..10 {
                    let again = (ask(scene, socket, web)?, ask(scene, socket, echo)?);
                    ensure!(again == first, "{first:?}, then {again:?}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn one_socket_talks_to_a_service_and_to_its_endpoints_themselves() -> Result<()> {
    play(|scene| {
        let socket = open(scene, at(WEB4)?)?;
        let through = ask(scene, socket, at(WEB4)?)?;
        let others: Vec<_> = ALL.into_iter().filter(|pod| *pod != through).collect();
        for pod in others {
            let direct = scene.cluster.pod(pod)?.address4();
            ensure!(ask(scene, socket, direct)? == pod);
        }
        ensure!(ask(scene, socket, at(WEB4)?)? == through);
        ensure!(ask(scene, socket, at(NOBODY4)?)? == "untouched");
        Ok(())
    })
}

#[test]
fn a_socket_that_is_not_connected_any_more_hears_an_endpoint_as_itself() -> Result<()> {
    play(|scene| {
        for web in [at(WEB4)?, at(WEB6)?, mapped(WEB4)?] {
            let socket = scene.client.open(Via::UdpConnected, web)??;
            let reply = scene.client.ask(socket, None)??;
            ensure!(reply.peer == web, "{reply:?}");
            let pod = scene.cluster.pod(&reply.pod)?;
            let direct = match web {
                _ if web == mapped(WEB4)? => mapped(&pod.ipv4.to_string())?,
                SocketAddr::V4(_) => pod.address4(),
                SocketAddr::V6(_) => pod.address6(),
            };
            let direct = SocketAddr::new(direct.ip(), PORT);
            scene.client.disconnect(socket)?;
            ensure!(ask(scene, socket, direct)? == reply.pod, "another pod at {direct}");
            // A Service that the socket now calls answers with its own address. IPv6 is left out:
            // on disconnect the kernel keeps the peer's address (`__udp_disconnect`), and then
            // accepts no other sender.
            if web != at(WEB6)? {
                ask(scene, socket, web)?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_socket_keeps_its_endpoint_when_only_the_topology_changes() -> Result<()> {
    play(|scene| {
        for (web, _) in pairs()? {
            // A flow to an endpoint in another zone, which will not be chosen any more.
            let (socket, pod) = loop {
                let socket = open(scene, web)?;
                let pod = ask(scene, socket, web)?;
                if pod == "c" || pod == "d" {
                    break (socket, pod);
                }
            };
            scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
            scene.wait_for(Via::Udp, web, &["a", "b"])?;
            for _ in 0..10 {
                ensure!(ask(scene, socket, web)? == pod, "the flow of a far endpoint has moved");
            }
            scene.change(|manifests| manifests.annotate("web", KEYS, None))?;
            scene.wait_for(Via::Udp, web, &ALL)?;
        }
        Ok(())
    })
}

#[test]
fn a_socket_moves_when_its_endpoint_stops_serving() -> Result<()> {
    play(|scene| {
        for (web, _) in pairs()? {
            let socket = open(scene, web)?;
            let pod = ask(scene, socket, web)?;
            let rest: Vec<_> = ALL.into_iter().filter(|name| *name != pod).collect();
            scene.set_ready(&pod, false)?;
            scene.wait_for(Via::Udp, web, &rest)?;
            let moved = ask(scene, socket, web)?;
            ensure!(moved != pod, "the flow stays with {pod}, which does not serve");
            // The flow moved once, and does not move back when the old endpoint returns.
            scene.set_ready(&pod, true)?;
            scene.wait_for(Via::Udp, web, &ALL)?;
            for _ in 0..10 {
                ensure!(ask(scene, socket, web)? == moved);
            }
        }
        Ok(())
    })
}

#[test]
fn a_socket_stays_with_an_endpoint_that_terminates_but_serves() -> Result<()> {
    play(|scene| {
        let web = at(WEB4)?;
        let socket = open(scene, web)?;
        let pod = ask(scene, socket, web)?;
        let rest: Vec<_> = ALL.into_iter().filter(|name| *name != pod).collect();
        let draining = json!({"ready": false, "serving": true, "terminating": true});
        scene.manifests.set_conditions(&pod, &draining);
        scene.manifests.write()?;
        scene.wait_for(Via::Udp, web, &rest)?;
        ensure!(ask(scene, socket, web)? == pod, "a draining endpoint lost its flow");
        Ok(())
    })
}

#[test]
fn a_socket_of_a_service_that_is_deleted_is_untouched_from_then_on() -> Result<()> {
    play(|scene| {
        let web = at(WEB4)?;
        let socket = open(scene, web)?;
        ask(scene, socket, web)?;
        scene.remove("Service", "web")?;
        let client = &mut scene.client;
        until("an answer of untouched", FOLLOWS, || {
            Ok(match client.ask(socket, Some(web))? {
                Ok(reply) if reply.pod == "untouched" => Ok(()),
                other => Err(format!("{other:?}")),
            })
        })?;
        Ok(())
    })
}

#[test]
fn flows_are_listed_as_connections() -> Result<()> {
    play(|scene| {
        let socket = open(scene, at(ECHO4)?)?;
        let pod = ask(scene, socket, at(ECHO4)?)?;
        let listed = scene.agent.list("connections")?;
        let flows = listed["connections"].as_array().expect("a list");
        ensure!(flows.len() == 1, "{listed}");
        ensure!(flows[0]["service"] == "default/echo:udp", "{listed}");
        ensure!(flows[0]["frontend"] == format!("{ECHO4}:80/UDP"), "{listed}");
        let address = scene.cluster.pod(&pod)?.address4().to_string();
        ensure!(flows[0]["endpoint"] == address, "{listed}");
        Ok(())
    })
}
