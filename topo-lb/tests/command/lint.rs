//! The command `topo-lb lint`: flags, output, exit code, and what it finds in files.

use std::process::Output;

use crate::run::{run, text};

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
fn steering_by_an_annotation_that_says_neither_or_beside_session_affinity_is_found() {
    let pods = pod("p", "annotations: {topo-lb.io/steer: 'on', topo-lb.io/exclude: 'no'}");
    let service = "---
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations: {topo-lb.io/topology-keys: 'kubernetes.io/hostname,*', topo-lb.io/direct: steer}
spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, ports: [{port: 80}]}
";
    let found = lint(&[], &format!("{NODE}{NAMESPACE}{pods}{service}"));
    let shown = text(&found.stdout);
    for wanted in [
        "annotation topo-lb.io/steer of 1 of its Pods (p) is ignored: `on` is neither",
        "annotation topo-lb.io/exclude of 1 of its Pods (p) is ignored: `no` is neither",
        "topo-lb.io/direct: steer has no effect, as the Service has session affinity",
    ] {
        assert!(shown.contains(wanted), "{shown}");
    }
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

/// A Service and a slice with an endpoint; `metadata` and `spec` are written in flow style.
fn served(name: &str, metadata: &str, spec: &str, slice_ports: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, {metadata}}}
spec: {{{spec}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: {slice_ports}
endpoints: [{{addresses: [10.1.1.1], nodeName: n1}}]
"
    )
}

/// The lines of the findings of a Service.
fn of<'a>(shown: &'a str, title: &str) -> Vec<&'a str> {
    let lines = shown.lines().skip_while(|line| *line != title).skip(1);
    lines.take_while(|line| line.starts_with(' ')).map(str::trim).collect()
}

#[test]
fn annotations_and_labels_without_an_effect_are_found() {
    let keys = "topo-lb.io/topology-keys: '*'";
    let service = |name: &str, metadata: &str, spec: &str| {
        let spec = format!("{spec}, ports: [{{port: 80}}]");
        served(name, metadata, &spec, "[{name: '', port: 8080}]")
    };
    let annotated = |text: &str| format!("annotations: {{{text}}}");
    let ip = "clusterIP: 10.96.10.1";
    let manifests = [
        NODE.to_owned(),
        service("camel", &annotated("topo-lb.io/topologyKeys: a"), ip),
        service("domain", &annotated("topolb.io/topology-keys: a"), "clusterIP: 10.96.10.2"),
        service("label", &format!("labels: {{{}}}", keys), "clusterIP: 10.96.10.3"),
        service("yurt", &annotated("openyurt.io/topologykeys: a"), "clusterIP: 10.96.10.4"),
        service("pods", &annotated("topo-lb.io/exclude: 'true'"), "clusterIP: 10.96.10.5"),
        service("headless", &annotated(keys), "clusterIP: None"),
        service("named", &annotated(&format!("{keys}, topo-lb.io/dns: 'true'")), "clusterIP: None"),
        service("extname", &annotated(keys), "type: ExternalName, externalName: example.com"),
        service("good", &annotated(keys), "clusterIP: 10.96.10.6"),
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: app, annotations: \
         {topo-lb.io/exclude: 'true'}}\nspec: {template: {metadata: {annotations: {topo-lb.io/exlude: \
         'true'}}}}\n"
            .to_owned(),
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team, annotations: {topo-lb.io/dns: \
         'true'}}\n"
            .to_owned(),
        pod("a", &annotated(keys)),
        pod("b", &annotated(keys)),
    ];
    let found = lint(&["--ignore", "unmatched,refused"], &manifests.concat());
    let shown = text(&found.stdout);
    let counts = "it counts on Services and Namespaces";
    for (title, wanted) in [
        (
            "default/camel",
            "annotation topo-lb.io/topologyKeys on this Service has no effect: topo-lb does not know it; is \
             topo-lb.io/topology-keys meant?",
        ),
        (
            "default/domain",
            "annotation topolb.io/topology-keys on this Service has no effect: topo-lb does not know it; is \
             topo-lb.io/topology-keys meant?",
        ),
        (
            "default/label",
            "label topo-lb.io/topology-keys on this Service has no effect: it counts as an annotation",
        ),
        (
            "default/yurt",
            "annotation openyurt.io/topologykeys on this Service has no effect: topo-lb does not know it; is \
             openyurt.io/topologyKeys meant?",
        ),
        (
            "default/pods",
            "annotation topo-lb.io/exclude on this Service has no effect: it counts on Pods",
        ),
        (
            "default/headless",
            "annotation topo-lb.io/topology-keys has no effect: headless (`clusterIP: None`): clients dial \
             its pods themselves; with `topo-lb.io/dns: \"true\"` the answers of DNS follow its policy, and with \
             `topo-lb.io/direct` direct dials do",
        ),
        (
            "default/extname",
            "annotation topo-lb.io/topology-keys has no effect: `type: ExternalName`: a name, not an address",
        ),
        (
            "team",
            "annotation topo-lb.io/dns on this Namespace has no effect: it counts on Services",
        ),
        (
            "shop",
            &format!(
                "annotation topo-lb.io/topology-keys of 2 of its Pods (a, b) has no effect: {counts}"
            ),
        ),
    ] {
        assert_eq!(of(shown, title), [format!("error    ignored  {wanted}")], "{title}\n{shown}");
    }
    assert_eq!(
        of(shown, "default/app"),
        [
            "error    ignored  annotation topo-lb.io/exclude on this Deployment has no effect: it counts on \
             Pods",
            "error    ignored  annotation topo-lb.io/exlude of its Pods has no effect: topo-lb does not know \
             it; is topo-lb.io/exclude meant?",
        ],
        "{shown}"
    );
    for title in ["default/good", "default/named"] {
        assert_eq!(of(shown, title), [""; 0], "{shown}");
    }
}

