//! Pods that opted in get a near endpoint in place of a far one that they dial by its address.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{
    ALL, ECHO4, FOLLOWS, HERE, KEYS, Scene, WEB4, ZONE, at, mapped, prepared,
};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

const DIRECT: &str = "topo-lb.io/direct";
const ANNOTATED: &str = "0a1b2c3d-0000-4000-8000-000000000011";
const OF_NAMESPACE: &str = "0a1b2c3d-0000-4000-8000-000000000012";
/// Not strict: `a` is on the client's node.
const NEAR_TO_FAR: &str = "kubernetes.io/hostname,topology.kubernetes.io/zone,*";

/// A Pod of the agent's node, in the API server's form.
fn pod(namespace: &str, name: &str, uid: &str, steer: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid,
            "annotations": steer.map(|value| json!({"topo-lb.io/steer": value})),
        },
        "spec": {"nodeName": HERE},
    })
}

/// A process in a Pod.
struct Placed {
    client: Client,
    _pod: Cgroup,
    _kubepods: Cgroup,
}

fn place(scene: &Scene<'_>, uid: &str) -> Result<Placed> {
    let kubepods = Cgroup::make(scene.cluster.node(HERE)?.cgroup_path(), "kubepods")?;
    let pod = Cgroup::make(kubepods.path(), &format!("pod{uid}"))?;
    let client = scene.cluster.client_in("client", &pod)?;
    Ok(Placed { client, _pod: pod, _kubepods: kubepods })
}

/// How a client dials an address.
type Way = (Via, SocketAddr);

/// All ways to connect to a pod by its own address, over TCP and over UDP, and to send without `connect`.
fn directly(scene: &Scene<'_>, pod: &str) -> Result<([Way; 3], [Way; 3], [Way; 3])> {
    let pod = scene.cluster.pod(pod)?;
    let (four, six) = (pod.address4(), pod.address6());
    let mapped = SocketAddr::new(mapped(&pod.ipv4.to_string())?.ip(), four.port());
    let ways = |via| [four, six, mapped].map(|to| (via, to));
    Ok((ways(Via::Http), ways(Via::UdpConnected), ways(Via::Udp)))
}

/// Whether `pods` answer a client that dials `pod` in each of these ways, with the address that it dialled.
fn expect(client: &mut Client, ways: &[Way], pods: &[&str]) -> Result<()> {
    for &(via, to) in ways {
        client.wait_for(via, to, pods, FOLLOWS)?;
        client.expect(via, to, pods)?;
    }
    Ok(())
}

/// Whether `pods` answer who connects to one of `far`, and each other pod for itself. Datagrams of sockets that are
/// not connected go where they are sent.
fn expect_steered(
    scene: &Scene<'_>,
    client: &mut Client,
    far: &[&str],
    pods: &[&str],
) -> Result<()> {
    for pod in ALL {
        let (tcp, udp, sent) = directly(scene, pod)?;
        let wanted = if far.contains(&pod) { pods } else { &[pod][..] };
        expect(client, &tcp, wanted)?;
        expect(client, &udp, wanted)?;
        expect(client, &sent, &[pod])?;
    }
    Ok(())
}

fn wait_for_steered(scene: &Scene<'_>, count: usize) -> Result<()> {
    let wanted = format!("topo_lb_steered_pods {count}\n");
    scene.agent.wait_for_answer("/metrics", FOLLOWS, |it| it.body.contains(&wanted)).map(drop)
}

/// A scene in which `web` steers, and alone has its endpoints; a Pod with the annotation, and one without.
fn steering(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    prepared(
        |manifests| {
            manifests.remove("Service", "echo");
            manifests.put(pod("default", "p", ANNOTATED, Some("true")));
            manifests.put(pod("shop", "q", OF_NAMESPACE, None));
        },
        |scene| {
            scene.change(|manifests| {
                manifests.annotate("web", KEYS, Some(NEAR_TO_FAR))?;
                manifests.annotate("web", DIRECT, Some("steer"))
            })?;
            scene.agent.set("--steer-annotated-pods", "");
            body(scene)
        },
    )
}

