//! A node without its API server finds out itself which endpoints are dead, and nothing of that while it has one.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;
use topo_lb_fake_api::FakeApi;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::process::{Running, printed};
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, REGION, Scene, WEB4, ZONE, at, prepared};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until, until_is};

/// The port of servers that a test can end.
const PORT: u16 = 9_400;
/// How long a watch has to be gone before it counts as closed, and the agent's own limit in these tests.
const ISLAND: Duration = Duration::from_secs(20);
/// Within this no more than one in a hundred new connections goes to a dead endpoint.
const FOUND: Duration = Duration::from_secs(5);
/// How long it may take until a Service's last endpoint, or one that could stand in, is judged.
const JUDGED: Duration = Duration::from_secs(15);
/// The agent asks a server again after this at most that has answered 503.
const BACK: Duration = Duration::from_secs(20);

/// Every endpoint, of which the first three are in the zone of the node.
const PODS: [&str; 4] = ["a", "b", "c", "d"];

struct Site<'s, 'a> {
    scene: &'s mut Scene<'a>,
    server: FakeApi,
    pods: Vec<(&'static str, Option<Running>)>,
}

/// An agent with an API server. `web` has TCP endpoints alone, in three zones, and these keys.
fn play(keys: Option<&str>, body: impl FnOnce(&mut Site<'_, '_>) -> Result<()>) -> Result<()> {
    let mut zoned = Vec::new();
    for (name, zone) in [(HERE, "zone-1"), ("beside", "zone-1"), ("there", "zone-1")] {
        zoned.push(node(name, &[(ZONE, zone), (REGION, "region-1")]));
    }
    prepared(
        |manifests| zoned.drain(..).for_each(|node| manifests.put(node)),
        |scene| {
            let said: Vec<_> = keys.iter().map(|keys| (KEYS, *keys)).collect();
            scene.manifests.put(service("web", &[WEB4], &[("http", 80, "TCP")], &said));
            let (mut endpoints, mut pods) = (Vec::new(), Vec::new());
            for name in PODS {
                let pod = scene.cluster.pod(name)?;
                endpoints.push(endpoint(&pod.ipv4.to_string(), &pod.node, name));
                pods.push((name, Some(pod.serve_as(name, PORT)?)));
            }
            scene.manifests.put(slice("web", "IPv4", &[("http", PORT, "TCP")], &endpoints));
            scene.manifests.put(slice("web", "IPv6", &[("http", PORT, "TCP")], &[]));
            scene.manifests.write()?;
            let netns = scene.cluster.node_netns(HERE)?;
            let listen = || TcpListener::bind("127.0.0.1:0").context("cannot listen");
            let server = FakeApi::start(netns.run(listen)?, &topo_lb_fake_api::ALL)?;
            let text = fs::read_to_string(scene.manifests.file())?;
            let mut list: Value = serde_json::from_str(&text)?;
            server.fill_all(list["items"].as_array_mut().context("a list has items")?.drain(..));
            scene.agent.unset("--manifests");
            scene.agent.set("--api-server", server.url());
            scene.agent.set("--island-after", "2s");
            scene.agent.resume()?;
            // One more SYN, after a second; the kernel gives up two seconds later.
            scene.cluster.pod("client")?.netns().set(&[("ipv4/tcp_syn_retries", "1")])?;
            body(&mut Site { scene, server, pods })
        },
    )
}

impl Site<'_, '_> {
    fn refuse(&self) {
        let refused = topo_lb_fake_api::ALL.map(|path| (path, (503, "the link is cut")));
        self.server.state().refuse.extend(refused);
        self.server.hang_up();
    }

    /// Cuts the node off: every watch ends, and none begins again. Waits until the three pods of the zone, which take
    /// turns, have answered probes.
    fn cut(&self) -> Result<()> {
        self.isolate()?;
        let accepted = || self.sample("topo_lb_island_probes_total{outcome=\"accepted\"}");
        until("answers to probes", FOUND, || {
            let accepted = accepted()?;
            Ok(if accepted >= 8.0 { Ok(()) } else { Err(accepted.to_string()) })
        })
        .map(drop)
    }

