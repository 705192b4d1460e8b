//! Every policy as clients see it. The tests of the engine check decisions; these check the kernel.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::manifest::Manifests;
use topo_lb_tests::scene::{
    ALL, FOLLOWS, HERE, KEYS, REGION, Scene, WEB4, WEB6, ZONE, at, mapped, play,
};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::until;

const NEAR_TO_FAR: &str = "kubernetes.io/hostname,topology.kubernetes.io/zone,*";

fn spec<'a>(manifests: &'a mut Manifests, field: &str) -> Result<&'a mut Value> {
    Ok(&mut manifests.get("Service", "web")?["spec"][field])
}

/// All kinds of connections to `web`.
fn ways() -> Result<[(Via, SocketAddr); 4]> {
    Ok([
        (Via::Http, at(WEB4)?),
        (Via::Http, at(WEB6)?),
        (Via::UdpConnected, mapped(WEB4)?),
        (Via::Udp, at(WEB6)?),
    ])
}

fn everywhere(scene: &mut Scene<'_>, pods: &[&str]) -> Result<()> {
    for (via, to) in ways()? {
        scene.wait_for(via, to, pods)?;
    }
    Ok(())
}

/// A name, a change of the manifests, and the pods that answer afterwards.
type Case = (&'static str, fn(&mut Manifests) -> Result<()>, &'static [&'static str]);

const OPENYURT: &str = "openyurt.io/topologyKeys";
const POOL: &str = "apps.openyurt.io/nodepool";
const HOSTNAME: &str = "kubernetes.io/hostname";
const RACK: &str = "example.com/rack";

/// Each case builds on the changes before it.
const CASES: [Case; 23] = [
    ("this zone", |it| it.annotate("web", KEYS, Some(ZONE)), &["a", "b"]),
    ("a node that joins this zone", |it| it.relabel("there", ZONE, "zone-1"), &["a", "b", "c"]),
    ("this node in another zone", |it| it.relabel(HERE, ZONE, "zone-3"), &["a", "d"]),
    ("a strict policy whose place is empty", |it| ready(it, &["a", "d"], false), &[]),
    (
        "keys in their order: this node",
        |it| {
            it.relabel("there", ZONE, "zone-2")?;
            it.relabel(HERE, ZONE, "zone-1")?;
            it.relabel(HERE, RACK, "rack-2")?;
            it.annotate("web", KEYS, Some(&format!("{HOSTNAME}, {RACK}, {REGION}, *")))?;
            ready(it, &["a", "d"], true)
        },
        &["a"],
    ),
    ("this rack", |it| ready(it, &["a"], false), &["b", "c"]),
    ("anywhere", |it| ready(it, &["b", "c"], false), &["d"]),
    ("nowhere", |it| ready(it, &["d"], false), &[]),
    ("this node again", |it| ready(it, &ALL, true), &["a"]),
    (
        "OpenYurt: the node",
        |it| {
            it.annotate("web", KEYS, None)?;
            it.annotate("web", OPENYURT, Some(HOSTNAME))
        },
        &["a"],
    ),
    (
        "OpenYurt: the pool",
        |it| {
            it.relabel(HERE, POOL, "pool")?;
            it.relabel("there", POOL, "pool")?;
            it.annotate("web", OPENYURT, Some("openyurt.io/nodepool"))
        },
        &["a", "c"],
    ),
    (
        "OpenYurt: an unknown value constrains nothing",
        |it| it.annotate("web", OPENYURT, Some("openyurt.io/planet")),
        &ALL,
    ),
    (
        "topo-lb's annotation comes before OpenYurt's",
        |it| {
            it.annotate("web", OPENYURT, Some(HOSTNAME))?;
            it.annotate("web", KEYS, Some(ZONE))
        },
        &["a", "b"],
    ),
    (
        "no policy",
        |it| {
            it.annotate("web", OPENYURT, None)?;
            it.annotate("web", KEYS, None)
        },
        &ALL,
    ),
    ("the field of Kubernetes 1.17", |it| set(it, "topologyKeys", json!([ZONE, "*"])), &["a", "b"]),
    (
        "hints while every endpoint has one",
        |it| {
            set(it, "topologyKeys", Value::Null)?;
            hint(it, 4)
        },
        &["a", "b"],
    ),
    ("hints while an endpoint has none", |it| hint(it, 3), &ALL),
    ("keys from near to far", |it| it.annotate("web", KEYS, Some(NEAR_TO_FAR)), &["a"]),
    (
        "a tier with too few endpoints",
        |it| it.annotate("web", "topo-lb.io/min-endpoints", Some("2")),
        &["a", "b"],
    ),
    (
        "internalTrafficPolicy: Local",
        |it| {
            it.annotate("web", KEYS, None)?;
            it.annotate("web", "topo-lb.io/min-endpoints", None)?;
            set(it, "internalTrafficPolicy", json!("Local"))
        },
        &["a"],
    ),
    ("internalTrafficPolicy: Local without a local endpoint", |it| ready(it, &["a"], false), &[]),
    (
        "a draining endpoint beside ready ones",
        |it| {
            it.set_ready("a", true);
            it.set_conditions("c", &json!({"ready": false, "serving": true, "terminating": true}));
            set(it, "internalTrafficPolicy", json!("Cluster"))
        },
        &["a", "b", "d"],
    ),
    ("a draining endpoint where none is ready", |it| ready(it, &["a", "b", "d"], false), &["c"]),
];

fn ready(manifests: &mut Manifests, pods: &[&str], ready: bool) -> Result<()> {
    pods.iter().for_each(|pod| manifests.set_ready(pod, ready));
    Ok(())
}

fn set(manifests: &mut Manifests, field: &str, value: Value) -> Result<()> {
    *spec(manifests, field)? = value;
    Ok(())
}

/// Gives the first `count` endpoints hints for a zone: two for zone-1, two for zone-2.
fn hint(manifests: &mut Manifests, count: usize) -> Result<()> {
    for slice in ["web-ipv4", "web-ipv6"] {
        let endpoints = manifests.get("EndpointSlice", slice)?["endpoints"].as_array_mut();
        for (place, endpoint) in endpoints.context("endpoints")?.iter_mut().enumerate() {
            let zone = if place < 2 { "zone-1" } else { "zone-2" };
            let hints = (place < count).then(|| json!({"forZones": [{"name": zone}]}));
            endpoint["hints"] = json!(hints);
        }
    }
    Ok(())
}

#[test]
fn the_kernel_obeys_every_policy() -> Result<()> {
    play(|scene| {
        for (what, change, pods) in CASES {
            scene.change(change)?;
            everywhere(scene, pods).context(what)?;
        }
        Ok(())
    })
}

#[test]
fn a_share_of_connections_spills_into_the_next_tier() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some(NEAR_TO_FAR))?;
            manifests.annotate("web", "topo-lb.io/spill", Some("20%"))
        })?;
        for (via, to) in ways()? {
            let client = &mut scene.client;
            let both = BTreeSet::from(["a", "b"]);
            // Small batches, so that a slow machine also sees the end of the change.
            until("answers of a and b alone", FOLLOWS, || {
                let tally = client.call(via, to, 50)?;
                Ok(if tally.pods().is_subset(&both) { Ok(()) } else { Err(tally) })
            })?;
            let tally = client.call(via, to, 1_000)?;
            // 20 %, within five standard deviations of 1.3 %.
            let spilled = tally.replies.get("b").copied().unwrap_or_default();
            ensure!(tally.pods() == both && (140..=260).contains(&spilled), "{tally}");
        }
        Ok(())
    })
}

