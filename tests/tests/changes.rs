//! What happens to a cluster while connections go on: EndpointSlices that split and merge, Services
//! that take each other's place, nodes that move, a database that forgets, watches that break in
//! the middle of an event. The API server and the controllers are real; no connection fails.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use serde_json::{Value, json};
use topo_lb_tests::agent::{Agent, Binary};
use topo_lb_tests::api::{READ, allow, change, create, of, reading, relabel, run_pod};
use topo_lb_tests::client;
use topo_lb_tests::cluster::{Cluster, NodePlan};
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::hub::{Break, Hub};
use topo_lb_tests::kind::POOL;
use topo_lb_tests::lab::within;
use topo_lb_tests::process::Running;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, at};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::{patient, until};

/// The other node.
const THERE: &str = "there";
/// Servers on the agent's node, and on the other one. They listen all the time, endpoints or not:
/// a connection that fails has met no server that was going.
const A: [&str; 6] = ["a1", "a2", "a3", "a4", "a5", "a6"];
const B: [&str; 6] = ["b1", "b2", "b3", "b4", "b5", "b6"];

/// The Service that most is about.
const WEB: &str = "10.96.3.1";

/// How long controllers, or an agent that pauses between two attempts, may take.
const SOON: Duration = Duration::from_secs(60);

/// So many endpoints are in a slice at most: two slices hold more than fit into a map's entry.
const IN_SLICE: usize = 5;

/// Where it all happens.
struct Town<'a> {
    cluster: &'a Cluster,
    plane: ControlPlane<'a>,
    agent: Agent<'a>,
    /// Looks what has become of a change, while another one makes connections without a pause.
    watchful: client::Client,
    _servers: Vec<Running>,
}

/// A Service of the pods with the label `app`.
fn service(name: &str, address: &str, app: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"clusterIP": address, "selector": {"app": app},
                 "ports": [{"port": 80, "targetPort": 9376}]},
    })
}

fn node(name: &str, pool: &str) -> Value {
    let labels = json!({"kubernetes.io/hostname": name, POOL: pool});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// Takes an object of the core group away, at once.
async fn delete(client: &Client, kind: &str, name: &str) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    let outcome = of(client, "v1", kind).delete(name, &now).await;
    outcome.with_context(|| format!("cannot delete {kind} {name}"))?;
    Ok(())
}

/// An EndpointSlice: its name, the pods in it, and the UID of the Service that owns it.
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
    fn ask<T: Send>(&self, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        self.plane.ask(work)
    }

    /// Runs pods with the label `app`.
    fn run(&self, app: &str, pods: &[&str]) -> Result<()> {
        self.ask(async |client| {
            for name in pods {
                run_pod(&client, self.cluster.pod(name)?, &json!({"app": app})).await?;
            }
            Ok(())
        })
    }

    /// What the controller has made for a Service.
    fn slices(&self, service: &str) -> Result<Vec<Slice>> {
        let version = self.plane.slice_version()?;
        let mine = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        let found = self.ask(async |client| {
            let found = of(&client, version, "EndpointSlice").list(&mine).await;
            Ok(found.context("cannot list EndpointSlices")?.items)
        })?;
        Ok(found.into_iter().map(Slice::of).collect())
    }

    fn uid(&self, service: &str) -> Result<String> {
        self.ask(async |client| {
            let found = of(&client, "v1", "Service").get(service).await?;
            found.metadata.uid.context("every object has a UID")
        })
    }

    /// Waits until exactly `pods` answer; none: until every connection is refused.
    fn answered_by(&mut self, address: &str, pods: &[&str]) -> Result<Duration> {
        self.watchful.until_answered_by(at(address)?, pods, SOON)
    }

    /// The sum of a metric of the agent, whatever its labels, where they contain `label`.
    fn metric(&self, name: &str, label: &str) -> Result<u64> {
        let text = self.agent.get("/metrics")?.body;
        let of_name =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines: Vec<_> = text.lines().filter(of_name).filter(|it| it.contains(label)).collect();
        ensure!(!lines.is_empty(), "there is no {name} with {label}:\n{text}");
        let value = |line: &&str| line.rsplit(' ').next()?.parse::<u64>().ok();
        lines.iter().map(value).sum::<Option<u64>>().context("a metric that is no number")
    }

    /// How many Nodes the agent knows.
    fn known_nodes(&self) -> Result<u64> {
        let state: Value = serde_json::from_str(&self.agent.get("/state")?.body)?;
        state["nodes"].as_u64().context("the state counts Nodes")
    }

    /// How often all objects of each kind were listed.
    fn listings(&self) -> Result<[u64; 3]> {
        let of = |kind| self.metric("topo_lb_source_listings_total", kind);
        Ok([of("\"services\"")?, of("\"endpointslices\"")?, of("\"nodes\"")?])
    }
}

