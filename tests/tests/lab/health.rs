//! What load balancers ask a node whose agent replaces kube-proxy.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use topo_lb_tests::http::{self, Answer};
use topo_lb_tests::manifest::{Manifests, service};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene, idle, put_endpoints};
use topo_lb_tests::wait::{until, until_is};

/// The agent's node, as other nodes dial it.
const ADDRESSES: [&str; 2] = ["172.30.0.2", "[fd00:172::2]"];
/// Another address of that node.
const OTHER: &str = "172.30.0.77";
/// The health check of `web`.
const PORT: u16 = 32_100;
/// The health check of the node.
const NODE: u16 = 10_256;
/// The agent tries a busy port again every 5 s.
const AGAIN: Duration = Duration::from_secs(12);
/// How many listeners are missing.
const UNANSWERED: &str = "topo_lb_unanswered_health_checks";

#[test]
fn a_load_balancer_is_sent_to_nodes_with_an_endpoint() -> Result<()> {
    idle(|scene| {
        begin(scene)?;
        for (pods, status, local) in [
            (vec!["a", "c"], 200, 1),
            (vec!["b", "c"], 503, 0),
            (vec!["a"], 200, 1),
            (vec![], 503, 0),
        ] {
            scene.set_endpoints("web", &pods)?;
            wait_for_web(scene, PORT, status, local)?;
        }
        scene.set_endpoints("web", &["a", "b"])?;
        wait_for_web(scene, PORT, 200, 1)?;
        // A terminating endpoint may still serve, but is to get no new connections.
        scene.change(|it| {
            let terminating = json!({"ready": false, "serving": true, "terminating": true});
            it.set_conditions("a", &terminating);
            Ok(())
        })?;
        wait_for_web(scene, PORT, 503, 0)?;
        scene.set_endpoints("web", &["a"])?;
        wait_for_web(scene, PORT, 200, 1)?;

        // Another port, then none.
        scene.change(|it| set(it, "healthCheckNodePort", json!(PORT + 1)))?;
        wait_for_web(scene, PORT + 1, 200, 1)?;
        closed(scene, PORT)?;
        scene.change(|it| set(it, "externalTrafficPolicy", json!("Cluster")))?;
        closed(scene, PORT + 1)?;
        scene.change(|it| set(it, "externalTrafficPolicy", json!("Local")))?;
        wait_for_web(scene, PORT + 1, 200, 1)?;
        scene.remove("Service", "web")?;
        closed(scene, PORT + 1)
    })
}

#[test]
fn a_port_is_open_at_the_addresses_of_node_ports() -> Result<()> {
    idle(|scene| {
        scene.cluster.ip_on(HERE, &[format!("address add {OTHER}/32 dev eth0")])?;
        begin(scene)?;
        wait_for_web(scene, PORT, 200, 1)?;
        closed_at(scene, OTHER, PORT)?;
        scene.agent.stop()?;
        scene.agent.set("--nodeport-addresses", "172.30.0.64/26");
        scene.agent.resume()?;
        answers_at(scene, OTHER)?;
        closed(scene, PORT)?;
        // An address that comes and goes.
        scene.cluster.ip_on(HERE, &[format!("address del {OTHER}/32 dev eth0")])?;
        scene.agent.wait_for_services(FOLLOWS, |list| !list.to_string().contains(OTHER))?;
        scene.cluster.ip_on(HERE, &[format!("address add {OTHER}/32 dev eth0")])?;
        answers_at(scene, OTHER)?;

        // The default route has another source.
        scene.agent.stop()?;
        scene.agent.unset("--nodeport-addresses");
        scene.agent.resume()?;
        wait_for_web(scene, PORT, 200, 1)?;
        let route = format!("route change default via 172.30.0.254 src {OTHER}");
        scene.cluster.ip_on(HERE, &[route])?;
        answers_at(scene, OTHER)?;

        scene.agent.stop()?;
        scene.agent.unset("--kube-proxy-replacement");
        scene.agent.set("--frontends", "all");
        scene.agent.resume()?;
        closed_at(scene, OTHER, PORT)?;
        closed(scene, NODE)
    })
}

