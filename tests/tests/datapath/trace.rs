//! `topo-lb trace`: what real sockets dial, as the programs decide it.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{ArrayOfMaps, Map, MapData, MapError};
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use topo_lb_common::maps;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::service;
use topo_lb_tests::pod::PORT;
use topo_lb_tests::process::{Running, enter};
use topo_lb_tests::scene::{
    ECHO4, EMPTY4, EMPTY6, FOLLOWS, HERE, KEYS, NOBODY4, Scene, WEB4, WEB6, ZONE, at, idle, mapped,
    play, play_with_machines, put_endpoints,
};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until};
use topo_lb_tests::wiring::node4;

const SECOND: Duration = Duration::from_secs(1);
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

/// The result of a tracer: what it wrote to its standard error.
type Ended = (bool, String);

/// A running `topo-lb trace -o json`.
struct Tracer {
    process: Running,
    lines: Arc<Mutex<Vec<Value>>>,
    reader: JoinHandle<()>,
}

/// `topo-lb trace -o json` on the agent's node.
fn command(scene: &Scene<'_>, arguments: &[&str]) -> Result<Command> {
    let mut command = scene.binary.command(&["trace", "-o", "json"]);
    command.arg("--pin-dir").arg(scene.agent.pins());
    command.arg("--cgroup-root").arg(scene.cluster.node(HERE)?.cgroup_path());
    if !arguments.contains(&"--pod-logs") {
        fs::create_dir_all(logs(scene))?;
        command.arg("--pod-logs").arg(logs(scene));
    }
    command.args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    enter(&mut command, scene.cluster.node_netns(HERE)?, None)?;
    Ok(command)
}

/// The folder of the Pods' logs.
fn logs(scene: &Scene<'_>) -> PathBuf {
    scene.cluster.folder().join("logs")
}

