//! Maps that are too small: which Services lack room, for what, until when, and what clients see.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_HASH;
use serde_json::{Value, json};
use topo_lb_kernel::datapath::host::removal::remove_if;
use topo_lb_tests::manifest::{Manifests, endpoint, service, slice};
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{
    ALL, ECHO4, FOLLOWS, KEYS, Scene, WEB4, WEB6, ZONE, at, idle, prepared, put_endpoints,
};
use topo_lb_tests::traffic::Via;

/// Waits until `topo-lb list services` reports exactly these as lacking room.
fn expect_short(scene: &Scene<'_>, wanted: &Value) -> Result<Value> {
    scene.agent.wait_for_services(FOLLOWS, |listed| listed["leftOut"] == *wanted)
}

/// Like [`expect_short`], for Services left to kube-proxy: none of them may be in the maps.
fn expect_left_out(scene: &Scene<'_>, wanted: &Value) -> Result<()> {
    let listed = expect_short(scene, wanted)?;
    let names = wanted.as_array().context("a list")?.iter().filter_map(|it| it["service"].as_str());
    let services = listed["services"].as_array().context("a list of services")?;
    for name in names {
        let port = |row: &Value| row["service"].as_str().is_some_and(|it| it.starts_with(name));
        ensure!(!services.iter().any(port), "{name} is in the maps too: {listed}");
    }
    Ok(())
}

/// A Service that lacks room for its `what`, and what happens to its connections meanwhile.
fn lacks(what: &str, name: &str, meanwhile: &str) -> Value {
    let flag = format!("--max-{what}");
    json!({"service": name, "lacks": what, "meanwhile": meanwhile, "flag": flag})
}

/// A Service with two ports in its own namespace, served by `pod`: address, node, name.
fn put_tenant(manifests: &mut Manifests, tenant: &str, number: u8, pod: (&str, &str, &str)) {
    let (name, address) = (format!("s{number}"), format!("10.96.7.{number}"));
    let ports = [("one", 80, "TCP"), ("two", 81, "TCP")];
    let targets = [("one", 9376, "TCP"), ("two", 9376, "TCP")];
    let (address4, node, pod) = pod;
    let service = service(&name, &[&address], &ports, &[]);
    let slice = slice(&name, "IPv4", &targets, &[endpoint(address4, node, pod)]);
    for mut object in [service, slice] {
        object["metadata"]["namespace"] = tenant.into();
        manifests.put(object);
    }
}

/// The table of `topo-lb list services`.
fn table(scene: &Scene<'_>) -> Result<String> {
    printed(&mut scene.agent.list_command("services"))
}

#[test]
fn services_without_room_are_listed_until_there_is_room() -> Result<()> {
    idle(|scene| {
        // Room for three Service ports: `echo` has one, `empty` and `web` have two.
        scene.agent.set("--max-services", "3");
        scene.agent.resume()?;
        expect_left_out(scene, &json!([lacks("services", "default/web", "kube-proxy")]))?;
        let text = table(scene)?;
        ensure!(text.contains("1 Service lacks room in the maps"), "{text}");
        ensure!(text.lines().any(|line| line.contains("default/web")), "{text}");
        ensure!(scene.dump("unprogrammed")?.as_array().map(Vec::len) == Some(1));
        ensure!(scene.agent.log().contains("--max-services"), "{}", scene.agent.log());

        // Each of its ports, over both families, is untouched: a Service is left alone whole.
        for via in [Via::UdpConnected, Via::Http] {
            for to in [WEB4, WEB6] {
                let tally = scene.client.call(via, at(to)?, 20)?;
                let pods: Vec<_> = tally.pods().into_iter().collect();
                ensure!(pods == ["untouched"], "{via:?} to {to}: {tally:?}");
            }
        }

        // The same while no agent runs.
        scene.agent.stop()?;
        expect_left_out(scene, &json!([lacks("services", "default/web", "kube-proxy")]))?;
        scene.agent.resume()?;
        expect_left_out(scene, &json!([lacks("services", "default/web", "kube-proxy")]))?;

        // Deleting another Service makes room.
        let empty = scene.manifests.get("Service", "empty")?.clone();
        scene.remove("Service", "empty")?;
        expect_left_out(scene, &json!([]))?;
        ensure!(!table(scene)?.contains("lacks room"));
        ensure!(scene.dump("unprogrammed")?.as_array().map(Vec::len) == Some(0));

        // Services that have room keep it.
        scene.put(empty)?;
        expect_left_out(scene, &json!([lacks("services", "default/empty", "kube-proxy")]))?;

        // Larger maps replace these, and every Service has room.
        scene.agent.stop()?;
        scene.agent.set("--max-services", "64");
        scene.agent.resume()?;
        expect_left_out(scene, &json!([]))
    })
}

