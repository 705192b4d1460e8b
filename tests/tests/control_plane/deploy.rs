//! deploy/ and a real API server: it accepts all objects, and an agent needs exactly these grants.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};
use topo_lb::cli::name::PLUGIN;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::control_plane::ControlPlane;
use topo_lb_tests::deployment::{
    NAME, chart, deploy, helm, kubectl, one, overlay, overlay_with, release,
};
use topo_lb_tests::folder::Folder;
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::prefix::Prefix;
use topo_lb_tests::process::{only_with, printed};
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{HERE, KEYS, ZONE};
use topo_lb_tests::wait::{until, until_is};

const SOON: Duration = Duration::from_secs(30);

/// The labels that every object of the chart has; those of kustomize need none but the first.
const LABELS: [&str; 5] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// Sorts objects, volumes and variables by name. Checks the order that matters: HOST_IP before its use.
fn by_name(mut objects: Vec<Value>) -> Result<Vec<Value>> {
    // `helm install --create-namespace` makes the namespace.
    objects.retain(|object| object["kind"] != "Namespace");
    for object in &mut objects {
        let metadata = object["metadata"].as_object_mut().context("there is metadata")?;
        for (list, chart_only) in
            [("labels", &LABELS[..]), ("annotations", &["helm.sh/resource-policy"])]
        {
            if let Some(all) = metadata.get_mut(list).and_then(Value::as_object_mut) {
                all.retain(|name, _| !chart_only.contains(&name.as_str()));
            }
        }
        metadata.retain(|_, field| field != &json!({}));
    }
    objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    let daemon = objects.iter_mut().find(|object| object["kind"] == "DaemonSet");
    let pod = &mut daemon.context("there is a DaemonSet")?["spec"]["template"]["spec"];
    if let Some(volumes) = pod["volumes"].as_array_mut() {
        volumes.sort_by_key(|volume| volume["name"].to_string());
    }
    for list in ["containers", "initContainers"] {
        for container in pod[list].as_array_mut().into_iter().flatten() {
            let Some(variables) = container["env"].as_array_mut() else { continue };
            let position = |name| variables.iter().position(|one| one["name"] == name);
            if let Some(metrics) = position("TOPO_LB_METRICS_LISTEN") {
                let host = position("HOST_IP").context("HOST_IP is not set")?;
                ensure!(host < metrics, "HOST_IP is not known yet there");
            }
            variables.sort_by_key(|variable| variable["name"].to_string());
        }
    }
    Ok(objects)
}

#[test]
fn the_chart_is_what_kustomize_makes() -> Result<()> {
    let pairs = [
        (chart(&[])?, overlay("opt-in")?),
        (chart(&["scope=all"])?, overlay("all")?),
        (
            chart(&["kubeProxyReplacement=true", "k8sServiceHost=control-plane.example.com"])?,
            overlay("kube-proxy-replacement")?,
        ),
        (
            chart(&[
                "kubeProxyReplacement=true",
                "k8sServiceHost=control-plane.example.com",
                "directReturn=true",
            ])?,
            overlay_with("kube-proxy-replacement", &["direct-return"])?,
        ),
        (chart(&["cleanup=true"])?, overlay("cleanup")?),
        (
            chart(&["listen.onNode=true", "mountBpffs=true"])?,
            overlay_with("opt-in", &["metrics", "mount-bpffs"])?,
        ),
        (chart(&["endSockets=true"])?, overlay_with("opt-in", &["end-sockets"])?),
        (chart(&["sysResource=true"])?, overlay_with("opt-in", &["sys-resource"])?),
        (
            chart(&["cgroupRoot=/sys/fs/cgroup/unified", "cleanup=true"])?,
            overlay_with("cleanup", &["cgroup-unified"])?,
        ),
        (chart(&["exclude.annotatedPods=true"])?, overlay_with("opt-in", &["exclude-pods"])?),
        (chart(&["steer.annotatedPods=true"])?, overlay_with("opt-in", &["steer-pods"])?),
        (chart(&["dns.enabled=true"])?, overlay_with("opt-in", &["dns"])?),
        (chart(&["policies.install=true"])?, overlay_with("opt-in", &["policies"])?),
        (
            chart(&["view.enabled=true", "listen.onNode=true"])?,
            overlay_with("opt-in", &["metrics", "view"])?,
        ),
        (
            chart(&[
                "listen.onNode=true",
                "podMonitor.enabled=true",
                "prometheusRule.enabled=true",
            ])?,
            overlay_with("opt-in", &["metrics", "prometheus"])?,
        ),
    ];
    for (chart, overlay) in pairs {
        let (chart, overlay) = (by_name(chart)?, by_name(overlay)?);
        for (ours, theirs) in chart.iter().zip(&overlay) {
            ensure!(ours == theirs, "chart:\n{ours:#}\nkustomize:\n{theirs:#}");
        }
        ensure!(chart.len() == overlay.len(), "{} and {}", chart.len(), overlay.len());
    }
    Ok(())
}