    /// The same, without waiting for probes.
    fn isolate(&self) -> Result<()> {
        self.refuse();
        self.wait("topo_lb_island", 1.0, ISLAND).map(drop)
    }

    fn mend(&self) -> Result<Duration> {
        self.server.state().refuse.clear();
        self.wait("topo_lb_island", 0.0, BACK)
    }

    /// Waits for a value of a metric. Returns how long that took.
    fn wait(&self, series: &str, wanted: f64, limit: Duration) -> Result<Duration> {
        let begun = Instant::now();
        let look = || Ok(self.sample(series)?.to_string());
        until_is(&format!("{series} {wanted}"), limit, look, |now| *now == wanted.to_string())?;
        Ok(begun.elapsed())
    }

    fn sample(&self, series: &str) -> Result<f64> {
        self.scene.agent.get("/metrics")?.sample(series).with_context(|| format!("no {series}"))
    }

    /// How many probes have come back, whatever they brought.
    fn probes(&self) -> Result<f64> {
        let outcomes = ["accepted", "refused", "silent", "unasked"];
        let of =
            |outcome| self.sample(&format!("topo_lb_island_probes_total{{outcome=\"{outcome}\"}}"));
        outcomes.into_iter().map(of).sum()
    }

    /// Ends the server of a pod: connects are refused.
    fn kill(&mut self, name: &str) {
        self.pods.iter_mut().filter(|(own, _)| *own == name).for_each(|(_, server)| *server = None);
    }

    fn revive(&mut self, name: &'static str) -> Result<()> {
        let server = self.scene.cluster.pod(name)?.serve_as(name, PORT)?;
        self.pods.push((name, Some(server)));
        Ok(())
    }

    /// Drops whatever comes to a pod, as if its node had gone; or no more.
    fn silence(&self, name: &str, is_silent: bool) -> Result<()> {
        let rule = if is_silent { format!("tcp dport {PORT} drop;") } else { String::new() };
        self.scene.cluster.pod(name)?.netns().nft(&format!(
            "table inet gone {{}}; flush table inet gone; table inet gone {{ chain input {{ \
             type filter hook input priority 0; {rule} }}; }}"
        ))
    }

    /// How many connections the kernel of a pod has accepted.
    fn accepted(&self, name: &str) -> Result<u64> {
        let read = || Ok(fs::read_to_string("/proc/thread-self/net/snmp")?);
        let text = self.scene.cluster.pod(name)?.netns().run(read)?;
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = lines.next().zip(lines.next()).context("no TCP in snmp")?;
        let mut both = names.split(' ').zip(values.split(' '));
        let found = both.find(|(name, _)| *name == "PassiveOpens").context("no PassiveOpens")?;
        Ok(found.1.parse()?)
    }

    /// So many new connections; which pods answered, and how many failed.
    fn dial(&mut self, requests: u32) -> Result<topo_lb_tests::traffic::Tally> {
        self.scene.client.call(Via::Http, at(WEB4)?, requests)
    }

    /// What the agent explains by what it knows, as the command prints it.
    fn explained(&self) -> Result<String> {
        let mut explain = self.scene.binary.command(&["explain", "default/web"]);
        explain.arg("--agent").arg(format!("http://{}", Agent::address()?));
        self.scene.cluster.node_netns(HERE)?.run(|| printed(&mut explain))
    }

