//! Benchmarks of the pure parts (`cargo bench -p topo-lb`), for an idle machine; no limit can fail.
#![expect(missing_docs, reason = "what criterion_group makes has none")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, PolicyId, State, TopologyPolicy, Update,
};
use topo_lb_core::plan::maglev;
use topo_lb_core::topology::{self, Chosen, Part, Scope};
use topo_lb_core::{explain, lint};
use topo_lb_tests::population::{Population, update};
use topo_lb_tests::pure_agent::PureAgent;

const HERE: &str = "here";

fn population(services: u32, endpoints: u32) -> Population {
    Population::new(HERE, 1_000, services, endpoints)
}

fn state(population: &Population) -> State {
    let mut state = State::default();
    for update in population.updates().expect("a population is of objects") {
        let _ = state.apply(update, HERE);
    }
    state
}

/// One Service with a policy of three keys, for one node.
fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for endpoints in [10, 100, 1_000, 5_000] {
        let state = state(&population(1, endpoints));
        let service = state.services().next().expect("there is one").clone();
        group.throughput(Throughput::Elements(endpoints.into()));
        group.bench_function(format!("{endpoints} endpoints"), |bencher| {
            bencher.iter(|| topology::routes(black_box(&state), HERE, Scope::All, None, &service));
        });
    }
}

/// A whole cluster, for one node.
fn tell(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1000 Services of 10 endpoints");
    let state = state(&population(1_000, 10));
    group.sample_size(20);
    group.bench_function("explain", |bencher| {
        bencher.iter(|| explain::report(black_box(&state), HERE, Scope::All, &[]));
    });
    group.bench_function("lint", |bencher| {
        bencher.iter(|| lint::findings(black_box(&state), Scope::All))
    });
}

/// The table of a consistent choice. A change makes it anew.
fn table(criterion: &mut Criterion) {
    let endpoint = |number: u32| {
        let address = Ipv4Addr::from_bits(0x0af4_0000 + number).into();
        Chosen::new(SocketAddr::new(address, 8_080), Locality::Zone)
    };
    let mut group = criterion.benchmark_group("table");
    for endpoints in [10, 100, 1_000] {
        let parts = [Part { weight: 1, endpoints: (0..endpoints).map(endpoint).collect() }];
        group.throughput(Throughput::Elements(endpoints.into()));
        group.bench_function(format!("of {endpoints} endpoints"), |bencher| {
            bencher.iter(|| {
                let (row, shares) = maglev::apportioned(black_box(&parts));
                shares.table(&row)
            });
        });
    }
}

/// A change of one slice, in clusters of several sizes.
fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("observe and plan one change");
    for services in [10, 1_000, 10_000] {
        let population = population(services, 10);
        let mut agent = PureAgent::new(HERE);
        agent.follow(population.updates().expect("a population is of objects"));
        let change = |gone| {
            let slice = population.slices(1, |number| number != gone).swap_remove(0);
            update(slice).expect("a slice is an object")
        };
        let changes = [change(0), change(1)];
        let mut turn = 0;
        group.bench_function(format!("among {services}"), |bencher| {
            bencher.iter_batched(
                || {
                    turn += 1;
                    changes[turn % 2].clone()
                },
                |update| agent.follow([update]),
                BatchSize::SmallInput,
            );
        });
    }
}

/// Policies for 10,000 Services: a change of one that decides for all of them, and of one slice beside 100.
fn policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("10000 Services of 10 endpoints, 100 policies");
    group.sample_size(10);
    let population = population(10_000, 10);
    let mut agent = PureAgent::new(HERE);
    agent.follow(population.updates().expect("a population is of objects"));
    // Weaker ones, which the change of the last one makes the agent look at, too.
    agent.follow((0..99).map(|number| policy(&format!("p{number:02}"), "rack")));
    let all = ["topology.kubernetes.io/zone", "*"].map(|key| policy("a", key));
    let mut turn = 0;
    group.bench_function("a policy of all", |bencher| {
        bencher.iter(|| {
            turn += 1;
            agent.follow([all[turn % 2].clone()]);
        });
    });
    let slices = [0, 1].map(|gone| {
        let slice = population.slices(1, |number| number != gone).swap_remove(0);
        update(slice).expect("a slice is an object")
    });
    group.bench_function("one slice", |bencher| {
        bencher.iter(|| {
            turn += 1;
            agent.follow([slices[turn % 2].clone()]);
        });
    });
}

fn policy(name: &str, key: &str) -> Update {
    let id = PolicyId { namespace: "".into(), name: name.into() };
    let keys = PolicySources { spec_topology_keys: vec![key.into()], ..PolicySources::default() };
    let policy = TopologyPolicy { id, policy: keys.into(), ..TopologyPolicy::default() };
    Update::ClusterTopologyPolicy(Change::Applied(ClusterTopologyPolicy(policy)))
}

/// Reads a slice of a hundred endpoints from JSON.
fn read(criterion: &mut Criterion) {
    let slice = population(1, 100).slices(0, |_| true).swap_remove(0);
    let mut group = criterion.benchmark_group("read");
    group.bench_function("a slice of 100 endpoints", |bencher| {
        bencher.iter_batched(|| slice.clone(), update, BatchSize::SmallInput);
    });
}

criterion_group!(benches, decide, tell, table, plan, policies, read);
criterion_main!(benches);
