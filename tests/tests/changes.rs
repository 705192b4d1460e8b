//! Changes of a cluster under traffic: EndpointSlices split and merge, Services take over an
//! address, nodes move, etcd is compacted, watches break in the middle of an event. API server and
//! controllers are real; no connection fails.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::{Cluster, NodePlan};
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::hub::{Break, Hub};
use topo_lb_tests::kind::POOL;
use topo_lb_tests::lab::{play_all, within};
use topo_lb_tests::manifest;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, at};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::{patient, until, until_is};

/// The other node.
const THERE: &str = "there";
/// Servers on the agent's node and on the other one. They always listen, also when they are not
/// endpoints, so no connection fails because its server stops.
const A: [&str; 6] = ["a1", "a2", "a3", "a4", "a5", "a6"];
const B: [&str; 6] = ["b1", "b2", "b3", "b4", "b5", "b6"];

/// The main Service of the tests, and another one.
const WEB: &str = "10.96.3.1";
const SOFT: &str = "10.96.3.2";

/// The limit for controllers, or for an agent that waits before it retries.
const SOON: Duration = Duration::from_secs(60);

/// The most endpoints per slice. Two slices have more than fit inline in a map's entry.
const IN_SLICE: usize = 5;
/// Flags of kube-controller-manager. The garbage collector deletes slices of deleted Services.
const CONTROLLERS: [&str; 2] = ["--max-endpoints-per-slice=5", "--controllers=garbagecollector"];

/// The cluster, its control plane, and the agent.
struct Town<'a> {
    binary: Binary,
    cluster: &'a Cluster,
    plane: ControlPlane<'a>,
    agent: Agent<'a>,
    /// Makes connections continuously.
    busy: Option<Client>,
    /// Observes the effect of changes meanwhile.
    watchful: Client,
}

/// A Service for the pods with the label `app`.
fn service(name: &str, address: &str, app: &str, keys: Option<&str>) -> Value {
    let annotations: Vec<_> = keys.map(|keys| (KEYS, keys)).into_iter().collect();
    let mut service = manifest::service(name, &[address], &[("", 80, "TCP")], &annotations);
    service["spec"]["selector"] = json!({"app": app});
    service["spec"]["ports"][0]["targetPort"] = 9376.into();
    service
}

fn node(name: &str, pool: &str) -> Value {
    manifest::node(name, &[(POOL, pool)])
}

/// An EndpointSlice: its name, its pods, and the UID of the owning Service.
struct Slice {
    name: String,
    pods: Vec<String>,
    owner: Option<String>,
}

impl Slice {
    fn of(object: DynamicObject) -> Self {
        let endpoints = object.data["endpoints"].as_array().into_iter().flatten();
        let pods = endpoints.filter_map(|it| it["targetRef"]["name"].as_str()).map(str::to_owned);
        let pods = pods.collect();
        let owner = object.metadata.owner_references.unwrap_or_default().pop();
        Self {
            name: object.metadata.name.unwrap_or_default(),
            pods,
            owner: owner.map(|owner| owner.uid),
        }
    }
}