/// The share of each pod's answers among `calls`, in percent.
fn shares(scene: &mut Scene<'_>, via: Via, to: SocketAddr, calls: u32) -> Result<[f64; 4]> {
    let mut sum = Tally::default();
    for _ in 0..calls / 10_000 {
        sum.add(&scene.client.call(via, to, 10_000)?);
    }
    ensure!(sum.failures.is_empty(), "{sum}");
    let of = |pod| sum.replies.get(pod).copied().unwrap_or_default();
    Ok(ALL.map(|pod| f64::from(of(pod)) * 100.0 / f64::from(calls)))
}

/// Weights, the percent of new connections that each of a, b, c and d gets, and how many to open.
const WEIGHED: [(&str, [f64; 4], u32); 3] = [
    // a and b share 50, and stand several times in the row.
    (
        "topology.kubernetes.io/zone: zone-1=50, zone-2=30, zone-3=20",
        [25.0, 25.0, 30.0, 20.0],
        100_000,
    ),
    // c and d share 10.
    (
        "kubernetes.io/hostname: 60, topology.kubernetes.io/zone: 30, *: 10",
        [60.0, 30.0, 5.0, 5.0],
        20_000,
    ),
    ("topology.kubernetes.io/zone: zone-1=0, zone-2=2, *=1", [0.0, 0.0, 66.67, 33.33], 20_000),
];

