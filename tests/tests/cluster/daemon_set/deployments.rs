//! Connections of real pods while the agents are replaced, removed and installed again.

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CapabilitySet, capability_is_in_bounding_set};
use serde_json::json;
use topo_lb_tests::cgroup;
use topo_lb_tests::deployment::{NAME, chart_place, helm};
use topo_lb_tests::kubernetes::worker::Worker;
use topo_lb_tests::kubernetes::{Kubernetes, LAST_RELEASE, VERSION};
use topo_lb_tests::objects::Objects;
use topo_lb_tests::wait::until;

use super::answers::{
    Answers, POOLS, SERVICE, answers, client_of, is_from_anywhere, only_from,
    pods_stay_in_their_pool, shell_on,
};
use super::load::Stage;
use super::{SOON, rolled_out};

pub(crate) fn an_upgrade_and_its_way_back_fail_no_connection(stage: &mut Stage<'_>) -> Result<()> {
    if !stage.has_last_release {
        // The summary of `cargo xtask test` says so, too.
        eprintln!("    NOT upgraded: there is no release yet");
        return Ok(());
    }
    let mut there_and_back = || {
        for image in [LAST_RELEASE, VERSION, LAST_RELEASE, VERSION] {
            stage.kubernetes.set_image(image).context(image)?;
            stage.nothing_failed().context(image)?;
        }
        Ok(())
    };
    let outcome = there_and_back();
    if outcome.is_err() {
        // The other scenarios are about this version.
        stage.kubernetes.set_image(VERSION)?;
    }
    outcome
}

pub(crate) fn each_component_runs_on_a_kubelet(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let mut components =
        vec!["end-sockets", "metrics", "mount-bpffs", "exclude-pods", "steer-pods", "dns"];
    // A container cannot have what the machine does not.
    let may = capability_is_in_bounding_set(CapabilitySet::SYS_RESOURCE)?;
    components.extend(may.then_some("sys-resource"));
    eprintln!("    components: {}", components.join(", "));
    // The agents handle the cluster DNS Service only if it has a policy.
    let dns =
        ["-n", "kube-system", "annotate", "service", "kube-dns", "topo-lb.io/topology-keys=*"];
    kubernetes.kubectl(&dns)?;
    kubernetes.apply("opt-in", &components)?;
    kubernetes.wait_for_agents()?;
    stage.nothing_failed()?;
    an_excluded_pod_asks_kube_proxy(&stage.kubernetes)?;
    a_socket_to_a_pod_that_is_gone_ends(&stage.kubernetes)
}

pub(crate) fn an_excluded_pod_asks_kube_proxy(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let annotate = |annotation: &str| {
        let client = "app=united-deployment2,pool=hangzhou";
        kubernetes.kubectl(&["annotate", "pod", "-l", client, annotation])
    };
    let until_answered = |from: &str, is_wanted: fn(&Answers) -> bool| {
        until(from, SOON, || {
            let answers = answers(kubernetes, &client_of("hangzhou"), SERVICE)?;
            Ok(if is_wanted(&answers) { Ok(()) } else { Err(format!("{answers:?}")) })
        })
    };
    annotate("topo-lb.io/exclude=true")?;
    until_answered("answers from anywhere", is_from_anywhere)?;
    annotate("topo-lb.io/exclude-")?;
    until_answered("answers from the pool alone", |it| only_from("hangzhou", it).is_ok())?;
    Ok(())
}

/// A pod that dials a far endpoint by its address gets a near one once both opted in.
fn a_steered_pod_reaches_its_own_pool(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let [(near, _), (far, _)] = POOLS;
    let of_servers = format!("app=united-deployment1,pool={far}");
    let path = "jsonpath={.items[0].status.podIP}";
    let address = kubernetes.kubectl(&["get", "pod", "-l", &of_servers, "-o", path])?;
    let script = format!("echo hostname | nc -u -w 1 {address} 8081");
    let until_answered_by = |pool: &str| {
        until(&format!("an answer of {pool} at {address}"), SOON, || {
            let said =
                kubernetes.kubectl(&["exec", &client_of(near), "--", "sh", "-c", &script])?;
            Ok(if said.contains(pool) { Ok(()) } else { Err(said) })
        })
    };
    let annotations = json!({"topo-lb.io/topology-keys": "kubernetes.io/hostname,*", "topo-lb.io/direct": "steer"});
    kubernetes.plane().create([json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "steered", "annotations": annotations},
        "spec": {
            "selector": {"app": "united-deployment1"},
            "ports": [{"port": 8_081, "protocol": "UDP"}],
        },
    })])?;
    until_answered_by(far)?;
    let clients = format!("app=united-deployment2,pool={near}");
    let annotate =
        |what: &str| kubernetes.kubectl(&["annotate", "pod", "-l", &clients, what]).map(drop);
    annotate("topo-lb.io/steer=true")?;
    until_answered_by(near)?;
    annotate("topo-lb.io/steer-")?;
    until_answered_by(far)?;
    kubernetes.kubectl(&["delete", "service", "steered"]).map(drop)
}