impl Town<'_> {
    /// Resets to two empty nodes, and prepares an agent with the source that a flag names.
    fn begin(&mut self, flag: &'static str, from: &str) -> Result<()> {
        self.agent.kill();
        self.agent.cleanup()?;
        self.plane.clear()?;
        self.plane.create([node(HERE, "west"), node(THERE, "east")])?;
        let source = (flag, from.as_ref());
        self.agent = Agent::prepare_from(&self.binary, self.cluster, HERE, source)?;
        for flag in ["--max-services", "--max-endpoints"] {
            self.agent.set(flag, "512");
        }
        Ok(())
    }

    fn run(&self, app: &str, pods: &[&str]) -> Result<()> {
        let pods: Result<Vec<_>> = pods.iter().map(|name| self.cluster.pod(name)).collect();
        self.plane.run_pods(app, pods?)
    }

    /// The controller's slices for a Service.
    fn slices(&self, service: &str) -> Result<Vec<Slice>> {
        let is_its = |slice: &DynamicObject| {
            let labels = slice.metadata.labels.as_ref();
            labels
                .and_then(|it| it.get("kubernetes.io/service-name"))
                .is_some_and(|it| it == service)
        };
        let all = self.plane.list("EndpointSlice")?;
        Ok(all.into_iter().filter(is_its).map(Slice::of).collect())
    }

    /// Waits until `is` accepts the slices of a Service.
    fn until_slices(&self, service: &str, is: impl Fn(&[Slice]) -> bool) -> Result<()> {
        until(&format!("the wanted slices of {service}"), SOON, || {
            let slices = self.slices(service)?;
            let seen = || slices.iter().map(|it| it.pods.len()).collect::<Vec<_>>();
            Ok(if is(&slices) { Ok(()) } else { Err(format!("slices of {:?} pods", seen())) })
        })?;
        Ok(())
    }

    fn uid(&self, service: &str) -> Result<String> {
        let all = self.plane.list("Service")?.into_iter();
        let mut found = all.filter(|it| it.metadata.name.as_deref() == Some(service));
        found.next().and_then(|it| it.metadata.uid).context("every Service has a UID")
    }

    /// Waits until exactly `pods` answer, or, with no pods, until every connection is refused.
    fn answered_by(&mut self, address: &str, pods: &[&str]) -> Result<Duration> {
        self.watchful.until_answered_by(at(address)?, pods, SOON)
    }

    /// Makes connections continuously while `work` runs.
    fn call_during(
        &mut self,
        address: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Tally> {
        let mut busy = self.busy.take().context("a busy client")?;
        let outcome = busy.call_during(Via::Http, at(address)?, || work(self));
        self.busy = Some(busy);
        Ok(outcome?.0)
    }

    /// Like [`call_during`](Self::call_during); every connection must be answered.
    fn answered_during(
        &mut self,
        address: &str,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let tally = self.call_during(address, work)?;
        ensure!(tally.answered() == tally.requests && tally.requests > 0, "{tally}");
        Ok(())
    }

    /// The sum of the agent's series of a metric with `label` in their lines.
    fn metric(&self, name: &str, label: &str) -> Result<u64> {
        let text = self.agent.get("/metrics")?.body;
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines: Vec<_> = text.lines().filter(of_name).filter(|it| it.contains(label)).collect();
        ensure!(!lines.is_empty(), "there is no {name} with {label}:\n{text}");
        let value = |line: &&str| line.rsplit(' ').next()?.parse::<u64>().ok();
        lines.iter().map(value).sum::<Option<u64>>().context("a metric that is no number")
    }

    /// The number of Nodes in the agent's state.
    fn known_nodes(&self) -> Result<u64> {
        let state: Value = serde_json::from_str(&self.agent.get("/state")?.body)?;
        state["nodes"].as_u64().context("the state counts Nodes")
    }

    /// How often each kind of objects was listed.
    fn listings(&self) -> Result<[u64; 3]> {
        let of = |kind| self.metric("topo_lb_source_listings_total", kind);
        Ok([of("\"services\"")?, of("\"endpointslices\"")?, of("\"nodes\"")?])
    }
}

/// Runs `body` with twelve servers.
fn within_town(body: impl FnOnce(&mut Town<'_>) -> Result<()>) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let servers = |names: [&'static str; 6]| names.into_iter().zip(11..);
    let here = [("busy", 2), ("watchful", 3)].into_iter().chain(servers(A)).collect();
    let plan = [
        NodePlan { name: HERE, number: 1, pods: here },
        NodePlan { name: THERE, number: 2, pods: servers(B).collect() },
    ];
    within(&plan, |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers_with(&CONTROLLERS)?;
        plane.allow("topo-lb", &reading(&READ))?;
        let names = A.into_iter().chain(B);
        let servers: Result<Vec<_>> = names.map(|name| cluster.pod(name)?.serve()).collect();
        let _servers = servers?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let agent = Agent::prepare_from(&binary, cluster, HERE, ("--kubeconfig", &kubeconfig))?;
        let busy = Some(cluster.pod("busy")?.client()?);
        let watchful = cluster.pod("watchful")?.client()?;
        body(&mut Town { binary, cluster, plane, agent, busy, watchful })
    })
}

