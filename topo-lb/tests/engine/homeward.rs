//! `topo-lb.io/return`: which endpoints are wider than what new connections get.

use std::net::SocketAddr;
use std::time::Duration;

use topo_lb_core::cluster::service::{PolicySources, Protocol};
use topo_lb_core::cluster::{Change, Port, Service, Update};
use topo_lb_core::explain;
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::homeward::Homeward;
use topo_lb_core::topology::{Scope, ignored, routes};

use crate::ejection::ejections;
use crate::made::{
    Asking as _, Cluster, H, Otherwise as _, R, Z, asking, endpoint, id, node, service,
};

/// `n1` and `n2` in a zone, `n3` in another one of the region, `n4` far away; endpoint 10.0.0.N on `nN`.
fn cluster(service: Service) -> Cluster {
    let place = |name, zone, region| node(name, &[(H, name), (Z, zone), (R, region)]);
    let nodes = vec![
        place("n1", "a", "r"),
        place("n2", "a", "r"),
        place("n3", "b", "r"),
        place("n4", "c", "s"),
    ];
    let on = |host: u8| endpoint(&format!("10.0.0.{host}"), &format!("n{host}"));
    Cluster::of(nodes, service, (1..=4).map(on).collect())
}

fn returning(change: impl FnOnce(&mut PolicySources)) -> Service {
    asking(|policy| {
        policy.topology_keys = Some(format!("{H},{Z},{R},*").into());
        policy.return_after = Some("10m".into());
        change(policy);
    })
}

fn homeward(cluster: &Cluster, node: &str) -> Option<Homeward> {
    routes(&cluster.state(node), node, Scope::All, None, &id("svc")).remove(0).homeward
}

/// Rank, and the last bytes of the wider endpoints.
fn seen(cluster: &Cluster, node: &str) -> (Option<u8>, Vec<u8>) {
    shown(&homeward(cluster, node).unwrap())
}

fn shown(homeward: &Homeward) -> (Option<u8>, Vec<u8>) {
    let host = |address: &SocketAddr| match address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(_) => 0,
    };
    (homeward.rank, homeward.wide.iter().map(host).collect())
}

#[test]
fn what_is_wider_than_the_tier_in_force_may_return() {
    let mut cluster = cluster(returning(|_| {}));
    assert_eq!(homeward(&cluster, "n1").unwrap().after, Duration::from_secs(600));
    assert_eq!(seen(&cluster, "n1"), (Some(0), vec![2, 3, 4]));
    let all = cluster.slices[0].endpoints.clone();
    cluster.slices[0].endpoints = all[1..].to_vec();
    assert_eq!(seen(&cluster, "n1"), (Some(1), vec![3, 4]));
    cluster.slices[0].endpoints = all[2..].to_vec();
    assert_eq!(seen(&cluster, "n1"), (Some(2), vec![4]));
    cluster.slices[0].endpoints = all[3..].to_vec();
    assert_eq!(seen(&cluster, "n1"), (Some(3), vec![]));
    cluster.slices[0].endpoints = Vec::new();
    assert_eq!(seen(&cluster, "n1"), (None, vec![]));
}

#[test]
fn what_is_nearer_or_no_place_for_new_connections_stays() {
    // Two are needed, so the node's own is passed over: that is not wider.
    let mut few = cluster(returning(|policy| {
        policy.topology_keys = Some(format!("{H},{R},*").into());
        policy.min_endpoints = Some("2,1".into());
    }));
    assert_eq!(seen(&few, "n1"), (Some(1), vec![4]));
    // Of a label that is in no other tier.
    few.services[0] = returning(|policy| {
        policy.topology_keys = Some(format!("{Z},rack,*").into());
        policy.min_endpoints = Some("3,1".into());
    });
    few.nodes[0] = node("n1", &[(H, "n1"), (Z, "a"), (R, "r"), ("rack", "1")]);
    few.nodes[2] = node("n3", &[(H, "n3"), (Z, "b"), (R, "r"), ("rack", "1")]);
    assert_eq!(seen(&few, "n1"), (Some(1), vec![4]), "n2 is in the zone, which is nearer");

    let mut other = cluster(returning(|_| {}));
    other.slices[0].endpoints[1] = endpoint("10.0.0.2", "n2").draining();
    other.slices[0].endpoints[2] = endpoint("10.0.0.3", "n3").unready();
    assert_eq!(seen(&other, "n1"), (Some(0), vec![4]));
}

#[test]
fn what_gets_a_share_of_new_connections_is_not_wider() {
    let spilling = cluster(returning(|policy| policy.spill = Some("20%".into())));
    assert_eq!(seen(&spilling, "n1"), (Some(1), vec![3, 4]));
    let weights = format!("{H}: 80, {Z}: 10, {R}: 9, *: 1");
    let weighed = cluster(returning(|policy| policy.weights = Some(weights.into())));
    assert_eq!(seen(&weighed, "n1").1, Vec::<u8>::new());
    // Within the zone: one without a weight is no farther than the others.
    let values = cluster(returning(|policy| {
        policy.topology_keys = Some(format!("{Z},*").into());
        policy.weights = Some(format!("{H}: n1=1").into());
    }));
    assert_eq!(seen(&values, "n1"), (Some(0), vec![3, 4]));
}

