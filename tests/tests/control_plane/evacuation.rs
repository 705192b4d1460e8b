//! A zone is emptied and comes back, by the commands of docs/bad-days.md, with a real API server, real agents on three
//! nodes, and clients that never fail.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::{ADMINISTRATOR, ControlPlane};
use topo_lb_tests::http;
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::page::{Reader, marked};
use topo_lb_tests::pod::PORT;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{KEYS, ZONE, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until_is;
use topo_lb_tests::wiring::node4;

use crate::api::define;

/// The nodes, their zones, their servers, and a client on each.
const ZONES: [(&str, &str, [&str; 2], &str); 3] = [
    ("node-a", "a", ["a1", "a2"], "client-a"),
    ("node-b", "b", ["b1", "b2"], "client-b"),
    ("node-c", "c", ["c1", "c2"], "client-c"),
];
/// Without a policy; of the own zone if it can be; of the own zone alone; with endpoints in zone b alone.
const PLAIN: &str = "10.96.3.1";
const SOFT: &str = "10.96.3.2";
const STRICT: &str = "10.96.3.3";
const ONLY: &str = "10.96.3.4";
/// Of the own zone if it can be, with session affinity.
const STICKY: &str = "10.96.3.5";
/// Within this time a word of the API server is in all maps.
const SOON: Duration = Duration::from_secs(20);
/// Where a node answers load balancers.
const HEALTH: u16 = 10_256;
const PAGE: &str = "docs/bad-days.md";

struct Stage<'a> {
    cluster: &'a Cluster,
    reader: Reader,
    clients: Vec<Client>,
    agents: Vec<Agent<'a>>,
}

impl Stage<'_> {
    /// Types commands where the API server is reached.
    fn types(&self, commands: &str) -> Result<String> {
        self.cluster.fabric().run(|| self.reader.types(commands, &[]))
    }

    /// Waits until the clients of the zones a, b and c get these servers of a Service; none: they are refused.
    fn answered_by(&mut self, address: &str, wanted: [&[&str]; 3]) -> Result<()> {
        for (client, wanted) in self.clients.iter_mut().zip(wanted) {
            client.wait_for(Via::Http, at(address)?, wanted, SOON)?;
        }
        Ok(())
    }

    /// Where the client of zone b sticks.
    fn stuck(&mut self) -> Result<Vec<String>> {
        let tally = self.clients[1].call(Via::Http, at(STICKY)?, 20)?;
        ensure!(tally.answered() == 20, "{tally}");
        Ok(tally.replies.into_keys().collect())
    }

    /// Waits until the nodes answer load balancers so.
    fn health(&self, wanted: [u16; 3]) -> Result<()> {
        let look = || {
            let of = |number| {
                let address = (node4(number), HEALTH).into();
                Ok(http::get(self.cluster.fabric(), address, "/healthz")?.status)
            };
            let said = [1, 2, 3].into_iter().map(of).collect::<Result<Vec<u16>>>()?;
            Ok(format!("{said:?}"))
        };
        until_is("health of the nodes", SOON, look, |said| *said == format!("{wanted:?}")).map(drop)
    }
}

fn within_zones(body: impl FnOnce(&mut Stage<'_>) -> Result<()>) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let plan = |(number, (name, _, [one, two], client)): (u8, (_, _, [_; 2], _))| NodePlan {
        name,
        number,
        pods: vec![(one, 2), (two, 3), (client, 4)],
    };
    let plan: Vec<_> = (1..).zip(ZONES).map(plan).collect();
    within(&plan, |cluster| {
        let plane = ControlPlane::in_lab(cluster)?;
        plane.allow("topo-lb", &reading(&READ))?;
        define(&plane, &binary)?;
        let _servers = cluster.serve(ZONES.iter().flat_map(|it| it.2))?;
        plane.create(ZONES.iter().map(|(name, zone, ..)| node(name, &[(ZONE, zone)])))?;
        let mut all = Vec::new();
        for pod in ZONES.iter().flat_map(|it| it.2) {
            let pod = cluster.pod(pod)?;
            all.push(endpoint(&pod.ipv4.to_string(), &pod.node, &pod.name));
        }
        let (ports, targets) = ([("", 80, "TCP")], [("", PORT, "TCP")]);
        let soft = format!("{ZONE},*");
        for (name, address, keys, endpoints) in [
            ("plain", PLAIN, None, &all[..]),
            ("soft", SOFT, Some(&*soft), &all),
            ("strict", STRICT, Some(ZONE), &all),
            ("only", ONLY, None, &all[2..4]),
            ("sticky", STICKY, Some(&*soft), &all),
        ] {
            let annotations: Vec<_> = keys.map(|keys| (KEYS, keys)).into_iter().collect();
            let mut service = service(name, &[address], &ports, &annotations);
            if name == "sticky" {
                service["spec"]["sessionAffinity"] = "ClientIP".into();
            }
            plane.create([service, slice(name, "IPv4", &targets, endpoints)])?;
        }
        let mut agents = Vec::new();
        for (name, ..) in ZONES {
            let mut agent: Agent<'_> = plane.agent(&binary, name)?;
            agent.set("--kube-proxy-replacement", "");
            agent.resume()?;
            agents.push(agent);
        }
        let mut reader = Reader::new()?;
        reader.set("KUBECONFIG", plane.kubeconfig(ADMINISTRATOR)?);
        let clients = ZONES.iter().map(|it| cluster.pod(it.3)?.client()).collect::<Result<_>>()?;
        body(&mut Stage { cluster, reader, clients, agents })
    })
}