#[test]
fn no_connection_fails_whatever_changes_in_the_cluster() -> Result<()> {
    within_town(|town| {
        let begin = |town: &mut Town<'_>| {
            let kubeconfig = town.plane.kubeconfig(AGENT)?;
            town.begin("--kubeconfig", kubeconfig.to_str().context("a path in UTF-8")?)?;
            town.agent.resume()
        };
        play_all(
            town,
            begin,
            &[
                ("slices split and merge", slices_split_and_merge),
                ("a ClusterIP leads to the Service that has it now", a_cluster_ip_moves),
                ("nodes that move take their endpoints along", nodes_move),
                ("other nodes are watched while a Service reads their labels", nodes_are_watched),
                ("a database that is killed costs no connection", database_is_killed),
            ],
        )
    })
}

fn slices_split_and_merge(town: &mut Town<'_>) -> Result<()> {
    let all = [A, B].concat();
    let (first, rest) = all.split_at(3);
    town.plane.create([service("web", WEB, "web", None)])?;
    town.run("web", first)?;
    town.answered_by(WEB, first)?;
    ensure!(town.slices("web")?.len() == 1, "three endpoints fit into a slice");

    town.answered_during(WEB, |town| {
        town.run("web", rest)?;
        town.answered_by(WEB, &all).map(drop)
    })
    .context("while slices were split")?;
    let slices = town.slices("web")?;
    ensure!(slices.len() >= 3, "{} slices of {} pods", slices.len(), all.len());
    ensure!(slices.iter().all(|slice| slice.pods.len() <= IN_SLICE), "a slice is too long");

    // One pod of each slice remains.
    let last: Vec<_> = slices.iter().filter_map(|slice| slice.pods.first()).collect();
    let last: Vec<&str> = last.into_iter().map(String::as_str).collect();
    town.answered_during(WEB, |town| {
        let others: Vec<_> = all.iter().copied().filter(|pod| !last.contains(pod)).collect();
        town.plane.delete("Pod", &others)?;
        town.answered_by(WEB, &last)?;
        // The controller keeps the slices until one is deleted: then another gets its endpoint.
        for (place, slice) in slices[1..].iter().enumerate() {
            town.plane.delete("EndpointSlice", &[&slice.name])?;
            let left = slices.len() - 1 - place;
            town.until_slices("web", |now| {
                now.len() == left && now.iter().map(|it| it.pods.len()).sum::<usize>() == last.len()
            })?;
        }
        town.answered_by(WEB, &last).map(drop)
    })
    .context("while slices were merged")
}

fn a_cluster_ip_moves(town: &mut Town<'_>) -> Result<()> {
    // In place of kube-proxy.
    let _untouched = town.cluster.serve_untouched(&[at(WEB)?])?;
    let (old, new) = (&A[..2], &B[..3]);
    town.run("old", old)?;
    town.run("new", new)?;
    town.plane.create([service("web", WEB, "old", None)])?;
    town.answered_by(WEB, old)?;
    let first = town.uid("web")?;

    let tally = town.call_during(WEB, |town| {
        // A new Service with the same name.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("web", WEB, "new", None)])?;
        town.answered_by(WEB, new)?;
        let second = town.uid("web")?;
        ensure!(first != second, "it is the same Service");
        // The new Service may use its predecessor's slices until they are garbage-collected.
        let own = |slice: &Slice| slice.owner.as_ref() == Some(&second);
        town.until_slices("web", |slices| !slices.is_empty() && slices.iter().all(own))?;
        town.answered_by(WEB, new)?;
        // A new Service with another name.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("shop", WEB, "old", None)])?;
        town.answered_by(WEB, old)?;
        town.until_slices("web", <[Slice]>::is_empty)?;
        town.answered_by(WEB, old).map(drop)
    })?;
    // Between two Services the address belongs to none, and a Service without endpoints refuses.
    ensure!(tally.answered() + tally.refused == tally.requests, "{tally}");
    Ok(())
}