#[test]
fn an_ejected_endpoint_of_the_tier_in_force_is_not_wider() {
    let cluster = cluster(returning(|policy| policy.topology_keys = Some(format!("{Z},*").into())));
    let mut state = cluster.state("n1");
    let out: SocketAddr = "10.0.0.2:9376".parse().unwrap();
    let _ = state.apply(Update::Ejections(ejections(50, &[out])), "n1");
    let route = routes(&state, "n1", Scope::All, None, &id("svc")).remove(0);
    assert_eq!(route.endpoints.len(), 1);
    assert_eq!(shown(&route.homeward.unwrap()), (Some(0), vec![3, 4]));
}

#[test]
fn other_policies_have_a_near_and_a_far_too() {
    let service = asking(|policy| {
        policy.openyurt = Some("kubernetes.io/hostname".into());
        policy.return_after = Some("1h".into());
    });
    assert_eq!(seen(&cluster(service), "n1"), (Some(0), vec![2, 3, 4]));
    let mut hinted = cluster(asking(|policy| {
        policy.hints_asked = true;
        policy.return_after = Some("1h".into());
    }));
    assert_eq!(seen(&hinted, "n1"), (Some(1), vec![]));
    for (endpoint, zone) in hinted.slices[0].endpoints.iter_mut().zip(["a", "a", "b", "c"]) {
        *endpoint = endpoint.clone().for_zones(&[zone]);
    }
    assert_eq!(seen(&hinted, "n1"), (Some(0), vec![3, 4]));
    hinted.slices[0].endpoints.drain(..2);
    assert_eq!(seen(&hinted, "n1"), (Some(1), vec![]));
}

#[test]
fn only_tcp_without_affinity_returns_and_a_service_is_told() {
    let plain = cluster(returning(|policy| policy.return_after = None));
    assert_eq!(homeward(&plain, "n1"), None);
    let mut lasting = returning(|_| {});
    lasting.affinity_seconds = Some(10_800);
    let lasting = cluster(lasting);
    assert_eq!(homeward(&lasting, "n1"), None);
    let state = lasting.state("n1");
    let said = |state| {
        explain::report(state, "n1", Scope::All, &[id("svc")]).services[0]
            .policy
            .return_after
            .clone()
    };
    assert_eq!(said(&state).as_deref(), Some("never: the Service has session affinity"));
    assert_eq!(said(&plain.state("n1")), None);

    let ignored_in = |service: Service| {
        let state = cluster(service).state("n1");
        ignored(&state, &id("svc")).map(|it| it.to_string())
    };
    let mut datagrams = returning(|_| {});
    datagrams.ports = vec![Port { name: "dns".into(), port: 53, protocol: Protocol::Udp }];
    for (service, said) in [
        (datagrams, "the Service has no TCP port"),
        (service().asking(|policy| policy.return_after = Some("10m".into())), "without a policy"),
        (
            returning(|policy| policy.return_after = Some("1s".into())),
            "is not a time from 5s to 24h",
        ),
    ] {
        let told = ignored_in(service).unwrap();
        assert!(told.starts_with("annotation topo-lb.io/return is ignored: "), "{told}");
        assert!(told.contains(said), "{told}");
    }
    assert_eq!(
        ignored_in(service().asking(|policy| policy.return_after = Some("off".into()))),
        None
    );
}

#[test]
fn the_reconciler_tells_of_what_changes_and_of_what_returns_no_more() {
    let cluster = cluster(returning(|_| {}));
    let mut reconciler = Reconciler::new("n1".into(), Scope::All, false);
    let installed = Installed::new(Capacity {
        services: 8,
        slots: 8,
        members: 8,
        flows: 0,
        connections: 0,
        sources: 0,
        hops: 0,
        spare: 2,
    });
    reconciler.observe(Update::Node(Change::Listed(cluster.nodes, vec![])));
    reconciler.observe(Update::Service(Change::Listed(cluster.services, vec![])));
    reconciler.observe(Update::Slice(Change::Listed(cluster.slices, vec![])));
    let settle = |reconciler: &mut Reconciler| {
        let plan = reconciler.plan(&installed);
        reconciler.carried_out(&plan, &installed);
        reconciler.take_returning()
    };
    let [(service, ways)] = &settle(&mut reconciler)[..] else { panic!() };
    assert_eq!((service, ways.len()), (&id("svc"), 1));
    assert_eq!((ways[0].row.len(), ways[0].wide.len(), ways[0].frontends.len()), (1, 3, 1));
    let frontends = ways[0].frontends.clone();
    assert!(settle(&mut reconciler).is_empty());
    let gone = returning(|policy| policy.return_after = None);
    reconciler.observe(Update::Service(Change::Applied(gone)));
    let [(service, ways)] = &settle(&mut reconciler)[..] else { panic!() };
    assert!(*service == id("svc") && ways.is_empty());
    assert!(settle(&mut reconciler).is_empty());
    // What would return is known all the same.
    let unasked = reconciler.ways(&id("svc"));
    assert_eq!((unasked.len(), unasked[0].wide.len(), &unasked[0].frontends), (1, 3, &frontends));
    let mut lasting = returning(|policy| policy.return_after = None);
    lasting.affinity_seconds = Some(10_800);
    reconciler.observe(Update::Service(Change::Applied(lasting)));
    assert!(reconciler.ways(&id("svc")).is_empty() && reconciler.ways(&id("other")).is_empty());
}
