//! The command `topo-lb plan`: flags, output, exit code.

use std::path::Path;
use std::process::Output;

use crate::run::{run, text};

const CLUSTER: &str = "\
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {kubernetes.io/hostname: n2, topology.kubernetes.io/zone: b}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints: [{addresses: [10.1.1.1], nodeName: n1}]
";

/// Runs `topo-lb plan` with these flags, and `manifests` as standard input.
fn plan(flags: &[&str], manifests: &str) -> Output {
    run(&[&["plan"], flags].concat(), manifests)
}

fn set(setting: &str) -> Output {
    plan(&["--from", "-", "--set", setting], CLUSTER)
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn write(path: &Path, manifests: &str) {
    std::fs::write(path, manifests).unwrap();
}

#[test]
fn a_change_that_refuses_nobody_ends_with_0() {
    let done = set("default/web=topology-keys:topology.kubernetes.io/zone,*");
    assert_eq!(code(&done), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("1 of 1 Service port changes."), "{}", text(&done.stdout));
}

#[test]
fn a_change_that_refuses_a_node_ends_with_1() {
    let done = set("default/web=topology-keys:topology.kubernetes.io/zone");
    assert_eq!(code(&done), Some(1));
    assert!(text(&done.stdout).contains("refused   1 node: n2"), "{}", text(&done.stdout));
}

/// Without Nodes that carry a key, the change does nothing, which is not what was meant.
#[test]
fn a_key_that_no_node_carries_is_warned_of_as_lint_does() {
    let done = set("default/web=topology-keys:topology.kubernetes.io/zon,*");
    assert_eq!(code(&done), Some(1));
    let warning = "topo-lb: default/web: no Node carries the label topology.kubernetes.io/zon of \
                   topo-lb.io/topology-keys: the key never matches";
    assert!(text(&done.stderr).starts_with(warning), "{}", text(&done.stderr));
    let both = CLUSTER.replace("topology.kubernetes.io/zone: a", "topology.kubernetes.io/zon: a");
    let known = plan(
        &["--from", "-", "--set", "default/web=topology-keys:topology.kubernetes.io/zon,*"],
        &both,
    );
    assert_eq!((code(&known), text(&known.stderr)), (Some(0), ""));
}

#[test]
fn json_has_the_assumption_and_the_loads() {
    let setting = "default/web=topology-keys:topology.kubernetes.io/zone";
    let done = plan(&["--from", "-", "--set", setting, "-o", "json"], CLUSTER);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(report["assumption"].as_str().unwrap().starts_with("each node counts as one client"));
    let load = &report["services"][0]["endpoints"][0]["load"];
    assert_eq!(*load, serde_json::json!({"before": 2.0, "after": 1.0}));
}

const METRICS: &str = "\
# TYPE topo_lb_tcp_sent_bytes counter
topo_lb_tcp_sent_bytes_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"NEAR\",tier=\"none\"} 1000
topo_lb_tcp_received_bytes_total{namespace=\"default\",service=\"web\",port=\"80\",locality=\"NEAR\",tier=\"none\"} 3000
# EOF
";

#[test]
fn metrics_of_a_folder_say_how_many_bytes_would_cross() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("n1"), &METRICS.replace("NEAR", "node"));
    // What clients dialled at the endpoints' own addresses stays as it is.
    let direct = METRICS.lines().nth(1).unwrap().replace("none", "direct");
    let far = METRICS.replace("# EOF", &format!("{direct}\n# EOF")).replace("NEAR", "elsewhere");
    write(&folder.path().join("n2.prom"), &far);
    let metrics = folder.path().to_str().unwrap();
    // Node n2 has no endpoint in its zone.
    let strict = "default/web=topology-keys:topology.kubernetes.io/zone";
    let done = plan(&["--from", "-", "--set", strict, "--metrics", metrics], CLUSTER);
    let bytes = "  bytes     8.0 kB moved, 4.0 kB left the zone; expected out of the zone: \
                 4.0 kB → 0 B; without an endpoint: 0 B → 4.0 kB\n";
    assert!(text(&done.stdout).contains(bytes), "{}", text(&done.stdout));
    assert!(text(&done.stdout).contains("Of its bytes: 8.0 kB moved"), "{}", text(&done.stdout));
    let stays = "\nClients of what changes moved 1.0 kB more out of their zone, to endpoints that they dialled \
                 directly, by their own addresses. The annotation topo-lb.io/direct refuses or steers such clients.\n";
    assert!(text(&done.stdout).contains(stays), "{}", text(&done.stdout));
    assert!(text(&done.stdout).contains("Assumed: a node with bytes counts by these"));
    assert_eq!(text(&done.stderr), "");
}