/// The kernel's id of the ring buffer that the programs have.
fn ring(scene: &Scene<'_>) -> Result<Option<u32>> {
    let slot = MapData::from_pin(scene.agent.pins().join(maps::TRACE))?;
    let slot = ArrayOfMaps::<_, MapData>::try_from(Map::ArrayOfMaps(slot))?;
    match slot.get(&0, 0) {
        Ok(ring) => Ok(Some(ring.info()?.id())),
        Err(MapError::KeyNotFound) => Ok(None),
        // It was replaced between the look-up of its id and opening it.
        Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until the programs have another ring buffer than `before`, or, if `is_there` is not set, none.
fn wait_for_ring(scene: &Scene<'_>, before: Option<u32>, is_there: bool) -> Result<()> {
    until("another ring buffer, or none", FOLLOWS, || {
        let now = ring(scene)?;
        Ok(if now != before && now.is_some() == is_there {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        })
    })
    .map(drop)
}

impl Tracer {
    /// Starts it, and waits until the programs know it.
    fn start(scene: &Scene<'_>, arguments: &[&str]) -> Result<Self> {
        let before = ring(scene)?;
        let mut child = command(scene, arguments)?.spawn()?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let lines = Arc::<Mutex<Vec<Value>>>::default();
        let shared = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!(line));
                shared.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let mut tracer = Self { process: Running::new(child), lines, reader };
        let started = wait_for_ring(scene, before, true);
        if started.is_err() && tracer.process.ended()?.is_some() {
            let (_, said) = tracer.end()?;
            return Err(started.err().context("no ring buffer")?.context(said));
        }
        started.map(|()| tracer)
    }

    fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for so many rows, and takes them.
    fn take(&self, count: usize) -> Result<Vec<Value>> {
        let what = format!("{count} rows");
        until(&what, FOLLOWS, || {
            let rows = self.lines();
            Ok(if rows.len() >= count { Ok(()) } else { Err(json!(rows).to_string()) })
        })?;
        let rows = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        ensure!(rows.len() == count, "{count} rows should be there: {}", json!(rows));
        Ok(rows)
    }

    /// Waits for its end. Returns whether it succeeded, and what it said.
    fn end(mut self) -> Result<Ended> {
        let child = self.process.child();
        until("the tracer's end", FOLLOWS, || Ok(child.try_wait()?.map(drop).ok_or("it runs")))?;
        let mut said = String::new();
        child.stderr.take().context("a pipe")?.read_to_string(&mut said)?;
        let ok = child.wait()?.success();
        let _ = self.reader.join();
        Ok((ok, said))
    }

    /// Ends it by a signal, and waits.
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

/// The endpoint's IP address in a row.
fn endpoint(row: &Value) -> Option<&str> {
    let (address, _) = row["endpoint"].as_str()?.rsplit_once(':')?;
    Some(address.trim_matches(['[', ']']))
}

/// Checks the fields of a row that are in `wanted`.
fn has(row: &Value, wanted: &Value) -> Result<()> {
    for (field, value) in wanted.as_object().context("an object")? {
        ensure!(row[field] == *value, "{field} should be {value}: {row}");
    }
    Ok(())
}

/// A process in a container of a Pod.
struct Placed {
    client: Client,
    _container: Cgroup,
    _pod: Cgroup,
}

/// Puts a client into the cgroup of the Pod `default/client-0`.
fn place(scene: &Scene<'_>) -> Result<Placed> {
    let kubepods = scene.cluster.node(HERE)?.cgroup_path().join("kubepods");
    fs::create_dir_all(&kubepods)?;
    fs::create_dir_all(logs(scene).join(format!("default_client-0_{UID}")))?;
    let pod = Cgroup::make(&kubepods, &format!("pod{UID}"))?;
    let container = Cgroup::make(pod.path(), "container")?;
    let client = scene.cluster.client_in("client", &container)?;
    Ok(Placed { client, _container: container, _pod: pod })
}

#[test]
fn what_a_process_dials_is_told_with_its_pod_its_endpoint_and_its_tier() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some("example.com/x,kubernetes.io/hostname"))
        })?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a"])?;
        let mut placed = place(scene)?;
        let tracer = Tracer::start(scene, &[])?;
        let a = scene.cluster.pod("a")?;
        let pod = json!({ "uid": UID, "name": "default/client-0" });
        for (via, to, frontend, hook) in [
            (Via::Http, at(WEB4)?, format!("{WEB4}:80/TCP"), "connect"),
            (Via::Http, mapped(WEB4)?, format!("{WEB4}:80/TCP"), "connect"),
            (Via::Http, at(WEB6)?, format!("[{WEB6}]:80/TCP"), "connect"),
            (Via::UdpConnected, at(WEB6)?, format!("[{WEB6}]:80/UDP"), "connect"),
            (Via::Udp, at(WEB4)?, format!("{WEB4}:80/UDP"), "send"),
            (Via::Udp, at(WEB6)?, format!("[{WEB6}]:80/UDP"), "send"),
        ] {
            placed.client.call(via, to, 1)?;
            let row = tracer.take(1)?.remove(0);
            let service = if via == Via::Http { "http" } else { "udp" };
            has(
                &row,
                &json!({
                    "service": format!("default/web:{service}"),
                    "frontend": frontend,
                    "hook": hook,
                    "locality": "node",
                    "tier": 1,
                    "outcome": "routed",
                    "pod": pod,
                    "client": null,
                    "device": null,
                }),
            )?;
            let address = endpoint(&row).context("an endpoint")?;
            ensure!(
                [a.ipv4.to_string(), a.ipv6.to_string()].contains(&address.to_owned()),
                "{row}"
            );
            ensure!(row["process"]["name"] == "pod", "{row}");
            let id = row["process"]["id"].as_u64().context("an id")?;
            let line = fs::read_to_string(format!("/proc/{id}/comm"))?;
            ensure!(line.trim() == "pod", "{row}: {line}");
        }
        for to in [EMPTY4, EMPTY6] {
            for (via, hook) in [(Via::Http, "connect"), (Via::Udp, "send")] {
                placed.client.call(via, at(to)?, 1)?;
                let row = tracer.take(1)?.remove(0);
                let wanted = json!({ "outcome": "refused", "endpoint": null, "locality": null,
                    "tier": null, "pod": pod, "hook": hook });
                has(&row, &wanted)?;
                let service = row["service"].as_str().unwrap_or_default();
                ensure!(service.starts_with("default/empty:"), "{row}");
            }
        }
        Ok(())
    })
}

