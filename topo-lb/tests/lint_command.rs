//! The command `topo-lb lint`: flags, output, exit code.

mod command;

use std::process::Output;

use command::{run, text};

/// Runs `topo-lb lint --manifests -` with these flags on these manifests.
fn lint(flags: &[&str], manifests: &str) -> Output {
    run(&[&["lint", "--manifests", "-"], flags].concat(), manifests)
}

const NODE: &str = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";
const NAMESPACE: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";

/// A Service whose key no Node carries: a warning.
const STRICT: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {topo-lb.io/topology-keys: example.org/rack}}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
";

fn pod(name: &str, metadata: &str) -> String {
    let metadata = format!("{{name: {name}, namespace: shop, {metadata}}}");
    format!("---\napiVersion: v1\nkind: Pod\nmetadata: {metadata}\n")
}

#[test]
fn an_annotation_of_pods_that_says_neither_is_found() {
    let yes = "annotations: {topo-lb.io/exclude: 'yes'}";
    let pods: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| pod(name, yes)).into();
    let good = ["'true'", "' false '", "true"].map(|value| {
        pod(
            &format!("good-{}", value.len()),
            &format!("annotations: {{topo-lb.io/exclude: {value}}}"),
        )
    });
    let found = lint(&[], &(pods.concat() + &good.concat()));
    let shown = text(&found.stdout);
    assert_eq!(found.status.code(), Some(1), "{shown}");
    assert!(
        shown.contains(
            "error    ignored  annotation topo-lb.io/exclude of 5 of its Pods (a, b, c and 2 more) is \
             ignored: `yes` is neither `true` nor `false`"
        ),
        "{shown}"
    );
    assert!(shown.contains("1 finding in 1 object"), "{shown}");
}

#[test]
fn what_is_below_the_level_is_counted() {
    let manifests = format!("{NODE}{NAMESPACE}{STRICT}");
    let found = lint(&["--level", "error"], &manifests);
    assert_eq!(
        text(&found.stdout),
        "Nothing found, but 1 below the level error: --level info shows them\n"
    );
    assert_eq!(text(&lint(&[], NAMESPACE).stdout), "Nothing found.\n");
}

#[test]
fn it_says_when_nothing_tells_of_meshes() {
    let says = |flags: &[&str], manifests: &str| {
        text(&lint(flags, manifests).stderr).contains("meshes are not looked for")
    };
    assert!(says(&[], NODE));
    assert!(says(&["-o", "json"], NODE));
    assert!(!says(&["--ignore", "meshed"], NODE));
    assert!(!says(&[], NAMESPACE));
    assert!(!says(&[], &pod("a", "labels: null")));
}

#[test]
fn codes_may_have_spaces_between_them() {
    let found = lint(&["--ignore", "refused, meshed ,ignored"], NAMESPACE);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    let wrong = lint(&["--ignore", "refused, mesh"], NAMESPACE);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("unknown-key"), "{}", text(&wrong.stderr));
}
