use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use strum::IntoEnumIterator as _;

use super::{Names, Object, SkippedEndpoints, parse, parse_kind, parse_with};
use topo_lb_core::cluster::service::{Protocol, Skipped};
use topo_lb_core::cluster::{Annotation, Endpoint, Node, On, Service, Slice, State};
use topo_lb_core::topology::{Origin, broken, named};

fn service(spec: Value) -> Service {
    service_with(json!({"name": "web"}), spec)
}

fn service_with(metadata: Value, spec: Value) -> Service {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    match parse(object) {
        Ok(Object::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

fn slice(mut fields: Value) -> (Slice, Option<SkippedEndpoints>) {
    let base = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
    });
    for (key, value) in base.as_object().unwrap() {
        fields.as_object_mut().unwrap().entry(key).or_insert(value.clone());
    }
    match parse(fields) {
        Ok(Object::Slice(slice, skipped)) => (slice, skipped),
        other => panic!("{other:?}"),
    }
}

fn error(object: Value) -> String {
    parse(object).expect_err("it is wrong").to_string()
}

fn service_error(spec: Value) -> String {
    error(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}))
}

/// The objects in a fixture of the lab.
fn items(name: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let list: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn fixture(name: &str) -> (Vec<Service>, Vec<Slice>, Vec<Node>) {
    let (mut services, mut slices, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    for item in items(name) {
        match parse(item).unwrap() {
            Object::Service(service) => services.push(service),
            Object::Slice(slice, None) => slices.push(slice),
            Object::Node(node) => nodes.push(node),
            other => panic!("{other:?}"),
        }
    }
    (services, slices, nodes)
}

#[test]
fn all_of_the_fixtures_is_read() {
    // Counted without this program.
    for (name, expected) in [
        (
            "kubernetes-1.36.json",
            "19 Services, 20 ports, 18 ClusterIPs, 19 slices, 60 endpoints (4 IPv6, 3 unready, \
             2 terminating, 8 for zones, 4 for nodes), by node [2, 29, 28], by zone [2, 29, 28]",
        ),
        (
            "kubernetes-1.20.json",
            "18 Services, 19 ports, 16 ClusterIPs, 18 slices, 54 endpoints (4 IPv6, 1 unready, \
             0 terminating, 0 for zones, 0 for nodes), by node [2, 26, 25], by zone [2, 26, 25]",
        ),
    ] {
        let (services, slices, nodes) = fixture(name);
        assert_eq!(nodes.iter().map(|node| node.labels.iter().count()).collect::<Vec<_>>(), [8; 3]);
        let endpoints: Vec<_> = slices.iter().flat_map(|slice| &slice.endpoints).collect();
        let count = |which: &dyn Fn(&Endpoint) -> bool| {
            endpoints.iter().filter(|endpoint| which(endpoint)).count()
        };
        let by_label = |key, values: [&str; 3]| {
            values.map(|value| count(&|it| it.label(key).is_some_and(|own| &**own == value)))
        };
        let by_node = ["kind-control-plane", "kind-worker", "kind-worker2"]
            .map(|name| count(&|it| it.node().is_some_and(|own| &**own == name)));
        let found = format!(
            "{} Services, {} ports, {} ClusterIPs, {} slices, {} endpoints ({} IPv6, {} unready, \
             {} terminating, {} for zones, {} for nodes), by node {by_node:?}, by zone {:?}",
            services.len(),
            services.iter().map(|service| service.ports.len()).sum::<usize>(),
            services.iter().map(|service| service.cluster_ips.len()).sum::<usize>(),
            slices.len(),
            endpoints.len(),
            count(&|it| it.address.is_ipv6()),
            count(&|it| !it.ready),
            count(&|it| it.terminating),
            count(&|it| !it.for_zones().is_empty()),
            count(&|it| !it.for_nodes().is_empty()),
            by_label("topology.kubernetes.io/zone", ["cn-north-1", "cn-east-1", "cn-east-2"]),
        );
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn policies_of_the_fixtures_are_read_from_their_places() {
    let (new, ..) = fixture("kubernetes-1.36.json");
    let (old, ..) = fixture("kubernetes-1.20.json");
    let find = |services: &[Service], name: &str| {
        services.iter().find(|service| &*service.id.name == name).unwrap().clone()
    };
    let ud1 = find(&new, "svc-ud1");
    assert_eq!(ud1.policy.openyurt.as_deref(), Some("openyurt.io/nodepool"));
    let rack = find(&new, "svc-rack").policy;
    assert_eq!(rack.topology_keys.as_deref(), Some("kubernetes.io/hostname, example.com/rack, *"));
    assert!(!rack.hints_asked && rack.spec_topology_keys.is_empty());
    assert!(find(&new, "prefer-zone").policy.hints_asked);
    assert!(find(&new, "prefer-node").policy.hints_asked);
    assert!(find(&new, "node-agent").internal_local);
    assert!(find(&new, "lb-local").external_local);
    assert_eq!(find(&new, "sticky").affinity_seconds, Some(600));
    assert_eq!(find(&new, "headless").skipped, Some(Skipped::Headless));
    assert_eq!(find(&new, "external").skipped, Some(Skipped::ExternalName));
    assert_eq!(find(&new, "dual").cluster_ips.len(), 2);
    let dns = find(&new, "dns");
    let ports: Vec<_> =
        dns.ports.iter().map(|port| (&*port.name, port.port, port.protocol)).collect();
    assert_eq!(ports, [("dns", 53, Protocol::Udp), ("dns-tcp", 53, Protocol::Tcp)]);
    let waterfall = find(&old, "keys-waterfall").policy;
    let keys: Vec<_> = waterfall.spec_topology_keys.iter().map(|key| &**key).collect();
    assert_eq!(keys, ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]);
}

#[test]
fn text_and_value_are_read_alike() {
    for item in items("kubernetes-1.36.json") {
        let text = serde_json::value::to_raw_value(&item).unwrap();
        let from_text = parse_with(&*text, &mut Names::default()).unwrap();
        assert_eq!(from_text, parse(item).unwrap());
    }
}

#[test]
fn null_is_the_same_as_absent() {
    let absent = service(json!({"clusterIP": "10.96.0.5"}));
    let null = service_with(
        json!({"name": "web", "namespace": null, "labels": null, "annotations": null}),
        json!({
            "clusterIP": "10.96.0.5", "clusterIPs": null, "ports": null, "topologyKeys": null,
            "sessionAffinity": null, "sessionAffinityConfig": null, "type": null,
            "internalTrafficPolicy": null, "externalTrafficPolicy": null,
            "trafficDistribution": null,
        }),
    );
    assert_eq!(absent, null);
    assert_eq!(absent.id.to_string(), "default/web");

    let endpoint = json!({"addresses": ["10.1.1.1"]});
    let nulls = json!({
        "addresses": ["10.1.1.1"], "conditions": null, "nodeName": null, "zone": null,
        "topology": null, "deprecatedTopology": null, "hints": {"forZones": null, "forNodes": null},
    });
    let port = json!({"port": 80});
    let null_port = json!({"port": 80, "name": null, "protocol": null, "appProtocol": null});
    assert_eq!(
        slice(json!({"endpoints": [endpoint], "ports": [port]})),
        slice(json!({"endpoints": [nulls], "ports": [null_port]})),
    );
    assert_eq!(slice(json!({})), slice(json!({"endpoints": null, "ports": null})));

    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": null}});
    let Ok(Object::Node(node)) = parse(node) else { panic!() };
    assert!(node.labels.is_empty());
}

#[test]
fn readiness_that_is_not_said_is_as_a_proxy_reads_it() {
    let (slice, _) = slice(json!({"endpoints": [
        {"addresses": ["10.1.1.1"]},
        {"addresses": ["10.1.1.2"], "conditions": {"ready": null, "serving": null}},
        {"addresses": ["10.1.1.3"],
         "conditions": {"ready": false, "serving": true, "terminating": true}},
    ]}));
    let conditions: Vec<_> =
        slice.endpoints.iter().map(|it| (it.ready, it.serving, it.terminating)).collect();
    assert_eq!(conditions, [(true, true, false), (true, true, false), (false, true, true)]);
}

#[test]
fn both_versions_say_where_an_endpoint_is() {
    for (fields, node, zone, rack) in [
        (
            json!({"topology": {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "z1",
                                "rack": "r1"}}),
            Some("n1"),
            Some("z1"),
            Some("r1"),
        ),
        (
            json!({"nodeName": "n2", "zone": "z2",
                   "deprecatedTopology": {"topology.kubernetes.io/zone": "stale", "rack": "r2"}}),
            Some("n2"),
            Some("z2"),
            Some("r2"),
        ),
        // `nodeName` takes precedence.
        (
            json!({"nodeName": "n2", "topology": {"kubernetes.io/hostname": "n1"}}),
            Some("n2"),
            None,
            None,
        ),
        (json!({"nodeName": "", "zone": ""}), None, None, None),
    ] {
        let mut object = fields.clone();
        object["addresses"] = json!(["10.1.1.1"]);
        let (slice, _) = slice(json!({"endpoints": [object]}));
        let endpoint = &slice.endpoints[0];
        let label = |key| endpoint.label(key).map(|value| &**value);
        assert_eq!(endpoint.node().map(|name| &**name), node, "{fields}");
        assert_eq!(label("topology.kubernetes.io/zone"), zone, "{fields}");
        assert_eq!(label("rack"), rack, "{fields}");
    }
}

#[test]
fn a_bad_address_costs_only_its_endpoint() {
    let (slice, skipped) = slice(json!({"addressType": "IPv6", "endpoints": [
        {"addresses": ["fd00::1"]},
        {"addresses": ["10.1.1.1"]},
        {"addresses": ["::ffff:10.1.1.1"]},
        {"addresses": []},
        {"addresses": ["not an address"]},
        {"addresses": ["fd00::2", "ignored"]},
    ]}));
    let kept: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(kept, ["fd00::1", "fd00::2"].map(|kept| kept.parse::<IpAddr>().unwrap()));
    assert_eq!(
        skipped.unwrap().to_string(),
        "EndpointSlice default/web-1: endpoints[1].addresses[0]: \"10.1.1.1\" is not an IPv6 \
         address; this endpoint and 3 more are left out"
    );
}

#[test]
fn slices_that_are_not_ours_have_no_endpoints() {
    let endpoints = json!([{"addresses": ["example.com"]}]);
    let labelled = |label: &str| json!({"name": "web-1", "labels": {"kubernetes.io/service-name": "web", label: ""}});
    for fields in [
        json!({"addressType": "FQDN", "endpoints": endpoints}),
        json!({"metadata": labelled("service.kubernetes.io/service-proxy-name"),
               "endpoints": endpoints}),
    ] {
        let (slice, skipped) = slice(fields);
        assert_eq!((slice.endpoints.len(), skipped), (0, None));
        assert_eq!(slice.service.unwrap().to_string(), "default/web");
    }
}

#[test]
fn a_slice_for_the_names_of_pods_keeps_its_endpoints_and_says_so() {
    let labels = json!({"service.kubernetes.io/headless": "", "kubernetes.io/service-name": "web"});
    let endpoints = json!([{"addresses": ["10.1.1.1"]}]);
    for (labels, headless) in [(labels, true), (json!({}), false)] {
        let metadata = json!({"name": "web-1", "labels": labels});
        let (slice, _) = slice(json!({"metadata": metadata, "endpoints": endpoints}));
        assert_eq!((slice.headless, slice.endpoints.len()), (headless, 1));
    }
}

#[test]
fn a_slice_that_is_copied_from_endpoints_says_so() {
    for (by, mirrored) in [
        ("endpointslicemirroring-controller.k8s.io", true),
        ("endpointslice-controller.k8s.io", false),
    ] {
        let labels = json!({"endpointslice.kubernetes.io/managed-by": by});
        let (slice, _) = slice(json!({"metadata": {"name": "web-1", "labels": labels}}));
        assert_eq!(slice.mirrored, mirrored, "{by}");
    }
}

#[test]
fn a_slice_without_the_service_label_belongs_to_no_service() {
    for labels in [json!(null), json!({}), json!({"kubernetes.io/service-name": ""})] {
        let (slice, _) = slice(json!({"metadata": {"name": "web-1", "labels": labels}}));
        assert_eq!(slice.service, None);
    }
}

#[test]
fn slice_ports_without_a_number_are_ignored() {
    let (slice, _) =
        slice(json!({"ports": [{"name": "a", "port": null}, {"name": "b"}, {"port": 80}]}));
    let ports: Vec<_> = slice.ports.iter().map(|port| (&*port.name, port.port)).collect();
    assert_eq!(ports, [("", 80)]);
}

#[test]
fn services_that_are_not_ours_say_why() {
    let skipped = |labels: Value, spec: Value| {
        service_with(json!({"name": "web", "labels": labels}), spec).skipped
    };
    let ip = json!({"clusterIP": "10.96.0.5"});
    assert_eq!(skipped(json!({}), ip.clone()), None);
    assert_eq!(skipped(json!({}), json!({"clusterIP": "None"})), Some(Skipped::Headless));
    assert_eq!(skipped(json!({}), json!({"clusterIPs": ["None"]})), Some(Skipped::Headless));
    assert_eq!(skipped(json!({}), json!({"clusterIP": ""})), Some(Skipped::NoClusterIp));
    assert_eq!(skipped(json!({}), json!({})), Some(Skipped::NoClusterIp));
    assert_eq!(skipped(json!({}), json!({"type": "ExternalName"})), Some(Skipped::ExternalName));
    let label = "service.kubernetes.io/service-proxy-name";
    assert_eq!(skipped(json!({label: "cilium"}), ip.clone()), Some(Skipped::OtherProxy));
    assert_eq!(skipped(json!({label: ""}), ip.clone()), Some(Skipped::OtherProxy));
    let label = "service.kubernetes.io/headless";
    assert_eq!(skipped(json!({label: ""}), ip), Some(Skipped::HeadlessLabel));
}

#[test]
fn hints_are_asked_for_by_field_or_annotation() {
    let asked = |annotations: Value, spec: Value| {
        service_with(json!({"name": "web", "annotations": annotations}), spec).policy.hints_asked
    };
    let mode = |mode: &str| json!({"service.kubernetes.io/topology-mode": mode});
    assert!(asked(mode("Auto"), json!({})));
    assert!(asked(json!({"service.kubernetes.io/topology-aware-hints": "auto"}), json!({})));
    assert!(asked(json!({}), json!({"trafficDistribution": "PreferClose"})));
    assert!(!asked(mode("Disabled"), json!({})));
    assert!(!asked(mode(""), json!({"trafficDistribution": ""})));
    assert!(!asked(json!({}), json!({})));
}

#[test]
fn affinity_lasts_three_hours_unless_told_otherwise() {
    let seconds = |spec: Value| service(spec).affinity_seconds;
    assert_eq!(seconds(json!({})), None);
    assert_eq!(seconds(json!({"sessionAffinity": "None"})), None);
    assert_eq!(seconds(json!({"sessionAffinity": "ClientIP"})), Some(10_800));
    let told = |seconds: i64| {
        json!({"sessionAffinity": "ClientIP",
               "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    assert_eq!(seconds(told(86_400)), Some(86_400));
    for wrong in [0, -1, 86_401, i64::MAX] {
        assert_eq!(
            service_error(told(wrong)),
            format!(
                "Service default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: {wrong} \
                 is not a time between 1 and 86400 seconds"
            )
        );
    }
}

#[test]
fn what_is_wrong_is_said_with_object_field_and_reason() {
    for (port, expected) in [
        (json!({"port": 70000}), ".port: 70000 is not a port (1–65535)"),
        (json!({"port": 0}), ".port: 0 is not a port (1–65535)"),
        (json!({"port": -1}), ".port: -1 is not a port (1–65535)"),
        (
            json!({"port": "80"}),
            ".port: invalid type: string \"80\", expected a port number (1–65535)",
        ),
        (json!({}), ": missing field `port`"),
        (
            json!({"port": 81, "protocol": "tcp"}),
            ".protocol: unknown variant `tcp`, expected one of `TCP`, `UDP`, `SCTP`",
        ),
        (json!({"port": 80, "name": "b"}), ".port: 80 with this protocol is spec.ports[0] already"),
        (
            json!({"port": 81, "name": "a"}),
            ".name: \"a\" is the name of spec.ports[0] already: each of several ports needs a name \
             of its own",
        ),
    ] {
        let error = service_error(json!({"ports": [{"port": 80, "name": "a"}, port]}));
        assert_eq!(error, format!("Service default/web: spec.ports[1]{expected}"));
    }
    for (error, expected) in [
        (
            service_error(json!({"ports": [{"name": "80", "port": 443}, {"port": 80}]})),
            "Service default/web: spec.ports[1].name: this port and spec.ports[0] go by the same \
             name: one's name is the other's number; name both",
        ),
        (
            service_error(json!({"clusterIPs": ["10.96.0.5", "10.96.0.0/16"]})),
            "Service default/web: spec.clusterIPs[1]: \"10.96.0.0/16\" is not an IP address",
        ),
        (
            service_error(json!({"internalTrafficPolicy": "local"})),
            "Service default/web: spec.internalTrafficPolicy: unknown variant `local`, expected \
             `Cluster` or `Local`",
        ),
        (
            error(json!({"apiVersion": "v1", "kind": "Service"})),
            "Service: missing field `metadata`",
        ),
        (
            error(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": ""}})),
            "Service: metadata.name: is empty",
        ),
        (
            error(json!({"apiVersion": "v1", "kind": "Node",
                         "metadata": {"name": "n1", "labels": {"example.com/rack": 12}}})),
            "Node n1: metadata.labels.example.com/rack: invalid type: integer `12`, \
             expected a string",
        ),
        (
            error(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                         "metadata": {"name": "web-1", "namespace": "shop"}})),
            "EndpointSlice shop/web-1: missing field `addressType`",
        ),
        (error(json!({"metadata": {}})), "kind: is missing: this is no Kubernetes object"),
        (
            error(json!({"kind": "Service", "metadata": {"name": "web"}})),
            "Service default/web: apiVersion: is missing",
        ),
        (error(json!("text")), "invalid type: string \"text\", expected an object"),
    ] {
        assert_eq!(error, expected);
    }
    service(json!({"ports": [{"name": "80", "port": 80}, {"name": "81", "port": 443}]}));
}

#[test]
fn an_error_says_which_object_alone_is_in_doubt() {
    let of = |object| parse(object).unwrap_err().identity().map(ToString::to_string);
    let service = |metadata| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                                    "spec": {"ports": [{"port": 0}]}})
    };
    let named = |text: &str| Some(text.to_owned());
    assert_eq!(of(service(json!({"name": "web"}))), named("Service default/web"));
    assert_eq!(of(service(json!({"name": "web", "namespace": "a"}))), named("Service a/web"));
    assert_eq!(of(service(json!({"name": ""}))), None);
    assert_eq!(of(service(json!({"name": 1}))), None);
    assert_eq!(of(service(json!({}))), None);
    let node = json!({"apiVersion": "v1", "kind": "Node",
                      "metadata": {"name": "n1", "namespace": "a", "labels": 1}});
    assert_eq!(of(node), named("Node n1"));
    assert_eq!(of(json!({"kind": "Service", "metadata": {"name": "web"}})), None);
}

#[test]
fn service_names_that_could_mean_two_services_are_none() {
    let long = "a".repeat(64);
    for (namespace, name, field) in [
        ("default", "web:http", "name"),
        ("default", "a/b", "name"),
        ("a/b", "web", "namespace"),
        ("a:b", "web", "namespace"),
        ("default", &long, "name"),
        (&long, "web", "namespace"),
        ("default", "web\u{0}", "name"),
    ] {
        let metadata = json!({"name": name, "namespace": namespace});
        let error = error(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}));
        assert!(error.contains(&format!("metadata.{field}: ")), "{error}");
        assert!(error.contains(" is no name: "), "{error}");
    }
    let error = service_error(json!({"ports": [{"port": 80, "name": long}]}));
    assert!(error.contains("spec.ports[0].name: ") && error.contains(" is no name: "), "{error}");
}