/// Waits until `list` shows each endpoint of each frontend of `web` once, with its share.
fn listed(scene: &Scene<'_>, wanted: [f64; 4]) -> Result<()> {
    let wanted: Vec<_> = wanted.into_iter().filter(|share| *share > 0.0).collect();
    until("the shares in the maps", FOLLOWS, || {
        let listed = scene.agent.list("endpoints")?;
        let rows = listed["endpoints"].as_array().into_iter().flatten();
        let of_web =
            rows.filter(|row| row["service"].as_str().is_some_and(|it| it.contains("/web:")));
        let shares: Vec<_> = of_web.filter_map(|row| row["sharePercent"].as_f64()).collect();
        // Two ports in two families.
        let is_listed = shares == wanted.repeat(4);
        Ok(if is_listed { Ok(()) } else { Err(format!("{listed:#}")) })
    })?;
    Ok(())
}

#[test]
fn weights_divide_connections_to_one_percent() -> Result<()> {
    play(|scene| {
        for (weights, wanted, calls) in WEIGHED {
            let keys = weights.starts_with("kubernetes").then_some(NEAR_TO_FAR);
            scene.change(|manifests| {
                manifests.annotate("web", KEYS, keys)?;
                manifests.annotate("web", "topo-lb.io/weights", Some(weights))
            })?;
            listed(scene, wanted)?;
            for (via, to, calls) in
                [(Via::UdpConnected, mapped(WEB4)?, calls), (Via::Http, at(WEB6)?, 10_000)]
            {
                let actual = shares(scene, via, to, calls)?;
                // Six standard deviations in percent: less than 1 for 100,000.
                let off = 300.0 / f64::from(calls).sqrt();
                let is_near = |(is, wanted): (f64, f64)| (is - wanted).abs() <= off;
                ensure!(actual.into_iter().zip(wanted).all(is_near), "{weights}: {actual:?}");
            }
        }
        Ok(())
    })
}

fn sticky(scene: &mut Scene<'_>, seconds: u32) -> Result<()> {
    scene.change(|manifests| {
        *spec(manifests, "sessionAffinity")? = json!("ClientIP");
        let timeout = json!({"clientIP": {"timeoutSeconds": seconds}});
        *spec(manifests, "sessionAffinityConfig")? = timeout;
        Ok(())
    })
}

/// Waits until only one endpoint answers, and returns it.
fn only(scene: &mut Scene<'_>, via: Via, to: SocketAddr) -> Result<String> {
    let client = &mut scene.client;
    let mut last = Tally::default();
    until("one endpoint for one client", FOLLOWS, || {
        last = client.call(via, to, 64)?;
        Ok(if last.pods().len() == 1 { Ok(()) } else { Err(last.clone()) })
    })?;
    last.pods().first().map(|&pod| pod.to_owned()).context("an answer")
}

/// The number of endpoints that each frontend of `web` has in the kernel.
fn endpoints_of_web(listed: &Value) -> Vec<u64> {
    let rows = listed["services"].as_array().into_iter().flatten();
    let of_web = rows.filter(|row| row["service"].as_str().is_some_and(|it| it.contains("/web:")));
    of_web.filter_map(|row| row["endpoints"].as_u64()).collect()
}

#[test]
fn session_affinity_keeps_a_client_at_its_endpoint_until_that_is_gone() -> Result<()> {
    play(|scene| {
        sticky(scene, 600)?;
        for (via, to) in ways()? {
            let pod = only(scene, via, to)?;
            let rest: Vec<_> = ALL.into_iter().filter(|name| *name != pod).collect();
            scene.set_endpoints("web", &rest)?;
            let client = &mut scene.client;
            until("a move to another endpoint", FOLLOWS, || {
                let tally = client.call(via, to, 16)?;
                let moved = !tally.replies.contains_key(&pod) && tally.pods().len() == 1;
                Ok(if moved { Ok(()) } else { Err(tally) })
            })?;
            let next = only(scene, via, to)?;
            // The old endpoint is in the kernel again, and the client keeps its new one.
            scene.set_endpoints("web", &ALL)?;
            scene.agent.wait_for_services(FOLLOWS, |listed| {
                let counts = endpoints_of_web(listed);
                !counts.is_empty() && counts.iter().all(|&count| count == 4)
            })?;
            let tally = scene.client.call(via, to, 64)?;
            ensure!(tally.is_of(&[next.as_str()]), "{via:?} left {next}: {tally}");
        }
        Ok(())
    })
}

#[test]
fn session_affinity_ends_after_its_timeout() -> Result<()> {
    play(|scene| {
        sticky(scene, 1)?;
        let first = only(scene, Via::Http, at(WEB4)?)?;
        // Each pause ends the affinity: the same of four endpoints twenty times is 1 in 10^12.
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1_200));
            if only(scene, Via::Http, at(WEB4)?)? != first {
                return Ok(());
            }
        }
        anyhow::bail!("the client stays at {first} for ever")
    })
}