/// Of three nodes whose clients use the Service, two know.
#[test]
fn connections_that_would_come_home_are_told_with_those_who_do_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = METRICS.replace("NEAR", "node");
    let knows = |count: &str| {
        let port = r#"{namespace="default",service="web",port="80"}"#;
        metrics.replace("# EOF", &format!("topo_lb_wider_tier_connections{port} {count}\n# EOF"))
    };
    write(&folder.path().join("n1"), &knows("12"));
    write(&folder.path().join("n2"), &knows("2"));
    let path = folder.path().to_str().unwrap();
    let keys = "default/web=topology-keys:topology.kubernetes.io/zone,*";
    let set = ["--from", "-", "--set", keys, "--set", "default/web=return:10m"];
    let of = |more: &[&str]| plan(&[&set[..], more].concat(), CLUSTER);
    let line = |done: &Output| {
        assert_eq!(code(done), Some(0), "{}", text(&done.stderr));
        let line = text(&done.stdout).lines().find(|line| line.starts_with("  return "));
        line.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(
        line(&of(&["--metrics", path])),
        "return    14 open connections lead to a wider tier than the one in force now, and would come home with \
         topo-lb.io/return"
    );
    write(&folder.path().join("n3"), &metrics);
    let partly = line(&of(&["--metrics", path]));
    assert!(partly.ends_with("topo-lb.io/return; of 1 node it is not known"), "{partly}");
    let json = of(&["--metrics", path, "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let wanted = serde_json::json!({"connections": 14, "unknownNodes": 1});
    assert_eq!(report["services"][0]["widerTier"], wanted);
    let one = |name: &str| line(&of(&["--metrics", folder.path().join(name).to_str().unwrap()]));
    assert_eq!(one("n3"), "", "never a false zero");
    write(&folder.path().join("n1"), &knows("0"));
    let none = "return    0 open connections lead to a wider tier than the one in force now";
    assert_eq!(one("n1"), none);
}

#[test]
fn advice_is_a_command_and_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics");
    std::fs::create_dir(&metrics).unwrap();
    write(&metrics.join("n1"), &METRICS.replace("NEAR", "node"));
    write(&metrics.join("n2"), &METRICS.replace("NEAR", "elsewhere"));
    let both = CLUSTER.replace("n1}]", "n1}, {addresses: [10.1.1.2], nodeName: n2}]");
    let made = folder.path().join("made");
    let flags = ["--from", "-", "--advise", "--metrics", metrics.to_str().unwrap()];
    let more = ["--manifests", made.to_str().unwrap(), "--price", "zone=1000000"];
    let done = plan(&[&flags[..], &more].concat(), &both);
    assert_eq!(code(&done), Some(0), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    let command = "kubectl annotate service -n default web --overwrite \
                   'topo-lb.io/topology-keys=topology.kubernetes.io/zone,*'";
    assert!(said.contains(command), "{said}");
    assert!(said.contains("4.0 kB → 0 B") && said.contains("$4.00 → $0.00"), "{said}");
    assert!(
        text(&done.stderr).contains("kubectl apply --server-side -f"),
        "{}",
        text(&done.stderr)
    );
    let manifest = std::fs::read_to_string(made.join("default_web.yaml")).unwrap();
    assert!(manifest.contains("topo-lb.io/topology-keys: \"topology.kubernetes.io/zone,*\""));
    let done = plan(&[&flags[..], &["-o", "json"]].concat(), &both);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        json["services"][0]["settings"][0],
        "default/web=topo-lb.io/topology-keys:topology.kubernetes.io/zone,*"
    );
    assert_eq!(json["months"], serde_json::Value::Null);
    for (more, sentence) in [
        (&["--price", "zone=1000000", "--min-saving", "4"][..], "$4.00 → $0.00"),
        (
            &["--price", "zone=1000000", "--min-saving", "4.01"],
            "($4.00): its best policy saves less than",
        ),
        (&["--price", "zone=1000000", "default"], "$4.00 → $0.00"),
        (&["--price", "zone=1000000", "default/web"], "$4.00 → $0.00"),
    ] {
        let done = plan(&[&flags[..], more].concat(), &both);
        assert!(text(&done.stdout).contains(sentence), "{more:?}: {}", text(&done.stdout));
    }
    let done = plan(&[&flags[..], &["shop"]].concat(), &both);
    assert_eq!(code(&done), Some(1));
    assert!(
        text(&done.stderr).contains("there is no Service in namespace shop"),
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn metrics_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n1");
    let path = path.to_str().unwrap();
    let strict = "default/web=topology-keys:topology.kubernetes.io/zone";
    let with =
        |metrics: &str| plan(&["--from", "-", "--set", strict, "--metrics", metrics], CLUSTER);
    let missing = with(path);
    assert_eq!(code(&missing), Some(1));
    assert!(text(&missing.stderr).contains(&format!("--metrics: the file {path}: No such file")));
    write(Path::new(path), "<html>");
    let other = with(path);
    assert_eq!((code(&other), text(&other.stdout)), (Some(1), ""));
    assert!(text(&other.stderr).contains("it has no metric of topo-lb"), "{}", text(&other.stderr));
    write(Path::new(path), &METRICS.replace("web", "gone").replace("NEAR", "node"));
    let gone = with(&format!("n9={path}"));
    assert!(text(&gone.stdout).contains("1 of 1 Service port changes"));
    for doubt in ["no Node has the name n9", "no Services of these names: default/gone"] {
        assert!(text(&gone.stderr).contains(doubt), "{doubt}: {}", text(&gone.stderr));
    }
}

#[test]
fn two_files_are_compared_and_settings_count_after_that() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from.yaml", "to.yaml"].map(|name| folder.path().join(name));
    write(&from, CLUSTER);
    write(&to, &CLUSTER.replace("nodeName: n1", "nodeName: n2"));
    let [from, to] = [&from, &to].map(|path| path.to_str().unwrap());
    let moved = plan(&["--from", from, "--to", to], "");
    assert_eq!(code(&moved), Some(0), "{}", text(&moved.stderr));
    let strict = "default/web=topology-keys:kubernetes.io/hostname";
    let both = plan(&["--from", from, "--to", to, "--set", strict], "");
    assert_eq!(code(&both), Some(1));
    assert!(text(&both.stdout).contains("refused   1 node: n1"), "{}", text(&both.stdout));
}

#[test]
fn wrong_flags_end_with_2_and_say_what_is_right() {
    for (flags, sentence) in [
        (&["--from", "-"][..], "topo-lb plan --set default/web=topology-keys:"),
        (&["--from", "-", "--advise"], "--prometheus URL, or --metrics"),
        (&["--since", "3d"], "--prometheus URL"),
        (&["--since", "3d", "--prometheus", "http://x", "--to", "x"], "cannot be used with"),
        (
            &["--from", "-", "--advise", "--metrics", "x", "--price", "zone=-1"],
            "zone=0.01,region=0.02",
        ),
        (&["--from", "-", "--advise", "--metrics", "x", "--max-load", "0.9"], "of at least 1"),
        (&["--from", "-", "--advise", "--metrics", "x", "--min-saving=-1"], "of at least 0"),
        (&["--from", "-", "--advise", "--set", "default/web=spill:5%"], "cannot be used with"),
        (
            &["--from", "-", "--set", "default/web=spill:5%", "a/b/c"],
            "NAMESPACE/NAME, or a NAMESPACE",
        ),
        (&["--to", "x"], "--from <PATH>"),
        (&["--from", "-", "--set", "web"], "write it as NAMESPACE/NAME=ANNOTATION:VALUE"),
        (&["--from", "-", "--to", "x", "--by", "a b"], "no label name"),
    ] {
        let done = plan(flags, CLUSTER);
        assert_eq!(code(&done), Some(2), "{flags:?}");
        assert!(text(&done.stderr).contains(sentence), "{flags:?}: {}", text(&done.stderr));
    }
}

#[test]
fn without_a_file_the_api_server_is_read() {
    let done = plan(&["--kubeconfig", "/nowhere", "--set", "default/web=handle:false"], CLUSTER);
    assert_eq!(code(&done), Some(1));
    let said = text(&done.stderr);
    assert!(said.contains("/nowhere"), "{said}");
}

#[test]
fn what_cannot_be_planned_ends_with_1_and_says_why() {
    let two_inputs = plan(&["--from", "-", "--to", "-"], CLUSTER);
    let no_nodes = CLUSTER.split("---\n").skip(2).collect::<Vec<_>>().join("---\n");
    let handle = "default/web=handle:false";
    for (done, sentence) in [
        (two_inputs, "--from and --to cannot both be standard input"),
        (set("default/nope=handle:false"), "--set: there is no Service default/nope"),
        (set("default/web=topology-keys:*,a"), "topology-keys is ignored: `*` is key 1 of 2"),
        (
            plan(&["--from", "-", "--set", handle], &no_nodes),
            "--from -: there is no Node in it, but plan needs all Nodes, Services and",
        ),
        (plan(&["--from", "-", "--set", handle], ""), "standard input is empty"),
        (plan(&["--from", "/nowhere", "--set", handle], ""), "no file or folder /nowhere"),
        (plan(&["--from", "-", "--set", handle, "default/x"], CLUSTER), "no Service default/x"),
    ] {
        assert_eq!(code(&done), Some(1), "{sentence}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains(sentence), "{sentence}: {}", text(&done.stderr));
        assert_eq!(text(&done.stdout), "", "{sentence}");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_named_and_ends_with_1() {
    let more = "---\napiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: default}\n\
                spec: {clusterIP: 10.96.0.2, ports: [{port: 70000}]}\n";
    let setting = "default/web=topology-keys:topology.kubernetes.io/zone,*";
    let done = plan(&["--from", "-", "--set", setting], &format!("{CLUSTER}{more}"));
    assert_eq!(code(&done), Some(1));
    assert!(text(&done.stderr).contains("Service default/bad"), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("1 of 1 Service port changes."));
}
