//! topo-lb on a real cluster: kubelets, containerd, kube-proxy, real pods.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::cgroup;
use topo_lb_tests::deployment::{NAME, deploy, helm, kubectl};
use topo_lb_tests::kubernetes::parts::Parts;
use topo_lb_tests::kubernetes::worker::Worker;
use topo_lb_tests::kubernetes::{Kubernetes, Proxy, names, plan};
use topo_lb_tests::lab::{Scenario, play_all, within};
use topo_lb_tests::objects::Objects;
use topo_lb_tests::progress::Progress;
use topo_lb_tests::requirements;
use topo_lb_tests::wait::{patient, until};

const SOON: Duration = Duration::from_secs(60);

/// The pools, each with a node, servers and a client.
const POOLS: [(&str, &str); 2] = [("hangzhou", "node-a"), ("shanghai", "node-b")];

/// The Service that stays in its pool.
const SERVICE: &str = "svc-ud1";

/// How many requests a check of places makes.
const REQUESTS: usize = 20;
/// How many answers a change must be accompanied by, in each pool.
const ENOUGH: usize = 20;

#[test]
fn connections_of_real_pods_stay_in_their_pool_through_changes() -> Result<()> {
    requirements::command("curl", "curl")?;
    let names = names(2);
    within(&plan(&names), |cluster| {
        let parts = Parts::given()?;
        let mut kubernetes = Kubernetes::start(cluster, &parts, Proxy::TopoLb, Progress::new())?;
        let tutorial = deploy("examples/openyurt.yaml").display().to_string();
        kubernetes.kubectl(&["apply", "-f", &tutorial])?;
        for (pool, _) in POOLS {
            for number in [1, 2] {
                rolled_out(&kubernetes, &format!("deployment/united-deployment{number}-{pool}"))?;
            }
        }
        let scenarios: &[Scenario<Kubernetes<'_>>] = &[
            ("pods", |kubernetes| pods_stay_in_their_pool(kubernetes)),
            ("node and host network", processes_of_a_node_stay_in_its_pool),
            ("nothing and back", a_pool_without_pods_is_refused),
            ("pods killed", killed_pods_are_replaced_without_wrong_answers),
            ("rolling restart", a_rolling_restart_fails_no_connection),
            ("kubelet killed", a_node_without_kubelet_keeps_its_connections),
            ("API server killed", nodes_work_without_the_api_server),
            ("components", each_component_runs_on_a_kubelet),
            ("cleanup", the_cleanup_leaves_nothing_in_any_kernel),
            ("chart", the_chart_does_the_same),
        ];
        play_all(&mut kubernetes, |_| Ok(()), scenarios)
    })
}

fn rolled_out(kubernetes: &Kubernetes<'_>, what: &str) -> Result<()> {
    let limit = format!("--timeout={}s", patient(SOON).as_secs());
    kubernetes.kubectl(&["rollout", "status", what, &limit]).map(drop)
}

/// A shell's loop that asks the Service so many times, and prints who answers, one a line.
fn asking(times: usize, address: &str) -> String {
    format!(
        "for i in $(seq {times}); do curl -s -m 5 http://{address}/hostname || echo failed; echo; done"
    )
}

fn count(text: &str) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        *all.entry(line.to_owned()).or_default() += 1;
    }
    all
}

/// Who answers the client of a pool.
fn answers(
    kubernetes: &Kubernetes<'_>,
    client: &str,
    service: &str,
) -> Result<BTreeMap<String, usize>> {
    let script = asking(REQUESTS, service);
    Ok(count(&kubernetes.kubectl(&["exec", client, "--", "sh", "-c", &script])?))
}

fn client_of(pool: &str) -> String {
    format!("deploy/united-deployment2-{pool}")
}

/// Checks that only servers of the pool have answered.
fn only_from(pool: &str, answers: &BTreeMap<String, usize>) -> Result<()> {
    let prefix = format!("united-deployment1-{pool}-");
    let wrong: Vec<_> = answers.keys().filter(|name| !name.starts_with(&prefix)).collect();
    ensure!(wrong.is_empty() && !answers.is_empty(), "in {pool}: {answers:?}");
    Ok(())
}

fn cluster_ip(kubernetes: &Kubernetes<'_>) -> Result<String> {
    kubernetes.kubectl(&["get", "service", SERVICE, "-o", "jsonpath={.spec.clusterIP}"])
}

fn pods_stay_in_their_pool(kubernetes: &Kubernetes<'_>) -> Result<()> {
    for (pool, _) in POOLS {
        only_from(pool, &answers(kubernetes, &client_of(pool), SERVICE)?)?;
    }
    // Without the policy, the servers of both pools answer.
    let anywhere = answers(kubernetes, &client_of("hangzhou"), "svc-ud1-without-topology")?;
    for (pool, _) in POOLS {
        ensure!(anywhere.keys().any(|name| name.contains(pool)), "{anywhere:?}");
    }
    Ok(())
}