#[test]
fn a_service_is_served_though_there_is_no_room_to_refuse_direct_dials() -> Result<()> {
    idle(|scene| {
        // The Services have five frontends of a family; two far endpoints of two ports would be four more.
        scene.agent.set("--max-services", "6");
        scene.agent.resume()?;
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some(ZONE))?;
            manifests.annotate("web", "topo-lb.io/direct", Some("refuse"))
        })?;
        expect_short(scene, &json!([lacks("services", "default/web", "direct-dials")]))?;
        let far = (scene.cluster.pod("c")?.ipv4, 9376).into();
        for _ in 0..2 {
            scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
            scene.expect(Via::UdpConnected, at(WEB6)?, &["a", "b"])?;
            scene.client.expect(Via::Http, far, &["c"])?;
            let line = "topo_lb_direct_dials_services 1\n";
            scene.agent.wait_for_answer("/metrics", FOLLOWS, |it| it.body.contains(line))?;
            scene.agent.stop()?;
            scene.agent.resume()?;
        }
        scene.remove("Service", "empty")?;
        scene.remove("Service", "echo")?;
        expect_short(scene, &json!([]))?;
        scene.wait_for(Via::Http, far, &[]).map(drop)
    })
}

#[test]
fn a_service_whose_endpoints_have_no_room_is_listed_with_the_flag_that_gives_more() -> Result<()> {
    idle(|scene| {
        // `echo` has four endpoints, as many as `web`.
        scene.agent.set("--max-endpoints", "4");
        scene.agent.resume()?;
        let web = lacks("endpoints", "default/web", "kube-proxy");
        expect_left_out(scene, &json!([web]))?;
        let log = scene.agent.log();
        ensure!(log.contains("start the agent with a larger --max-endpoints"), "{log}");
        ensure!(table(scene)?.contains("--max-endpoints"));
        scene.set_endpoints("echo", &[])?;
        expect_left_out(scene, &json!([]))
    })
}

#[test]
fn a_tenant_that_fills_the_maps_does_not_keep_others_from_their_shares() -> Result<()> {
    prepared(
        |manifests| {
            for name in ["web", "echo", "empty"] {
                manifests.remove("Service", name);
            }
        },
        |scene| {
            let pod = scene.cluster.pod("a")?;
            let pod = (pod.ipv4.to_string(), pod.node.clone());
            for number in 1..=4 {
                put_tenant(&mut scene.manifests, "aaa", number, (&pod.0, &pod.1, "a"));
            }
            scene.manifests.write()?;
            scene.agent.set("--max-services", "8");
            scene.agent.resume()?;
            expect_short(scene, &json!([]))?;
            ensure!(scene.agent.list("services")?["services"].as_array().map(Vec::len) == Some(8));

            // Two of eight are less than half.
            let ports = [("http", 80, "TCP"), ("udp", 80, "UDP")];
            scene.put(service("web", &[WEB4], &ports, &[]))?;
            scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
            // The tenant's newest Service has made room for it.
            expect_left_out(scene, &json!([lacks("services", "aaa/s4", "kube-proxy")]))?;
            for number in 1..=3 {
                scene.expect(Via::Http, at(&format!("10.96.7.{number}"))?, &["a"])?;
            }
            Ok(())
        },
    )
}

#[test]
fn a_strict_service_without_room_is_refused_where_that_is_asked_for() -> Result<()> {
    idle(|scene| {
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        // `echo` takes all four.
        scene.agent.set("--max-endpoints", "4");
        scene.agent.resume()?;
        expect_left_out(scene, &json!([lacks("endpoints", "default/web", "kube-proxy")]))?;
        scene.client.expect_of_any_peer(Via::Http, at(WEB4)?, &["untouched"])?;

        scene.agent.stop()?;
        scene.agent.set("--when-full", "refuse-strict");
        scene.agent.resume()?;
        expect_short(scene, &json!([lacks("endpoints", "default/web", "refused")]))?;
        scene.client.expect_of_any_peer(Via::Http, at(WEB4)?, &[])?;
        ensure!(table(scene)?.contains("refused"));
        let metrics = scene.agent.get("/metrics")?.body;
        let counts = |line: &str| {
            line.starts_with("topo_lb_refused_connections_total{")
                && line.contains("service=\"web\"")
                && line.contains("reason=\"no-room\"")
        };
        ensure!(metrics.lines().any(counts), "{metrics}");
        let explained = scene.agent.get("/explain?service=default/web")?.body;
        let explained: Value = serde_json::from_str(&explained)?;
        for port in explained["services"].as_array().context("no Services")? {
            ensure!(port["decision"]["verdict"] == "refuse", "{port}");
        }

        // The Service is programmed as soon as it has room.
        scene.set_endpoints("echo", &[])?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        expect_short(scene, &json!([]))?;
        Ok(())
    })
}