fn nodes_move(town: &mut Town<'_>) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    town.plane.create([
        service("web", WEB, "web", Some(POOL)),
        service("soft", SOFT, "web", Some(&format!("{POOL},*"))),
    ])?;
    town.answered_by(WEB, a)?;
    town.answered_by(SOFT, a)?;
    town.answered_during(SOFT, |town| {
        // No controller takes part, only the request, the watch and the maps.
        let mut slowest = Duration::ZERO;
        let moves: [(&str, &str, &[&str]); 4] =
            [(THERE, "west", &all), (THERE, "east", a), (HERE, "east", &all), (HERE, "west", a)];
        for (node, pool, pods) in moves {
            town.plane.relabel(node, POOL, Some(pool))?;
            slowest = slowest.max(town.answered_by(WEB, pods)?);
        }
        eprintln!("a relabelled node was followed within {slowest:?}");
        ensure!(slowest < patient(FOLLOWS), "it took {slowest:?}");

        // This node is in no pool.
        town.plane.relabel(HERE, POOL, None)?;
        town.answered_by(WEB, &[])?;
        town.answered_by(SOFT, &all)?;
        town.plane.relabel(HERE, POOL, Some("west"))?;
        town.answered_by(WEB, a)?;

        // A node is deleted, and a node of the same name joins another pool.
        town.plane.delete("Node", &[THERE])?;
        town.answered_by(WEB, a)?;
        town.plane.create([node(THERE, "west")])?;
        town.answered_by(WEB, &all).map(drop)
    })
}

fn nodes_are_watched(town: &mut Town<'_>) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    town.plane.create([service("web", WEB, "web", None)])?;
    town.answered_by(WEB, &all)?;
    ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes");
    town.answered_during(WEB, |town| {
        for _ in 0..2 {
            // A new Service follows its key from its first connection on.
            town.plane.create([service("soft", SOFT, "web", Some(&format!("{POOL},*")))])?;
            town.answered_by(SOFT, a)?;
            ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
            // An existing Service gets a key.
            town.plane.annotate("web", KEYS, Some(POOL))?;
            town.answered_by(WEB, a)?;
            town.plane.relabel(THERE, POOL, Some("west"))?;
            town.answered_by(WEB, &all)?;
            town.plane.relabel(THERE, POOL, Some("east"))?;
            town.answered_by(WEB, a)?;
            // No Service reads the label any more. The agent keeps watching all Nodes for some
            // minutes, but after a restart only its own.
            town.plane.annotate("web", KEYS, None)?;
            town.plane.delete("Service", &["soft"])?;
            town.answered_by(WEB, &all)?;
            town.agent.stop()?;
            town.agent.resume()?;
            town.answered_by(WEB, &all)?;
            ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes any more");
        }
        // The key is set while no agent runs: the agent must not decide without all Nodes' labels.
        town.agent.stop()?;
        town.plane.annotate("web", KEYS, Some(POOL))?;
        town.agent.resume()?;
        town.answered_by(WEB, a)?;
        ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
        Ok(())
    })
}

fn database_is_killed(town: &mut Town<'_>) -> Result<()> {
    let (a, all) = (&A[..2], [&A[..2], &B[..2]].concat());
    town.run("web", &all)?;
    town.plane.create([service("web", WEB, "web", Some(POOL))])?;
    town.answered_by(WEB, a)?;
    town.answered_during(WEB, |town| {
        town.plane.kill_etcd();
        let is_ready = || Ok(town.plane.is_ready());
        until_is("a server without its database", SOON, is_ready, |is_ready| !is_ready)?;
        town.plane.start_etcd()?;
        town.plane.wait_until_ready()?;
        town.plane.relabel(THERE, POOL, Some("west"))?;
        town.answered_by(WEB, &all).map(drop)
    })
}

#[test]
fn no_connection_fails_when_watches_break_or_the_database_forgets() -> Result<()> {
    within_town(|town| {
        let hub = Hub::start(town.cluster, &town.plane.kubeconfig(AGENT)?)?;
        town.begin("--api-server", &Hub::url())?;
        watches_break(town, &hub).context("a watch that breaks in the middle of an event")?;
        town.begin("--api-server", &Hub::url())?;
        database_forgets(town, &hub).context("what the database has forgotten is read anew")
    })
}

