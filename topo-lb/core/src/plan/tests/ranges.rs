//! When the source ranges of all Services have to be planned again: only when some may differ.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use proptest::prelude::*;
use topo_lb_common::backend::Locality;

use super::world::route;
use crate::cluster::{Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::Desired;
use crate::topology::Route;

fn id(name: u8) -> ServiceId {
    ServiceId { namespace: "default".into(), name: format!("s{name}").as_str().into() }
}

/// A Service port at a load balancer IP, with endpoints; `ranges`: who may dial it.
fn limited(address: u8, endpoints: u8, ranges: Option<&Arc<[IpNet]>>) -> Vec<Route> {
    let endpoint = |host| (SocketAddr::from(([10, 1, 0, host], 80)), Locality::Zone);
    let at = IpAddr::from([192, 0, 2, address]);
    let mut route = route((at, 80, Protocol::Tcp), (0..endpoints).map(endpoint));
    route.frontends[0].0 = FrontendKind::LoadBalancerIp;
    vec![Route { source_ranges: ranges.cloned(), ..route }]
}

fn lists() -> [Arc<[IpNet]>; 2] {
    // Equal, but two lists.
    ["10.0.0.0/8"; 2].map(|range| Arc::from([range.parse().expect("a range")]))
}

/// What is asked for, and the revision.
fn asked(desired: &Desired) -> (Vec<(Frontend, *const IpNet)>, u64) {
    let ranges = desired.source_ranges().map(|(at, ranges)| (at, ranges.as_ptr()));
    (ranges.collect(), desired.ranges_revision())
}

proptest! {
    #[test]
    fn the_revision_differs_if_anything_does(
        changes in prop::collection::vec(
            (0_u8..3, prop::option::of((0_u8..2, 0_u8..3, prop::option::of(0_usize..2)))), 1..20),
    ) {
        let (lists, mut desired) = (lists(), Desired::new(false));
        for (service, has) in changes {
            let (before, revision) = asked(&desired);
            let routes = has.map(|(address, endpoints, list)| {
                limited(address, endpoints, list.map(|list| &lists[list]))
            });
            desired.set(id(service), routes.unwrap_or_default());
            let (after, now) = asked(&desired);
            prop_assert!(before == after || revision != now, "{:?} {:?}", before, after);
        }
    }
}

#[test]
fn changes_of_endpoints_and_of_services_without_ranges_are_none() {
    let ([list, _], mut desired) = (lists(), Desired::new(false));
    desired.set(id(1), limited(1, 1, Some(&list)));
    let before = asked(&desired);
    assert_eq!(before.0.len(), 1);
    desired.set(id(1), limited(1, 2, Some(&list)));
    desired.set(id(2), limited(2, 1, None));
    desired.set(id(2), Vec::new());
    assert_eq!(asked(&desired), before);
}