fn processes_of_a_node_stay_in_its_pool(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let address = cluster_ip(kubernetes)?;
    for (pool, node) in POOLS {
        let mut curl = Command::new("sh");
        curl.args(["-c", &asking(REQUESTS, &address)]);
        let said = kubernetes.worker(node)?.run(curl)?;
        only_from(pool, &count(&said)).context("from the node")?;

        let name = format!("host-{node}");
        let spec = serde_json::json!({"spec": {
            "nodeName": node, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
        }});
        let spec = format!("--overrides={spec}");
        let image = "--image=k8s.gcr.io/e2e-test-images/agnhost:2.21";
        kubernetes.kubectl(&["run", &name, image, "--restart=Never", &spec, "--", "pause"])?;
        let limit = format!("--timeout={}s", patient(SOON).as_secs());
        kubernetes.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &limit])?;
        only_from(pool, &answers(kubernetes, &name, &address)?)
            .context("from the host's network")?;
        kubernetes.kubectl(&["delete", "pod", &name, "--wait=false"])?;
    }
    Ok(())
}

fn a_pool_without_pods_is_refused(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let address = cluster_ip(kubernetes)?;
    let servers = "deployment/united-deployment1-hangzhou";
    // curl's exit code 7: refused. A packet that is lost would be 28.
    let script = format!("curl -s -m 5 http://{address}/hostname; echo code $?");
    let once = |kubernetes: &Kubernetes<'_>, pool: &str| {
        kubernetes.kubectl(&["exec", &client_of(pool), "--", "sh", "-c", &script])
    };
    kubernetes.kubectl(&["scale", servers, "--replicas=0"])?;
    until("refusal in a pool without pods", SOON, || {
        let said = once(kubernetes, "hangzhou")?;
        Ok(if said.contains("code 7") { Ok(()) } else { Err(said) })
    })?;
    only_from("shanghai", &answers(kubernetes, &client_of("shanghai"), SERVICE)?)?;
    kubernetes.kubectl(&["scale", servers, "--replicas=2"])?;
    rolled_out(kubernetes, servers)?;
    until("answers in a pool with pods again", SOON, || {
        let said = once(kubernetes, "hangzhou")?;
        Ok(if said.contains("code 0") { Ok(()) } else { Err(said) })
    })?;
    only_from("hangzhou", &answers(kubernetes, &client_of("hangzhou"), SERVICE)?)
}

/// Connections from the client of every pool, one after another, until stopped.
struct Load {
    clients: Vec<(&'static str, Child)>,
}

impl Load {
    fn start(kubernetes: &Kubernetes<'_>) -> Result<Self> {
        let address = cluster_ip(kubernetes)?;
        let kubeconfig = kubernetes.kubeconfig()?;
        let script = format!(
            "rm -f /tmp/stop; while [ ! -e /tmp/stop ]; do \
             curl -s -m 5 http://{address}/hostname || echo failed; echo; done"
        );
        let client = |(pool, _): (&'static str, &str)| {
            let mut command = Command::new(kubectl()?);
            command
                .env("KUBECONFIG", &kubeconfig)
                .args(["exec", &client_of(pool), "--", "sh", "-c", &script])
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            Ok((pool, command.spawn().context("cannot start kubectl")?))
        };
        let clients = POOLS.into_iter().map(client).collect::<Result<_>>()?;
        Ok(Self { clients })
    }