    /// Which pods the agent says do not answer.
    fn dead(&self) -> Result<Vec<String>> {
        let answer = self.scene.agent.get("/explain?service=default/web")?;
        let report: Value =
            serde_json::from_str(&answer.body).with_context(|| answer.to_string())?;
        let endpoints = report["services"][0]["endpoints"].as_array().context("endpoints")?;
        let reason = |one: &&Value| {
            let reason = one["reason"].as_str().unwrap_or_default();
            reason.starts_with("does not answer, and the API server has not been heard of for ")
        };
        let address = |one: &Value| Some(one["address"].as_str()?.to_owned());
        Ok(endpoints.iter().filter(reason).filter_map(address).collect())
    }
}

#[test]
fn a_pod_that_dies_on_an_island_gets_no_new_connections_five_seconds_later() -> Result<()> {
    play(Some(ZONE), |site| {
        ensure!(site.dial(100)?.is_of(&["a", "b", "c"]));
        site.cut()?;
        ensure!(site.dial(100)?.is_of(&["a", "b", "c"]), "an island serves as before");
        for silent in [false, true] {
            let died = Instant::now();
            if silent {
                site.silence("c", true)?
            } else {
                site.kill("c")
            }
            let took = site.wait("topo_lb_dead_endpoints", 1.0, FOUND)?;
            println!("silent {silent}: dead after {took:?}");
            let tally = site.dial(500)?;
            ensure!(tally.is_of(&["a", "b"]), "{tally}");
            ensure!(died.elapsed() < patient(FOUND + FOLLOWS));
            ensure!(site.dead()? == [site.scene.cluster.pod("c")?.ipv4.to_string()]);
            let ready = site.scene.agent.get("/readyz?verbose")?;
            let line =
                "[+] island: an island, on which 1 endpoint does not answer, and gets no new";
            ensure!(ready.status == 200 && ready.body.contains(line), "{ready}");
            let text = site.explained()?;
            ensure!(
                text.contains("does not answer, and the API server has not been heard of"),
                "{text}"
            );
            // It is back without a word from anybody.
            if silent {
                site.silence("c", false)?
            } else {
                site.revive("c")?
            }
            site.wait("topo_lb_dead_endpoints", 0.0, JUDGED)?;
            ensure!(site.dial(100)?.is_of(&["a", "b", "c"]));
        }
        // Of slices that did not change, the API server's first word holds at once.
        site.kill("c");
        site.wait("topo_lb_dead_endpoints", 1.0, FOUND)?;
        site.mend()?;
        ensure!(site.dead()?.is_empty() && site.sample("topo_lb_dead_endpoints")? == 0.0);
        let tally = site.dial(300)?;
        ensure!(tally.refused > 30, "its slice says that it is ready: {tally}");
        ensure!(!site.scene.agent.get("/readyz?verbose")?.body.contains("island"));
        for text in [
            "this node is an island: the API server has not been heard of for ",
            "; 1 endpoint did not answer and got no new connections. The API server is back",
        ] {
            site.scene.agent.wait_for_log(text, FOLLOWS)?;
        }
        Ok(())
    })
}

#[test]
fn where_a_tier_is_dead_the_next_one_serves_and_all_return() -> Result<()> {
    play(Some(&format!("{ZONE},*")), |site| {
        ensure!(site.dial(100)?.is_of(&["a", "b", "c"]));
        site.cut()?;
        site.silence("a", true)?;
        site.kill("b");
        site.kill("c");
        site.wait("topo_lb_dead_endpoints", 3.0, JUDGED)?;
        let tally = site.dial(300)?;
        ensure!(tally.is_of(&["d"]), "{tally}");
        let log = site.scene.agent.log();
        let said = ["no endpoint of a port answers", " is back"];
        ensure!(!said.iter().any(|it| log.contains(it)), "the next tier answers: {log}");
        ensure!(site.sample("topo_lb_silent_services")? == 0.0);
        // Nobody answers any more: that may be for our own network, and everything stays as slices say.
        site.kill("d");
        site.wait("topo_lb_dead_endpoints", 0.0, JUDGED)?;
        site.scene.agent.wait_for_verdict("web", "route", FOLLOWS)?;
        site.wait("topo_lb_silent_services", 1.0, FOLLOWS)?;
        let ready = site.scene.agent.get("/readyz?verbose")?;
        let line = "[+] island: an island, on which 1 Service has a port of which no endpoint answers, and its";
        ensure!(ready.status == 200 && ready.body.contains(line), "{ready}");
        let log = site.scene.agent.log();
        ensure!(log.contains("as no endpoint of its port is known to answer"), "{log}");
        ensure!(
            log.contains("no endpoint of a port answers, so its connections go on as before"),
            "{log}"
        );
        ensure!(!log.contains(" is back"), "nobody is: {log}");
        site.revive("b")?;
        // Of the other tier nothing is asked any more.
        site.wait("topo_lb_dead_endpoints", 2.0, JUDGED)?;
        site.wait("topo_lb_silent_services", 0.0, FOLLOWS)?;
        let tally = site.dial(300)?;
        ensure!(tally.is_of(&["b"]), "{tally}");
        site.mend()?;
        let text = "; for a time no endpoint of a port of 1 Service answered, and connections went on as before";
        site.scene.agent.wait_for_log(text, FOLLOWS)
    })
}

#[test]
fn a_strict_tier_that_is_dead_is_refused_while_others_show_that_the_network_works() -> Result<()> {
    play(Some(ZONE), |site| {
        ensure!(site.dial(100)?.is_of(&["a", "b", "c"]));
        site.cut()?;
        for pod in ["a", "b", "c"] {
            site.silence(pod, true)?;
        }
        site.scene.agent.wait_for_verdict("web", "refuse", JUDGED)?;
        let tally = site.dial(100)?;
        ensure!(tally.refused == 100, "at once, and not after three seconds: {tally}");
        site.kill("d");
        site.scene.agent.wait_for_verdict("web", "route", JUDGED)?;
        site.silence("b", false)?;
        site.wait("topo_lb_dead_endpoints", 2.0, JUDGED)?;
        ensure!(site.dial(100)?.is_of(&["b"]));
        site.mend().map(drop)
    })
}

#[test]
fn a_node_that_hears_its_api_server_probes_nobody_and_one_that_is_to_be_no_island_neither()
-> Result<()> {
    play(None, |site| {
        ensure!(site.dial(200)?.is_of(&PODS));
        let accepted = |site: &Site<'_, '_>| PODS.map(|pod| site.accepted(pod).unwrap_or_default());
        let before = accepted(site);
        ensure!(before.iter().all(|count| *count > 0), "{before:?}");
        site.kill("d");
        // Longer than the limit, without a word of any watch.
        std::thread::sleep(Duration::from_secs(4));
        ensure!(site.dial(200)?.refused > 20, "a dead endpoint is the API server's to find");
        let [a, b, c, _] = accepted(site);
        ensure!(site.probes()? == 0.0 && site.sample("topo_lb_island")? == 0.0);
        site.isolate()?;
        // It has never answered a probe: so clients have to fail, too.
        until("an endpoint that is dead", FOUND, || {
            site.dial(50)?;
            let dead = site.sample("topo_lb_dead_endpoints")?;
            Ok(if dead == 1.0 { Ok(()) } else { Err(dead.to_string()) })
        })?;
        ensure!(site.probes()? > 0.0);
        until("a probe of each that accepts", FOUND, || {
            let now = accepted(site);
            let are_probed = now[0] > a && now[1] > b && now[2] > c;
            Ok(if are_probed { Ok(()) } else { Err(format!("{now:?}")) })
        })?;
        site.mend()?;
        // Those on their way.
        std::thread::sleep(Duration::from_secs(3));
        let before = accepted(site);
        std::thread::sleep(Duration::from_secs(4));
        ensure!(accepted(site) == before, "probes go on");

        site.scene.agent.set("--island-after", "0");
        site.scene.agent.stop()?;
        site.scene.agent.resume()?;
        site.refuse();
        site.scene.agent.wait_for_log("the API server was last heard of ", ISLAND)?;
        std::thread::sleep(Duration::from_secs(3));
        ensure!(site.probes()? == 0.0 && site.sample("topo_lb_island")? == 0.0);
        Ok(())
    })
}
