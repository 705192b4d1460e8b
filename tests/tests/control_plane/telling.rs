//! Events at Services of a real API server, sent by the nodes' agents.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{self, READ, installed, reading};
use topo_lb_tests::binary::{Binary, row};
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::ControlPlane;
use topo_lb_tests::foreign::{self, Foreign, Rule};
use topo_lb_tests::foreign_table::ForeignTable;
use topo_lb_tests::http::{self, Answer};
use topo_lb_tests::lab::within;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::scene::{HERE, KEYS, WEB4, ZONE, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until, until_is};
use topo_lb_tests::wiring::node4;
use topo_lb_tests::{kubernetes_1_20, manifest, requirements};

const SOON: Duration = Duration::from_secs(30);
/// A pod without a server.
const CLIENT: [(&str, u8); 1] = [("client", 2)];

fn service(name: &str, address: &str, keys: Option<&str>) -> Value {
    let annotations: Vec<_> = keys.map(|keys| (KEYS, keys)).into_iter().collect();
    manifest::service(name, &[address], &[("http", 80, "TCP")], &annotations)
}

/// The slice of a Service with one endpoint, on this node or on one in another zone.
fn slice(service: &str, node: &str) -> Value {
    let endpoints = [manifest::endpoint("10.244.2.2", node, "pod")];
    manifest::slice(service, "IPv4", &[("http", 9376, "TCP")], &endpoints)
}

/// Moves the endpoint of a Service to a node.
fn move_to(plane: &ControlPlane<'_>, service: &str, node: &str) -> Result<()> {
    let slice = slice(service, node);
    let name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let slice = if plane.has_topology_keys()? { kubernetes_1_20::slice(slice) } else { slice };
    let patch = Patch::Merge(json!({"endpoints": slice["endpoints"]}));
    let version = plane.slice_version()?;
    plane.ask(async |client| {
        let slices = api::of(&client, version, "EndpointSlice");
        let outcome = slices.patch(&name, &PatchParams::default(), &patch).await;
        outcome.map(drop).context("cannot change the slice")
    })
}

/// A node with these pods, its object in the cluster, and its agent, which does not run yet.
fn idle(
    rights: &Value,
    pods: &[(&'static str, u8)],
    body: impl FnOnce(&Cluster, &mut ControlPlane<'_>, &mut Agent<'_>) -> Result<()>,
) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&[NodePlan { name: HERE, number: 1, pods: pods.to_vec() }], |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.allow("topo-lb", rights)?;
        plane.create([manifest::node(HERE, &[(ZONE, "zone-1")])])?;
        let mut agent = plane.agent(&binary, HERE)?;
        body(cluster, &mut plane, &mut agent)
    })
}

/// The same with Services, and an agent that runs: one with an invalid policy, a strict one with an
/// endpoint here, and one that never had an endpoint.
fn play(
    rights: &Value,
    body: impl FnOnce(&Cluster, &mut ControlPlane<'_>, &mut Agent<'_>) -> Result<()>,
) -> Result<()> {
    idle(rights, &CLIENT, |cluster, plane, agent| {
        plane.create([
            manifest::node("far", &[(ZONE, "zone-2")]),
            service("broken", "10.96.4.1", Some("not a key!")),
            slice("broken", "far"),
            service("strict", "10.96.4.2", Some(ZONE)),
            slice("strict", HERE),
            // A closed loop elsewhere: its refusal here is intended.
            service("closed", "10.96.4.5", Some(ZONE)),
            slice("closed", "far"),
            // No node has an endpoint of it, so it gets no Event of this node.
            service("idle", "10.96.4.3", None),
        ])?;
        // These Services and default/kubernetes fill the maps.
        agent.set("--max-services", "5");
        agent.resume()?;
        body(cluster, plane, agent)
    })
}

/// The Events of topo-lb, each with its object's name and its reason.
fn told(plane: &ControlPlane<'_>) -> Result<Vec<(String, String, Value)>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = plane.list("Event")?.into_iter().map(|event| event.data);
    let ours = all.filter(|data| data["reportingController"] == "topo-lb");
    Ok(ours.map(|it| (text(&it["regarding"]["name"]), text(&it["reason"]), it)).collect())
}

fn wait_for(
    plane: &ControlPlane<'_>,
    service: &str,
    reason: &str,
    within: Duration,
) -> Result<Value> {
    let mut found = None;
    until(&format!("an Event {reason} at {service}"), within, || {
        let all = told(plane)?;
        found = all.iter().find(|(name, why, _)| name == service && why == reason).cloned();
        Ok(if found.is_some() { Ok(()) } else { Err(format!("{all:?}")) })
    })?;
    Ok(found.context("it was found")?.2)
}