/// Every connection found a server.
fn all_answered(tally: &Tally) -> Result<()> {
    eprintln!("meanwhile {} connections were made", tally.requests);
    ensure!(tally.answered() == tally.requests && tally.requests > 0, "{tally}");
    Ok(())
}

/// Plays `body` with a town, and a client that has nothing to do yet. The agent is fed by what a
/// flag names, and is to be started.
fn set_up(
    source: impl FnOnce(&ControlPlane<'_>) -> Result<(&'static str, String)>,
    body: impl FnOnce(&mut Town<'_>, &mut client::Client) -> Result<()>,
) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let servers = |names: [&'static str; 6]| names.into_iter().zip(11..);
    let here = [("busy", 2), ("watchful", 3)].into_iter().chain(servers(A)).collect();
    let plan = [
        NodePlan { name: HERE, number: 1, pods: here },
        NodePlan { name: THERE, number: 2, pods: servers(B).collect() },
    ];
    within(&plan, |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers_with(&[
            &format!("--max-endpoints-per-slice={IN_SLICE}"),
            // What belonged to a Service that is gone goes too.
            "--controllers=garbagecollector",
        ])?;
        plane.ask(async |client| {
            allow(&client, AGENT, "topo-lb", &reading(&READ)).await?;
            create(&client, &node(HERE, "west")).await?;
            create(&client, &node(THERE, "east")).await
        })?;
        let names = A.into_iter().chain(B);
        let servers: Result<Vec<_>> = names.map(|name| cluster.pod(name)?.serve()).collect();
        let (flag, from) = source(&plane)?;
        let mut agent = Agent::prepare_from(&binary, cluster, HERE, (flag, from.as_ref()))?;
        for flag in ["--max-services", "--max-endpoints"] {
            agent.set(flag, "512");
        }
        let mut busy = cluster.pod("busy")?.client()?;
        let watchful = cluster.pod("watchful")?.client()?;
        let mut town = Town { cluster, plane, agent, watchful, _servers: servers? };
        body(&mut town, &mut busy)
    })
}

/// The agent speaks to the API server itself, and is up.
fn play(body: impl FnOnce(&mut Town<'_>, &mut client::Client) -> Result<()>) -> Result<()> {
    let kubeconfig = |plane: &ControlPlane<'_>| {
        let path = plane.kubeconfig(AGENT)?;
        Ok(("--kubeconfig", path.to_str().context("a path in UTF-8")?.to_owned()))
    };
    set_up(kubeconfig, |town, busy| {
        town.agent.resume()?;
        body(town, busy)
    })
}

/// The agent speaks to a hub, and is to be started.
fn play_through_hub(
    body: impl FnOnce(&mut Town<'_>, &mut client::Client, &Hub) -> Result<()>,
) -> Result<()> {
    set_up(
        |_| Ok(("--api-server", Hub::url())),
        |town, busy| {
            let hub = Hub::start(town.cluster, &town.plane.kubeconfig(AGENT)?)?;
            body(town, busy, &hub)
        },
    )
}

#[test]
fn slices_split_and_merge_and_no_connection_fails() -> Result<()> {
    play(|town, busy| {
        let all = [A, B].concat();
        let (first, rest) = all.split_at(3);
        town.ask(async |client| create(&client, &service("web", WEB, "web", &json!({}))).await)?;
        town.run("web", first)?;
        town.answered_by(WEB, first)?;
        ensure!(town.slices("web")?.len() == 1, "three endpoints fit into a slice");

        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            town.run("web", rest)?;
            town.answered_by(WEB, &all)?;
            Ok(())
        })?;
        all_answered(&tally).context("while slices were split")?;
        let slices = town.slices("web")?;
        ensure!(slices.len() >= 3, "{} slices of {} pods", slices.len(), all.len());

        // A pod of each slice remains.
        let last: Vec<_> = slices.iter().filter_map(|slice| slice.pods.first()).collect();
        let last: Vec<&str> = last.into_iter().map(String::as_str).collect();
        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            town.ask(async |client| {
                for pod in all.iter().filter(|pod| !last.contains(pod)) {
                    delete(&client, "Pod", pod).await?;
                }
                Ok(())
            })?;
            town.answered_by(WEB, &last)?;
            // The controller leaves them as they are, until a slice goes: its endpoint moves into
            // another one, as there is room.
            for slice in &slices[1..] {
                let version = town.plane.slice_version()?;
                town.ask(async |client| {
                    let slices = of(&client, version, "EndpointSlice");
                    slices.delete(&slice.name, &DeleteParams::default()).await?;
                    Ok(())
                })?;
                thread::sleep(Duration::from_millis(200));
            }
            until("one slice of all that is left", SOON, || {
                let counts: Vec<_> = town.slices("web")?.iter().map(|it| it.pods.len()).collect();
                Ok(if counts == [last.len()] { Ok(()) } else { Err(format!("{counts:?}")) })
            })?;
            town.answered_by(WEB, &last)?;
            Ok(())
        })?;
        all_answered(&tally).context("while slices were merged")
    })
}