#[test]
fn check_names_the_chains_that_kube_proxy_has_left() -> Result<()> {
    requirements::command("nft", "nftables")?;
    requirements::command("iptables-legacy", "iptables")?;
    idle(|scene| {
        let node = scene.cluster.node_netns(HERE)?;
        let run = |line: &str| {
            let mut words = line.split(' ');
            let mut command = Command::new(words.next().unwrap_or_default());
            node.run(|| printed(command.args(words))).map(drop)
        };
        // Other tables, and chains of these names in them, are not kube-proxy's.
        run("nft add table ip mine")?;
        run("nft add chain ip mine KUBE-SERVICES")?;
        said_by_check(scene, &[], "neither it nor its rules are here")?;
        for (add, remove, named) in [
            (
                ["nft add table ip6 kube-proxy", "nft add chain ip6 kube-proxy services"],
                ["nft flush table ip6 kube-proxy", "nft delete table ip6 kube-proxy"],
                "(the table kube-proxy of nftables)",
            ),
            (
                ["nft add table ip nat", "nft add chain ip nat KUBE-SERVICES"],
                ["nft flush table ip nat", "nft delete table ip nat"],
                "(the chain KUBE-SERVICES of iptables)",
            ),
            (
                ["iptables-legacy -t nat -N KUBE-SERVICES", "iptables-legacy -t nat -F"],
                ["iptables-legacy -t nat -F", "iptables-legacy -t nat -X KUBE-SERVICES"],
                "(the chain KUBE-SERVICES of iptables-legacy)",
            ),
        ] {
            add.into_iter().try_for_each(run)?;
            said_by_check(scene, &[], named)?;
            remove.into_iter().try_for_each(run)?;
            said_by_check(scene, &[], "neither it nor its rules are here")?;
        }
        Ok(())
    })
}

#[test]
fn check_says_what_there_is_of_kube_proxy() -> Result<()> {
    idle(|scene| {
        said_by_check(scene, &[], "neither it nor its rules are here: nobody serves")?;
        said_by_check(scene, &["--kube-proxy-replacement"], "0.0.0.0:10256 is free")?;
        scene.cluster.ip_on(HERE, &["link add kube-ipvs0 type bridge".to_owned()])?;
        said_by_check(scene, &["--kube-proxy-replacement"], "are here (the device kube-ipvs0)")?;
        scene.cluster.ip_on(HERE, &["link del kube-ipvs0".to_owned()])?;
        // Its name is all that counts.
        let name = scene.cluster.folder().join("kube-proxy");
        fs_err::copy("/bin/sleep", &name)?;
        let mut command = Command::new(&name);
        scene.cluster.beside(scene.cluster.node(HERE)?, command.arg("60"))?;
        let mut process = command.spawn()?;
        let running = format!("it runs, as process {}", process.id());
        let said = said_by_check(scene, &["--kube-proxy-replacement"], &running);
        process.kill()?;
        process.wait()?;
        said?;
        let _busy = scene.cluster.serve_on(HERE, "busy", &[([0, 0, 0, 0], NODE).into()])?;
        said_by_check(scene, &["--kube-proxy-replacement"], "another process listens at 0.0.0.0")?;
        Ok(())
    })
}

#[test]
fn a_node_is_healthy_while_its_agent_runs() -> Result<()> {
    idle(|scene| {
        begin(scene)?;
        for address in ADDRESSES {
            let look = || ask(scene, address, NODE, "/healthz");
            let healthz = until_is("a healthy node", FOLLOWS, look, |it| it.status == 200)?;
            let livez = ask(scene, address, NODE, "/livez")?;
            ensure!(livez.status == 200, "{livez}");
            for (answer, eligible) in [(healthz, Some(true)), (livez, None)] {
                let body: Value = serde_json::from_str(&answer.body)?;
                ensure!(body["nodeEligible"].as_bool() == eligible, "{body}");
                ensure!(body["healthy"] == true && body["currentTime"].is_string(), "{body}");
                ensure!(body["status"]["IPv4"]["healthy"] == true, "{body}");
            }
            let other = ask(scene, address, NODE, "/metrics")?;
            ensure!(other.status == 404, "{other}");
        }
        scene.agent.stop()?;
        closed(scene, NODE)?;
        // The programs forward on, and the next agent says so at once.
        scene.agent.resume()?;
        let healthz = ask(scene, ADDRESSES[0], NODE, "/healthz")?;
        ensure!(healthz.status == 200, "{healthz}");
        scene.agent.stop()?;
        scene.agent.set("--healthz-bind-address", "off");
        scene.agent.resume()?;
        wait_for_web(scene, PORT, 200, 1)?;
        closed(scene, NODE)
    })
}