#[test]
fn slices_that_can_never_match_are_found() {
    let unnamed = "clusterIP: 10.96.11.1, ports: [{port: 80}]";
    let dns = "clusterIP: 10.96.11.2, ports: [{name: dns, port: 53, protocol: UDP}]";
    let six = "clusterIP: 'fd00::1', ports: [{port: 80}]";
    let lonely = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: lonely}\n\
                  addressType: IPv4\n";
    let by_hand = "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: by-hand}\nsubsets: []\n";
    let mirrored = by_hand.replace("by-hand", "good");
    let manifests = [
        NODE.to_owned(),
        served("unnamed", "", unnamed, "[{name: http, port: 8080}]"),
        served("noports", "", &unnamed.replace(".1,", ".3,"), "[]"),
        served("proto", "", dns, "[{name: dns, port: 53}]"),
        served("six", "", six, "[{name: '', port: 80}]"),
        served("good", "", &unnamed.replace(".1,", ".4,"), "[{name: '', port: 8080}]"),
        lonely.to_owned(),
        by_hand.to_owned(),
        mirrored,
    ];
    let found = lint(&["--ignore", "meshed"], &manifests.concat());
    let shown = text(&found.stdout);
    let never = "no endpoint ever serves this port; name them alike";
    for (title, wanted) in [
        (
            "default/unnamed",
            format!(
                "error    unmatched  80: its EndpointSlices have a port named http of protocol TCP, and not \
                 a port without a name of protocol TCP: {never}"
            ),
        ),
        (
            "default/noports",
            format!(
                "error    unmatched  80: its EndpointSlices have no port at all, and not a port without a \
                 name of protocol TCP: {never}"
            ),
        ),
        (
            "default/proto",
            format!(
                "error    unmatched  dns: its EndpointSlices have a port named dns of protocol TCP, and not \
                 a port named dns of protocol UDP: {never}"
            ),
        ),
        (
            "default/six",
            "error    unmatched  80: its EndpointSlices have only IPv4 addresses, and it has no such ClusterIP"
                .to_owned(),
        ),
        (
            "default/lonely",
            "warning  no-slice   this EndpointSlice is of no Service: name it in the label \
             kubernetes.io/service-name"
                .to_owned(),
        ),
    ] {
        assert_eq!(of(shown, title), [wanted], "{title}\n{shown}");
    }
    let [by_hand] = of(shown, "default/by-hand")[..] else { panic!("{shown}") };
    assert!(by_hand.starts_with("warning  no-slice   only EndpointSlices are read"), "{shown}");
    assert_eq!(of(shown, "default/good"), [""; 0], "{shown}");
}