#[test]
fn a_cluster_ip_leads_to_whose_it_is_now() -> Result<()> {
    play(|town, busy| {
        // Where a cluster would have kube-proxy.
        let _untouched = town.cluster.serve_untouched(&[at(WEB)?])?;
        let (old, new) = (&A[..2], &B[..3]);
        town.run("old", old)?;
        town.run("new", new)?;
        town.ask(async |client| create(&client, &service("web", WEB, "old", &json!({}))).await)?;
        town.answered_by(WEB, old)?;
        let first = town.uid("web")?;

        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            // By the same name.
            town.ask(async |client| {
                delete(&client, "Service", "web").await?;
                create(&client, &service("web", WEB, "new", &json!({}))).await
            })?;
            town.answered_by(WEB, new)?;
            let second = town.uid("web")?;
            ensure!(first != second, "it is the same Service");
            // Slices of its predecessor may be its own for a while, until they are collected.
            until("slices of the new Service alone", SOON, || {
                let slices = town.slices("web")?;
                let is_own = |slice: &Slice| slice.owner.as_ref() == Some(&second);
                let own = !slices.is_empty() && slices.iter().all(is_own);
                Ok(if own { Ok(()) } else { Err(format!("{} slices", slices.len())) })
            })?;
            town.answered_by(WEB, new)?;
            // By another name.
            town.ask(async |client| {
                delete(&client, "Service", "web").await?;
                create(&client, &service("shop", WEB, "old", &json!({}))).await
            })?;
            town.answered_by(WEB, old)?;
            until("the end of the last slice of web", SOON, || {
                let left = town.slices("web")?.len();
                Ok(if left == 0 { Ok(()) } else { Err(left) })
            })?;
            town.answered_by(WEB, old)?;
            Ok(())
        })?;
        // Between two Services it was nobody's address, and a Service without endpoints refuses.
        eprintln!("meanwhile: {tally}");
        ensure!(tally.answered() + tally.refused == tally.requests, "{tally}");
        Ok(())
    })
}

#[test]
fn nodes_that_move_take_their_endpoints_along() -> Result<()> {
    const SOFT: &str = "10.96.3.2";
    play(|town, busy| {
        let (a, b) = (&A[..2], &B[..2]);
        let all = [a, b].concat();
        town.run("web", &all)?;
        town.ask(async |client| {
            let soft = format!("{POOL},*");
            create(&client, &service("web", WEB, "web", &json!({KEYS: POOL}))).await?;
            create(&client, &service("soft", SOFT, "web", &json!({KEYS: soft}))).await
        })?;
        town.answered_by(WEB, a)?;
        town.answered_by(SOFT, a)?;
        let (tally, ()) = busy.call_during(Via::Http, at(SOFT)?, || {
            // No controller is asked: only the request, the watch and the maps take their time.
            let mut slowest = Duration::ZERO;
            let moves: [(&str, &str, &[&str]); 4] = [
                (THERE, "west", &all),
                (THERE, "east", a),
                (HERE, "east", &all),
                (HERE, "west", a),
            ];
            for (node, pool, pods) in moves {
                town.ask(async |client| relabel(&client, node, POOL, pool).await)?;
                slowest = slowest.max(town.answered_by(WEB, pods)?);
            }
            eprintln!("a relabelled node was followed within {slowest:?}");
            ensure!(slowest < patient(FOLLOWS), "it took {slowest:?}");

            // In no pool at all.
            let none = json!({"metadata": {"labels": {POOL: null}}});
            town.ask(async |client| change(&client, "Node", HERE, &none).await)?;
            town.answered_by(WEB, &[])?;
            town.answered_by(SOFT, &all)?;
            town.ask(async |client| relabel(&client, HERE, POOL, "west").await)?;
            town.answered_by(WEB, a)?;

            // A node that leaves, and one of its name that joins elsewhere.
            town.ask(async |client| delete(&client, "Node", THERE).await)?;
            town.answered_by(WEB, a)?;
            town.ask(async |client| create(&client, &node(THERE, "west")).await)?;
            town.answered_by(WEB, &all)?;
            Ok(())
        })?;
        all_answered(&tally)
    })
}