#[test]
fn a_message_does_not_obey_what_it_quotes() {
    let error = service_error(json!({"ports": [{"port": 80, "protocol": "\u{1b}[31m\n"}]}));
    let expected = r"Service default/web: spec.ports[0].protocol: unknown variant `\u{1b}[31m\n`";
    assert!(error.starts_with(expected), "{error}");
    let error = service_error(json!({"clusterIP": "x".repeat(1 << 20)}));
    assert!(error.len() < 400 && error.ends_with("is not an IP address"), "{error}");
}

#[test]
fn an_address_that_is_written_twice_is_one() {
    let ips = ["10.96.0.1", "10.96.0.1", "::ffff:10.96.0.1", "fd00::1", "010.96.0.1", "fd00:0::1"];
    let service = service(json!({"clusterIPs": ips, "ports": [{"port": 80}]}));
    let expected = ["10.96.0.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    assert_eq!(service.cluster_ips, expected);
}

#[test]
fn no_service_gets_an_address_that_each_host_and_pod_has() {
    let special =
        ["127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1"];
    let all = [&special[..], &["203.0.113.7", "::ffff:127.0.0.1", "2001:db8::7"]].concat();
    let ingress: Vec<_> = all.iter().map(|ip| json!({"ip": ip})).collect();
    let Ok(Object::Service(service)) = parse(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"port": 80}],
                 "externalIPs": all},
        "status": {"loadBalancer": {"ingress": ingress}},
    })) else {
        panic!("a Service");
    };
    let wanted: [IpAddr; 2] =
        ["203.0.113.7", "2001:db8::7"].map(|text| text.parse().expect("an address"));
    let exposure = service.exposure.expect("addresses");
    assert_eq!(exposure.load_balancer_ips, wanted);
    assert_eq!(exposure.external_ips, wanted);
}

