//! The hooks sendmsg4, sendmsg6, recvmsg4 and recvmsg6: unconnected UDP sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::binary::row;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::pod::PORT;
use topo_lb_tests::scene::{
    ALL, ECHO4, FOLLOWS, KEYS, NOBODY4, Scene, WEB4, WEB6, ZONE, at, idle, mapped, pairs, play,
    put_endpoints,
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
            // New flows have other endpoints before this one learns that its endpoint is gone.
            let mut moved = pod.clone();
            until("another endpoint for the flow", FOLLOWS, || {
                moved = ask(scene, socket, web)?;
                Ok(if moved == pod {
                    Err("it stays, and its endpoint does not serve")
                } else {
                    Ok(())
                })
            })?;
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

/// More sockets of a process than the agent has room for anything.
#[test]
fn no_process_takes_the_answers_of_another() -> Result<()> {
    many_sockets("1024", 20_000)
}

#[test]
#[ignore = "takes minutes: for a change of what sockets store"]
fn a_million_sockets_of_a_process_take_no_answers_of_another() -> Result<()> {
    many_sockets("65536", 1_000_000)
}

/// A socket waits for its answers, while another process of its pod opens `sockets` sockets of each
/// family. All make a choice: the counters show it.
fn many_sockets(max_flows: &str, sockets: u32) -> Result<()> {
    // Nobody has these addresses, so the lab is not busy with answers.
    let nobodys = [("10.96.2.1", "IPv4", "192.0.2.1"), ("fd00:96::201", "IPv6", "2001:db8::1")];
    idle(|scene| {
        let udp = [("udp", 80, "UDP")];
        scene.put(service("far", &nobodys.map(|(address, ..)| address), &udp, &[]))?;
        for (_, family, address) in nobodys {
            let endpoint = endpoint(address, "beyond", "far");
            scene.put(slice("far", family, &[("udp", PORT, "UDP")], &[endpoint]))?;
        }
        scene.agent.set("--max-flows", max_flows);
        scene.agent.resume()?;
        let mut other = scene.cluster.pod("client")?.client()?;
        for (far, web) in [
            (at("10.96.2.1")?, vec![at(WEB4)?, mapped(WEB4)?]),
            (at("fd00:96::201")?, vec![at(WEB6)?]),
        ] {
            let before = choices(scene, far)?;
            let mut waiting = Vec::new();
            for web in web {
                let socket = open(scene, web)?;
                let pod = ask(scene, socket, web)?;
                scene.client.send(socket, web)?;
                waiting.push((socket, web, pod));
            }
            other.scatter(far, sockets)?;
            let made = choices(scene, far)? - before;
            ensure!(made == u64::from(sockets), "{made} of {sockets} sockets had an endpoint");
            for (socket, web, pod) in waiting {
                let reply = scene.client.receive(socket)?;
                ensure!(reply.peer == web, "sent to {web}, answered from {}", reply.peer);
                ensure!(reply.pod == pod && ask(scene, socket, web)? == pod, "{pod} was forgotten");
                scene.cluster.pod("a")?.client()?.expect(Via::Udp, web, &ALL)?;
            }
        }
        Ok(())
    })
}

/// How often an endpoint of the frontend was chosen.
fn choices(scene: &Scene<'_>, frontend: SocketAddr) -> Result<u64> {
    let listed = scene.agent.list("services")?;
    let row = row(&listed["services"], "frontend", &format!("{frontend}/UDP"))?;
    let localities = row["connections"].as_object().context("no counters")?;
    Ok(localities.values().filter_map(Value::as_u64).sum())
}

/// Services `s1`, `s2` …, UDP port 80, with these endpoints each; returns their addresses by family:
/// IPv4, IPv6, IPv4-mapped.
fn put_services(scene: &mut Scene<'_>, endpoints: &[&[&str]]) -> Result<[Vec<SocketAddr>; 3]> {
    let mut all = [const { Vec::new() }; 3];
    for (number, pods) in (1..).zip(endpoints) {
        let (four, six) = (format!("10.96.3.{number}"), format!("fd00:96::30{number}"));
        let name = format!("s{number}");
        scene.manifests.put(service(&name, &[&four, &six], &[("udp", 80, "UDP")], &[]));
        put_endpoints(&mut scene.manifests, scene.cluster, &name, pods)?;
        for (family, address) in all.iter_mut().zip([at(&four)?, at(&six)?, mapped(&four)?]) {
            family.push(address);
        }
    }
    scene.manifests.write()?;
    for family in &all {
        for (address, pods) in family.iter().zip(endpoints) {
            scene.wait_for(Via::Udp, *address, pods)?;
        }
    }
    Ok(all)
}

#[test]
fn a_socket_keeps_the_four_services_that_it_used_last() -> Result<()> {
    play(|scene| {
        for services in put_services(scene, &[ALL.as_slice(); 6])? {
            let [one, two, three, four, five, six] = services[..] else { unreachable!("six") };
            let before = listed_flows(scene)?;
            let socket = open(scene, one)?;
            let mut kept = BTreeMap::new();
            for service in [one, two, three, four, one, five, one, six] {
                let pod = ask(scene, socket, service)?;
                let before = kept.insert(service, pod.clone());
                ensure!(before.is_none_or(|before| before == pod), "{service} has moved to {pod}");
            }
            // Two and three are the ones that the socket did not use for longest.
            let of_others =
                |(socket, _): &(Value, Value)| before.iter().any(|(it, _)| it == socket);
            let flows = listed_flows(scene)?.into_iter().filter(|flow| !of_others(flow));
            let services: Vec<_> = flows.map(|(_, service)| service).collect();
            let wanted = ["s1", "s4", "s5", "s6"].map(|name| json!(format!("default/{name}:udp")));
            ensure!(services == wanted, "{services:?}");
            // And answers of these come as themselves, too.
            for service in [four, six, five, one, two, three] {
                let pod = ask(scene, socket, service)?;
                let moved = [four, six, five, one].contains(&service) && kept[&service] != pod;
                ensure!(!moved, "{service} has moved to {pod}");
            }
        }
        Ok(())
    })
}

/// Socket and Service of every flow that `topo-lb list connections` shows.
fn listed_flows(scene: &Scene<'_>) -> Result<Vec<(Value, Value)>> {
    let listed = scene.agent.list("connections")?;
    let flows = listed["connections"].as_array().context("no list")?;
    Ok(flows.iter().map(|flow| (flow["socket"].clone(), flow["service"].clone())).collect())
}

/// The kernel locks a socket around the programs of `sendto` and `recvfrom`: they count on it.
#[test]
fn threads_of_a_socket_that_send_at_the_same_moment_lose_no_service() -> Result<()> {
    const ROUNDS: u32 = 500;
    play(|scene| {
        // The pod that answers shows which Service was called.
        for services in put_services(scene, &[&["a"], &["b"], &["c"], &["d"]])? {
            let answers = scene.client.race(&services, ROUNDS)?;
            for (pod, service) in ALL.into_iter().zip(services) {
                let of = &answers[pod];
                ensure!(of.len() == 1 && of[&service] >= ROUNDS * 9 / 10, "{answers:?}");
            }
        }
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