    /// Stops it, and checks that enough was answered, nothing failed, and nobody else answered.
    fn check(self, kubernetes: &Kubernetes<'_>) -> Result<()> {
        for (pool, _) in &self.clients {
            kubernetes.kubectl(&["exec", &client_of(pool), "--", "touch", "/tmp/stop"])?;
        }
        for (pool, child) in self.clients {
            let output = child.wait_with_output().context("cannot wait for kubectl")?;
            let answers = count(&String::from_utf8_lossy(&output.stdout));
            only_from(pool, &answers)?;
            let total: usize = answers.values().sum();
            eprintln!("    {pool}: {total} connections, none failed");
            ensure!(total >= ENOUGH, "only {total} in {pool}");
        }
        Ok(())
    }
}

fn killed_pods_are_replaced_without_wrong_answers(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let selector = "app=united-deployment1,pool=hangzhou";
    let pods = kubernetes.kubectl(&["get", "pods", "-l", selector, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    // Those that were scaled away may still be ending.
    let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let victim = pods["items"].as_array().into_iter().flatten().find(stays);
    let gone = victim.and_then(|pod| pod["metadata"]["name"].as_str());
    let gone = gone.context("a pool has servers")?;
    kubernetes.kubectl(&["delete", "pod", gone, "--grace-period=0", "--force"])?;
    rolled_out(kubernetes, "deployment/united-deployment1-hangzhou")?;
    until("answers without the pod that was killed", SOON, || {
        let answers = answers(kubernetes, &client_of("hangzhou"), SERVICE)?;
        let right = only_from("hangzhou", &answers).is_ok() && !answers.contains_key(gone);
        Ok(if right { Ok(()) } else { Err(format!("{answers:?}")) })
    })?;
    Ok(())
}

fn a_rolling_restart_fails_no_connection(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let load = Load::start(kubernetes)?;
    kubernetes.kubectl(&["-n", NAME, "rollout", "restart", "daemonset", NAME])?;
    kubernetes.wait_for_agents()?;
    load.check(kubernetes)
}

fn a_node_without_kubelet_keeps_its_connections(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    kubernetes.worker("node-a")?.kill_kubelet();
    let address = cluster_ip(kubernetes)?;
    let mut curl = Command::new("sh");
    curl.args(["-c", &asking(REQUESTS, &address)]);
    let said = kubernetes.worker("node-a")?.run(curl)?;
    kubernetes.worker("node-a")?.start_kubelet()?;
    only_from("hangzhou", &count(&said))?;
    until("a kubelet that serves again", SOON, || {
        Ok(answers(kubernetes, &client_of("hangzhou"), SERVICE)
            .map_err(|error| format!("{error:#}"))
            .and_then(|it| only_from("hangzhou", &it).map_err(|error| format!("{error:#}"))))
    })?;
    Ok(())
}

fn nodes_work_without_the_api_server(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let address = cluster_ip(kubernetes)?;
    kubernetes.plane_mut().kill_api_server();
    let outcome = POOLS.into_iter().try_for_each(|(pool, node)| {
        let mut curl = Command::new("sh");
        curl.args(["-c", &asking(REQUESTS, &address)]);
        only_from(pool, &count(&kubernetes.worker(node)?.run(curl)?))
    });
    kubernetes.plane_mut().start_api_server()?;
    outcome?;
    pods_stay_in_their_pool(kubernetes)?;
    kubernetes.wait_for_agents()
}

fn each_component_runs_on_a_kubelet(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    // A rollout takes half a minute, so all at once.
    let all = ["end-sockets", "metrics", "mount-bpffs", "exclude-pods"];
    for (overlay, components) in [("all", &all[..]), ("opt-in", &[])] {
        kubernetes.apply(overlay, components).context(overlay)?;
        kubernetes.wait_for_agents().context(overlay)?;
        pods_stay_in_their_pool(kubernetes).context(overlay)?;
    }
    Ok(())
}

/// What the agents have made on every node.
fn made(kubernetes: &Kubernetes<'_>) -> Result<Vec<Objects>> {
    kubernetes.workers().iter().map(Worker::objects).collect()
}

fn all_gone(kubernetes: &Kubernetes<'_>, made: Vec<Objects>) -> Result<()> {
    for (worker, objects) in kubernetes.workers().iter().zip(made) {
        objects.wait_until_gone().with_context(|| format!("on {}", worker.name()))?;
        ensure!(!worker.seen("sys/fs/bpf/topo-lb").exists(), "{} has pins left", worker.name());
    }
    // kube-proxy alone serves the Services again.
    let anywhere = answers(kubernetes, &client_of("hangzhou"), "svc-ud1-without-topology")?;
    ensure!(anywhere.keys().all(|name| name.starts_with("united-deployment1-")), "{anywhere:?}");
    Ok(())
}

fn the_cleanup_leaves_nothing_in_any_kernel(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    let made = made(kubernetes)?;
    kubernetes.apply("cleanup", &[])?;
    kubernetes.wait_for_agents()?;
    all_gone(kubernetes, made)
}

fn the_chart_does_the_same(kubernetes: &mut Kubernetes<'_>) -> Result<()> {
    kubernetes.kubectl(&["delete", "namespace", NAME])?;
    kubernetes.kubectl(&["delete", "clusterrole,clusterrolebinding", NAME])?;
    let chart = deploy("helm/topo-lb").display().to_string();
    let root = format!("cgroupRoot={}", cgroup::root()?.display());
    let apply = |value: &str| {
        let values = ["--set", &root, "--set", "scope=all", "--set", value];
        let place = ["-n", NAME, "--create-namespace", "--install"];
        let words = [&["upgrade", NAME, &chart], &place[..], &values].concat();
        kubernetes.plane().administer(&helm()?, &words)?;
        kubernetes.wait_for_agents()
    };
    apply("cleanup=false")?;
    pods_stay_in_their_pool(kubernetes)?;
    let made = made(kubernetes)?;
    apply("cleanup=true")?;
    all_gone(kubernetes, made)
}