#[test]
fn a_node_tells_afterwards_that_it_was_an_island() -> Result<()> {
    idle(&installed(), &CLIENT, |_, plane, agent| {
        agent.set("--island-after", "2s");
        agent.resume()?;
        plane.kill_api_server();
        agent.wait_for_log("this node is an island: the API server has not been heard of", SOON)?;
        plane.start_api_server()?;
        plane.wait_until_ready()?;
        let event = wait_for(plane, HERE, "NodeWasIsland", SOON * 3)?;
        ensure!(event["type"] == "Warning" && event["regarding"]["kind"] == "Node", "{event}");
        let note = event["note"].as_str().unwrap_or_default();
        let (begin, end) =
            ("this node was an island for ", "; every endpoint answered that it probed");
        ensure!(note.starts_with(begin) && note.ends_with(end), "{note}");
        Ok(())
    })
}

#[test]
fn a_node_shows_that_others_decide_before_topo_lb() -> Result<()> {
    play(&installed(), |cluster, plane, agent| {
        let node = cluster.node(HERE)?.cgroup_path();
        let rules = [Rule::Deny([203, 0, 113, 1].into())];
        let pod = node.join("client");
        let other = Foreign::attach_before(node, &pod, &rules)?;
        let event = wait_for(plane, HERE, "ConnectionsOverridden", SOON)?;
        ensure!(event["type"] == "Warning" && event["regarding"]["kind"] == "Node", "{event}");
        let note = event["note"].as_str().unwrap_or_default();
        let is_named = |id| note.contains(&format!("program {id} ({}) runs before", foreign::NAME));
        ensure!(other.ids().any(is_named), "{note}");
        // Later programs appear in the agent's readiness.
        let more = Foreign::attach_before(node, &pod, &rules)?;
        let is_told = |answer: &Answer| {
            let named = |id| answer.body.contains(&format!("program {id} "));
            more.ids().any(named) || answer.body.contains("3 more")
        };
        agent.wait_for_answer("/readyz", SOON, is_told).map(drop)
    })
}

#[test]
fn a_service_shows_what_a_node_makes_of_it() -> Result<()> {
    play(&installed(), |_, plane, agent| {
        let broken = wait_for(plane, "broken", "InvalidTopologyPolicy", SOON)?;
        ensure!(broken["type"] == "Warning" && broken["reportingInstance"] == HERE, "{broken}");
        let note = broken["note"].as_str().unwrap_or_default();
        ensure!(note.contains(KEYS), "{note}");
        let all = told(plane)?;
        ensure!(all.len() == 1, "a start tells of no closed loop: {all:?}");

        move_to(plane, "strict", "far")?;
        let strict = wait_for(plane, "strict", "NodeRefused", SOON)?;
        let note = strict["note"].as_str().unwrap_or_default();
        ensure!(note.starts_with(&format!("on node {HERE} ({ZONE}=zone-1): ")), "{note}");
        ensure!(note.contains("connections to port http are refused: "), "{note}");
        // `kubectl describe` finds Events by the UID of their object.
        let mut services = plane.list("Service")?.into_iter().map(|service| service.metadata);
        let found = services.find(|it| it.name.as_deref() == Some("strict"));
        let uid = found.and_then(|it| it.uid).context("every object has a UID")?;
        ensure!(strict["regarding"]["uid"] == uid.as_str(), "{strict}");

        // A repetition becomes a series of the same Event.
        for (node, is_refused) in [(HERE, false), ("far", true)] {
            move_to(plane, "strict", node)?;
            agent.wait_for_verdict("strict", if is_refused { "refuse" } else { "route" }, SOON)?;
        }
        until("a series", SOON, || {
            let strict = wait_for(plane, "strict", "NodeRefused", SOON)?;
            let is_series = strict["series"]["count"].as_u64() == Some(2);
            Ok(if is_series { Ok(()) } else { Err(strict.to_string()) })
        })?;

        // There is room for five.
        plane.create([service("late", "10.96.4.4", None)])?;
        wait_for(plane, "late", "NoRoomInMaps", SOON)?;

        let all = told(plane)?;
        ensure!(all.len() == 3, "each has one Event: {all:?}");
        let sent = "topo_lb_kubernetes_events_total{outcome=\"sent\"} 4";
        agent.wait_for_answer("/metrics", SOON, |answer| answer.body.contains(sent))?;

        // A refusal from before a restart gets no second Event. The agent does not list Services
        // for Events, but still knows the UID.
        agent.kill();
        agent.resume()?;
        move_to(plane, "closed", HERE)?;
        agent.wait_for_verdict("closed", "route", SOON)?;
        move_to(plane, "closed", "far")?;
        let closed = wait_for(plane, "closed", "NodeRefused", SOON)?;
        ensure!(closed["regarding"]["uid"].is_string(), "{closed}");
        // The new process counts anew: it sent this one, and none that the first one had sent.
        let counts = [("sent", 1), ("repeated", 0)]
            .map(|(how, n)| format!("topo_lb_kubernetes_events_total{{outcome=\"{how}\"}} {n}\n"));
        agent.wait_for_answer("/metrics", SOON, |answer| answer.body.contains(&counts[0]))?;
        let text = agent.get("/metrics")?.body;
        ensure!(counts.iter().all(|count| text.contains(count)), "{text}");
        let all = told(plane)?;
        ensure!(all.len() == 4, "a restart tells nothing again: {all:?}");
        Ok(())
    })
}

