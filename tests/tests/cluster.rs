//! topo-lb on a real cluster: kubelets, containerd, real pods, with kube-proxy and without it.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use rustix::thread::{CapabilitySet, capability_is_in_bounding_set};
use serde_json::Value;
use topo_lb_tests::cgroup;
use topo_lb_tests::deployment::{NAME, deploy, helm};
use topo_lb_tests::kubernetes::parts::Parts;
use topo_lb_tests::kubernetes::worker::Worker;
use topo_lb_tests::kubernetes::{Kubernetes, LAST_RELEASE, Proxy, VERSION, names, plan};
use topo_lb_tests::lab::{Scenario, play_all, within};
use topo_lb_tests::objects::Objects;
use topo_lb_tests::process::printed;
use topo_lb_tests::progress::Progress;
use topo_lb_tests::requirements;
use topo_lb_tests::wait::{patient, until};

const SOON: Duration = Duration::from_secs(60);

/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(60);

/// The pools, each with a node, servers and a client.
const POOLS: [(&str, &str); 2] = [("hangzhou", "node-a"), ("shanghai", "node-b")];

/// The Service that stays in its pool.
const SERVICE: &str = "svc-ud1";

/// How many requests a check of places makes.
const REQUESTS: usize = 20;

/// In place of a server's name: nobody answered.
const FAILED: &str = "failed";

#[test]
fn connections_of_real_pods_stay_in_their_pool_through_changes() -> Result<()> {
    requirements::command("curl", "curl")?;
    let names = names(2);
    within(&plan(&names), |cluster| {
        let parts = Parts::given()?;
        let kubernetes = Kubernetes::start(cluster, &parts, Proxy::Beside, Progress::new())?;
        let tutorial = deploy("examples/openyurt.yaml").display().to_string();
        kubernetes.kubectl(&["apply", "-f", &tutorial])?;
        for (pool, _) in POOLS {
            for number in [1, 2] {
                rolled_out(&kubernetes, &format!("deployment/united-deployment{number}-{pool}"))?;
            }
        }
        let load = Load::start(&kubernetes)?;
        let has_last_release = parts.last_release();
        let scenarios: &[Scenario<Stage<'_>>] = &[
            ("pods", |stage| pods_stay_in_their_pool(&stage.kubernetes)),
            ("node and host network", processes_of_a_node_stay_in_its_pool),
            ("nothing and back", a_pool_without_pods_is_refused),
            ("pods killed", killed_pods_are_replaced_without_wrong_answers),
            ("rolling update to all components", each_component_runs_on_a_kubelet),
            ("upgrade", an_upgrade_and_its_way_back_fail_no_connection),
            ("kubelet killed", a_node_without_kubelet_keeps_its_connections),
            ("agent hangs, and the API server is away", a_node_works_and_mends_itself_alone),
            ("cleanup", the_cleanup_leaves_nothing_in_any_kernel),
            ("chart", the_chart_does_the_same),
        ];
        // What a scenario did not look at is not the next one's.
        let begin = |stage: &mut Stage<'_>| stage.look().map(drop);
        play_all(&mut Stage { kubernetes, load, has_last_release }, begin, scenarios)
    })
}

#[test]
fn a_cluster_without_kube_proxy_serves_pods_nodes_and_clients_outside() -> Result<()> {
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
        pods_stay_in_their_pool(&kubernetes)?;
        let anywhere = node_port(&kubernetes, "svc-ud1-without-topology")?;
        let pool_only = node_port(&kubernetes, SERVICE)?;
        for (pool, node) in POOLS {
            let address = kubernetes.kubectl(&["get", "node", node, "-o", ADDRESS])?;
            let outside = |port: &str| {
                let script = asking(&format!("{address}:{port}"));
                let mut curl = Command::new("sh");
                curl.args(["-c", &script]);
                cluster.fabric().run(|| printed(&mut curl)).map(|text| count(&text))
            };
            until("a node port that answers outside", SOON, || {
                let [any, own] = [outside(&anywhere)?, outside(&pool_only)?];
                let right = is_from_anywhere(&any) && only_from(pool, &own).is_ok();
                Ok(if right { Ok(()) } else { Err(format!("{node}: {any:?}, {own:?}")) })
            })?;
            // From both nodes' pods, at this node.
            for (from, _) in POOLS {
                let answers =
                    answers(&kubernetes, &client_of(from), &format!("{address}:{anywhere}"))?;
                ensure!(is_from_anywhere(&answers), "from a pod of {from} at {node}: {answers:?}");
            }
            let script = asking(&format!("127.0.0.1:{pool_only}"));
            let answers = count(&shell_on(kubernetes.worker(node)?, &script)?);
            only_from(pool, &answers).context("from the node itself")?;
        }
        Ok(())
    })
}

