//! `topo-lb.io/spill: auto`: what the endpoints of whole clusters get.

use std::collections::BTreeMap;

use proptest::prelude::*;
use topo_lb_core::explain;
use topo_lb_core::topology::{self, Scope};

use crate::made::{Asking as _, Cluster, H, Z, endpoint, id, keyed, node};

/// A cluster with so many nodes in each zone, and endpoints on these: zone, place in the zone. All of it in
/// one region.
fn cluster(keys: &str, zones: &[usize], endpoints: &[(usize, usize)]) -> Cluster {
    let name = |zone: usize, at: usize| format!("n{zone}-{at}");
    let all = zones.iter().enumerate().flat_map(|(zone, &count)| {
        let of = (0..count).map(move |at| (zone, name(zone, at)));
        of.map(|(zone, name)| node(&name, &[(H, &name), (Z, &format!("z{zone}"))]))
    });
    let endpoints = endpoints.iter().enumerate().map(|(at, &(zone, place))| {
        endpoint(&format!("10.0.{}.{}", at / 200, at % 200 + 1), &name(zone, place))
    });
    let service = keyed(keys).asking(|policy| policy.spill = Some("auto".into()));
    Cluster::of(all.collect(), service, endpoints.collect())
}

/// What each endpoint gets, in clients, if each node is one.
fn loads(cluster: &Cluster) -> Vec<f64> {
    let state = cluster.state("");
    let mut loads: BTreeMap<_, f64> = BTreeMap::new();
    for (node, _) in state.nodes() {
        let route = &topology::routes(&state, node, Scope::All, None, &id("svc"))[0];
        for (endpoints, share) in route.shares() {
            for one in endpoints {
                *loads.entry(one.address()).or_default() += share / endpoints.len() as f64;
            }
        }
    }
    loads.into_values().collect()
}

fn share(cluster: &Cluster, node: &str) -> u16 {
    topology::routes(&cluster.state(node), node, Scope::All, None, &id("svc"))[0].spill
}

#[test]
fn a_zone_with_half_of_the_clients_and_a_tenth_of_the_endpoints_does_not_drown() {
    let endpoints: Vec<_> = (0..10).map(|at| (usize::from(at > 0), at)).collect();
    let keys = format!("{Z},*");
    let auto = cluster(&keys, &[10, 10], &endpoints);
    assert_eq!((share(&auto, "n0-3"), share(&auto, "n1-3")), (8_000, 0), "1 - 1.2 * 2 / 10");
    let drowned = Cluster { services: vec![keyed(&keys)], ..cluster(&keys, &[10, 10], &endpoints) };
    let most = |cluster| loads(cluster).into_iter().fold(0.0, f64::max);
    assert_eq!((most(&drowned) * 100.0).round(), 1_000.0);
    assert_eq!((most(&auto) * 100.0).round(), 200.0, "the mean is 2");
    let report = explain::report(&auto.state("n0-3"), "n0-3", Scope::All, &[id("svc")]);
    let reason = &report.services[0].decision.reason;
    let end = "; 80% of new connections spill to 9 more by key `*` (auto: nodes ÷ endpoints is 10 ÷ 1 in \
               this tier, 20 ÷ 10 in all)";
    assert!(reason.ends_with(end), "{reason}");
}

#[test]
fn connections_spill_past_a_tier_that_is_crowded_itself() {
    // Ten nodes with an endpoint each in zone 0, and twenty on one node of zone 1.
    let mut endpoints: Vec<_> = (0..10).map(|at| (0, at)).collect();
    endpoints.extend([(1, 0); 20]);
    let all = cluster(&format!("{H},{Z},*"), &[10, 2], &endpoints);
    let route = &topology::routes(&all.state("n0-0"), "n0-0", Scope::All, None, &id("svc"))[0];
    assert_eq!((route.endpoints.len(), route.wider.len(), route.spill), (1, 29, 5_500));
    // In a cluster in balance, none leaves its tier.
    let even = cluster(&format!("{H},{Z},*"), &[3, 3], &[(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!((share(&even, "n0-0"), share(&even, "n0-2")), (0, 0));
}

#[test]
fn a_strict_tier_keeps_its_connections() {
    let all = cluster(Z, &[9, 1], &[(0, 0), (1, 0)]);
    assert_eq!((share(&all, "n0-0"), share(&all, "n1-0")), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_endpoint_gets_much_more_than_the_mean_and_no_connection_is_lost(
        zones in proptest::collection::vec(1_usize..12, 1..5),
        places in proptest::collection::vec((any::<usize>(), any::<usize>(), 0_usize..3), 1..24),
        by_host in any::<bool>(),
    ) {
        let place = |&(zone, at, skew): &(usize, usize, usize)| {
            // Some zones get many endpoints on few nodes.
            let zone = if skew == 0 { zone % zones.len() } else { 0 };
            (zone, at % zones[zone])
        };
        let endpoints: Vec<_> = places.iter().map(place).collect();
        let (keys, bound) = match by_host {
            true => (format!("{H},{Z},*"), 2.0 * 1.2 + 1.05),
            false => (format!("{Z},*"), 1.2 + 1.05),
        };
        let loads = loads(&cluster(&keys, &zones, &endpoints));
        let nodes = zones.iter().sum::<usize>() as f64;
        prop_assert!((loads.iter().sum::<f64>() - nodes).abs() < 1e-6, "{loads:?}");
        let most = loads.iter().copied().fold(0.0, f64::max) / (nodes / endpoints.len() as f64);
        prop_assert!(most <= bound, "{most} times the mean: {zones:?} {endpoints:?}");
    }
}