#[test]
fn a_node_shows_that_connections_from_outside_fail() -> Result<()> {
    requirements::command("nft", "nftables")?;
    idle(&installed(), &CLIENT, |cluster, plane, agent| {
        let table = ForeignTable::make(cluster, cluster.node(HERE)?)?;
        agent.set("--kube-proxy-replacement", "");
        agent.set("--masquerade", "nftables");
        agent.resume()?;
        let event = wait_for(plane, HERE, "ConnectionsFromOutsideFail", SOON)?;
        let note = event["note"].as_str().unwrap_or_default();
        ensure!(
            note.contains("have no answers, as the nftables table inet topo-lb cannot be written"),
            "{note}"
        );
        ensure!(event["regarding"]["kind"] == "Node", "{event}");
        table.remove()?;
        agent.wait_for_answer("/readyz", SOON, |answer| answer.status == 200)?;
        let all = told(plane)?;
        ensure!(all.len() == 1, "it is told once: {all:?}");
        Ok(())
    })
}

#[test]
fn a_node_shows_that_clients_come_by_a_device_that_no_program_serves() -> Result<()> {
    idle(&installed(), &CLIENT, |cluster, plane, agent| {
        agent.set("--kube-proxy-replacement", "");
        agent.resume()?;
        let lines = [
            "tuntap add dev vpn0 mode tun",
            "address add 198.51.100.7/24 dev vpn0",
            "link set vpn0 up",
        ];
        cluster.ip_on(HERE, &lines.map(str::to_owned))?;
        let event = wait_for(plane, HERE, "ClientsOutsideNotServed", SOON)?;
        let note = event["note"].as_str().unwrap_or_default();
        ensure!(note.starts_with("clients that come by vpn0 are not served"), "{note}");
        ensure!(event["regarding"]["kind"] == "Node", "{event}");
        Ok(())
    })
}

