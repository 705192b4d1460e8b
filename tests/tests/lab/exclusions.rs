//! Services and clients that topo-lb leaves untouched: their connections reach another proxy.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::binary::row;
use topo_lb_tests::cgroup::Cgroup;
use topo_lb_tests::client::Client;
use topo_lb_tests::http::Answer;
use topo_lb_tests::manifest::Manifests;
use topo_lb_tests::scene::{
    ALL, ECHO4, FOLLOWS, HERE, KEYS, Scene, WEB4, WEB6, at, mapped, play, prepared,
};
use topo_lb_tests::traffic::Via;

const HANDLE: &str = "topo-lb.io/handle";
/// The server that answers untranslated connections.
const UNTOUCHED: &[&str] = &["untouched"];

fn sentence(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn a_service_whose_annotation_says_false_is_left_alone() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        scene.change(|manifests| manifests.annotate("web", HANDLE, Some("false")))?;
        for (via, to) in [(Via::Http, at(WEB4)?), (Via::Http, at(WEB6)?), (Via::Udp, at(WEB4)?)] {
            scene.wait_for(via, to, UNTOUCHED)?;
        }
        scene.expect(Via::Udp, at(ECHO4)?, &ALL)?;
        let web = scene.explained("web")?;
        ensure!(web["decision"]["verdict"] == "bypass", "{web}");
        ensure!(sentence(&web["decision"]["reason"]).contains(HANDLE), "{web}");

        // A value other than true or false is ignored and reported.
        scene.change(|manifests| manifests.annotate("web", HANDLE, Some("maybe")))?;
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        let web = scene.explained("web")?;
        ensure!(web["decision"]["verdict"] == "route", "{web}");
        ensure!(sentence(&web["policy"]["error"]).contains(HANDLE), "{web}");
        Ok(())
    })
}

/// The explanation of `web` by this node's agent.
fn agent_says(scene: &Scene<'_>) -> Result<Value> {
    let answer = scene.agent.get("/explain?service=default/web")?;
    let report: Value = serde_json::from_str(&answer.body)?;
    row(&report["services"], "name", "web").cloned()
}

/// Like NodeLocal DNSCache: a device of the node has the ClusterIP, and a process listens there.
#[test]
fn an_address_that_a_device_of_the_node_bears_is_left_alone() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        scene.cluster.ip_on(
            HERE,
            &[
                "link add nodelocaldns type bridge".to_owned(),
                "link set nodelocaldns up".to_owned(),
                format!("address add {WEB4}/32 dev nodelocaldns"),
            ],
        )?;
        let cache: SocketAddr = at(WEB4)?;
        let _cache = scene.cluster.serve_on(HERE, "cache", &[cache])?;
        for via in [Via::Http, Via::Udp, Via::UdpConnected] {
            scene.wait_for(via, at(WEB4)?, &["cache"])?;
        }
        scene.expect(Via::Http, at(WEB6)?, &ALL)?;
        let web = agent_says(scene)?;
        let reason = sentence(&web["decision"]["reason"]);
        ensure!(reason.contains("nodelocaldns") && reason.contains(WEB4), "{web}");
        // The maps do not have it either.
        let listed = scene.agent.list("services")?.to_string();
        ensure!(!listed.contains(&format!("{WEB4}:")), "{listed}");

        // A starting agent checks devices before it writes: calls meanwhile stay untouched.
        let agent = &mut scene.agent;
        let (tally, ()) = scene.client.call_during(Via::Http, at(WEB4)?, || {
            agent.stop()?;
            agent.resume()
        })?;
        ensure!(tally.is_of(&["cache"]), "{tally}");

        // The device is deleted, and the Service is translated again.
        scene.cluster.ip_on(HERE, &["link delete nodelocaldns".to_owned()])?;
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        Ok(())
    })
}

