//! `topo-lb.io/direct`, beyond what the second implementation knows of it.

use topo_lb_core::cluster::service::{PolicySources, Skipped};
use topo_lb_core::cluster::{Clients, Frontend, Namespace, Port, Protocol, Service, Slice};
use topo_lb_core::explain;
use topo_lb_core::lint::{self, Rule};
use topo_lb_core::topology::direct::{Direct, MOST};
use topo_lb_core::topology::{self, Route, Scope, Verdict};

use crate::made::{
    Asking as _, Cluster, H, Otherwise as _, asking, endpoint, id, keyed, node, port, service,
    slice,
};

/// `svc` with an endpoint on this node, and so many on another one.
fn cluster(far: usize) -> Cluster {
    cluster_of(keyed(H).asking(|policy| policy.direct = Some("refuse".into())), far)
}

fn cluster_of(service: Service, far: usize) -> Cluster {
    let mut endpoints = vec![endpoint("10.1.0.1", "here")];
    endpoints.extend((0..far).map(|at| {
        let address = format!("10.2.{}.{}", at / 250, at % 250 + 1);
        endpoint(&address, "there")
    }));
    Cluster::of(vec![node("here", &[(H, "here")]), node("there", &[])], service, endpoints)
}

/// How many endpoints are refused or steered away from, and what `explain` says of it.
fn refused(cluster: &Cluster) -> (usize, Option<String>) {
    let routes = cluster.routes("here");
    assert_eq!(routes[0].verdict, Verdict::Route);
    let direct = routes[1..].iter().map(|route| route.frontends.len()).sum();
    let report = explain::report(&cluster.state("here"), "here", Scope::All, &[id("svc")]);
    (direct, report.services[0].direct.clone())
}

fn said(count: usize) -> (usize, Option<String>) {
    (count, Some(format!("{count} endpoints are refused to clients that dial them by address")))
}

#[test]
fn up_to_a_thousand_endpoints_are_refused_and_of_more_none() {
    assert_eq!(refused(&cluster(MOST)), said(MOST));
    let rules = |far| -> Vec<_> {
        let findings = lint::findings(&cluster(far).state(""), Scope::All).into_iter();
        findings.map(|one| one.rule).filter(|rule| *rule == Rule::Exposed).collect()
    };
    // All of them, with the one that is here: from nowhere, none is near.
    assert_eq!((rules(MOST - 1), rules(MOST)), (vec![], vec![Rule::Exposed]));
    let text = "not refused: 1001 IPv4 endpoints would be, and at most 1000 can be";
    assert_eq!(refused(&cluster(MOST + 1)), (0, Some(text.to_owned())));
}

#[test]
fn an_endpoint_without_a_node_is_dialled_by_anybody() {
    let mut cluster = cluster(2);
    cluster.slices[0].endpoints.push(endpoint("10.3.0.1", ""));
    assert_eq!(refused(&cluster), said(2));
}

#[test]
fn a_service_may_allow_what_its_namespace_refuses() {
    let mut cluster = cluster(2);
    let refusing = asking(|policy| policy.direct = Some("refuse".into())).policy;
    let name = service().id.namespace;
    cluster.namespaces = vec![Namespace { name, policy: refusing, ..Namespace::default() }];
    cluster.services = vec![keyed(H)];
    assert_eq!(refused(&cluster), said(2));
    cluster.services = vec![keyed(H).asking(|policy| policy.direct = Some("allow".into()))];
    assert_eq!(refused(&cluster), (0, None));
    // A Namespace need not know which of its Services are strict.
    cluster.services = vec![keyed(&format!("{H},*"))];
    assert_eq!(refused(&cluster), (0, None));
    assert!(cluster.decided("here", |decision| decision.policy.ignored.is_empty()));
}

/// The same with steered Pods, by a policy that is not strict.
fn steering(far: usize) -> Cluster {
    let keys = format!("{H},*");
    cluster_of(keyed(&keys).asking(|policy| policy.direct = Some("steer".into())), far)
}

fn steered(count: usize) -> String {
    match count {
        0 => "steered Pods reach every endpoint that they dial by address".to_owned(),
        1 => "steered Pods that dial 1 endpoint by address get one that the policy chooses"
            .to_owned(),
        some => format!(
            "steered Pods that dial {some} endpoints by address get those that the policy chooses"
        ),
    }
}

