//! Every policy, seen by a client: the engine's own tests say why, these say that the kernel obeys.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::manifest::Manifests;
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, ZONE, at, mapped, play};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::until;

const ALL: [&str; 4] = ["a", "b", "c", "d"];
const NEAR_TO_FAR: &str = "kubernetes.io/hostname,topology.kubernetes.io/zone,*";

fn spec<'a>(manifests: &'a mut Manifests, field: &str) -> Result<&'a mut Value> {
    Ok(&mut manifests.get("Service", "web")?["spec"][field])
}

/// Every way to reach `web`.
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

#[test]
fn openyurt_binds_to_the_node_or_to_its_pool() -> Result<()> {
    play(|scene| {
        const POLICY: &str = "openyurt.io/topologyKeys";
        const POOL: &str = "apps.openyurt.io/nodepool";
        scene.change(|manifests| {
            manifests.annotate("web", POLICY, Some("kubernetes.io/hostname"))
        })?;
        everywhere(scene, &["a"])?;
        scene.change(|manifests| {
            manifests.relabel(HERE, POOL, "pool")?;
            manifests.relabel("there", POOL, "pool")?;
            manifests.annotate("web", POLICY, Some("openyurt.io/nodepool"))
        })?;
        everywhere(scene, &["a", "c"])?;
        // An unknown value is no constraint.
        scene.change(|manifests| manifests.annotate("web", POLICY, Some("openyurt.io/planet")))?;
        everywhere(scene, &ALL)
    })
}

#[test]
fn the_own_annotation_comes_before_openyurts() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| {
            manifests.annotate(
                "web",
                "openyurt.io/topologyKeys",
                Some("kubernetes.io/hostname"),
            )?;
            manifests.annotate("web", KEYS, Some(ZONE))
        })?;
        everywhere(scene, &["a", "b"])
    })
}

#[test]
fn the_field_of_kubernetes_1_17_is_a_policy() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| {
            *spec(manifests, "topologyKeys")? = json!([ZONE, "*"]);
            Ok(())
        })?;
        everywhere(scene, &["a", "b"])
    })
}

#[test]
fn hints_for_a_zone_are_obeyed_while_every_endpoint_has_one() -> Result<()> {
    play(|scene| {
        let hint = |manifests: &mut Manifests, count: usize| -> Result<()> {
            for slice in ["web-ipv4", "web-ipv6"] {
                let endpoints = manifests.get("EndpointSlice", slice)?["endpoints"].as_array_mut();
                for (place, endpoint) in endpoints.context("endpoints")?.iter_mut().enumerate() {
                    let zone = if place < 2 { "zone-1" } else { "zone-2" };
                    endpoint["hints"] = match place < count {
                        true => json!({"forZones": [{"name": zone}]}),
                        false => Value::Null,
                    };
                }
            }
            Ok(())
        };
        scene.change(|manifests| hint(manifests, 4))?;
        everywhere(scene, &["a", "b"])?;
        scene.change(|manifests| hint(manifests, 3))?;
        everywhere(scene, &ALL)
    })
}

#[test]
fn internal_traffic_policy_local_keeps_to_the_node_or_refuses() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| {
            *spec(manifests, "internalTrafficPolicy")? = json!("Local");
            Ok(())
        })?;
        everywhere(scene, &["a"])?;
        scene.set_endpoints("web", &["b", "c", "d"])?;
        everywhere(scene, &[])
    })
}

#[test]
fn draining_endpoints_stand_in_when_nobody_is_ready() -> Result<()> {
    play(|scene| {
        let draining = json!({"ready": false, "serving": true, "terminating": true});
        scene.manifests.set_conditions("c", &draining);
        scene.manifests.write()?;
        everywhere(scene, &["a", "b", "d"])?;
        for pod in ["a", "b", "d"] {
            scene.manifests.set_ready(pod, false);
        }
        scene.manifests.write()?;
        everywhere(scene, &["c"])
    })
}

#[test]
fn a_tier_with_too_few_endpoints_is_passed_over() -> Result<()> {
    play(|scene| {
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(NEAR_TO_FAR)))?;
        everywhere(scene, &["a"])?;
        scene
            .change(|manifests| manifests.annotate("web", "topo-lb.io/min-endpoints", Some("2")))?;
        everywhere(scene, &["a", "b"])
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
            // Few at a time, so that a slow machine finds the end of the change, too.
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

fn sticky(scene: &mut Scene<'_>, seconds: u32) -> Result<()> {
    scene.change(|manifests| {
        *spec(manifests, "sessionAffinity")? = json!("ClientIP");
        let timeout = json!({"clientIP": {"timeoutSeconds": seconds}});
        *spec(manifests, "sessionAffinityConfig")? = timeout;
        Ok(())
    })
}

/// Waits until one endpoint alone answers, and says which.
fn only(scene: &mut Scene<'_>, via: Via, to: SocketAddr) -> Result<String> {
    let client = &mut scene.client;
    let mut last = Tally::default();
    until("one endpoint for one client", FOLLOWS, || {
        last = client.call(via, to, 64)?;
        Ok(if last.pods().len() == 1 { Ok(()) } else { Err(last.clone()) })
    })?;
    last.pods().first().map(|&pod| pod.to_owned()).context("an answer")
}

/// How many endpoints each frontend of `web` has in the kernel.
fn endpoints_of_web(listed: &Value) -> Result<Vec<u64>> {
    let rows = listed["services"].as_array().context("list services has services")?;
    let of_web =
        rows.iter().filter(|row| row["service"].as_str().is_some_and(|it| it.contains("/web:")));
    let counts: Vec<u64> = of_web.filter_map(|row| row["endpoints"].as_u64()).collect();
    ensure!(!counts.is_empty(), "web is not in the kernel: {listed}");
    Ok(counts)
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
            // The old endpoint is back in the kernel, and the client stays where it is.
            scene.set_endpoints("web", &ALL)?;
            until("four endpoints of web in the kernel", FOLLOWS, || {
                let listed = scene.agent.list("services")?;
                Ok(if endpoints_of_web(&listed)?.iter().all(|&count| count == 4) {
                    Ok(())
                } else {
                    Err(listed)
                })
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
        // After each pause one of four is chosen anew: twenty times the same is 1 in 10^12.
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1_200));
            if only(scene, Via::Http, at(WEB4)?)? != first {
                return Ok(());
            }
        }
        anyhow::bail!("the client stays at {first} for ever")
    })
}