#[test]
fn a_value_that_the_chart_does_not_know_is_refused() -> Result<()> {
    for wrong in [
        "scop=all",
        "scope=some",
        "count=none",
        "listen.port=0",
        "stateDir=relative",
        "exclude.namespaces={A}",
        "dns.service=kube-dns",
        "dns.domain=a..b",
        "dns.port=65536",
        "pins=../elsewhere",
        "seccompProfile=Localhost/",
        "fullnameOverride=Far",
        "updateStrategy.type=Never",
    ] {
        let error = chart(&[wrong]).err().with_context(|| format!("{wrong} was taken"))?;
        ensure!(format!("{error:#}").contains("values don't meet"), "{wrong}: {error:#}");
    }
    Ok(())
}

/// The values files for Helm's linters, by name.
fn values_files() -> Result<Vec<String>> {
    let files = fs::read_dir(deploy("helm/topo-lb/ci"))?;
    let mut paths =
        files.map(|file| Ok(file?.path().display().to_string())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    ensure!(paths.len() > 5, "{paths:?}");
    Ok(paths)
}

#[test]
fn the_chart_passes_helms_linter_with_every_values_file() -> Result<()> {
    for file in values_files()? {
        let mut lint = Command::new(helm()?);
        lint.args(["lint", "--strict", "--values", &file]).arg(deploy("helm/topo-lb"));
        printed(&mut lint)?;
        for object in release("far", &["--values", &file])? {
            let labels = &object["metadata"]["labels"];
            let is_whole = LABELS.iter().all(|name| labels[name].is_string());
            // Definitions and roles are the cluster's, and the Pod of `helm test` is no agent.
            let is_shared = ["CustomResourceDefinition", "Pod"].contains(&text(&object["kind"]))
                || text(&object["metadata"]["name"]).starts_with("topo-lb-policies-");
            ensure!(is_whole != is_shared, "{file}: {object:#}");
        }
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn two_releases_share_no_object_and_select_only_their_own_pods() -> Result<()> {
    let identity = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"])
    };
    let one_release = |name: &str| -> Result<(BTreeSet<String>, Value)> {
        let monitor = ["listen.onNode", "podMonitor.enabled", "prometheusRule.enabled"];
        let more = ["dashboard.enabled", "resourceQuota.enabled"];
        let on: Vec<_> = monitor.iter().chain(&more).map(|it| format!("{it}=true")).collect();
        let flags: Vec<_> = on.iter().flat_map(|value| ["--set", value]).collect();
        let objects = release(name, &flags)?;
        let daemon = one(&objects, "DaemonSet")?["spec"].clone();
        let selected = &daemon["selector"]["matchLabels"];
        ensure!(selected == &daemon["template"]["metadata"]["labels"], "{daemon:#}");
        let monitored = &one(&objects, "PodMonitor")?["spec"]["selector"]["matchLabels"];
        ensure!(selected == monitored, "{monitored}");
        Ok((objects.iter().map(identity).collect(), selected.clone()))
    };
    let (near, far) = (one_release(NAME)?, one_release("far")?);
    ensure!(near.0.len() > 8, "{near:?}");
    ensure!(near.0.is_disjoint(&far.0) && near.1 != far.1, "{near:?} and {far:?}");
    Ok(())
}

#[test]
fn what_is_given_to_the_chart_gets_to_the_agent() -> Result<()> {
    let file = deploy("helm/topo-lb/ci/everything-values.yaml").display().to_string();
    let objects = release("far", &["--values", &file])?;
    let daemon = one(&objects, "DaemonSet")?;
    let pod = &daemon["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for (name, value) in [
        ("TOPO_LB_PIN_DIR", "/run/topo-lb/bpf/far-lb"),
        ("TOPO_LB_KUBECONFIG", "/etc/topo-lb/kubeconfig/config"),
        ("TOPO_LB_FRONTENDS", "all"),
        ("TOPO_LB_LISTEN", "127.0.0.1:29876"),
        ("TOPO_LB_DNS", "true"),
        ("TOPO_LB_DNS_SERVICE", "kube-system/far-dns"),
        ("TOPO_LB_DNS_DOMAIN", "far.example"),
        ("TOPO_LB_DNS_PORT", "20053"),
    ] {
        ensure!(variable(container, name) == Some(value), "{name}: {container:#}");
    }
    let secret = volume(pod, container, "/etc/topo-lb/kubeconfig").context("there is a volume")?;
    ensure!(secret["secret"]["secretName"] == "far-kubeconfig", "{secret}");
    ensure!(volume(pod, container, "/extra").is_some(), "{pod:#}");
    let profile = &container["securityContext"]["seccompProfile"];
    ensure!(profile == &json!({"type": "Localhost", "localhostProfile": "topo-lb.json"}));
    ensure!(daemon["spec"]["updateStrategy"] == json!({"type": "OnDelete"}), "{daemon:#}");
    ensure!(daemon["spec"]["template"]["metadata"]["labels"]["team"] == "network", "{daemon:#}");
    ensure!(pod["serviceAccountName"] == "far-lb", "{pod:#}");
    let dashboard = one(&objects, "ConfigMap")?["data"]["topo-lb.json"].clone();
    let file = fs::read_to_string(deploy("grafana/topo-lb.json"))?;
    ensure!(dashboard == json!(file), "another dashboard");
    Ok(())
}

#[test]
fn a_node_without_kube_proxy_is_not_sent_to_a_cluster_ip() -> Result<()> {
    let alone = chart(&["kubeProxyReplacement=true"]).err().context("no address was taken")?;
    ensure!(format!("{alone:#}").contains("needs k8sServiceHost"), "{alone:#}");
    let hub =
        chart(&["kubeProxyReplacement=true", "apiServer=http://127.0.0.1:10261\\,in-cluster"])?;
    let container = &one(&hub, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0];
    ensure!(variable(container, "TOPO_LB_SCOPE") == Some("all"), "{container:#}");
    let servers = variable(container, "TOPO_LB_API_SERVER");
    ensure!(servers == Some("http://127.0.0.1:10261,in-cluster"), "{servers:?}");
    Ok(())
}

#[test]
fn kubectl_has_the_agents_binary_as_the_plugin_topo() -> Result<()> {
    let manifest = fs::read_to_string(deploy("krew/topo.yaml"))?;
    let plugin: Value = serde_saphyr::from_str(&manifest).context("krew/topo.yaml is not YAML")?;
    let name = plugin["metadata"]["name"].as_str().context("the plugin has a name")?;
    ensure!(format!("kubectl-{name}") == PLUGIN, "{name} is not {PLUGIN}");

    // As krew links it.
    let folder = Folder::make(Prefix::new().folder())?;
    symlink(requirements::agent()?, folder.path().join(PLUGIN))?;
    let kubectl = kubectl()?;
    let topo = |arguments: &[&str]| {
        let mut command = Command::new(&kubectl);
        command.arg(name).args(arguments).env("PATH", folder.path());
        command
    };
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kubernetes-1.36.json");
    let explain = ["explain", "--manifests", cluster, "--node", "kind-worker", "-o", "json"];
    let by_plugin = printed(&mut topo(&explain))?;
    let by_agent = printed(Command::new(requirements::agent()?).args(explain))?;
    ensure!(by_plugin == by_agent && by_plugin.contains("svc-ud1"), "{by_plugin}");
    let lint = ["lint", "--manifests", cluster, "-o", "json"];
    // Its exit code says whether there are findings.
    let by_plugin = topo(&lint).output()?;
    let by_agent = Command::new(requirements::agent()?).args(lint).output()?;
    let is_same = (by_plugin.status, &by_plugin.stdout) == (by_agent.status, &by_agent.stdout);
    ensure!(is_same && by_plugin.stdout.starts_with(b"["), "{by_plugin:?}");
    let help = printed(&mut topo(&["view", "--help"]))?;
    ensure!(help.contains("Usage: kubectl topo view"), "{help}");
    let error = printed(&mut topo(&["explain", "--node", "n", "--manifests", "nothing"]));
    let error = format!("{:#}", error.err().context("nothing was explained")?);
    ensure!(error.contains("kubectl topo: "), "{error}");

    // Without a source it reads the kubeconfig that kubectl reads.
    fs::create_dir(folder.path().join(".kube"))?;
    fs::write(folder.path().join(".kube/config"), "current-context: elsewhere\n")?;
    for arguments in [&["explain", "--node", "n"][..], &["top", "--once"]] {
        let mut asks = topo(arguments);
        asks.env("HOME", folder.path()).env_remove("KUBECONFIG").env_remove("TOPO_LB_KUBECONFIG");
        let error = format!("{:#}", printed(&mut asks).err().context("there is no cluster")?);
        let is_told = error.contains(".kube/config") && error.contains("elsewhere");
        ensure!(is_told, "{arguments:?}: {error}");
    }
    Ok(())
}

#[test]
fn a_monitor_of_a_port_that_is_not_served_is_refused() -> Result<()> {
    for needs in ["podMonitor.enabled=true", "view.enabled=true"] {
        let error = chart(&[needs]).err().context("it was rendered")?;
        ensure!(format!("{error:#}").contains("needs listen.onNode"), "{error:#}");
    }
    Ok(())
}

#[test]
fn every_container_that_is_deployed_has_the_image_of_this_source_s_version() -> Result<()> {
    // The component names the image by itself.
    for objects in [overlay_with("all", &["mount-bpffs"])?, overlay("cleanup")?] {
        let pod = &one(&objects, "DaemonSet")?["spec"]["template"]["spec"];
        let containers = ["initContainers", "containers"].map(|list| pod[list].as_array());
        let images: Vec<_> =
            containers.into_iter().flatten().flatten().map(|it| &it["image"]).collect();
        let wanted = concat!("registry.example.com/topo-lb:", env!("CARGO_PKG_VERSION"));
        ensure!(images == [wanted, wanted], "{images:?}");
    }
    Ok(())
}

#[test]
fn the_page_in_the_cluster_reads_alone_and_only_for_who_knows_the_token() -> Result<()> {
    let objects = overlay_with("opt-in", &["metrics", "view"])?;
    let pod = &one(&objects, "Deployment")?["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    // `view` and `top` would take it for an agent.
    ensure!(labels["app.kubernetes.io/name"] == "topo-lb-view", "{labels}");
    let container = &pod["spec"]["containers"][0];
    let wanted = concat!("registry.example.com/topo-lb:", env!("CARGO_PKG_VERSION"));
    ensure!(container["image"] == wanted, "{container:#}");
    let flags = container["args"].as_array().context("flags")?;
    let has_token = |flag: &Value| flag.as_str().is_some_and(|it| it.starts_with("--token-file="));
    ensure!(flags.iter().any(has_token), "{flags:?}");
    let security = &container["securityContext"];
    ensure!(security["capabilities"] == json!({"drop": ["ALL"]}), "{security:#}");
    for (field, wanted) in [
        ("runAsNonRoot", true),
        ("readOnlyRootFilesystem", true),
        ("allowPrivilegeEscalation", false),
    ] {
        ensure!(security[field] == wanted, "{field}: {security:#}");
    }
    let is_own = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind.ends_with("Role") && object["metadata"]["name"] == "topo-lb-view"
    };
    let rules = objects.iter().filter(is_own).filter_map(|role| role["rules"].as_array());
    let verbs = rules.flatten().filter_map(|rule| rule["verbs"].as_array()).flatten();
    let verbs: BTreeSet<_> = verbs.filter_map(Value::as_str).collect();
    ensure!(verbs == BTreeSet::from(["get", "list", "watch"]), "{verbs:?}");
    Ok(())
}

#[test]
fn an_api_server_takes_every_object_and_every_change_from_one_overlay_to_another() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let kubectl = kubectl()?;
    for name in ["opt-in", "all", "kube-proxy-replacement", "all", "cleanup", "opt-in"] {
        let place = deploy("overlays").join(name).display().to_string();
        // The server rejects unknown fields only with server-side apply.
        plane.administer(&kubectl, &["apply", "--server-side", "-k", &place])?;
        let get = ["-n", NAME, "get", "daemonset", NAME, "-o", "json"];
        let stored: Value = serde_json::from_str(&plane.administer(&kubectl, &get)?)?;
        let objects = overlay(name)?;
        let sent = one(&objects, "DaemonSet")?;
        holds(&stored, sent).with_context(|| format!("overlay {name}"))?;
        for list in ["containers", "initContainers"] {
            let count = |daemon: &Value| {
                daemon["spec"]["template"]["spec"][list].as_array().map_or(0, Vec::len)
            };
            ensure!(count(&stored) == count(sent), "overlay {name}: {stored:#}");
        }
    }
    let place = deploy("overlays/opt-in").display().to_string();
    plane.administer(&kubectl, &["delete", "--wait=false", "-k", &place])?;
    Ok(())
}

/// Checks that `stored` has all fields of `sent`; the server may add some, and reorder named items.
fn holds(stored: &Value, sent: &Value) -> Result<()> {
    match (stored, sent) {
        (Value::Object(stored), Value::Object(sent)) => sent.iter().try_for_each(|(name, sent)| {
            holds(stored.get(name).unwrap_or(&Value::Null), sent).with_context(|| name.clone())
        }),
        (Value::Array(stored), Value::Array(sent)) if stored.len() == sent.len() => {
            sent.iter().zip(stored).try_for_each(|(sent, same_place)| {
                let same_name = |it: &&Value| it["name"] == sent["name"];
                let named = sent["name"].is_string();
                let stored = stored.iter().find(|it| named && same_name(it));
                holds(stored.unwrap_or(same_place), sent)
            })
        }
        _ => {
            ensure!(stored == sent, "{stored} is stored, and {sent} was sent");
            Ok(())
        }
    }
}

#[test]
fn helm_installs_upgrades_rolls_back_and_uninstalls() -> Result<()> {
    let plane = ControlPlane::on_loopback()?;
    let (helm, kubectl) = (helm()?, kubectl()?);
    let place = deploy("helm/topo-lb").display().to_string();
    let scope = || {
        let path = "jsonpath={..env[?(@.name==\"TOPO_LB_SCOPE\")].value}";
        plane.administer(&kubectl, &["-n", NAME, "get", "daemonset", NAME, "-o", path])
    };
    plane.administer(&helm, &["install", NAME, &place, "-n", NAME, "--create-namespace"])?;
    ensure!(scope()? == "opt-in", "{}", scope()?);
    // A second one beside it, without what this server does not know.
    let everything = place.clone() + "/ci/everything-values.yaml";
    let off = "podMonitor.enabled=false,prometheusRule.enabled=false,policies.install=false,\
               mountBpffs=false";
    let beside = ["install", "far", &place, "-n", NAME, "--values", &everything, "--set", off];
    plane.administer(&helm, &beside)?;
    plane.administer(&helm, &["uninstall", "far", "-n", NAME])?;
    plane.administer(&helm, &["upgrade", NAME, &place, "-n", NAME, "--set", "scope=all"])?;
    ensure!(scope()? == "all", "{}", scope()?);
    // A server that knows no CEL rules gets the definitions without them, and keeps them.
    let defined = || plane.administer(&kubectl, &["get", "crd", "-o", "name"]);
    let define = ["upgrade", NAME, &place, "-n", NAME, "--set", "policies.install=true"];
    plane.administer(&helm, &define)?;
    ensure!(defined()?.lines().count() == 2, "{}", defined()?);
    plane.administer(&helm, &["rollback", NAME, "1", "-n", NAME])?;
    ensure!(scope()? == "opt-in", "{}", scope()?);
    let cleanup = ["--reset-then-reuse-values", "--set", "cleanup=true"];
    let upgrade = [&["upgrade", NAME, &place, "-n", NAME], &cleanup[..]].concat();
    plane.administer(&helm, &upgrade)?;
    let path = "jsonpath={..initContainers[*].args}";
    let cleans = plane.administer(&kubectl, &["-n", NAME, "get", "daemonset", NAME, "-o", path])?;
    ensure!(cleans == "[\"cleanup\"]", "{cleans}");
    plane.administer(&helm, &["uninstall", NAME, "-n", NAME])?;
    let left = plane.administer(&kubectl, &["get", "clusterroles", "-o", "name"])?;
    ensure!(!left.contains(NAME), "{left}");
    ensure!(defined()?.lines().count() == 2, "{}", defined()?);
    let new = chart(&["policies.install=true"])?;
    let new: Vec<_> = new.iter().filter(|it| it["kind"] == "CustomResourceDefinition").collect();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
    ensure!(new.len() == 2 && new.iter().all(|it| it.pointer(spec).is_some()), "{new:#?}");
    Ok(())
}

#[test]
fn only_nodes_with_old_kernels_need_a_capability_over_all_resources() -> Result<()> {
    let added = |objects: Vec<Value>| -> Result<CapabilitySet> {
        let pod = &one(&objects, "DaemonSet")?["spec"]["template"]["spec"];
        capabilities(&pod["containers"][0])
    };
    let small = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    for objects in [overlay("all")?, overlay("opt-in")?, chart(&[])?] {
        ensure!(added(objects)? == small);
    }
    let old = overlay_with("all", &["sys-resource"])?;
    ensure!(added(old)? == small | CapabilitySet::SYS_RESOURCE);
    Ok(())
}

/// The value of a variable in a container's environment.
fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let variables = container["env"].as_array()?;
    variables.iter().find(|one| one["name"] == name)?["value"].as_str()
}