/// Where kubectl finds the address of a node.
const ADDRESS: &str = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#;

/// Gives a Service a node port.
fn node_port(kubernetes: &Kubernetes<'_>, service: &str) -> Result<String> {
    let patch = r#"{"spec": {"type": "NodePort"}}"#;
    kubernetes.kubectl(&["patch", "service", service, "-p", patch])?;
    kubernetes.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.ports[0].nodePort}"])
}

/// The cluster, and what goes on in it all the time.
struct Stage<'a> {
    kubernetes: Kubernetes<'a>,
    load: Load,
    has_last_release: bool,
}

/// Answers, each with its number: the names of servers, or `failed`.
type Answers = BTreeMap<String, usize>;

/// Connections from the client of every pool, one after another, in the pods themselves: they go on
/// whatever ends outside.
struct Load {
    /// How many answers were looked at, by pool.
    seen: BTreeMap<&'static str, usize>,
}

impl Load {
    fn start(kubernetes: &Kubernetes<'_>) -> Result<Self> {
        let address = cluster_ip(kubernetes)?;
        let ask = ask(&address);
        let script =
            format!("while sleep 0.1; do {ask}; done < /dev/null >> /tmp/answers 2> /dev/null &");
        for (pool, _) in POOLS {
            kubernetes.kubectl(&["exec", &client_of(pool), "--", "sh", "-c", &script])?;
        }
        Ok(Self { seen: POOLS.map(|(pool, _)| (pool, 0)).into() })
    }

    /// The answers of a pool's client since the last look.
    fn answers(&mut self, kubernetes: &Kubernetes<'_>, pool: &'static str) -> Result<Answers> {
        let seen = self.seen.entry(pool).or_default();
        let new = format!("+{}", *seen + 1);
        let tail = ["exec", &client_of(pool), "--", "tail", "-n", &new, "/tmp/answers"];
        let answers = count(&kubernetes.kubectl(&tail)?);
        *seen += answers.values().sum::<usize>();
        Ok(answers)
    }
}

impl Stage<'_> {
    /// The answers of every pool's client since the last look.
    fn look(&mut self) -> Result<Vec<(&'static str, Answers)>> {
        let look = |(pool, _)| Ok((pool, self.load.answers(&self.kubernetes, pool)?));
        POOLS.into_iter().map(look).collect()
    }

    /// Checks that since the last look no connection of any pool failed or left its pool.
    fn nothing_failed(&mut self) -> Result<()> {
        self.nothing_failed_but_in("")
    }

    /// Like [`nothing_failed`](Self::nothing_failed), where connections of a pool may fail: none may
    /// leave it.
    fn nothing_failed_but_in(&mut self, allowed: &str) -> Result<()> {
        let judge = |(pool, mut answers): (&str, Answers)| {
            let failed = (pool == allowed).then(|| answers.remove(FAILED)).flatten();
            let answered: usize = answers.values().sum();
            eprintln!("    {pool}: {answered} answers, {} failed", failed.unwrap_or(0));
            only_from(pool, &answers)
        };
        self.look()?.into_iter().try_for_each(judge)
    }

    /// Checks that since the last look no connection failed, whoever answered.
    fn none_failed(&mut self) -> Result<()> {
        for (pool, answers) in self.look()? {
            ensure!(is_of_servers(&answers), "in {pool}: {answers:?}");
        }
        Ok(())
    }
}

fn limit() -> String {
    format!("--timeout={}s", patient(SOON).as_secs())
}

fn rolled_out(kubernetes: &Kubernetes<'_>, what: &str) -> Result<()> {
    kubernetes.kubectl(&["rollout", "status", what, &limit()]).map(drop)
}