#[test]
fn a_pod_that_opted_in_gets_a_near_endpoint_and_sees_the_far_one_that_it_dialled() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, ANNOTATED)?;
        scene.agent.resume()?;
        wait_for_steered(scene, 1)?;
        expect_steered(scene, &mut steered.client, &["b", "c", "d"], &["a"])?;
        // Everybody else gets what it dials.
        for pod in ALL {
            let (tcp, udp, sent) = directly(scene, pod)?;
            for ways in [tcp, udp, sent] {
                expect(&mut scene.client, &ways, &[pod])?;
            }
        }
        steered.client.expect(Via::Http, at(WEB4)?, &["a"])?;
        let web = scene.explained("web")?;
        let said =
            "steered Pods that dial 6 endpoints by address get those that the policy chooses";
        ensure!(web["direct"] == said, "{web}");
        let far = scene.cluster.pod("d")?.address4();
        let listed = scene.agent.list("services")?.to_string();
        ensure!(listed.contains(&format!("{far}/TCP from steered Pods")), "{listed}");

        // The same while no agent runs, and when it starts again.
        scene.agent.stop()?;
        expect_steered(scene, &mut steered.client, &["b", "c", "d"], &["a"])?;
        let agent = &mut scene.agent;
        let (tally, ()) = steered.client.call_during(Via::Http, far, || agent.resume())?;
        ensure!(tally.is_of(&["a"]), "{tally}");

        // A strict policy with a near tier, and then one without: only then is anybody refused.
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        expect_steered(scene, &mut steered.client, &["c", "d"], &["a", "b"])?;
        scene.change(|manifests| manifests.annotate("web", KEYS, Some("example.com/none")))?;
        expect_steered(scene, &mut steered.client, &["b", "c", "d"], &[])?;
        scene.client.expect(Via::Http, far, &["d"])
    })
}

#[test]
fn what_is_open_stays_and_what_is_new_follows_the_pod_and_the_service() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, OF_NAMESPACE)?;
        let client = &mut steered.client;
        scene.agent.resume()?;
        let pod_d = scene.cluster.pod("d")?;
        let (four, six) = (pod_d.address4(), pod_d.address6());
        // The last two name their peer in each datagram, too.
        let ways =
            [(Via::Http, four), (Via::UdpConnected, four), (Via::Udp, four), (Via::Udp, six)];
        let open = |client: &mut Client| -> Result<Vec<_>> {
            let mut all = Vec::new();
            for (via, to) in ways {
                let socket = client.open(via, to)??;
                if via == Via::Udp {
                    client.reconnect(socket, to)??;
                }
                all.push((socket, to));
            }
            Ok(all)
        };
        let unsteered = open(client)?;
        scene.put(pod("shop", "q", OF_NAMESPACE, Some("true")))?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])?;
        let near = open(client)?;
        // Not connected: goes where each datagram is sent.
        let flow = client.open(Via::Udp, four)??;
        let expect_flow = |client: &mut Client| -> Result<()> {
            let reply = client.ask(flow, Some(four))??;
            ensure!(reply.pod == "d" && reply.peer == four, "{reply:?}");
            Ok(())
        };
        let expect_open = |client: &mut Client| -> Result<()> {
            for (sockets, wanted) in [(&unsteered, "d"), (&near, "a")] {
                for &(socket, to) in sockets {
                    let reply = client.ask(socket, Some(to))??;
                    ensure!(reply.pod == wanted && reply.peer == to, "{to}: {reply:?}");
                    ensure!(client.peer(socket)?? == to, "{to}");
                }
            }
            Ok(())
        };
        expect_open(client)?;
        expect_flow(client)?;

        // The Pod's annotation goes, and comes back; then the Service's.
        scene.put(pod("shop", "q", OF_NAMESPACE, None))?;
        expect_steered(scene, client, &[], &[])?;
        expect_open(client)?;
        scene.put(pod("shop", "q", OF_NAMESPACE, Some("true")))?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])?;
        expect_flow(client)?;
        scene.change(|manifests| manifests.annotate("web", DIRECT, Some("allow")))?;
        expect_steered(scene, client, &[], &[])?;
        for &(socket, to) in &near[..2] {
            let reply = client.ask(socket, None)??;
            ensure!(reply.pod == "a" && reply.peer == to, "{reply:?}");
        }

        // By its namespace, too.
        scene.change(|manifests| manifests.annotate("web", DIRECT, Some("steer")))?;
        scene.put(pod("shop", "q", OF_NAMESPACE, None))?;
        scene.agent.stop()?;
        scene.agent.unset("--steer-annotated-pods");
        scene.agent.set("--steer-namespaces", "nobody,shop");
        scene.agent.resume()?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])
    })
}

#[test]
fn a_steered_connection_counts_once_and_for_the_endpoint_that_it_got() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, ANNOTATED)?;
        scene.agent.set("--count", "all");
        scene.agent.resume()?;
        let far = scene.cluster.pod("d")?.address4();
        steered.client.wait_for(Via::Http, far, &["a"], FOLLOWS)?;
        let page = |scene: &Scene<'_>| Ok::<_, anyhow::Error>(scene.agent.get("/metrics")?.body);
        let sum = |body: &str, series: &str| -> f64 {
            let of_series = body.lines().filter(|line| line.starts_with(series));
            of_series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        let of_web = "{namespace=\"default\",service=\"web\",port=\"http\",locality=\"node\"";
        until("each connection to end once", FOLLOWS, || {
            let body = page(scene)?;
            let dialled = sum(&body, &format!("topo_lb_connections_total{of_web}"));
            let ended = sum(&body, &format!("topo_lb_tcp_ended_connections_total{of_web}"));
            let is_so = dialled > 0.0 && dialled == ended && !body.contains("tier=\"direct\"");
            Ok(if is_so { Ok(()) } else { Err(format!("{dialled} dialled, {ended} ended")) })
        })?;
        scene.client.wait_for(Via::Http, far, &["d"], FOLLOWS)?;
        until("others to count as direct", FOLLOWS, || {
            let is_so = page(scene)?.contains("tier=\"direct\"");
            Ok(if is_so { Ok(()) } else { Err("nothing is direct") })
        })
        .map(drop)
    })
}