#[test]
fn what_a_steered_pod_dials_by_address_is_told_as_the_services() -> Result<()> {
    idle(|scene| {
        let annotations = json!({ "topo-lb.io/steer": "true" });
        scene.manifests.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "client-0", "namespace": "default", "uid": UID, "annotations": annotations },
        }));
        scene.manifests.remove("Service", "echo");
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some("kubernetes.io/hostname,*"))?;
            manifests.annotate("web", "topo-lb.io/direct", Some("steer"))
        })?;
        scene.agent.set("--steer-annotated-pods", "");
        let mut placed = place(scene)?;
        scene.agent.resume()?;
        let far = scene.cluster.pod("d")?.address4();
        for via in [Via::Http, Via::UdpConnected] {
            placed.client.wait_for(via, far, &["a"], FOLLOWS)?;
        }
        let tracer = Tracer::start(scene, &[])?;
        let near = scene.cluster.pod("a")?.ipv4.to_string();
        for (via, port, protocol) in [(Via::Http, "http", "TCP"), (Via::UdpConnected, "udp", "UDP")]
        {
            placed.client.call(via, far, 1)?;
            let row = tracer.take(1)?.remove(0);
            let (service, frontend) = (format!("default/web:{port}"), format!("{far}/{protocol}"));
            let wanted = json!({ "service": service, "frontend": frontend, "hook": "connect",
                "locality": "node", "tier": 0, "outcome": "routed" });
            has(&row, &wanted)?;
            ensure!(endpoint(&row) == Some(&*near), "{row}");
        }
        // Nobody else is told of what is no frontend of its own.
        scene.client.call(Via::Http, far, 1)?;
        placed.client.call(Via::Http, at(EMPTY4)?, 1)?;
        has(&tracer.take(1)?.remove(0), &json!({ "outcome": "refused" }))
    })
}

#[test]
fn a_flow_of_datagrams_is_told_once_and_again_with_another_endpoint() -> Result<()> {
    play(|scene| {
        let tracer = Tracer::start(scene, &[])?;
        let to = at(ECHO4)?;
        let socket = scene.client.open(Via::Udp, to)?.expect("a socket is always to be had");
        for _ in 0..20 {
            scene.client.ask(socket, Some(to))?.expect("endpoints serve");
        }
        let first = tracer.take(1)?.remove(0);
        let other = if endpoint(&first) == Some(&*scene.cluster.pod("a")?.ipv4.to_string()) {
            "b"
        } else {
            "a"
        };
        scene.set_endpoints("echo", &[other])?;
        until("the other endpoint", FOLLOWS, || {
            let reply = scene.client.ask(socket, Some(to))?.expect("an endpoint serves");
            Ok(if reply.pod == other { Ok(()) } else { Err(reply.pod) })
        })?;
        let row = tracer.take(1)?.remove(0);
        let address = scene.cluster.pod(other)?.ipv4.to_string();
        ensure!(endpoint(&row) == Some(&*address), "{row}");
        // A process of the host has no Pod.
        has(&row, &json!({ "pod": null, "service": "default/echo:udp" }))
    })
}

#[test]
fn only_the_service_and_the_pod_that_were_asked_for_are_told() -> Result<()> {
    play(|scene| {
        let mut placed = place(scene)?;
        let by_service = |scene: &mut Scene<'_>, asked: &str| {
            let tracer = Tracer::start(scene, &[asked, "--count", "2"])?;
            for (via, to) in [(Via::Http, EMPTY4), (Via::Udp, WEB4), (Via::Http, WEB4)] {
                scene.client.call(via, at(to)?, 2)?;
            }
            let rows = tracer.take(2)?;
            let (ok, said) = tracer.end()?;
            ensure!(ok && said.is_empty(), "{said}");
            Ok(rows)
        };
        for (asked, frontend) in [
            ("default/empty", format!("{EMPTY4}:80/TCP")),
            ("default/web:http", format!("{WEB4}:80/TCP")),
        ] {
            for row in by_service(scene, asked)? {
                ensure!(row["frontend"] == frontend, "{asked}: {row}");
            }
        }
        for asked in ["default/client-0", UID] {
            let tracer = Tracer::start(scene, &["--pod", asked])?;
            scene.client.call(Via::Http, at(WEB4)?, 3)?;
            placed.client.call(Via::Http, at(EMPTY4)?, 2)?;
            for row in tracer.take(2)? {
                has(&row, &json!({ "outcome": "refused" }))?;
                ensure!(row["pod"]["uid"] == UID, "{row}");
            }
            tracer.signal(Signal::INT)?;
            ensure!(tracer.end()?.0, "{asked}");
        }
        Ok(())
    })
}