#[test]
fn addresses_of_ipvs_proxies_are_not_taken_for_a_local_services() -> Result<()> {
    play(|scene| {
        scene.wait_for(Via::Http, at(WEB4)?, &ALL)?;
        // Created second: once its address is untouched, the agent has also seen the first one's.
        scene.cluster.ip_on(
            HERE,
            &[
                "link add kube-ipvs0 type bridge".to_owned(),
                format!("address add {WEB4}/32 dev kube-ipvs0"),
                "link add other0 type bridge".to_owned(),
                format!("address add {ECHO4}/32 dev other0"),
            ],
        )?;
        let echo = format!("{ECHO4}:");
        scene.agent.wait_for_services(FOLLOWS, |it| !it.to_string().contains(&echo))?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)
    })
}

const MESHED: &str = "0a1b2c3d-0000-4000-8000-000000000001";
const PLAIN: &str = "0a1b2c3d-0000-4000-8000-000000000002";
const LATER: &str = "0a1b2c3d-0000-4000-8000-000000000003";

/// A Pod of the agent's node, in the API server's form.
fn pod(namespace: &str, name: &str, uid: &str, exclude: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid,
            "annotations": exclude.map(|value| json!({"topo-lb.io/exclude": value})),
        },
        "spec": {"nodeName": HERE},
    })
}

/// A process in a container of a Pod. The Pod's cgroup is the kubelet's, its child the runtime's.
struct Placed {
    client: Client,
    _container: Cgroup,
    _pod: Cgroup,
}

/// The kubelet's folder for the cgroups of Pods.
fn kubepods(scene: &Scene<'_>) -> Result<Cgroup> {
    Cgroup::make(scene.cluster.node(HERE)?.cgroup_path(), "kubepods")
}

/// Puts a client into the cgroup of a Pod, below `kubepods` or a class in it.
fn place(scene: &Scene<'_>, kubepods: &Cgroup, class: &str, uid: &str) -> Result<Placed> {
    let class = kubepods.path().join(class);
    fs::create_dir_all(&class)?;
    let pod = Cgroup::make(&class, &format!("pod{uid}"))?;
    let container = Cgroup::make(pod.path(), "container")?;
    let client = scene.cluster.client_in("client", &container)?;
    Ok(Placed { client, _container: container, _pod: pod })
}

impl Placed {
    /// Waits until exactly `pods` answer, with every kind of socket.
    fn wait_for(&mut self, pods: &[&str]) -> Result<()> {
        let ways = [
            (Via::Http, at(WEB4)?),
            (Via::Http, at(WEB6)?),
            (Via::Http, mapped(WEB4)?),
            (Via::Udp, at(WEB4)?),
            (Via::Udp, at(WEB6)?),
            (Via::UdpConnected, at(WEB4)?),
        ];
        for (via, to) in ways {
            self.client.wait_for(via, to, pods, FOLLOWS)?;
            self.client.expect(via, to, pods)?;
        }
        Ok(())
    }
}

/// Waits until the agent reports this number of excluded Pods.
fn wait_for_excluded(scene: &Scene<'_>, count: usize) -> Result<()> {
    let wanted = format!("topo_lb_excluded_pods {count}\n");
    let is_there = |answer: &Answer| answer.body.contains(&wanted);
    scene.agent.wait_for_answer("/metrics", FOLLOWS, is_there).map(drop)
}

fn two_pods(manifests: &mut Manifests) {
    manifests.put(pod("meshed", "m", MESHED, None));
    manifests.put(pod("default", "p", PLAIN, Some("true")));
}