/// The volume mounted at a path of a container.
fn volume<'a>(pod: &'a Value, container: &Value, path: &str) -> Option<&'a Value> {
    let mounts = container["volumeMounts"].as_array()?.iter();
    let holds = |mount: &&Value| {
        mount["mountPath"].as_str().is_some_and(|at| Path::new(path).starts_with(at))
    };
    let name = &mounts.filter(holds).max_by_key(|mount| mount["mountPath"].as_str())?["name"];
    pod["volumes"].as_array()?.iter().find(|volume| &volume["name"] == name)
}

#[test]
fn probes_use_no_port_that_others_can_take_or_crowd() -> Result<()> {
    let renderings = [
        (overlay("all")?, "127.0.0.1:19876"),
        (overlay_with("opt-in", &["metrics"])?, "127.0.0.1:19876"),
        (chart(&[])?, "127.0.0.1:19876"),
        (chart(&["listen.onNode=true", "listen.port=9876"])?, "127.0.0.1:9876"),
    ];
    for (objects, local) in renderings {
        let pod = &one(&objects, "DaemonSet")?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        for (probe, what) in [("livenessProbe", "livez"), ("readinessProbe", "readyz")] {
            let probe = &container[probe];
            ensure!(probe["exec"]["command"] == json!(["/topo-lb", "probe", what]), "{probe:#}");
            ensure!(probe["httpGet"].is_null() && probe["tcpSocket"].is_null(), "{probe:#}");
        }
        // The root file system is read-only, and no other pod can use the socket's folder.
        let socket = variable(container, "TOPO_LB_PROBE_SOCKET").context("there is a socket")?;
        let volume = volume(pod, container, socket).context("the socket is in a volume")?;
        ensure!(volume["emptyDir"].is_object(), "{volume:#}");
        // The full HTTP interface listens only on the node.
        let listen = variable(container, "TOPO_LB_LISTEN").context("the agent listens")?;
        ensure!(listen == local, "{listen}");
    }
    Ok(())
}