#[test]
fn packets_that_open_connections_are_told_with_their_client_and_device() -> Result<()> {
    play_with_machines(|scene| {
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        let mut machine = scene.cluster.machine("client")?;
        machine.wait_for(Via::Http, at(WEB4)?, &["a", "b"], FOLLOWS)?;
        let tracer = Tracer::start(scene, &[])?;
        for (via, to) in
            [(Via::Http, WEB4), (Via::Http, WEB6), (Via::UdpConnected, WEB4), (Via::Udp, WEB6)]
        {
            let tally = machine.call(via, at(to)?, 1)?;
            let row = tracer.take(1)?.remove(0);
            has(
                &row,
                &json!({ "hook": "guest", "outcome": "routed", "process": null, "pod": null,
                "device": "pod2", "tier": 0 }),
            )?;
            ensure!(row["client"].as_str().is_some_and(|client| client.contains(':')), "{row}");
            let answered = tally.replies.keys().next().context("an answer")?;
            let pod = scene.cluster.pod(answered)?;
            let address = endpoint(&row).context("an endpoint")?;
            let own = [pod.ipv4.to_string(), pod.ipv6.to_string()];
            ensure!(own.contains(&address.to_owned()), "{answered}: {row}");
            let near = if answered == "a" { "node" } else { "zone" };
            has(&row, &json!({ "locality": near }))?;
        }
        for to in [EMPTY4, EMPTY6] {
            machine.call(Via::Http, at(to)?, 1)?;
            let row = tracer.take(1)?.remove(0);
            has(&row, &json!({ "hook": "guest", "outcome": "refused", "endpoint": null }))?;
            ensure!(row["service"] == "default/empty:http", "{row}");
        }
        Ok(())
    })
}

#[test]
fn a_connection_from_outside_without_a_route_to_its_endpoint_is_told_as_dropped() -> Result<()> {
    idle(|scene| {
        let cluster = scene.cluster;
        scene.change(|manifests| {
            let web = manifests.get("Service", "web")?;
            web["spec"]["type"] = "NodePort".into();
            web["spec"]["ports"][0]["nodePort"] = 30_080.into();
            put_endpoints(manifests, cluster, "web", &["c"])
        })?;
        scene.agent.set("--kube-proxy-replacement", "");
        scene.agent.resume()?;
        let node_port = SocketAddr::from((node4(1), 30_080));
        until("a connection from outside", FOLLOWS, || {
            let connected = || Ok(TcpStream::connect_timeout(&node_port, patient(SECOND)));
            Ok(cluster.fabric().run(connected)?.map(drop))
        })?;
        let tracer = Tracer::start(scene, &[])?;
        let endpoint = cluster.pod("c")?.ipv4;
        let route =
            |command| cluster.ip_on(HERE, &[format!("route {command} unreachable {endpoint}")]);
        let told = || {
            // One SYN: the socket is closed before it sends another one.
            cluster.fabric().run(|| {
                let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                client.set_nonblocking(true)?;
                let begun = client.connect(&node_port.into());
                ensure!(begun.is_err_and(|error| error.raw_os_error() == Some(libc::EINPROGRESS)));
                Ok(())
            })?;
            Ok::<_, anyhow::Error>(tracer.take(1)?.remove(0))
        };
        let wanted = |outcome| json!({ "hook": "outside", "outcome": outcome, "service": "default/web:http" });
        route("add")?;
        has(&told()?, &wanted("dropped"))?;
        route("delete")?;
        let row = told()?;
        has(&row, &wanted("routed"))?;
        has(&row, &json!({ "endpoint": SocketAddr::from((endpoint, PORT)) }))
    })
}