/// Takes the ClusterIPs from `web`.
fn make_headless(scene: &mut Scene<'_>) -> Result<()> {
    scene.change(|manifests| {
        let spec = &mut manifests.get("Service", "web")?["spec"];
        spec["clusterIP"] = "None".into();
        spec["clusterIPs"] = json!(["None"]);
        Ok(())
    })
}

#[test]
fn connected_sockets_end_with_the_near_endpoint_and_not_with_the_far_one() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, ANNOTATED)?;
        let client = &mut steered.client;
        scene.agent.resume()?;
        let far = scene.cluster.pod("d")?.address4();
        for is_headless in [false, true] {
            if is_headless {
                scene.set_endpoints("web", &ALL)?;
                make_headless(scene)?;
            }
            client.wait_for(Via::UdpConnected, far, &["a"], FOLLOWS)?;
            let socket = client.open(Via::UdpConnected, far)??;
            ensure!(client.ask(socket, None)??.pod == "a");
            scene.set_endpoints("web", &["a", "b", "d"])?;
            let left = scene.cluster.pod("c")?.address4();
            client.wait_for(Via::UdpConnected, left, &["c"], FOLLOWS)?;
            ensure!(client.ask(socket, None)??.pod == "a");
            scene.set_endpoints("web", &["b", "d"])?;
            client.hear(socket)?;
            client.wait_for(Via::UdpConnected, far, &["b"], FOLLOWS)?;
        }
        Ok(())
    })
}

#[test]
fn a_headless_service_steers_and_refuses_what_is_dialled_of_it() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, ANNOTATED)?;
        scene.agent.resume()?;
        make_headless(scene)?;
        scene.client.wait_for(Via::Http, at(WEB4)?, &["untouched"], FOLLOWS)?;
        expect_steered(scene, &mut steered.client, &["b", "c", "d"], &["a"])?;
        let expect_all = |scene: &mut Scene<'_>, refused: &[&str]| -> Result<()> {
            for pod in ALL {
                let (tcp, udp, sent) = directly(scene, pod)?;
                let wanted = if refused.contains(&pod) { &[][..] } else { &[pod] };
                for ways in [tcp, udp, sent] {
                    expect(&mut scene.client, &ways, wanted)?;
                }
            }
            Ok(())
        };
        expect_all(scene, &[])?;
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some(ZONE))?;
            manifests.annotate("web", DIRECT, Some("refuse"))
        })?;
        expect_all(scene, &["c", "d"])?;
        scene.change(|manifests| manifests.annotate("web", DIRECT, None))?;
        expect_all(scene, &[])
    })
}

#[test]
fn what_others_have_too_or_what_has_a_name_of_its_own_is_left_alone() -> Result<()> {
    steering(|scene| {
        let mut steered = place(scene, ANNOTATED)?;
        let client = &mut steered.client;
        scene.agent.resume()?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])?;
        // `echo` has the same endpoints over UDP.
        let echo = service("echo", &[ECHO4], &[("udp", 80, "UDP")], &[]);
        scene.put(echo)?;
        for pod in ["b", "c", "d"] {
            let (tcp, udp, _) = directly(scene, pod)?;
            expect(client, &udp, &[pod])?;
            expect(client, &tcp, &["a"])?;
        }
        scene.remove("Service", "echo")?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])?;

        // A member of a StatefulSet is known by the slice of its headless Service.
        let d = scene.cluster.pod("d")?;
        for (family, address) in [("IPv4", d.ipv4.to_string()), ("IPv6", d.ipv6.to_string())] {
            let mut endpoint = endpoint(&address, &d.node, "d");
            endpoint["hostname"] = "db-0".into();
            scene.put(slice("members", family, &[], &[endpoint]))?;
        }
        let headless = service("members", &["None"], &[("http", 80, "TCP")], &[]);
        scene.put(headless)?;
        let (tcp, ..) = directly(scene, "d")?;
        expect(client, &tcp, &["d"])?;
        expect_steered(scene, client, &["b", "c"], &["a"])?;
        scene.remove("Service", "members")?;
        expect_steered(scene, client, &["b", "c", "d"], &["a"])?;

        // Session affinity keeps a client where it was.
        scene.change(|manifests| {
            manifests.get("Service", "web")?["spec"]["sessionAffinity"] = "ClientIP".into();
            Ok(())
        })?;
        expect_steered(scene, client, &[], &[])?;
        let web = scene.explained("web")?;
        ensure!(web["direct"] == "nobody is steered, as the Service has session affinity", "{web}");
        Ok(())
    })
}