/// A connected UDP socket of a pod ends with its endpoint, and the metrics on the node's address
/// tell.
pub(crate) fn a_socket_to_a_pod_that_is_gone_ends(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let (pool, _) = POOLS[0];
    let servers = format!("deployment/united-deployment1-{pool}");
    let expose = ["--name=datagrams", "--protocol=UDP", "--port=8081"];
    kubernetes.kubectl(&[&["expose", &servers][..], &expose].concat())?;
    let policy = "topo-lb.io/topology-keys=kubernetes.io/hostname,*";
    kubernetes.kubectl(&["annotate", "service", "datagrams", policy])?;
    let path = "jsonpath={.spec.clusterIP}";
    let address = kubernetes.kubectl(&["get", "service", "datagrams", "-o", path])?;
    let [here, other] = kubernetes.workers() else { anyhow::bail!("there are two nodes") };
    let metrics = format!("curl -s -m 5 http://{}:19876/metrics", here.address());
    let client = client_of(pool);
    let shell = |script: &str| kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", script]);
    // A socket from before the agent decides for the Service would be kube-proxy's for good.
    until("a datagram that the agent has decided", SOON, || {
        shell(&format!("echo hostname | nc -u -w 1 {address} 8081 || true"))?;
        let said = shell_on(other, &metrics)?;
        let mut counts = said.lines().filter(|line| line.starts_with("topo_lb_connections_total{"));
        let is_decided = counts.any(|line| line.contains("\"datagrams\"") && !line.ends_with(" 0"));
        Ok(if is_decided { Ok(()) } else { Err("none") })
    })?;
    a_steered_pod_reaches_its_own_pool(kubernetes)?;
    // It is silent once it has an answer: a datagram to a pod that has just gone would end it, too.
    shell(&format!(
        ": > /tmp/datagrams; \
         ( (until [ -s /tmp/datagrams ]; do echo hostname; sleep 1; done; sleep 1000) \
         | nc -u {address} 8081) < /dev/null > /tmp/datagrams 2> /dev/null &"
    ))?;
    until("an answer over UDP", SOON, || {
        let said = shell("cat /tmp/datagrams")?;
        Ok(if said.contains(pool) { Ok(()) } else { Err(said) })
    })?;
    kubernetes.kubectl(&["scale", &servers, "--replicas=0"])?;
    let ended = "topo_lb_ended_sockets_total{protocol=\"udp\"} ";
    until("a socket that was ended", SOON, || {
        let said = shell_on(other, &metrics)?;
        let line = said.lines().find_map(|line| line.strip_prefix(ended)).map(str::to_owned);
        Ok(if line.as_deref().is_some_and(|it| it != "0") {
            Ok(())
        } else {
            Err(format!("{line:?}"))
        })
    })?;
    kubernetes.kubectl(&["scale", &servers, "--replicas=2"])?;
    rolled_out(kubernetes, &servers)
}

/// What the agents have made on every node.
pub(crate) fn made(kubernetes: &Kubernetes<'_>) -> Result<Vec<Objects>> {
    kubernetes.workers().iter().map(Worker::objects).collect()
}

pub(crate) fn all_gone(kubernetes: &Kubernetes<'_>, made: Vec<Objects>) -> Result<()> {
    for (worker, objects) in kubernetes.workers().iter().zip(made) {
        objects.wait_until_gone().with_context(|| format!("on {}", worker.name()))?;
        ensure!(!worker.seen("sys/fs/bpf/topo-lb").exists(), "{} has pins left", worker.name());
    }
    // kube-proxy alone serves the Services again.
    let anywhere = answers(kubernetes, &client_of("hangzhou"), SERVICE)?;
    ensure!(is_from_anywhere(&anywhere), "{anywhere:?}");
    Ok(())
}

pub(crate) fn the_cleanup_leaves_nothing_in_any_kernel(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let made = made(kubernetes)?;
    kubernetes.apply("cleanup", &[])?;
    kubernetes.wait_for_agents()?;
    all_gone(kubernetes, made)?;
    stage.none_failed()
}

pub(crate) fn the_chart_does_the_same(stage: &mut Stage<'_>) -> Result<()> {
    // The cleanup has left no pins, so the nodes may be some on which nobody mounts bpffs.
    let unmount = "while grep -q ' /sys/fs/bpf bpf ' /proc/mounts; do umount /sys/fs/bpf; done";
    for (_, node) in POOLS {
        shell_on(stage.kubernetes.worker(node)?, unmount)?;
    }
    let kubernetes = &stage.kubernetes;
    kubernetes.kubectl(&["-n", NAME, "delete", "daemonset,serviceaccount", NAME])?;
    kubernetes.kubectl(&["delete", "clusterrole,clusterrolebinding", NAME])?;
    let chart = chart_place().display().to_string();
    let root = format!("cgroupRoot={}", cgroup::root()?.display());
    let values = ["--set", &root, "--set", "scope=all", "--set", "mountBpffs=true"];
    let values = [&values[..], &["--set", "dns.enabled=true"]].concat();
    let words = [&["install", NAME, &chart, "-n", NAME][..], &values].concat();
    kubernetes.plane().administer(&helm()?, &words)?;
    kubernetes.wait_for_agents()?;
    pods_stay_in_their_pool(kubernetes)?;
    kubernetes.plane().administer(&helm()?, &["test", NAME, "-n", NAME])?;
    let is_made = |it: &Objects| *it != Objects::default();
    ensure!(made(kubernetes)?.iter().all(is_made), "no pins in the new bpffs");
    stage.none_failed()
}