/// Two Services claim each kind of frontend; the one that is second in the text is older.
fn claims() -> String {
    let one = |name: &str, created: u32, ip: &str, rest: &str| {
        let metadata = format!("creationTimestamp: '{created}-02-01T00:00:00Z'");
        let spec = format!("clusterIP: {ip}, {rest}");
        served(name, &metadata, &spec, "[{name: web, port: 8080}]")
    };
    let web = "ports: [{name: web, port: 80}]";
    let external = format!("externalIPs: [198.51.100.9], {web}");
    let node_port = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30120}]";
    let both = format!("type: LoadBalancer, externalIPs: [203.0.113.12], {web}");
    let balanced = "status: {loadBalancer: {ingress: [{ip: 203.0.113.12}]}}\n";
    let mut all = [
        NODE.to_owned(),
        one("a-young", 2024, "10.96.12.1", &external),
        one("b-old", 2023, "10.96.12.2", &external),
        one("c-young", 2024, "10.96.12.3", node_port),
        one("d-old", 2023, "10.96.12.4", node_port),
        one("e-old", 2023, "10.96.12.6", &external.replace("198.51.100.9", "203.0.113.12")),
    ]
    .concat();
    // Its load balancer IP is its external IP, too: it does not contend with itself.
    let (service, slice) = {
        let both = one("f-young", 2024, "10.96.12.5", &both);
        let at = both.rfind("---").expect("a slice");
        (both[..at].to_owned(), both[at..].to_owned())
    };
    all += &(service + balanced + &slice);
    all
}

#[test]
fn frontends_that_two_services_claim_are_found_whatever_kind_they_are() {
    let found = lint(&["--ignore", "meshed"], &claims());
    let shown = text(&found.stdout);
    let never = "connections never reach this one; give it another address or port";
    for (title, frontend, winner, by) in [
        ("default/a-young", "198.51.100.9 TCP 80", "b-old", "age or name"),
        ("default/c-young", "node port TCP 30120", "d-old", "age or name"),
        ("default/e-old", "203.0.113.12 TCP 80", "f-young", "the kind of its address"),
    ] {
        let wanted = format!(
            "error  shared-frontend  web: {frontend} is default/{winner}'s already, which comes first by {by}: \
             {never}"
        );
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let [line] = of(shown, title)[..] else { panic!("{title}\n{shown}") };
        assert_eq!(words(line), words(&wanted), "{shown}");
    }
    assert!(shown.contains("3 findings in 3 objects"), "{shown}");
}

#[test]
fn addresses_that_nobody_serves_are_found() {
    let service = "---\n{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.12.1, \
                   externalIPs: [127.0.0.1, 198.51.100.9], ports: [{port: 80}]}, status: {loadBalancer: \
                   {ingress: [{ip: '2001:db8::5'}, {ip: '2001:db8::6', ipMode: Proxy}, {hostname: web}]}}}";
    let found = lint(&[], service);
    let shown = text(&found.stdout);
    assert_eq!(
        of(shown, "default/web"),
        [
            "warning  ignored  external IP 127.0.0.1 is not served: every host or Pod has such an address",
            "warning  ignored  load balancer IP 2001:db8::5 is not served: the Service has no ClusterIP of \
             its family; ipFamilyPolicy: PreferDualStack gives it one",
        ],
        "{shown}"
    );
}

#[test]
fn explain_says_whose_a_contested_frontend_is() {
    let done = run(&["explain", "--manifests", "-", "--node", "n1"], &claims());
    let shown = text(&done.stdout);
    let also: Vec<_> =
        shown.lines().filter_map(|line| line.trim().strip_prefix("also at   ")).collect();
    let (must, ranges) = ("one must change", "(if --external-ip-ranges has it)");
    let lost = |frontend: &str, winner: &str| {
        format!("BUT {frontend} is default/{winner}'s, which claims it first: {must}")
    };
    let kept = |loser: &str, frontend: &str| {
        format!("default/{loser} claims {frontend} too and gets none of it: {must}")
    };
    let (external, node_port, balancer) =
        ("198.51.100.9 TCP 80", "node port TCP 30120", "203.0.113.12 TCP 80");
    let wanted = [
        format!("external IP 198.51.100.9:80 {ranges} ({})", lost(external, "b-old")),
        format!("external IP 198.51.100.9:80 {ranges} ({})", kept("a-young", external)),
        format!("node port 30120 ({})", lost(node_port, "d-old")),
        format!("node port 30120 ({})", kept("c-young", node_port)),
        format!("external IP 203.0.113.12:80 {ranges} ({})", lost(balancer, "f-young")),
        format!(
            "load balancer IP 203.0.113.12:80 ({0}), external IP 203.0.113.12:80 {ranges} ({0})",
            kept("e-old", balancer)
        ),
    ];
    assert_eq!(also, wanted, "{shown}");
}
