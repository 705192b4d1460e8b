//! The time that decisions take.

use std::net::Ipv4Addr;
use std::time::Duration;

use topo_lb_core::explain;
use topo_lb_core::topology::Scope;

use crate::made::{Cluster, H, Z, endpoint, id, keyed, node, slice};

/// The promised limit, and a longer one for unoptimized code.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 4 } else { 1 });

/// The processor time of this thread, which other load does not affect.
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn ten_thousand_services_are_explained_in_less_than_a_second() {
    const SERVICES: u32 = 10_000;
    const EACH: u32 = 10;
    const NODES: u32 = 1_000;
    let name = |index: u32| format!("n{}", index % NODES);
    let mut cluster = Cluster::default();
    for index in 0..NODES {
        let (zone, rack) = (format!("z{}", index % 3), format!("r{}", index % 50));
        let own = name(index);
        let labels = [(H, &*own), (Z, &*zone), ("rack", &*rack)];
        cluster.nodes.push(node(&name(index), &labels));
    }
    for index in 0..SERVICES {
        let mut service = keyed(&format!("{H},rack,{Z},*"));
        service.id = id(&format!("s{index}"));
        service.cluster_ips = vec![Ipv4Addr::from_bits(0x0a60_0000 + index).into()];
        let address = |one| Ipv4Addr::from_bits(0x0a80_0000 + index * EACH + one).to_string();
        let endpoints = (0..EACH).map(|one| endpoint(&address(one), &name(index * 7 + one * 101)));
        let mut own = slice(&format!("s{index}-1"), endpoints.collect());
        own.service = Some(service.id.clone());
        cluster.services.push(service);
        cluster.slices.push(own);
    }
    let state = cluster.state("n0");

    let begun = on_processor();
    let report = explain::report(&state, "n0", Scope::All, &[]);
    let took = on_processor() - begun;
    assert_eq!(report.services.len(), SERVICES as usize);
    assert!(took < LIMIT, "{took:?}");
    println!("explained in {took:?}");
}