#[test]
fn what_a_small_buffer_has_no_room_for_is_counted_and_said() -> Result<()> {
    play(|scene| {
        const CALLS: u32 = 200;
        let tracer = Tracer::start(scene, &["--buffer", "4"])?;
        // It does not look meanwhile.
        tracer.signal(Signal::STOP)?;
        scene.client.call(Via::Http, at(EMPTY4)?, CALLS)?;
        tracer.signal(Signal::CONT)?;
        let sums = || {
            let lines = tracer.lines();
            let lost: u64 = lines.iter().filter_map(|line| line["lost"].as_u64()).sum();
            let shown = lines.iter().filter(|line| line["outcome"] == "refused").count() as u64;
            (shown, lost)
        };
        until("every connection to be shown or lost", FOLLOWS, || {
            let (shown, lost) = sums();
            let is_all = shown + lost >= u64::from(CALLS);
            Ok(if is_all { Ok(()) } else { Err(format!("{shown} shown, {lost} lost")) })
        })?;
        let (shown, lost) = sums();
        ensure!(shown + lost == u64::from(CALLS), "{shown} shown, {lost} lost, of {CALLS}");
        ensure!(lost > 0 && shown > 0, "{shown} shown, {lost} lost");
        tracer.signal(Signal::INT)?;
        let (ok, said) = tracer.end()?;
        ensure!(ok && said.contains("connections are not shown: a larger --buffer"), "{said}");
        Ok(())
    })
}

#[test]
fn a_tracer_that_nobody_reads_ends_at_a_signal() -> Result<()> {
    play(|scene| {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let mut process = Running::new(command(scene, &[])?.spawn()?);
            wait_for_ring(scene, None, true)?;
            // More than a pipe takes.
            scene.client.call(Via::Http, at(EMPTY4)?, 500)?;
            let pid = Pid::from_raw(i32::try_from(process.id())?).context("a process id")?;
            until("the pipe to be full", FOLLOWS, || {
                let tasks = fs::read_dir(format!("/proc/{}/task", process.id()))?.flatten();
                let waits = tasks.filter_map(|it| fs::read_to_string(it.path().join("wchan")).ok());
                let waits: Vec<_> = waits.collect();
                let is_full = waits.iter().any(|it| it.contains("pipe_write"));
                Ok(if is_full { Ok(()) } else { Err(format!("{waits:?}")) })
            })?;
            kill_process(pid, signal)?;
            let ended = || Ok(process.child().try_wait()?.map(drop).ok_or("it runs"));
            until("the tracer's end", Duration::from_secs(1), ended)?;
            ensure!(ring(scene)?.is_none(), "{signal:?}: it has ended");
        }
        Ok(())
    })
}

#[test]
fn a_pod_whose_cgroup_is_gone_is_not_taken_for_the_host() -> Result<()> {
    play(|scene| {
        let tracer = Tracer::start(scene, &[])?;
        tracer.signal(Signal::STOP)?;
        let mut placed = place(scene)?;
        placed.client.call(Via::Http, at(EMPTY4)?, 1)?;
        let Placed { client, _container, _pod } = placed;
        drop(client);
        drop(_container);
        drop(_pod);
        tracer.signal(Signal::CONT)?;
        let row = tracer.take(1)?.remove(0);
        has(&row, &json!({ "pod": null, "outcome": "refused" }))?;
        ensure!(row["podUnknown"].as_str().is_some_and(|it| it.contains("is gone")), "{row}");
        scene.client.call(Via::Http, at(EMPTY4)?, 1)?;
        has(&tracer.take(1)?.remove(0), &json!({ "pod": null, "podUnknown": null }))
    })
}

#[test]
fn beside_an_agent_that_only_observes_outcomes_are_said_to_be_hypothetical() -> Result<()> {
    idle(|scene| {
        scene.agent.resume()?;
        let tracer = Tracer::start(scene, &[])?;
        scene.client.call(Via::Http, at(EMPTY4)?, 1)?;
        has(&tracer.take(1)?.remove(0), &json!({ "outcome": "refused", "observing": false }))?;
        scene.agent.stop()?;
        scene.agent.set("--observe", "");
        scene.agent.resume()?;
        scene.client.call(Via::Http, at(EMPTY4)?, 1)?;
        has(&tracer.take(1)?.remove(0), &json!({ "outcome": "refused", "observing": true }))?;
        tracer.signal(Signal::INT)?;
        let (ok, said) = tracer.end()?;
        ensure!(ok && said.contains("the agent only observes"), "{said}");
        Ok(())
    })
}