#[test]
fn a_table_that_is_full_of_open_connections_is_told_once_everywhere_until_it_is_not() -> Result<()>
{
    const ROOM: usize = 64;
    const OPEN: &str = "topo_lb_tracked_connections{family=\"IPv4\",state=\"open\"}";
    requirements::command("nft", "nftables")?;
    idle(&installed(), &[("client", 2), ("a", 3)], |cluster, plane, agent| {
        let mut web = service("web", "10.96.4.7", None);
        web["spec"]["type"] = "NodePort".into();
        web["spec"]["ports"][0]["nodePort"] = 30_080.into();
        let endpoint = manifest::endpoint(&cluster.pod("a")?.ipv4.to_string(), HERE, "a");
        let slice = manifest::slice("web", "IPv4", &[("http", 9376, "TCP")], &[endpoint]);
        plane.create([web, slice])?;
        let _server = cluster.serve(["a"])?;
        agent.set("--kube-proxy-replacement", "");
        agent.set("--max-connections", ROOM.to_string());
        agent.resume()?;
        // One client may have a quarter.
        let (clients, to) = (cluster.add_clients(8)?, SocketAddr::from((node4(1), 30_080)));
        let open = |from: Ipv4Addr| dial(cluster, from, to);
        until("the first connection", SOON, || Ok(open(clients[0]).map(drop)))?;
        let is_empty = |answer: &Answer| answer.sample(OPEN) == Some(0.0);
        agent.wait_for_answer("/metrics", SOON, is_empty)?;

        let from = clients.iter().cycle().take(ROOM);
        let held: Vec<TcpStream> = from.map(|from| open(*from)).collect::<Result<_>>()?;
        let sentence = "is full: 64 of 64 are open, and new ones are dropped";
        let is_told = |answer: &Answer| answer.status == 200 && answer.body.contains(sentence);
        agent.wait_for_answer("/readyz", SOON, is_told)?;
        let event = wait_for(plane, HERE, "ConnectionTableFull", SOON)?;
        let is_of_node = event["type"] == "Warning" && event["regarding"]["kind"] == "Node";
        let note = event["note"].as_str().unwrap_or_default();
        ensure!(is_of_node && note.contains(sentence), "{event}");
        ensure!(open(clients[0]).is_err(), "there is room for one more");
        let metrics = agent.get("/metrics")?;
        for (name, wanted) in [
            (OPEN, 64.0),
            ("topo_lb_tracked_connections_limit{family=\"IPv4\"}", 64.0),
            ("topo_lb_ready", 1.0),
        ] {
            ensure!(metrics.sample(name) == Some(wanted), "{name}: {}", metrics.body);
        }
        let dropped =
            metrics.sample("topo_lb_packets_total{hook=\"ingress\",outcome=\"table-full\"}");
        ensure!(dropped >= Some(1.0), "{}", metrics.body);
        let check = checked(cluster, agent)?;
        let remedy = check["remedy"].as_str().unwrap_or_default();
        ensure!(check["status"] == "limited" && remedy.contains("--max-connections"), "{check}");
        ensure!(check["sentence"].as_str().is_some_and(|it| it.contains(sentence)), "{check}");

        drop(held);
        agent.wait_for_answer("/readyz", SOON, |answer| answer.body == "ready\n")?;
        until("another connection", SOON, || Ok(open(clients[0]).map(drop)))?;
        let check = checked(cluster, agent)?;
        let is_said = check["sentence"].as_str().is_some_and(|it| it.contains(" of 64 are open"));
        ensure!(check["status"] != "failed" && is_said, "{check}");
        let all = told(plane)?;
        ensure!(all.len() == 1 && all[0].2["series"].is_null(), "it is told once: {all:?}");

        // One client takes what it may have.
        let held: Vec<TcpStream> =
            (0..ROOM / 4).map(|_| open(clients[0])).collect::<Result<_>>()?;
        let sentence =
            "a client outside has used its quarter of the table of connections: 16 of 16";
        let is_told = |answer: &Answer| answer.status == 200 && answer.body.contains(sentence);
        agent.wait_for_answer("/readyz", SOON, is_told)?;
        agent.wait_for_log(sentence, SOON)?;
        let event = wait_for(plane, HERE, "ConnectionShareUsed", SOON)?;
        ensure!(event["note"].as_str().is_some_and(|note| note.contains(sentence)), "{event}");
        ensure!(open(clients[0]).is_err(), "it may open one more");
        drop(open(clients[1])?);
        let check = checked(cluster, agent)?;
        ensure!(check["sentence"].as_str().is_some_and(|it| it.contains(sentence)), "{check}");
        drop(held);
        agent.wait_for_answer("/readyz", SOON, |answer| answer.body == "ready\n").map(drop)
    })
}

/// A connection from an address of the fabric.
fn dial(cluster: &Cluster, from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    cluster.fabric().run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&to.into(), patient(Duration::from_secs(2)))?;
        Ok(socket.into())
    })
}

/// What `topo-lb check` finds of the room for connections.
fn checked(cluster: &Cluster, agent: &Agent<'_>) -> Result<Value> {
    let binary = Binary::new(requirements::agent()?);
    let mut check = binary.command(&["check", "-o", "json", "--cgroup-root"]);
    check.arg(cluster.node(HERE)?.cgroup_path()).arg("--pin-dir").arg(agent.pins());
    let report: Value = serde_json::from_slice(&check.output()?.stdout)?;
    Ok(row(&report["findings"], "name", "connections")?.clone())
}