/// A shell's command that asks the Service, and prints who answers in a line.
fn ask(address: &str) -> String {
    format!(
        "answer=$(curl -sf -m 5 http://{address}/hostname) && echo ${{answer:-empty}} || echo {FAILED}"
    )
}

/// A shell's loop of [`ask`].
fn asking(address: &str) -> String {
    format!("for i in $(seq {REQUESTS}); do {}; done", ask(address))
}

fn count(text: &str) -> Answers {
    let mut all = Answers::new();
    for line in text.lines() {
        *all.entry(line.to_owned()).or_default() += 1;
    }
    all
}

/// Who answers the client of a pool.
fn answers(kubernetes: &Kubernetes<'_>, client: &str, service: &str) -> Result<Answers> {
    let script = asking(service);
    Ok(count(&kubernetes.kubectl(&["exec", client, "--", "sh", "-c", &script])?))
}

fn client_of(pool: &str) -> String {
    format!("deploy/united-deployment2-{pool}")
}

/// Checks that only servers of the pool have answered.
fn only_from(pool: &str, answers: &Answers) -> Result<()> {
    let prefix = format!("united-deployment1-{pool}-");
    let wrong: Vec<_> = answers.keys().filter(|name| !name.starts_with(&prefix)).collect();
    ensure!(wrong.is_empty() && !answers.is_empty(), "in {pool}: {answers:?}");
    Ok(())
}

/// Whether servers have answered, of any pool, and nothing failed.
fn is_of_servers(answers: &Answers) -> bool {
    !answers.is_empty() && answers.keys().all(|name| name.starts_with("united-deployment1-"))
}

/// Whether servers of every pool have answered, and nothing failed.
fn is_from_anywhere(answers: &Answers) -> bool {
    let answered = |pool: &str| answers.keys().any(|name| name.contains(pool));
    is_of_servers(answers) && POOLS.iter().all(|(pool, _)| answered(pool))
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
    ensure!(is_from_anywhere(&anywhere), "{anywhere:?}");
    Ok(())
}

/// Who answers a program on a node itself.
fn answers_on(stage: &mut Stage<'_>, node: &str, address: &str) -> Result<Answers> {
    shell_on(stage.kubernetes.worker(node)?, &asking(address)).map(|text| count(&text))
}

fn shell_on(worker: &Worker<'_>, script: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    worker.run(shell)
}

fn processes_of_a_node_stay_in_its_pool(stage: &mut Stage<'_>) -> Result<()> {
    let address = cluster_ip(&stage.kubernetes)?;
    for (pool, node) in POOLS {
        only_from(pool, &answers_on(stage, node, &address)?).context("from the node")?;
    }
    let kubernetes = &stage.kubernetes;
    for (_, node) in POOLS {
        let spec = serde_json::json!({"spec": {
            "nodeName": node, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
        }});
        let spec = format!("--overrides={spec}");
        let name = format!("host-{node}");
        let image = "--image=k8s.gcr.io/e2e-test-images/agnhost:2.21";
        kubernetes.kubectl(&["run", &name, image, "--restart=Never", &spec, "--", "pause"])?;
    }
    for (pool, node) in POOLS {
        let name = format!("host-{node}");
        kubernetes.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), &limit()])?;
        only_from(pool, &answers(kubernetes, &name, &address)?)
            .context("from the host's network")?;
        kubernetes.kubectl(&["delete", "pod", &name, "--wait=false"])?;
    }
    stage.nothing_failed()
}

fn a_pool_without_pods_is_refused(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
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
    stage.nothing_failed_but_in("hangzhou")
}

fn killed_pods_are_replaced_without_wrong_answers(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
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
    // A pod that is killed answers no more, before anybody can know.
    stage.nothing_failed_but_in("hangzhou")
}