#[test]
fn a_service_whose_new_endpoints_have_no_room_keeps_those_that_serve() -> Result<()> {
    prepared(
        |manifests| manifests.remove("Service", "web"),
        |scene| {
            put_endpoints(&mut scene.manifests, scene.cluster, "echo", &["a", "b"])?;
            scene.manifests.write()?;
            scene.agent.set("--max-endpoints", "3");
            scene.agent.resume()?;
            scene.expect(Via::Udp, at(ECHO4)?, &["a", "b"])?;

            scene.set_endpoints("echo", &ALL)?;
            expect_short(scene, &json!([lacks("endpoints", "default/echo", "narrowed")]))?;
            scene.expect(Via::Udp, at(ECHO4)?, &["a", "b"])?;
            let metrics = scene.agent.get("/metrics")?.body;
            ensure!(metrics.lines().any(|line| line == "topo_lb_narrowed_services 1"), "{metrics}");
            ensure!(
                scene.agent.log().contains(
                    "at most 6 of their endpoints (4 over IPv6), other ones on each node, are used at random by default/echo"
                )
            );

            scene.set_endpoints("echo", &["b", "c"])?;
            scene.wait_for(Via::Udp, at(ECHO4)?, &["b", "c"])?;
            expect_short(scene, &json!([]))?;
            Ok(())
        },
    )
}

/// A node-port Service with the pods on these ports as its endpoints.
fn put_large(scene: &mut Scene<'_>, name: &str, number: u16, ports: &[u16]) -> Result<()> {
    let address = format!("10.96.7.{number}");
    let mut large = service(name, &[&address], &[("http", 80, "TCP")], &[]);
    large["spec"]["type"] = "NodePort".into();
    large["spec"]["ports"][0]["nodePort"] = (30_000 + number).into();
    scene.manifests.put(large);
    let pods: Vec<_> = scene.cluster.pods().filter(|pod| ALL.contains(&&*pod.name)).collect();
    for port in ports {
        let endpoints =
            pods.iter().map(|pod| endpoint(&pod.ipv4.to_string(), &pod.node, &pod.name));
        let mut slice =
            slice(name, "IPv4", &[("http", *port, "TCP")], &endpoints.collect::<Vec<_>>());
        slice["metadata"]["name"] = format!("{name}-{port}").into();
        scene.manifests.put(slice);
    }
    scene.manifests.write()
}

#[test]
fn without_kube_proxy_frontends_share_their_endpoints_and_a_service_without_room_gets_some()
-> Result<()> {
    prepared(
        |manifests| {
            for name in ["echo", "empty"] {
                manifests.remove("Service", name);
            }
        },
        |scene| {
            let mut servers = Vec::new();
            for pod in ALL {
                for port in [9_001, 9_002, 9_003] {
                    servers.push(scene.cluster.pod(pod)?.serve_as(pod, port)?);
                }
            }
            // `web` has 8 members.
            put_large(scene, "first", 1, &[9_001, 9_002, 9_003, 9_004, 9_005, 9_006])?;
            scene.agent.set("--kube-proxy-replacement", "");
            scene.agent.set("--max-endpoints", "40");
            scene.agent.resume()?;
            // Its frontends have 24 slots together, and not 24 each.
            expect_short(scene, &json!([]))?;

            put_large(scene, "next", 2, &[9_001, 9_002, 9_003])?;
            expect_short(scene, &json!([lacks("endpoints", "default/next", "narrowed")]))?;
            let tally = scene.client.call(Via::Http, at("10.96.7.2")?, 40)?;
            let pods = tally.pods();
            ensure!(!pods.is_empty() && pods.iter().all(|pod| ALL.contains(&&**pod)), "{tally:?}");
            let metrics = scene.agent.get("/metrics")?.body;
            for line in ["topo_lb_narrowed_services 1", "topo_lb_left_out_services 0"] {
                ensure!(metrics.lines().any(|other| other == line), "{metrics}");
            }
            let log = scene.agent.log();
            let said = "at most 6 of their endpoints (4 over IPv6), other ones on each node, are used at random by default/next";
            ensure!(log.contains(said), "{log}");

            scene.remove("Service", "first")?;
            expect_short(scene, &json!([]))?;
            scene.expect(Via::Http, at("10.96.7.2")?, &ALL)
        },
    )
}

/// What is over leaves the tables of connections while the programs write to them.
#[test]
fn an_entry_that_is_replaced_while_it_is_removed_stays() -> Result<()> {
    const KEY: u32 = 7;
    const OVER: u64 = 1;
    let map = aya_obj::Map::new_from_params(BPF_MAP_TYPE_HASH as u32, 4, 8, 8, 0);
    let map = MapData::create(map, "removal", None)?;
    let descriptor = map.fd().as_fd().try_clone_to_owned()?;
    let map = RefCell::new(HashMap::<_, u32, u64>::try_from(Map::HashMap(map))?);
    // What is written after each look at the entry, and what is there in the end.
    for (written, last) in
        [([None, None], None), ([Some(2), None], Some(2)), ([Some(2), Some(3)], Some(3))]
    {
        map.borrow_mut().insert(KEY, OVER, 0)?;
        let looks = Cell::new(0);
        let is_over = |value: &u64| {
            if let Some(Some(value)) = written.get(looks.replace(looks.get() + 1)) {
                map.borrow_mut().insert(KEY, value, 0).expect("room");
            }
            *value == OVER
        };
        remove_if(descriptor.as_fd(), &KEY, is_over)?;
        let left = map.borrow().iter().collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<_> = last.map(|value| (KEY, value)).into_iter().collect();
        ensure!(left == wanted, "{written:?}: {left:?}");
    }
    Ok(())
}