#[test]
fn an_endpoint_that_is_left_out_is_told_once_at_its_service() -> Result<()> {
    idle(&installed(), &[("client", 2), ("a", 3), ("b", 4)], |cluster, plane, agent| {
        let port = [("http", 80, "TCP")];
        let web = manifest::service("web", &[WEB4], &port, &[("topo-lb.io/ejection", "3, 1s")]);
        let endpoint = |name| {
            let pod = cluster.pod(name)?;
            Ok(manifest::endpoint(&pod.ipv4.to_string(), HERE, name))
        };
        let endpoints = ["a", "b"].into_iter().map(endpoint).collect::<Result<Vec<_>>>()?;
        let slice = manifest::slice("web", "IPv4", &[("http", 9376, "TCP")], &endpoints);
        plane.create([web, slice])?;
        // Nobody listens in b.
        let _server = cluster.serve(["a"])?;
        let mut client = cluster.pod("client")?.client()?;
        agent.resume()?;
        client.wait_for(Via::Http, at(WEB4)?, &["a"], SOON)?;
        let event = wait_for(plane, "web", "EndpointEjected", SOON)?;
        let note = event["note"].as_str().unwrap_or_default();
        let address = SocketAddr::from((cluster.pod("b")?.ipv4, 9376));
        let wanted = format!(
            "on node {HERE}: endpoint {address} is ejected for 1 s, then probed: 3 connects of this \
             node in a row failed (refused)"
        );
        ensure!(note == wanted, "{note}");
        // It stays out, whatever probes fail.
        let failed = "topo_lb_ejection_probes_total{outcome=\"failed\"}";
        agent.wait_for_answer("/metrics", SOON, |it| it.sample(failed) >= Some(2.0))?;
        let all = told(plane)?;
        ensure!(all.len() == 1, "it is told once: {all:?}");
        Ok(())
    })
}

#[test]
fn load_balancers_are_told_of_a_node_that_leaves_and_people_of_a_busy_health_check() -> Result<()> {
    idle(&installed(), &CLIENT, |cluster, plane, agent| {
        let mut web = service("web", "10.96.4.6", None);
        web["spec"]["type"] = "LoadBalancer".into();
        web["spec"]["externalTrafficPolicy"] = "Local".into();
        web["spec"]["healthCheckNodePort"] = 32_100.into();
        plane.create([web, slice("web", HERE)])?;
        let ask = |port: u16, path: &str| {
            http::get(cluster.node_netns(HERE)?, ([172, 30, 0, 2], port).into(), path)
        };
        let busy = cluster.serve_on(HERE, "busy", &[([172, 30, 0, 2], 32_100).into()])?;
        agent.set("--kube-proxy-replacement", "");
        agent.resume()?;

        let event = wait_for(plane, "web", "FailedToStartServiceHealthcheck", SOON)?;
        let note = event["note"].as_str().unwrap_or_default();
        ensure!(note.contains("healthCheckNodePort 172.30.0.2:32100: another process"), "{note}");
        drop(busy);
        let look = || Ok(ask(32_100, "/").map_or_else(|error| format!("{error:#}"), |it| it.body));
        until_is("an answer", SOON, look, |text| text.contains("\"localEndpoints\":1"))?;

        let leaves = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
        for (taints, status) in [(json!([]), 200), (leaves, 503), (json!([]), 200)] {
            plane.change("Node", HERE, &json!({"spec": {"taints": taints}}))?;
            let look = || ask(10_256, "/healthz");
            let healthz = until_is("another health", SOON, look, |it| it.status == status)?;
            let eligible = format!("\"nodeEligible\":{}", status == 200);
            ensure!(healthz.body.contains(&eligible), "{healthz}");
            let livez = ask(10_256, "/livez")?;
            ensure!(livez.status == 200, "{livez}");
            let of_service = ask(32_100, "/")?;
            ensure!(of_service.status == 200, "{of_service}");
        }
        let all = told(plane)?;
        ensure!(all.len() == 1, "it is told once: {all:?}");
        Ok(())
    })
}

#[test]
fn who_may_not_write_events_is_told_once_and_serves_all_the_same() -> Result<()> {
    play(&reading(&READ), |_, plane, agent| {
        agent.wait_for_log("allow the verbs create and patch on events", SOON)?;
        let failed = "topo_lb_kubernetes_events_total{outcome=\"failed\"} 2";
        move_to(plane, "strict", "far")?;
        agent.wait_for_answer("/metrics", SOON, |answer| answer.body.contains(failed))?;
        let log = agent.log();
        ensure!(log.matches("cannot be told").count() == 1, "{log}");
        let ready = agent.get("/readyz")?;
        ensure!(ready.status == 200, "{ready}");
        Ok(())
    })
}