/// The capabilities of a container; all others must be dropped.
fn capabilities(container: &Value) -> Result<CapabilitySet> {
    let list = &container["securityContext"]["capabilities"];
    ensure!(list["drop"] == json!(["ALL"]), "others are not dropped: {list}");
    let names = list["add"].as_array().context("some are added")?;
    names.iter().try_fold(CapabilitySet::empty(), |set, name| {
        let name = name.as_str().unwrap_or_default();
        Ok(set | CapabilitySet::from_name(name).with_context(|| format!("no capability {name}"))?)
    })
}

/// All pairs of verb and resource that a role grants.
fn granted(role: &Value) -> BTreeSet<String> {
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let all = rule[field].as_array().into_iter().flatten();
        all.map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                let verbs = list(rule, "verbs");
                all.extend(verbs.iter().map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
    }
    all
}

/// The pairs of verb and resource that ServiceAccounts have used; none may have been forbidden.
fn used(plane: &ControlPlane<'_>) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for event in plane.audited()? {
        ensure!(event["responseStatus"]["code"] != 403, "it may not do this: {event:#}");
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if object["resource"].is_string() {
            let (verb, mut resource) = (text(&event["verb"]), text(&object["resource"]));
            if let Some(part) = object["subresource"].as_str() {
                resource = format!("{resource}/{part}");
            }
            all.insert(format!("{verb} {resource}.{}", text(&object["apiGroup"])));
        }
    }
    Ok(all)
}

