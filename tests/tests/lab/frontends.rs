//! Node ports, load balancer IPs and external IPs as clients of the node dial them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::manifest::{Manifests, service};
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, ZONE, at, idle, put_endpoints};
use topo_lb_tests::traffic::Via;

/// `web` at node ports of the agent's node.
const NODE: [(Via, &str); 3] = [
    (Via::Http, "172.30.0.2:30080"),
    (Via::Udp, "172.30.0.2:30053"),
    (Via::Http, "[fd00:172::2]:30080"),
];
/// The load balancer IPs of `web`, and whether clients dial them.
const LOAD_BALANCER: [(&str, &str); 2] = [("192.0.2.10", "VIP"), ("192.0.2.11", "Proxy")];
/// Its external IPs; only the first one is inside the agent's ranges.
const EXTERNAL: [&str; 2] = ["198.51.100.7", "203.0.113.7"];

#[test]
fn every_frontend_leads_where_the_cluster_ip_leads() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--frontends", "all");
        scene.agent.set("--external-ip-ranges", "198.51.100.0/24,10.96.0.0/16");
        expose(&mut scene.manifests)?;
        scene.manifests.annotate("web", KEYS, Some(ZONE))?;
        scene.manifests.write()?;
        scene.agent.resume()?;

        wait_at_each(scene, &["a", "b"])?;
        scene.expect(Via::Http, at(WEB4)?, &["a", "b"])?;
        listed(scene, |text| {
            let left_alone = [LOAD_BALANCER[1].0, EXTERNAL[1], "172.30.0.3", "10.244.1."];
            left_alone.iter().all(|address| !frontends(text).contains(address))
        })?;

        // The policy is strict: nothing in this zone.
        scene.change(|it| {
            it.set_ready("a", false);
            it.set_ready("b", false);
            Ok(())
        })?;
        wait_at_each(scene, &[])?;
        scene.change(|it| {
            it.set_ready("a", true);
            it.set_ready("b", true);
            Ok(())
        })?;
        wait_at_each(scene, &["a", "b"])?;

        // `internalTrafficPolicy` is for ClusterIPs alone.
        scene.change(|it| set(it, "internalTrafficPolicy", json!("Local")))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a"])?;
        scene.wait_for(Via::Http, at(WEB6)?, &["a"])?;
        wait_at_each(scene, &["a", "b"])?;
        scene.change(|it| set(it, "internalTrafficPolicy", json!("Cluster")))?;
        // `externalTrafficPolicy: Local` excludes keys, and is for clients from outside alone.
        scene.change(|it| {
            it.annotate("web", KEYS, None)?;
            set(it, "externalTrafficPolicy", json!("Local"))
        })?;
        wait_at_each(scene, &["a", "b", "c", "d"])
    })
}

#[test]
fn node_ports_are_at_the_loopback_of_the_host_and_of_no_pod() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--frontends", "all");
        expose(&mut scene.manifests)?;
        scene.manifests.annotate("web", KEYS, Some(ZONE))?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        let loopback = "127.0.0.1:30080".parse()?;
        let mut host = scene.cluster.process(HERE)?;
        host.wait_for(Via::Http, loopback, &["a", "b"], FOLLOWS)?;
        // Nothing listens there.
        scene.expect(Via::Http, loopback, &[])?;
        let connections = scene.agent.list("services")?;
        let refused = connections["services"].as_array().into_iter().flatten();
        let refused: u64 = refused.filter_map(|it| it["connections"]["refused"].as_u64()).sum();
        ensure!(refused == 0, "the agent refused what a Pod has to refuse: {connections}");
        Ok(())
    })
}

#[test]
fn only_some_may_dial_a_load_balancer_with_source_ranges() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--frontends", "all");
        expose(&mut scene.manifests)?;
        set(&mut scene.manifests, "loadBalancerSourceRanges", json!(["10.0.0.0/8"]))?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        listed(scene, |text| {
            let text = frontends(text);
            text.contains("172.30.0.2") && !text.contains(LOAD_BALANCER[0].0)
        })?;
        scene
            .change(|it| set(it, "loadBalancerSourceRanges", json!(["10.0.0.0/8", "0.0.0.0/0"])))?;
        listed(scene, |text| frontends(text).contains(LOAD_BALANCER[0].0))
    })
}

#[test]
fn no_service_takes_the_cluster_ip_of_another_as_its_external_ip() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--frontends", "all");
        scene.agent.set("--external-ip-ranges", "10.96.0.0/16");
        // It comes first by age and by name.
        let mut thief = service("a-thief", &["10.96.1.77"], &[("http", 80, "TCP")], &[]);
        thief["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
        thief["spec"]["externalIPs"] = json!([WEB4, "10.96.1.78"]);
        scene.manifests.put(thief);
        put_endpoints(&mut scene.manifests, scene.cluster, "a-thief", &["d"])?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        scene.wait_for(Via::Http, at("10.96.1.78")?, &["d"])?;
        scene.expect(Via::Http, at(WEB4)?, &["a", "b", "c", "d"])
    })
}

#[test]
fn an_agent_without_the_flag_leaves_them_to_kube_proxy() -> Result<()> {
    idle(|scene| {
        expose(&mut scene.manifests)?;
        scene.manifests.write()?;
        scene.agent.set("--frontends", "all");
        scene.agent.set("--external-ip-ranges", "198.51.100.0/24");
        scene.agent.resume()?;
        wait_at_each(scene, &["a", "b", "c", "d"])?;
        scene.agent.stop()?;
        scene.agent.unset("--frontends");
        scene.agent.resume()?;
        listed(scene, |text| {
            let text = frontends(text);
            text.contains(WEB4) && !text.contains("172.30.0.2") && !text.contains("192.0.2.")
        })
    })
}

/// Gives `web` node ports, load balancer IPs and external IPs.
fn expose(manifests: &mut Manifests) -> Result<()> {
    let web = manifests.get("Service", "web")?;
    web["spec"]["type"] = "LoadBalancer".into();
    web["spec"]["ports"][0]["nodePort"] = 30_080.into();
    web["spec"]["ports"][1]["nodePort"] = 30_053.into();
    web["spec"]["externalIPs"] = json!(EXTERNAL);
    let ingress = LOAD_BALANCER.map(|(ip, mode)| json!({"ip": ip, "ipMode": mode}));
    web["status"] = json!({"loadBalancer": {"ingress": ingress}});
    Ok(())
}

fn set(manifests: &mut Manifests, field: &str, value: Value) -> Result<()> {
    manifests.get("Service", "web")?["spec"][field] = value;
    Ok(())
}

/// Waits until exactly these pods answer at each kind of frontend.
fn wait_at_each(scene: &mut Scene<'_>, pods: &[&str]) -> Result<()> {
    for (via, address) in NODE {
        scene.wait_for(via, address.parse::<SocketAddr>()?, pods)?;
    }
    scene.wait_for(Via::Http, at(LOAD_BALANCER[0].0)?, pods)?;
    scene.wait_for(Via::UdpConnected, at(LOAD_BALANCER[0].0)?, pods)?;
    scene.wait_for(Via::Http, at(EXTERNAL[0])?, pods).map(drop)
}

/// Waits for what `topo-lb list services` shows.
fn listed(scene: &mut Scene<'_>, is_wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let listed = scene.agent.wait_for_services(FOLLOWS, is_wanted)?;
    ensure!(frontends(&listed).contains(WEB4), "{listed}");
    Ok(())
}

/// The frontends of a list, as text.
fn frontends(list: &Value) -> String {
    list.to_string()
}