#[test]
fn no_service_gets_an_address_of_a_family_in_which_it_has_no_cluster_ip() {
    let all = ["203.0.113.7", "2001:db8::7"];
    for (own, wanted) in [
        (&["10.96.0.1"][..], &all[..1]),
        (&["fd00::1"], &all[1..]),
        (&["10.96.0.1", "fd00::1"], &all),
    ] {
        let Ok(Object::Service(service)) = parse(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"type": "LoadBalancer", "clusterIPs": own, "ports": [{"port": 80}], "externalIPs": all},
            "status": {"loadBalancer": {"ingress": all.map(|ip| json!({"ip": ip}))}},
        })) else {
            panic!("a Service");
        };
        let exposure = service.exposure.expect("addresses");
        let wanted: Vec<IpAddr> = wanted.iter().map(|ip| ip.parse().expect("an address")).collect();
        assert_eq!((&exposure.load_balancer_ips, &exposure.external_ips), (&wanted, &wanted));
    }
}

#[test]
fn an_annotation_that_is_no_string_costs_no_more_than_itself() {
    let annotations = json!({
        "topo-lb.io/topology-keys": ["a", "b"], "topo-lb.io/min-endpoints": 2,
        "topo-lb.io/spill": true, "topo-lb.io/ejection": 3, "topo-lb.io/ramp": 0.5,
        "openyurt.io/topologyKeys": null, "topo-lb.io/mode": null, "other": {},
    });
    let metadata = json!({"name": "web", "annotations": annotations});
    let policy = service_with(metadata, json!({"ports": [{"port": 80}]})).policy;
    assert_eq!(policy.topology_keys.as_deref(), Some(r#"["a","b"]"#));
    assert_eq!(policy.min_endpoints.as_deref(), Some("2"));
    assert_eq!(policy.spill.as_deref(), Some("true"));
    assert_eq!(policy.ejection.as_deref(), Some("3"));
    assert_eq!((policy.ramp.as_deref(), &policy.mode), (Some("0.5"), &None));
    assert_eq!(policy.openyurt, None);
}

#[test]
fn a_text_that_is_too_long_to_be_valid_is_not_kept_and_that_is_said() {
    let with = |annotations: Value| {
        let metadata = json!({"name": "web", "annotations": annotations});
        service_with(metadata, json!({"ports": [{"port": 80}]}))
    };
    for one in Annotation::iter().filter(|one| one.counts_on().contains(&On::Service)) {
        let service = with(json!({one.name(): "x".repeat(100_000)}));
        let kept = one.said(&service.policy).expect("it is there");
        assert!(kept.len() < 100, "{} bytes of {one:?}", kept.len());
        let said = match one {
            Annotation::Dns => named::fault(&State::default(), &service).into_iter().collect(),
            _ => {
                broken(&Origin::Service, &service.policy).iter().map(ToString::to_string).collect()
            }
        };
        let said: Vec<String> = said;
        let is_said = |it: &String| it.contains(one.name()) && it.contains("longer than any valid");
        assert!(said.iter().any(is_said), "{said:?}");
    }
    let keys: Vec<_> = (0..10_000).map(|at| format!("example.com/{at}")).collect();
    let policy = service(json!({"topologyKeys": keys})).policy;
    assert_eq!(policy.spec_topology_keys.len(), 1);
    let said = broken(&Origin::Service, &policy);
    assert!(said.len() == 1 && said[0].to_string().contains("longer than any valid"), "{said:?}");
}

#[test]
fn the_longest_text_that_is_valid_is_kept() {
    let label = |length: usize| "a".repeat(length);
    let prefix = [label(63), label(63), label(63), label(61)].join(".");
    let keys: Vec<_> = (10..26).map(|at| format!("{prefix}/{}{at}", label(61))).collect();
    let weights: Vec<_> = keys.iter().map(|key| format!("{key}: 1000")).collect();
    let (keys, weights) = (keys.join(", "), weights.join(", "));
    let annotations = json!({"topo-lb.io/topology-keys": keys, "topo-lb.io/weights": weights});
    let metadata = json!({"name": "web", "annotations": annotations});
    let policy = service_with(metadata, json!({})).policy;
    assert_eq!(broken(&Origin::Service, &policy), []);
    assert_eq!(policy.weights.as_deref(), Some(&*weights));
}

#[test]
fn other_kinds_are_not_looked_into() {
    for object in [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": 5}),
        json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service"}),
        json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "Node"}),
    ] {
        assert_eq!(parse(object).unwrap(), Object::Other);
    }
}

#[test]
fn strings_that_repeat_across_objects_are_shared() {
    let mut names = Names::default();
    let mut node_of = |name: &str| {
        let object = json!({
            "addressType": "IPv4", "metadata": {"name": name},
            "endpoints": [{"addresses": ["10.1.1.1"], "nodeName": "n1", "zone": "z1"}],
        });
        let Ok(Object::Slice(mut slice, None)) =
            parse_kind(super::Kind::Slice, &object, &mut names)
        else {
            panic!()
        };
        slice.endpoints.remove(0).node().cloned().unwrap()
    };
    assert!(Arc::ptr_eq(&node_of("a"), &node_of("b")));
}