#[test]
fn a_busy_port_is_told_and_taken_when_it_is_free() -> Result<()> {
    idle(|scene| {
        let everywhere = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let of_web = scene.cluster.serve_on(HERE, "busy", &[everywhere(PORT)])?;
        let of_node = scene.cluster.serve_on(HERE, "busy", &[everywhere(NODE)])?;
        let other = service("other", &["10.96.1.50"], &[("http", 80, "TCP")], &[]);
        scene.manifests.put(other);
        expose(&mut scene.manifests, "other", PORT + 2)?;
        put_endpoints(&mut scene.manifests, scene.cluster, "other", &["a", "b"])?;
        begin(scene)?;
        scene.agent.wait_for_log("another process listens there", FOLLOWS)?;
        scene.agent.wait_for_log(
            &format!(
                "Service default/web: load balancers get no answer about this node at \
                healthCheckNodePort 172.30.0.2:{PORT}"
            ),
            FOLLOWS,
        )?;
        unanswered(scene, 1.0, 1.0)?;
        wait_for(scene, "other", PORT + 2, 200, 1)?;

        drop((of_web, of_node));
        let log = wait_for_web_again(scene)?;
        let look = || match ask(scene, ADDRESSES[0], NODE, "/healthz") {
            Ok(answer) => Ok(answer.to_string()),
            Err(error) => Ok(format!("{error:#}")),
        };
        until_is("a healthy node", AGAIN, look, |it: &String| it.contains("nodeEligible"))?;
        unanswered(scene, 0.0, 0.0)?;
        let told = log.matches("load balancers get no answer about this node at").count();
        ensure!(told == 1, "it is told {told} times: {log}");
        ensure!(log.contains("the health check of Service default/web is answered"), "{log}");
        Ok(())
    })
}

#[test]
fn kube_proxy_keeps_its_ports_until_it_is_stopped() -> Result<()> {
    idle(|scene| {
        // A stand-in with kube-proxy's ports. Any server answers /proxyMode with its name.
        let ports = [(Ipv4Addr::LOCALHOST, 10_249), (Ipv4Addr::UNSPECIFIED, PORT)];
        let kube_proxy = scene.cluster.serve_on(HERE, "ipvs", &ports.map(SocketAddr::from))?;
        begin(scene)?;
        let told = "kube-proxy runs in mode ipvs, and has the ports of 1 health checks";
        scene.agent.wait_for_log(told, FOLLOWS)?;
        unanswered(scene, 1.0, 0.0)?;
        drop(kube_proxy);
        let log = wait_for_web_again(scene)?;
        ensure!(!log.contains("load balancers get no answer"), "{log}");
        ensure!(log.matches("kube-proxy runs").count() == 1, "{log}");
        unanswered(scene, 0.0, 0.0)
    })
}

/// Gives `web` a health check, and starts the agent in place of kube-proxy.
fn begin(scene: &mut Scene<'_>) -> Result<()> {
    expose(&mut scene.manifests, "web", PORT)?;
    scene.manifests.write()?;
    scene.agent.set("--kube-proxy-replacement", "");
    scene.agent.resume()
}

fn expose(manifests: &mut Manifests, service: &str, port: u16) -> Result<()> {
    let spec = &mut manifests.get("Service", service)?["spec"];
    spec["type"] = "LoadBalancer".into();
    spec["externalTrafficPolicy"] = "Local".into();
    spec["healthCheckNodePort"] = port.into();
    Ok(())
}

fn set(manifests: &mut Manifests, field: &str, value: Value) -> Result<()> {
    manifests.get("Service", "web")?["spec"][field] = value;
    Ok(())
}

/// Asks the agent's node as a load balancer does: from elsewhere.
fn ask(scene: &Scene<'_>, address: &str, port: u16, path: &str) -> Result<Answer> {
    let netns = scene.cluster.node_netns("beside")?;
    let address = format!("{address}:{port}");
    http::get(netns, address.parse().with_context(|| address.clone())?, path)
}