#[test]
fn other_nodes_are_watched_while_a_service_reads_their_labels() -> Result<()> {
    const SOFT: &str = "10.96.3.2";
    play(|town, busy| {
        let (a, b) = (&A[..2], &B[..2]);
        let all = [a, b].concat();
        town.run("web", &all)?;
        town.ask(async |client| create(&client, &service("web", WEB, "web", &json!({}))).await)?;
        town.answered_by(WEB, &all)?;
        ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes");

        let keys = |keys: Value| json!({"metadata": {"annotations": {KEYS: keys}}});
        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            for _ in 0..2 {
                // One that comes is served by its key from its first connection on.
                let soft = service("soft", SOFT, "web", &json!({KEYS: format!("{POOL},*")}));
                town.ask(async |client| create(&client, &soft).await)?;
                town.answered_by(SOFT, a)?;
                ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
                // One that is there gets a key.
                town.ask(async |client| {
                    change(&client, "Service", "web", &keys(POOL.into())).await
                })?;
                town.answered_by(WEB, a)?;
                town.ask(async |client| relabel(&client, THERE, POOL, "west").await)?;
                town.answered_by(WEB, &all)?;
                town.ask(async |client| relabel(&client, THERE, POOL, "east").await)?;
                town.answered_by(WEB, a)?;
                // Neither reads it any more. All Nodes stay watched for some minutes, but an agent
                // that starts begins with its own.
                town.ask(async |client| {
                    change(&client, "Service", "web", &keys(Value::Null)).await?;
                    delete(&client, "Service", "soft").await
                })?;
                town.answered_by(WEB, &all)?;
                town.agent.stop()?;
                town.agent.resume()?;
                town.answered_by(WEB, &all)?;
                ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes any more");
            }
            // While no agent runs, the key comes back: nothing is decided by half of the labels.
            town.agent.stop()?;
            town.ask(async |client| change(&client, "Service", "web", &keys(POOL.into())).await)?;
            town.agent.resume()?;
            town.answered_by(WEB, a)?;
            ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
            Ok(())
        })?;
        all_answered(&tally)
    })
}

#[test]
fn a_database_that_is_killed_costs_no_connection() -> Result<()> {
    play(|town, busy| {
        let (a, all) = (&A[..2], [&A[..2], &B[..2]].concat());
        town.run("web", &all)?;
        let strict = service("web", WEB, "web", &json!({KEYS: POOL}));
        town.ask(async |client| create(&client, &strict).await)?;
        town.answered_by(WEB, a)?;
        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            town.plane.kill_etcd();
            thread::sleep(Duration::from_secs(3));
            town.plane.start_etcd()?;
            town.plane.wait_until_ready()?;
            town.ask(async |client| relabel(&client, THERE, POOL, "west").await)?;
            town.answered_by(WEB, &all)?;
            Ok(())
        })?;
        all_answered(&tally)
    })
}