#[test]
fn an_agent_with_what_the_manifests_grant_is_ready_and_uses_every_right() -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let plan = [NodePlan { name: HERE, number: 1, pods: vec![("client", 2)] }];
    within(&plan, |cluster| {
        let plane = ControlPlane::in_lab(cluster)?;
        let far = [endpoint("10.244.2.2", "far", "pod")];
        plane.create([
            node(HERE, &[(ZONE, "zone-1")]),
            node("far", &[(ZONE, "zone-2")]),
            service("strict", &["10.96.4.2"], &[("http", 80, "TCP")], &[(KEYS, ZONE)]),
            slice("strict", "IPv4", &[("http", 9376, "TCP")], &far),
        ])?;

        let kubectl = kubectl()?;
        let place = deploy("overlays/all").display().to_string();
        plane.administer(&kubectl, &["apply", "--server-side", "-k", &place])?;
        let policies = cluster.folder().join("policies.yaml");
        let definitions = printed(&mut binary.command(&["crds"]))?;
        fs::write(&policies, definitions)?;
        let create = ["create", "--validate=false", "-f"];
        plane.administer(&kubectl, &[&create[..], &[&policies.display().to_string()]].concat())?;
        let are_served = ["wait", "--for=condition=established", "crd", "--all"];
        plane.administer(&kubectl, &are_served)?;
        plane.create(["TopologyPolicy", "ClusterTopologyPolicy"].map(|kind| {
            json!({"apiVersion": "topo-lb.io/v1alpha1", "kind": kind, "metadata": {"name": "one"},
                   "spec": {"topologyKeys": ["*"]}})
        }))?;
        let token = plane.administer(&kubectl, &["-n", NAME, "create", "token", NAME])?;
        let kubeconfig = plane.kubeconfig_of("service-account", token.trim())?;

        let objects = overlay("all")?;
        let container = &one(&objects, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0];
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agent = Agent::prepare_from(&binary, cluster, HERE, source)?;
        agent.keep_only(capabilities(container)?);
        let state = cluster.folder().join("state");
        agent.set("--state-dir", &state);
        agent.set("--tc-devices", "pod*");
        let socket = cluster.folder().join("probes").join("socket");
        agent.set("--probe-socket", &socket);
        agent.resume()?;
        // Runs the probes like the kubelet: the manifests' command and capabilities.
        for probe in ["livenessProbe", "readinessProbe"] {
            let words = container[probe]["exec"]["command"].as_array().context("a command")?;
            let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            ensure!(words[0] == "/topo-lb", "{words:?}");
            until(probe, SOON, || {
                let mut command = binary.command(&words[1..]);
                command.env("TOPO_LB_PROBE_SOCKET", &socket);
                only_with(&mut command, capabilities(container)?);
                Ok(printed(&mut command).map(drop))
            })?;
        }
        let sent = |count: u32| {
            let wanted = format!("topo_lb_kubernetes_events_total{{outcome=\"sent\"}} {count}");
            agent.wait_for_answer("/metrics", SOON, |answer| answer.body.contains(&wanted))
        };
        // A served Service is refused; a repetition updates the existing Event.
        for count in [1, 2] {
            for keys in ["*", ZONE] {
                plane.annotate("strict", KEYS, Some(keys))?;
                let verdict = if keys == ZONE { "refuse" } else { "route" };
                agent.wait_for_verdict("strict", verdict, SOON)?;
            }
            sent(count)?;
        }

        for kind in ["topologypolicy", "clustertopologypolicy"] {
            let get = ["get", kind, "one", "-o", "jsonpath={.status.services}"];
            let look = || plane.administer(&kubectl, &get);
            // `strict` and `kubernetes`.
            until_is(&format!("the status of a {kind}"), SOON, look, |seen| seen == "2")?;
        }

        // Another agent takes over the pinned objects.
        agent.stop()?;
        let log = agent.log();
        ensure!(!log.contains("does not let") && !log.contains("\"WARN\""), "{log}");
        ensure!(state.join("cluster.state").is_file(), "nothing was saved");
        agent.resume()?;
        agent.stop()?;
        let cleanup = agent.cleanup()?;
        ensure!(cleanup.status.success() && !agent.pins().exists(), "{cleanup:?}");

        let role = granted(one(&objects, "ClusterRole")?);
        let used = used(&plane)?;
        ensure!(used == role, "granted: {role:?}\nused: {used:?}");
        Ok(())
    })
}