fn database_forgets(town: &mut Town<'_>, hub: &Hub) -> Result<()> {
    const OTHERS: u8 = 50;
    // Without its cache kube-apiserver reads watches from etcd.
    town.plane.set("--watch-cache=false");
    town.plane.kill_api_server();
    town.plane.start_api_server()?;
    // The running controllers would wait long before they retry.
    town.plane.start_controllers_with(&CONTROLLERS[1..])?;
    let (old, new) = (&A[..2], &B[..2]);
    town.run("old", old)?;
    town.run("new", new)?;
    town.plane.create([service("web", WEB, "old", None), service("steady", SOFT, "old", None)])?;
    let name = |number| (format!("other-{number}"), format!("10.96.4.{number}"));
    town.plane.create((0..OTHERS).map(name).map(|it| service(&it.0, &it.1, "old", None)))?;
    town.agent.resume()?;
    town.answered_by(WEB, old)?;
    for number in 0..OTHERS {
        town.answered_by(&name(number).1, old)?;
    }
    let writes = |town: &Town<'_>| town.metric("topo_lb_map_writes_total", "");
    let (listings, written) = (town.listings()?, writes(town)?);

    town.answered_during(SOFT, |town| {
        hub.shut();
        // The agent receives no event of these changes.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("web", WEB, "new", None)])?;
        town.plane.delete("Service", &["other-7"])?;
        town.plane.relabel(THERE, POOL, Some("west"))?;
        let uid = town.uid("web")?;
        let own = |it: &Slice| it.owner.as_ref() == Some(&uid) && it.pods.len() == 2;
        town.until_slices("web", |slices| !slices.is_empty() && slices.iter().all(own))?;
        town.until_slices("other-7", <[Slice]>::is_empty)?;
        town.plane.compact()?;
        hub.open();
        town.answered_by(WEB, new).map(drop)
    })?;
    let listed = || town.agent.list("services");
    let is_gone = |services: &Value| !services.to_string().contains("other-7");
    until_is("the end of what is gone", SOON, listed, is_gone)?;
    until("listings of every kind", SOON, || {
        let now = town.listings()?;
        let anew = now.iter().zip(&listings).all(|(now, before)| now > before);
        Ok(if anew { Ok(()) } else { Err(format!("{listings:?}, then {now:?}")) })
    })?;
    let written = writes(town)? - written;
    eprintln!("{written} writes for two Services that have changed, of {}", OTHERS + 3);
    ensure!((1..u64::from(OTHERS) / 2).contains(&written), "{written} writes");
    Ok(())
}

fn watches_break(town: &mut Town<'_>, hub: &Hub) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    // A Service that reads Node labels makes the agent watch all Nodes from the start.
    town.plane.create([service("web", WEB, "web", Some(POOL))])?;
    town.agent.resume()?;
    town.answered_by(WEB, a)?;
    town.plane.annotate("web", KEYS, None)?;
    town.answered_by(WEB, &all)?;
    let listings = town.listings()?;
    town.answered_during(WEB, |town| {
        hub.break_next("services", Break::Cut);
        town.plane.annotate("web", KEYS, Some(POOL))?;
        town.answered_by(WEB, a)?;
        ensure!(hub.broken() == 1, "nothing was broken");

        hub.break_next("endpointslices", Break::Cut);
        town.run("web", &A[2..3])?;
        town.answered_by(WEB, &A[..3])?;
        ensure!(hub.broken() == 2, "nothing was broken");

        hub.break_next("nodes", Break::Cut);
        town.plane.relabel(THERE, POOL, Some("west"))?;
        town.answered_by(WEB, &[&A[..3], b].concat())?;
        ensure!(hub.broken() == 3, "nothing was broken");
        town.plane.relabel(THERE, POOL, Some("east"))?;
        town.answered_by(WEB, &A[..3])?;

        // Half an event changes nothing; events of other watches take effect meanwhile.
        hub.break_next("services", Break::Stall);
        town.plane.annotate("web", KEYS, None)?;
        until("half of an event", SOON, || {
            Ok(if hub.broken() == 4 { Ok(()) } else { Err(hub.broken()) })
        })?;
        town.run("web", &A[3..4])?;
        town.answered_by(WEB, &A[..4]).context("by half of an event")?;
        hub.go_on();
        town.answered_by(WEB, &[&A[..4], b].concat()).map(drop)
    })?;
    let now = town.listings()?;
    ensure!(now == listings, "everything was listed anew: {listings:?}, then {now:?}");
    Ok(())
}