const DIRECT: &str = "topo-lb.io/direct";

/// All ways to dial a pod by its own address.
fn directly(scene: &Scene<'_>, pod: &str) -> Result<[(Via, SocketAddr); 6]> {
    let pod = scene.cluster.pod(pod)?;
    let (four, six): (SocketAddr, SocketAddr) = ((pod.ipv4, 9376).into(), (pod.ipv6, 9376).into());
    let mapped = mapped(&pod.ipv4.to_string())?;
    let mapped = SocketAddr::new(mapped.ip(), 9376);
    Ok([
        (Via::Http, four),
        (Via::Http, six),
        (Via::Http, mapped),
        (Via::UdpConnected, four),
        (Via::Udp, four),
        (Via::Udp, six),
    ])
}

/// Whether `pods` answer who dials them by address, and the others refuse at once.
fn expect_directly(scene: &mut Scene<'_>, pods: &[&str]) -> Result<()> {
    for pod in ALL {
        let wanted = if pods.contains(&pod) { &[pod][..] } else { &[] };
        for (via, to) in directly(scene, pod)? {
            scene.wait_for(via, to, wanted)?;
            scene.client.expect(via, to, wanted)?;
        }
    }
    Ok(())
}

#[test]
fn a_strict_policy_also_holds_for_pods_that_are_dialled_by_address() -> Result<()> {
    play(|scene| {
        expect_directly(scene, &ALL)?;
        let far: SocketAddr = (scene.cluster.pod("c")?.ipv4, 9376).into();
        let open = scene.client.open(Via::Http, far)??;
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some(ZONE))?;
            manifests.annotate("web", DIRECT, Some("refuse"))
        })?;
        expect_directly(scene, &["a", "b"])?;
        everywhere(scene, &["a", "b"])?;
        // What is open stays.
        let reply = scene.client.ask(open, None)??;
        ensure!(reply.pod == "c", "{reply:?}");
        let web = scene.explained("web")?;
        let direct = "4 endpoints are refused to clients that dial them by address";
        ensure!(web["direct"] == direct, "{web}");
        let answer = scene.agent.get("/metrics")?;
        let refused = "topo_lb_refused_connections_total{namespace=\"default\",service=\"web\",\
                       port=\"http\",reason=\"direct-dial\"}";
        ensure!(answer.sample(refused).is_some_and(|times| times > 0.0), "{answer}");
        let refusing = "topo_lb_refusing_service_ports{reason=\"direct-dial\"}";
        ensure!(answer.sample(refusing) == Some(2.0), "{answer}");

        // Another node joins the zone; then the agent stops, and starts from the maps.
        scene.change(|manifests| manifests.relabel("there", ZONE, "zone-1"))?;
        expect_directly(scene, &["a", "b", "c"])?;
        scene.agent.stop()?;
        expect_directly(scene, &["a", "b", "c"])?;
        scene.agent.resume()?;
        expect_directly(scene, &["a", "b", "c"])?;

        // No tier has an endpoint: the pod on this node is free all the same.
        scene.change(|manifests| manifests.annotate("web", KEYS, Some("example.com/none")))?;
        everywhere(scene, &[])?;
        expect_directly(scene, &["a"])?;
        // A policy that is not strict refuses nobody.
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(NEAR_TO_FAR)))?;
        expect_directly(scene, &ALL)?;
        let web = scene.explained("web")?;
        ensure!(web["policy"]["error"].as_str().is_some_and(|it| it.contains(DIRECT)), "{web}");
        ensure!(web["direct"].is_null(), "{web}");
        Ok(())
    })
}

#[test]
fn clients_of_a_service_notice_nothing_of_direct_dials_that_are_refused_and_allowed_in_turn()
-> Result<()> {
    play(|scene| {
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        let far = (scene.cluster.pod("c")?.ipv4, 9376).into();
        let mut other = scene.cluster.client_on(HERE)?;
        let (client, manifests) = (&mut scene.client, &mut scene.manifests);
        let (tally, ()) = client.call_during(Via::Http, at(WEB4)?, || {
            for round in 0..20 {
                let said = if round % 2 == 0 { "refuse" } else { "allow" };
                manifests.annotate("web", DIRECT, Some(said))?;
                manifests.write()?;
                let answers: &[&str] = if round % 2 == 0 { &[] } else { &["c"] };
                other.wait_for(Via::Http, far, answers, FOLLOWS)?;
            }
            Ok(())
        })?;
        ensure!(tally.is_of(&["a", "b"]), "{tally}");
        Ok(())
    })
}