#[test]
fn pods_of_an_excluded_namespace_are_left_alone_and_no_others() -> Result<()> {
    prepared(two_pods, |scene| {
        let kubepods = kubepods(scene)?;
        let mut meshed = place(scene, &kubepods, "burstable", MESHED)?;
        let mut plain = place(scene, &kubepods, "", PLAIN)?;
        // Namespaces that do not exist do no harm, even many.
        let mut namespaces: Vec<_> = (0..10_000).map(|at| format!("nobody-{at}")).collect();
        namespaces.push("meshed".to_owned());
        scene.agent.set("--exclude-namespaces", namespaces.join(","));
        // From the first moment on: no call is translated while the agent starts.
        let agent = &mut scene.agent;
        let (tally, ()) = meshed.client.call_during(Via::Http, at(WEB4)?, || agent.resume())?;
        ensure!(tally.is_of(UNTOUCHED), "{tally}");
        meshed.wait_for(UNTOUCHED)?;
        // The annotation has no effect without its flag.
        plain.wait_for(&ALL)?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        wait_for_excluded(scene, 1)?;

        // The same while no agent runs.
        scene.agent.stop()?;
        meshed.wait_for(UNTOUCHED)?;
        plain.wait_for(&ALL)?;
        // It ends with an agent that excludes no Pod.
        scene.agent.unset("--exclude-namespaces");
        scene.agent.resume()?;
        meshed.wait_for(&ALL)
    })
}

#[test]
fn a_socket_of_an_excluded_pod_is_not_ended_because_the_agent_starts() -> Result<()> {
    prepared(two_pods, |scene| {
        let kubepods = kubepods(scene)?;
        let mut plain = place(scene, &kubepods, "burstable", PLAIN)?;
        scene.agent.set("--kube-proxy-replacement", "");
        scene.agent.set("--exclude-annotated-pods", "");
        let to = at(WEB4)?;
        let excluded = plain.client.open(Via::UdpConnected, to)??;
        let other = scene.client.open(Via::UdpConnected, to)??;
        scene.agent.resume()?;
        scene.client.hear(other)?;
        let ended = "topo_lb_ended_sockets_total{protocol=\"udp\"} 1\n";
        scene.agent.wait_for_answer("/metrics", FOLLOWS, |it| it.body.contains(ended))?;
        let reply = plain.client.ask(excluded, None)??;
        ensure!(reply.pod == "untouched", "{reply:?}");
        Ok(())
    })
}

#[test]
fn a_pod_that_comes_or_changes_is_left_alone_as_its_annotation_says() -> Result<()> {
    prepared(two_pods, |scene| {
        let kubepods = kubepods(scene)?;
        scene.agent.set("--exclude-annotated-pods", "");
        scene.agent.resume()?;
        // The Pod is known before its cgroup exists.
        let mut plain = place(scene, &kubepods, "", PLAIN)?;
        plain.wait_for(UNTOUCHED)?;
        // The cgroup exists before the Pod is known, in a class that is new, too.
        let mut later = place(scene, &kubepods, "besteffort", LATER)?;
        later.wait_for(&ALL)?;
        let service = at(WEB4)?;
        let open = later.client.open(Via::Http, service)??;
        scene.put(pod("default", "l", LATER, Some("true")))?;
        later.wait_for(UNTOUCHED)?;
        // Nor may anybody refuse it what it dials by address.
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, Some("topology.kubernetes.io/zone"))?;
            manifests.annotate("web", "topo-lb.io/direct", Some("refuse"))
        })?;
        let far: SocketAddr = (scene.cluster.pod("d")?.ipv4, 9376).into();
        scene.wait_for(Via::Http, far, &[])?;
        later.client.expect(Via::Http, far, &["d"])?;
        scene.change(|manifests| {
            manifests.annotate("web", KEYS, None)?;
            manifests.annotate("web", "topo-lb.io/direct", None)
        })?;
        // An open connection is not affected.
        let reply = later.client.ask(open, None)??;
        ensure!(ALL.contains(&reply.pod.as_str()) && reply.peer == service, "{reply:?}");
        wait_for_excluded(scene, 2)?;

        scene.put(pod("default", "l", LATER, Some("perhaps")))?;
        later.wait_for(&ALL)?;
        let log = scene.agent.log();
        ensure!(log.contains("topo-lb.io/exclude of Pod default/l is ignored"), "{log}");
        plain.wait_for(UNTOUCHED)?;

        // A Pod that ends leaves nothing behind.
        scene.remove("Pod", "p")?;
        drop(plain);
        wait_for_excluded(scene, 0)
    })
}