#[test]
fn what_the_database_has_forgotten_is_read_anew_and_only_differences_are_written() -> Result<()> {
    const STEADY: &str = "10.96.3.2";
    const OTHERS: u8 = 50;
    play_through_hub(|town, busy, hub| {
        // kube-apiserver remembers nothing by itself: who watches, watches the database.
        town.plane.set("--watch-cache=false");
        town.plane.kill_api_server();
        town.plane.start_api_server()?;
        // Those that were there before wait long until they try the server again.
        town.plane.start_controllers_with(&["--controllers=garbagecollector"])?;
        let (old, new) = (&A[..2], &B[..2]);
        town.run("old", old)?;
        town.run("new", new)?;
        town.ask(async |client| {
            create(&client, &service("web", WEB, "old", &json!({}))).await?;
            create(&client, &service("steady", STEADY, "old", &json!({}))).await?;
            for number in 0..OTHERS {
                let (name, address) = (format!("other-{number}"), format!("10.96.4.{number}"));
                create(&client, &service(&name, &address, "old", &json!({}))).await?;
            }
            Ok(())
        })?;
        town.agent.resume()?;
        town.answered_by(WEB, old)?;
        for number in 0..OTHERS {
            town.answered_by(&format!("10.96.4.{number}"), old)?;
        }
        let writes = |town: &Town<'_>| town.metric("topo_lb_map_writes_total", "");
        let (listings, written) = (town.listings()?, writes(town)?);

        let (tally, ()) = busy.call_during(Via::Http, at(STEADY)?, || {
            hub.shut();
            // None of this is heard of as it happens.
            town.ask(async |client| {
                delete(&client, "Service", "web").await?;
                create(&client, &service("web", WEB, "new", &json!({}))).await?;
                delete(&client, "Service", "other-7").await?;
                relabel(&client, THERE, POOL, "west").await
            })?;
            until("slices of the new Service", SOON, || {
                let uid = town.uid("web")?;
                let slices = town.slices("web")?;
                let is_own = |it: &Slice| it.owner.as_ref() == Some(&uid) && it.pods.len() == 2;
                let own = !slices.is_empty() && slices.iter().all(is_own);
                let gone = town.slices("other-7")?.is_empty();
                Ok(if own && gone { Ok(()) } else { Err(format!("{} slices", slices.len())) })
            })?;
            town.plane.compact()?;
            hub.open();
            town.answered_by(WEB, new)?;
            Ok(())
        })?;
        all_answered(&tally)?;
        until("the end of what is gone", SOON, || {
            let services = town.agent.list("services")?.to_string();
            Ok(if services.contains("other-7") { Err(services) } else { Ok(()) })
        })?;
        until("listings of every kind", SOON, || {
            let now = town.listings()?;
            let anew = now.iter().zip(&listings).all(|(now, before)| now > before);
            Ok(if anew { Ok(()) } else { Err(format!("{listings:?}, then {now:?}")) })
        })?;
        let written = writes(town)? - written;
        eprintln!("{written} writes for two Services that have changed, of {}", OTHERS + 3);
        ensure!((1..u64::from(OTHERS) / 2).contains(&written), "{written} writes");
        Ok(())
    })
}

#[test]
fn a_watch_that_breaks_in_the_middle_of_an_event_goes_on_from_there() -> Result<()> {
    play_through_hub(|town, busy, hub| {
        let (a, b) = (&A[..2], &B[..2]);
        let all = [a, b].concat();
        town.run("web", &all)?;
        // A Service that reads labels of Nodes has all of them watched from the start.
        let strict = json!({KEYS: POOL});
        town.ask(async |client| create(&client, &service("web", WEB, "web", &strict)).await)?;
        town.agent.resume()?;
        town.answered_by(WEB, a)?;
        let policy = |keys: Value| json!({"metadata": {"annotations": {KEYS: keys}}});
        let open = policy(json!(null));
        town.ask(async |client| change(&client, "Service", "web", &open).await)?;
        town.answered_by(WEB, &all)?;
        let listings = town.listings()?;
        let (tally, ()) = busy.call_during(Via::Http, at(WEB)?, || {
            hub.break_next("services", Break::Cut);
            let strict = policy(json!(POOL));
            town.ask(async |client| change(&client, "Service", "web", &strict).await)?;
            town.answered_by(WEB, a)?;
            ensure!(hub.broken() == 1, "nothing was broken");

            hub.break_next("endpointslices", Break::Cut);
            town.run("web", &A[2..3])?;
            town.answered_by(WEB, &A[..3])?;
            ensure!(hub.broken() == 2, "nothing was broken");

            hub.break_next("nodes", Break::Cut);
            town.ask(async |client| relabel(&client, THERE, POOL, "west").await)?;
            town.answered_by(WEB, &[&A[..3], b].concat())?;
            ensure!(hub.broken() == 3, "nothing was broken");
            town.ask(async |client| relabel(&client, THERE, POOL, "east").await)?;
            town.answered_by(WEB, &A[..3])?;

            // Half of an event is none, however long the other half takes.
            hub.break_next("services", Break::Stall);
            let open = policy(json!(null));
            town.ask(async |client| change(&client, "Service", "web", &open).await)?;
            until("half of an event", SOON, || {
                Ok(if hub.broken() == 4 { Ok(()) } else { Err(hub.broken()) })
            })?;
            thread::sleep(Duration::from_secs(3));
            let tally = town.watchful.call(Via::Http, at(WEB)?, 64)?;
            ensure!(tally.is_of(&A[..3]), "by half of an event: {tally}");
            hub.go_on();
            town.answered_by(WEB, &[&A[..3], b].concat())?;
            Ok(())
        })?;
        all_answered(&tally)?;
        let now = town.listings()?;
        ensure!(now == listings, "everything was listed anew: {listings:?}, then {now:?}");
        Ok(())
    })
}