/// The messages of `lint` about ways past a policy.
fn exposed(cluster: &Cluster) -> Vec<String> {
    let findings = lint::findings(&cluster.state(""), Scope::All).into_iter();
    findings.filter(|one| one.rule == Rule::Exposed).map(|one| one.message).collect()
}

/// The last bytes of the endpoints from which Pods are steered away, of all routes of a Service.
fn far(cluster: &Cluster) -> Vec<String> {
    let direct = |route: &Route| -> Vec<Frontend> {
        let frontends = route.frontends.iter().map(|(_, frontend)| *frontend);
        frontends.filter(|frontend| frontend.clients == Clients::Steered).collect()
    };
    let all = cluster.routes("here");
    let all = all.iter().flat_map(direct);
    all.map(|it| it.address.to_string().rsplit('.').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn pods_are_steered_to_what_the_policy_chooses_and_the_policy_need_not_be_strict() {
    let cluster = steering(3);
    let routes = cluster.routes("here");
    let [own, direct] = &routes[..] else { panic!("{routes:?}") };
    assert_eq!(far(&cluster), ["1", "2", "3"]);
    let same = Route { frontends: own.frontends.clone(), ..direct.clone() };
    assert_eq!(same, *own, "they get what clients of the Service get");
    assert_eq!(refused(&cluster), (3, Some(steered(3))));
    assert_eq!(refused(&steering(1)).1, Some(steered(1)));
    assert_eq!(refused(&steering(MOST)), (MOST, Some(steered(MOST))));
    let text = "not steered: 1001 IPv4 endpoints would be, and at most 1000 can be";
    assert_eq!(refused(&steering(MOST + 1)), (0, Some(text.to_owned())));
    assert_eq!(exposed(&cluster), Vec::<String>::new());
    // Nothing on this node, so everything is as near as anything else.
    let mut nothing_near = steering(3);
    nothing_near.slices[0].endpoints.remove(0);
    assert_eq!(refused(&nothing_near), (0, Some(steered(0))));
}

#[test]
fn where_a_strict_policy_leaves_nothing_steered_pods_are_refused_as_at_the_service() {
    let mut cluster = steering(2);
    cluster.services = vec![keyed(H).asking(|policy| policy.direct = Some("steer".into()))];
    assert_eq!(refused(&cluster), (2, Some(steered(2))));
    cluster.slices[0].endpoints.remove(0);
    let routes = cluster.routes("here");
    assert!(routes.iter().all(|route| route.verdict == Verdict::Refuse && route.strict));
    assert_eq!(far(&cluster), ["1", "2"]);
}

#[test]
fn hints_are_a_policy_too_and_without_any_nobody_is_steered() {
    let mut cluster = steering(2);
    let asks = |hints| {
        asking(|policy| (policy.direct, policy.hints_asked) = (Some("steer".into()), hints))
    };
    cluster.services = vec![asks(true)];
    for (one, name) in cluster.slices[0].endpoints.iter_mut().zip(["here", "there", "there"]) {
        *one = one.clone().for_nodes(&[name]);
    }
    assert_eq!(refused(&cluster), (2, Some(steered(2))));
    cluster.services = vec![asks(false)];
    assert_eq!(refused(&cluster), (0, None));
    let error = cluster.decided("here", |decision| decision.policy.ignored[0].to_string());
    assert!(
        error.contains("topo-lb.io/direct") && error.contains("write topology keys"),
        "{error}"
    );
    // A Namespace need not know which of its Services have one.
    let policy = asks(false).policy;
    let name = service().id.namespace;
    cluster.namespaces = vec![Namespace { name, policy, ..Namespace::default() }];
    cluster.services = vec![service()];
    assert_eq!(refused(&cluster), (0, None));
    assert!(cluster.decided("here", |decision| decision.policy.ignored.is_empty()));
}

#[test]
fn clients_that_keep_their_endpoint_are_not_steered() {
    let mut cluster = steering(2);
    cluster.services[0].affinity_seconds = Some(600);
    let text = "nobody is steered, as the Service has session affinity";
    assert_eq!(refused(&cluster), (0, Some(text.to_owned())));
    let messages = exposed(&cluster);
    assert!(messages.len() == 1 && messages[0].contains("session affinity"), "{messages:?}");
    // Whoever says it for many Services need not know that.
    let name = service().id.namespace;
    let policy = cluster.services[0].policy.clone();
    cluster.namespaces = vec![Namespace { name, policy, ..Namespace::default() }];
    let affinity_seconds = Some(600);
    cluster.services = vec![Service { affinity_seconds, ..keyed(&format!("{H},*")) }];
    assert_eq!(exposed(&cluster), Vec::<String>::new());
}

/// Another Service with endpoint 10.2.0.2 at this port, and its slice.
fn other(name: &str, number: u16) -> (Service, Slice) {
    let address = "10.96.0.2".parse().unwrap();
    let ports = vec![port("other", 80, Protocol::Tcp)];
    let service = Service { id: id(name), cluster_ips: vec![address], ports, ..service() };
    let own = slice(&format!("{name}-1"), vec![endpoint("10.2.0.2", "there")]);
    let ports = vec![port("other", number, Protocol::Tcp)];
    (service, Slice { service: Some(id(name)), ports, ..own })
}

#[test]
fn what_stands_for_another_service_too_is_left_alone() {
    let left = |change: fn(&mut Service, &mut Slice)| {
        let mut cluster = steering(3);
        let (mut service, mut slice) = other("other", 9_376);
        change(&mut service, &mut slice);
        cluster.services.push(service);
        cluster.slices.push(slice);
        (far(&cluster), exposed(&cluster).len())
    };
    let (all, some) = (["1", "2", "3"].map(str::to_owned), ["1", "3"].map(str::to_owned));
    assert_eq!(left(|_, _| {}), (some.to_vec(), 1));
    assert_eq!(left(|_, slice| slice.ports[0].port = 80), (all.to_vec(), 0), "another port");
    let udp = |service: &mut Service, slice: &mut Slice| {
        for one in service.ports.iter_mut().chain(&mut slice.ports) {
            one.protocol = Protocol::Udp;
        }
    };
    assert_eq!(left(udp), (all.to_vec(), 0), "another protocol");
    assert_eq!(left(|service, _| service.ports[0].name = "no".into()).0, all, "no port of it");
    // A headless one chooses nothing: its clients are those that are to be steered.
    assert_eq!(left(|service, _| service.cluster_ips.clear()), (all.to_vec(), 0));
    let elsewhere = |service: &mut Service, slice: &mut Slice| {
        service.id.namespace = "elsewhere".into();
        slice.id.namespace = "elsewhere".into();
        slice.service = Some(service.id.clone());
    };
    assert_eq!(left(elsewhere), (all.to_vec(), 0), "a selector selects Pods of its namespace");
}

#[test]
fn a_member_of_a_stateful_set_that_is_dialled_by_its_name_is_left_alone() {
    let mut cluster = steering(3);
    let (mut governing, mut slice) = other("members", 1);
    governing.cluster_ips.clear();
    slice.endpoints[0].has_hostname = true;
    slice.ports.clear();
    cluster.services.push(governing);
    cluster.slices.push(slice);
    assert_eq!(far(&cluster), ["1", "3"]);
    let text = "; 1 more is left alone: another Service port has it, too, or it has a hostname";
    assert_eq!(refused(&cluster).1, Some(steered(2) + text));
    assert!(exposed(&cluster)[0].contains("hostname"));
}

/// The same cluster whose Service is headless, and what `explain` says of it after its first words.
fn headless(mut cluster: Cluster) -> (Cluster, String) {
    let service = &mut cluster.services[0];
    service.cluster_ips.clear();
    service.skipped = Some(Skipped::Headless);
    // As Kubernetes labels the slices of such a Service.
    cluster.slices[0].headless = true;
    let report = explain::report(&cluster.state("here"), "here", Scope::All, &[id("svc")]);
    assert!(report.services.is_empty());
    let why = report.skipped[0].1.split_once("dial its pods themselves").unwrap().1;
    let said = why.strip_prefix("; ").unwrap_or(why).to_owned();
    (cluster, said)
}

#[test]
fn a_headless_service_may_refuse_and_steer_what_its_clients_dial() {
    let (refusing, text) = headless(cluster(3));
    assert_eq!(Some(text), said(3).1);
    let [route] = &refusing.routes("here")[..] else { panic!("{refusing:?}") };
    assert_eq!((route.verdict, route.frontends.len()), (Verdict::Refuse, 3));
    assert_eq!((route.direct(), &*route.name), (Direct::Refuse, "default/svc:http"));

    let (steering_one, text) = headless(steering(3));
    assert_eq!(text, steered(3));
    assert_eq!(far(&steering_one), ["1", "2", "3"]);
    let [route] = &steering_one.routes("here")[..] else { panic!("{steering_one:?}") };
    let wanted = (Verdict::Route, Some(0), 1, Direct::Steer);
    assert_eq!((route.verdict, route.tier, route.endpoints.len(), route.direct()), wanted);
    // Both families, and `internalTrafficPolicy` is about ClusterIPs.
    let (mut both, _) = headless(steering(1));
    both.services[0].internal_local = true;
    let six = Slice {
        headless: true,
        ..slice("svc-6", vec![endpoint("fd00::1", "here"), endpoint("fd00::2", "there")])
    };
    both.slices.push(six);
    assert_eq!(far(&both), ["1", "fd00::2"]);
    let lint = |cluster: &Cluster| -> Vec<_> {
        let all = lint::findings(&cluster.state(""), Scope::All).into_iter();
        all.map(|one| one.message).collect()
    };
    assert_eq!(lint(&refusing), Vec::<String>::new());

    // Members of a StatefulSet dial each other, so only the Service itself can say it.
    let mut by_namespace = refusing;
    let policy = by_namespace.services[0].policy.clone();
    by_namespace.services[0] =
        Service { policy: keyed(H).policy, ..by_namespace.services[0].clone() };
    let name = service().id.namespace;
    by_namespace.namespaces = vec![Namespace { name, policy, ..Namespace::default() }];
    let (mut by_namespace, text) = headless(by_namespace);
    assert_eq!((by_namespace.routes("here"), &*text), (vec![], ""));
    // On trial, it says nothing yet.
    let own = by_namespace.services[0].clone();
    by_namespace.services[0] = own.clone().asking(|policy| {
        (policy.direct, policy.mode) = (Some("allow".into()), Some("observe".into()));
    });
    assert_eq!(by_namespace.routes("here"), vec![]);
    by_namespace.services[0] = own;
    let idle = lint(&by_namespace);
    assert!(idle.len() == 1 && idle[0].contains("`topo-lb.io/direct`"), "{idle:?}");
    // What is wrong is said.
    let (mut wrong, _) = headless(cluster(3));
    let said = |policy: &mut PolicySources| policy.direct = Some("refuze".into());
    wrong.services[0] = wrong.services[0].clone().asking(said);
    assert!(lint(&wrong)[0].contains("refuze"), "{:?}", lint(&wrong));
    assert!(headless(wrong).1.contains("refuze"));
    let handled = |policy: &mut PolicySources| policy.handle = Some("false".into());
    let (mut left, _) = headless(cluster(3));
    left.services[0] = left.services[0].clone().asking(handled);
    assert_eq!((left.routes("here"), &*headless(left).1), (vec![], ""));
}

#[test]
fn what_two_headless_services_say_is_left_alone() {
    let (mut cluster, _) = headless(steering(3));
    let (mut other, slice) = other("other", 9_376);
    other.cluster_ips.clear();
    other.skipped = Some(Skipped::Headless);
    other = other.asking(|policy| policy.direct = Some("allow".into()));
    cluster.services.push(other);
    cluster.slices.push(slice);
    assert_eq!(far(&cluster), ["1", "3"]);
}

#[test]
fn a_node_that_steers_no_pods_has_no_frontends_for_them() {
    let mut state = steering(3).state("here");
    state.steer_no_pods();
    assert_eq!(topology::routes(&state, "here", Scope::All, None, &id("svc")).len(), 1);
    let report = explain::report(&state, "here", Scope::All, &[id("svc")]);
    let said = "nobody is steered, as this agent has no flag that names Pods to steer";
    assert_eq!(report.services[0].direct.as_deref(), Some(said));
    let mut refusing = cluster(3).state("here");
    refusing.steer_no_pods();
    assert_eq!(topology::routes(&refusing, "here", Scope::All, None, &id("svc")).len(), 2);
}

#[test]
fn what_two_ports_have_is_left_alone() {
    let mut cluster = steering(2);
    cluster.services[0].ports.push(Port {
        name: "admin".into(),
        port: 81,
        protocol: Protocol::Tcp,
    });
    cluster.slices[0].ports.push(port("admin", 9_377, Protocol::Tcp));
    assert_eq!(far(&cluster).len(), 4);
    cluster.slices[0].ports[1].port = 9_376;
    assert_eq!(far(&cluster), Vec::<String>::new());
}