/// How often a log says that zone b is evacuated, and that it is no more.
fn told(log: &str) -> String {
    let zone = "topology.kubernetes.io/zone=b is evacuated";
    let over = log.matches(&format!("{zone} no more")).count();
    format!("{} times, and {over} times no more", log.matches(zone).count() - over)
}

#[test]
fn a_zone_is_emptied_and_comes_back_as_the_page_says() -> Result<()> {
    let page = marked(
        "docs/bad-days.md",
        "evacuation::a_zone_is_emptied_and_comes_back_as_the_page_says",
    )?
    .commands;
    // The rehearsal, the evacuation and what is evacuated, the return.
    let mut blocks = page.lines();
    let mut line = |begin: &str| {
        let found = blocks.next().filter(|line| line.starts_with(begin));
        found.with_context(|| format!("{PAGE} has no line `{begin}…` next:\n{page}"))
    };
    let rehearsal = line("topo-lb plan --without")?;
    let [evacuate, list] = [line("topo-lb evacuate topology")?, line("topo-lb evacuate ")?];
    let restore = line("topo-lb restore")?;
    let [all, a, b, c] =
        [&["a1", "a2", "b1", "b2", "c1", "c2"][..], &["a1", "a2"], &["b1", "b2"], &["c1", "c2"]];
    let others = &["a1", "a2", "c1", "c2"][..];
    within_zones(|stage| {
        let before = |stage: &mut Stage<'_>| {
            stage.answered_by(PLAIN, [all; 3])?;
            stage.answered_by(SOFT, [a, b, c])?;
            stage.answered_by(STRICT, [a, b, c])?;
            stage.answered_by(ONLY, [b; 3])?;
            stage.health([200; 3])
        };
        before(stage)?;
        let said = stage.types(rehearsal)?;
        for what in [
            "8 endpoints of 4 Services on 1 node",
            "REFUSE",
            "default/strict",
            "STAY",
            "default/only",
        ] {
            ensure!(said.contains(what), "{what}:\n{said}");
        }
        ensure!(stage.types(list)?.contains("nothing is evacuated"), "plan changes nothing");

        let stuck = stage.stuck()?;
        ensure!(stuck.len() == 1 && stuck[0].starts_with('b'), "{stuck:?}");
        // Clients go on meanwhile, in the zone itself and outside, and no connection fails.
        let mut busy = stage.clients.remove(1);
        let began = Instant::now();
        let (tally, said) = busy.call_during(Via::Http, at(SOFT)?, || {
            let said = stage.types(evacuate)?;
            let mut outside = stage.cluster.pod("client-a")?.client()?;
            outside.wait_for(Via::Http, at(PLAIN)?, others, SOON)?;
            stage.health([200, 503, 200])?;
            Ok(said)
        })?;
        ensure!(tally.answered() == tally.requests && tally.requests > 0, "{tally}");
        ensure!(said.contains("default/only"), "who stays is said: {said}");
        println!("emptied, with what was typed, after {:?}", began.elapsed());
        stage.clients.insert(1, busy);
        stage.answered_by(PLAIN, [others; 3])?;
        stage.answered_by(SOFT, [a, others, c])?;
        stage.answered_by(STRICT, [a, &[], c])?;
        stage.answered_by(ONLY, [b; 3])?;
        let moved = stage.stuck()?;
        ensure!(moved.len() == 1 && !moved[0].starts_with('b'), "{moved:?}");
        let listed = stage.types(list)?;
        ensure!(listed.contains("topology.kubernetes.io/zone=b; until=20"), "{listed}");
        let explained = stage.types("topo-lb explain --node node-b default/strict")?;
        ensure!(explained.contains("evacuated: topology.kubernetes.io/zone=b"), "{explained}");

        // Another word for strict policies replaces the first.
        stage.types("topo-lb evacuate topology.kubernetes.io/zone=b --allow-strict '*'")?;
        stage.answered_by(STRICT, [a, others, c])?;
        // All zones: all stay.
        stage.types(
            "topo-lb evacuate topology.kubernetes.io/zone=a topology.kubernetes.io/zone=c",
        )?;
        before(stage)?;
        stage
            .types("topo-lb restore topology.kubernetes.io/zone=a topology.kubernetes.io/zone=c")?;
        stage.health([200, 503, 200])?;

        // It comes back, node by node within the minute of the page.
        let restored = stage.types(&restore.replace("--ramp 1m", "--ramp 5s"))?;
        ensure!(restored.is_empty(), "{restored}");
        before(stage)?;
        stage.types("topo-lb restore topology.kubernetes.io/zone=b")?;
        let gone = stage.types("topo-lb restore topology.kubernetes.io/zone=b 2>&1")?;
        ensure!(gone.contains("nothing to restore: topology.kubernetes.io/zone=b"), "{gone}");

        // A value that nobody has, and one that ends by itself.
        let wrong = stage.types("topo-lb evacuate topology.kubernetes.io/zone=d 2>&1 || true")?;
        ensure!(wrong.contains("there are a, b, c; nothing is written"), "{wrong}");
        stage.types("topo-lb evacuate topology.kubernetes.io/zone=b --for 6s")?;
        stage.answered_by(SOFT, [a, others, c])?;
        before(stage)?;
        for agent in &stage.agents {
            // With --for of the page, without an end, until the ramp is over, and for six seconds.
            until_is(
                "four words and their ends",
                SOON,
                || Ok(told(&agent.log())),
                |it| it == "4 times, and 2 times no more",
            )?;
        }
        Ok(())
    })
}