#[test]
fn one_tracer_at_a_time_and_a_killed_one_leaves_nothing() -> Result<()> {
    play(|scene| {
        ensure!(ring(scene)?.is_none(), "nobody traces");
        let first = Tracer::start(scene, &[])?;
        let second = command(scene, &[])?.output()?;
        let said = String::from_utf8_lossy(&second.stderr);
        ensure!(
            !second.status.success() && said.contains("another `topo-lb trace` runs"),
            "{said}"
        );
        scene.client.call(Via::Http, at(EMPTY4)?, 1)?;
        first.take(1)?;
        let before = ring(scene)?;
        first.signal(Signal::KILL)?;

        // The agent notices.
        wait_for_ring(scene, before, false)?;
        // Without an agent, the next tracer replaces it.
        scene.agent.stop()?;
        let killed = Tracer::start(scene, &[])?;
        killed.signal(Signal::KILL)?;
        ensure!(!killed.end()?.0 && ring(scene)?.is_some(), "nobody has noticed");
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let tracer = Tracer::start(scene, &[])?;
            scene.client.call(Via::Http, at(EMPTY4)?, 1)?;
            let row = tracer.take(1)?.remove(0);
            has(&row, &json!({ "outcome": "refused", "service": "default/empty:http" }))?;
            tracer.signal(signal)?;
            let (ok, said) = tracer.end()?;
            ensure!(ok && said.is_empty(), "{signal:?}: {said}");
            ensure!(ring(scene)?.is_none(), "{signal:?}: it has ended");
        }
        let nowhere = Tracer::start(scene, &["--pod-logs", "/nowhere"])?;
        nowhere.signal(Signal::TERM)?;
        let (ok, said) = nowhere.end()?;
        ensure!(ok && said.contains("names of Pods are not known here (/nowhere is no"), "{said}");
        Ok(())
    })
}

#[test]
fn a_tracer_goes_on_while_an_agent_renews_the_maps_and_ends_with_them() -> Result<()> {
    play(|scene| {
        let tracer = Tracer::start(scene, &[])?;
        scene.agent.stop()?;
        scene.agent.set("--max-services", "1024");
        scene.agent.resume()?;
        // Its index is not that of any Service of before.
        scene.put(service("late", &[NOBODY4], &[("http", 80, "TCP")], &[]))?;
        scene.agent.wait_for_verdict("late", "refuse", FOLLOWS)?;
        tracer.signal(Signal::STOP)?;
        scene.client.call(Via::Http, at(NOBODY4)?, 1)?;
        scene.client.call(Via::Http, at(WEB4)?, 1)?;
        tracer.signal(Signal::CONT)?;
        let (late, web) = ("default/late:http", "default/web:http");
        until("both Services by name", FOLLOWS, || {
            let rows = tracer.lines();
            let names: Vec<_> = rows.iter().map(|row| row["service"].as_str()).collect();
            let is_told = |it| [Some(late), Some(web)].contains(it);
            let is_it = [late, web].iter().all(|it| names.contains(&Some(it)));
            let is_it = is_it && names.iter().all(is_told);
            Ok(if is_it { Ok(()) } else { Err(format!("{names:?}")) })
        })?;
        scene.agent.stop()?;
        let cleaned =
            scene.binary.command(&["cleanup", "--pin-dir"]).arg(scene.agent.pins()).output()?;
        ensure!(cleaned.status.success(), "{cleaned:?}");
        let (ok, said) = tracer.end()?;
        ensure!(!ok && said.contains("were removed or replaced"), "{said}");
        ensure!(!scene.agent.pins().exists(), "cleanup leaves nothing");
        let late = command(scene, &[])?.output()?;
        let said = String::from_utf8_lossy(&late.stderr);
        ensure!(!late.status.success() && said.contains("nothing is installed at"), "{said}");
        Ok(())
    })
}

#[test]
fn what_cannot_be_traced_is_a_sentence() -> Result<()> {
    idle(|scene| {
        for (arguments, sentence) in [
            (&["web"][..], "write it as NAMESPACE/NAME, for example default/web"),
            (&["--pod", "client"], "write it as NAMESPACE/NAME, for example default/client"),
            (&["--pod", "cafe"], "write it as NAMESPACE/NAME, for example default/cafe"),
            (
                &["--pod", "default/client", "--pod-logs", "/nowhere"],
                "the names of Pods are not known here",
            ),
            (&["--buffer", "5"], "no power of two from 4 to 65536"),
            (&[], "nothing is installed at"),
        ] {
            let output = command(scene, arguments)?.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success() && said.contains(sentence), "{arguments:?}: {said}");
        }
        Ok(())
    })
}