fn an_upgrade_and_its_way_back_fail_no_connection(stage: &mut Stage<'_>) -> Result<()> {
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

/// The agent of a node as its kubelet sees it: whether it is ready, and how often it was restarted.
fn seen_by_the_kubelet(kubernetes: &Kubernetes<'_>, node: &str) -> Result<(bool, u64)> {
    let of_the_node = format!("--field-selector=spec.nodeName={node}");
    let pods = kubernetes.kubectl(&["-n", NAME, "get", "pods", &of_the_node, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    let agent = &pods["items"][0]["status"]["containerStatuses"][0];
    let is_ready = agent["ready"].as_bool().context("an agent has a status")?;
    Ok((is_ready, agent["restartCount"].as_u64().context("an agent has a status")?))
}

fn a_node_without_kubelet_keeps_its_connections(stage: &mut Stage<'_>) -> Result<()> {
    let (pool, node) = POOLS[0];
    let address = cluster_ip(&stage.kubernetes)?;
    stage.kubernetes.worker(node)?.kill_kubelet();
    let said = answers_on(stage, node, &address);
    stage.kubernetes.worker(node)?.start_kubelet()?;
    only_from(pool, &said?)?;
    until("a kubelet that serves again", SOON, || {
        let answers = answers(&stage.kubernetes, &client_of(pool), SERVICE);
        Ok(answers.map(drop).map_err(|error| format!("{error:#}")))
    })?;
    // A kubelet that starts takes its pods for unready until it has asked them (kubernetes#78733), and
    // a pool without ready pods refuses.
    stage.nothing_failed_but_in(pool)?;
    until("seconds without a failure", SOON, || {
        sleep(Duration::from_secs(3));
        let outcome = stage.nothing_failed();
        Ok(outcome.map_err(|error| format!("{error:#}")))
    })
    .map(drop)
}

/// An agent hangs: its kubelet finds out, and starts it again although the API server is away.
fn a_node_works_and_mends_itself_alone(stage: &mut Stage<'_>) -> Result<()> {
    let (_, node) = POOLS[1];
    let wait = |stage: &Stage<'_>, what: &str, wanted: (bool, u64)| {
        until(what, SOON, || {
            let seen = seen_by_the_kubelet(&stage.kubernetes, node)?;
            Ok(if seen == wanted { Ok(()) } else { Err(format!("{seen:?}")) })
        })
    };
    wait(stage, "an agent that is ready", (true, 0))?;
    let address = cluster_ip(&stage.kubernetes)?;
    let begun = Instant::now();
    // Controllers end when they cannot renew their leases; these have none, so they are ended. They
    // would otherwise take the nodes for dead, and their pods for unready, when the API server is back.
    stage.kubernetes.plane_mut().kill_controllers();
    stage.kubernetes.plane_mut().kill_api_server();
    // Only now: its kubelet may start it again within seconds.
    let agent = stage.kubernetes.worker(node)?.process("topo-lb")?;
    kill_process(agent, Signal::STOP).context("cannot stop an agent")?;
    let mut alone = || {
        until("an agent that was started again", SOON, || {
            let now = stage.kubernetes.worker(node)?.process("topo-lb");
            Ok(if now.is_ok_and(|now| now != agent) { Ok(()) } else { Err("none") })
        })?;
        POOLS
            .into_iter()
            .try_for_each(|(pool, node)| only_from(pool, &answers_on(stage, node, &address)?))
    };
    let outcome = alone();
    sleep(AWAY.saturating_sub(begun.elapsed()));
    stage.kubernetes.plane_mut().start_api_server()?;
    stage.kubernetes.plane_mut().start_all_controllers()?;
    outcome?;
    stage.kubernetes.wait_for_nodes()?;
    stage.kubernetes.wait_for_agents()?;
    wait(stage, "an agent that was restarted", (true, 1))?;
    stage.nothing_failed()
}

fn each_component_runs_on_a_kubelet(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let mut components = vec!["end-sockets", "metrics", "mount-bpffs", "exclude-pods"];
    // A container cannot have what the machine does not.
    let may = capability_is_in_bounding_set(CapabilitySet::SYS_RESOURCE)?;
    components.extend(may.then_some("sys-resource"));
    eprintln!("    components: {}", components.join(", "));
    kubernetes.apply("opt-in", &components)?;
    kubernetes.wait_for_agents()?;
    stage.nothing_failed()?;
    an_excluded_pod_asks_kube_proxy(&stage.kubernetes)?;
    a_socket_to_a_pod_that_is_gone_ends(&stage.kubernetes)
}

fn an_excluded_pod_asks_kube_proxy(kubernetes: &Kubernetes<'_>) -> Result<()> {
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

/// A connected UDP socket of a pod ends with its endpoint, and the metrics on the node's address
/// tell.
fn a_socket_to_a_pod_that_is_gone_ends(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let (pool, _) = POOLS[0];
    let servers = format!("deployment/united-deployment1-{pool}");
    let expose = ["--name=datagrams", "--protocol=UDP", "--port=8081"];
    kubernetes.kubectl(&[&["expose", &servers][..], &expose].concat())?;
    let policy = "topo-lb.io/topology-keys=kubernetes.io/hostname,*";
    kubernetes.kubectl(&["annotate", "service", "datagrams", policy])?;
    let path = "jsonpath={.spec.clusterIP}";
    let address = kubernetes.kubectl(&["get", "service", "datagrams", "-o", path])?;
    let talk = format!(
        "(while :; do echo hostname; sleep 1; done | nc -u {address} 8081) \
         < /dev/null > /tmp/datagrams 2>&1 &"
    );
    let client = client_of(pool);
    kubernetes.kubectl(&["exec", &client, "--", "sh", "-c", &talk])?;
    until("an answer over UDP", SOON, || {
        let said = kubernetes.kubectl(&["exec", &client, "--", "cat", "/tmp/datagrams"])?;
        Ok(if said.contains(pool) { Ok(()) } else { Err(said) })
    })?;
    kubernetes.kubectl(&["scale", &servers, "--replicas=0"])?;
    let [here, other] = kubernetes.workers() else { anyhow::bail!("there are two nodes") };
    let ended = "topo_lb_ended_sockets_total{protocol=\"udp\"} ";
    let metrics = format!("curl -s -m 5 http://{}:19876/metrics", here.address());
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
fn made(kubernetes: &Kubernetes<'_>) -> Result<Vec<Objects>> {
    kubernetes.workers().iter().map(Worker::objects).collect()
}

fn all_gone(kubernetes: &Kubernetes<'_>, made: Vec<Objects>) -> Result<()> {
    for (worker, objects) in kubernetes.workers().iter().zip(made) {
        objects.wait_until_gone().with_context(|| format!("on {}", worker.name()))?;
        ensure!(!worker.seen("sys/fs/bpf/topo-lb").exists(), "{} has pins left", worker.name());
    }
    // kube-proxy alone serves the Services again.
    let anywhere = answers(kubernetes, &client_of("hangzhou"), SERVICE)?;
    ensure!(is_from_anywhere(&anywhere), "{anywhere:?}");
    Ok(())
}

fn the_cleanup_leaves_nothing_in_any_kernel(stage: &mut Stage<'_>) -> Result<()> {
    let kubernetes = &stage.kubernetes;
    let made = made(kubernetes)?;
    kubernetes.apply("cleanup", &[])?;
    kubernetes.wait_for_agents()?;
    all_gone(kubernetes, made)?;
    stage.none_failed()
}

fn the_chart_does_the_same(stage: &mut Stage<'_>) -> Result<()> {
    // The cleanup has left no pins, so the nodes may be some on which nobody mounts bpffs.
    let unmount = "while grep -q ' /sys/fs/bpf bpf ' /proc/mounts; do umount /sys/fs/bpf; done";
    for (_, node) in POOLS {
        shell_on(stage.kubernetes.worker(node)?, unmount)?;
    }
    let kubernetes = &stage.kubernetes;
    kubernetes.kubectl(&["-n", NAME, "delete", "daemonset,serviceaccount", NAME])?;
    kubernetes.kubectl(&["delete", "clusterrole,clusterrolebinding", NAME])?;
    let chart = deploy("helm/topo-lb").display().to_string();
    let root = format!("cgroupRoot={}", cgroup::root()?.display());
    let values = ["--set", &root, "--set", "scope=all", "--set", "mountBpffs=true"];
    let words = [&["install", NAME, &chart, "-n", NAME][..], &values].concat();
    kubernetes.plane().administer(&helm()?, &words)?;
    kubernetes.wait_for_agents()?;
    pods_stay_in_their_pool(kubernetes)?;
    let is_made = |it: &Objects| *it != Objects::default();
    ensure!(made(kubernetes)?.iter().all(is_made), "no pins in the new bpffs");
    stage.none_failed()
}