fn wait_for_web(scene: &Scene<'_>, port: u16, status: u16, local: usize) -> Result<()> {
    wait_for(scene, "web", port, status, local)
}

/// Waits until the agent has a port that was busy. Returns its log.
fn wait_for_web_again(scene: &Scene<'_>) -> Result<String> {
    let is_the_agents = |it: &Answer| it.head.to_lowercase().contains("endpoint-weight: 1");
    until("an answer of the agent", AGAIN, || {
        Ok(match ask(scene, ADDRESSES[0], PORT, "/") {
            Ok(answer) if is_the_agents(&answer) => Ok(()),
            Ok(answer) => Err(answer.to_string()),
            Err(error) => Err(format!("{error:#}")),
        })
    })?;
    Ok(scene.agent.log())
}

/// Waits until both addresses of the node answer so, as kube-proxy does.
fn wait_for(scene: &Scene<'_>, name: &str, port: u16, status: u16, local: usize) -> Result<()> {
    let wanted = json!({
        "service": {"namespace": "default", "name": name},
        "localEndpoints": local,
        "serviceProxyHealthy": true,
    });
    for address in ADDRESSES {
        until(&format!("{status} for {name} at {address}"), FOLLOWS, || {
            Ok(match ask(scene, address, port, "/any/path") {
                Ok(answer) if answer.status == status => {
                    let body: Value = serde_json::from_str(&answer.body)?;
                    let head = answer.head.to_lowercase();
                    let weight = format!("x-load-balancing-endpoint-weight: {local}");
                    let is_whole = head.lines().any(|line| line == weight)
                        && head.contains("content-type: application/json")
                        && head.contains("x-content-type-options: nosniff");
                    if body == wanted && is_whole { Ok(()) } else { Err(answer.to_string()) }
                }
                Ok(answer) => Err(answer.to_string()),
                Err(error) => Err(format!("{error:#}")),
            })
        })?;
    }
    Ok(())
}

/// Waits until nobody listens at a port of the agent's node.
fn closed(scene: &Scene<'_>, port: u16) -> Result<()> {
    for address in ADDRESSES {
        until(&format!("nobody at {address}:{port}"), FOLLOWS, || {
            Ok(closed_at(scene, address, port).map_err(|error| error.to_string()))
        })?;
    }
    Ok(())
}

/// Waits until the health check of `web` is answered at an address, on the node itself.
fn answers_at(scene: &Scene<'_>, address: &str) -> Result<()> {
    let netns = scene.cluster.node_netns(HERE)?;
    let address = format!("{address}:{PORT}").parse()?;
    until("an answer at another address", AGAIN, || {
        Ok(match http::get(netns, address, "/") {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.to_string()),
            Err(error) => Err(format!("{error:#}")),
        })
    })
    .map(drop)
}

/// Checks that nobody listens at an address, on the node itself.
fn closed_at(scene: &Scene<'_>, address: &str, port: u16) -> Result<()> {
    let to = format!("{address}:{port}").parse::<SocketAddr>()?;
    scene.cluster.node_netns(HERE)?.run(|| match TcpStream::connect(to) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        other => bail!("{to}: {other:?}"),
    })
}

/// Checks that `topo-lb check` on the agent's node says this.
fn said_by_check(scene: &Scene<'_>, flags: &[&str], words: &str) -> Result<()> {
    let node = scene.cluster.node(HERE)?;
    let mut command = scene.binary.command(&["check", "--cgroup-root"]);
    command.arg(node.cgroup_path()).arg("--pin-dir").arg(scene.agent.pins()).args(flags);
    scene.cluster.beside(node, &mut command)?;
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && text.contains(words), "{words}: {text}");
    Ok(())
}

/// Checks how many health checks of Services and of the node have no listener.
fn unanswered(scene: &Scene<'_>, services: f64, node: f64) -> Result<()> {
    let metrics = scene.agent.get("/metrics")?;
    let of = |of: &str| metrics.sample(&format!("{UNANSWERED}{{of=\"{of}\"}}"));
    ensure!((of("service"), of("node")) == (Some(services), Some(node)), "{metrics}");
    Ok(())
}
