//! `topo-lb.io/slow-start`: which share an endpoint gets that became Ready lately.

use std::time::{Duration, UNIX_EPOCH};

use topo_lb_core::cluster::{Change, Endpoint, Slice, State, Update};
use topo_lb_core::explain;
use topo_lb_core::plan::apportionment::{self, Rows};
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::{self, Scope};

use crate::made::{
    Asking as _, Cluster, H, Otherwise as _, Z, endpoint, id, keyed, node, service, slice,
};

/// Endpoints of zone a, with the last numbers of their addresses.
fn all(numbers: &[u8]) -> Vec<Endpoint> {
    numbers.iter().map(|number| endpoint(&format!("10.0.0.{number}"), "a")).collect()
}

fn brought(name: &str, at: u64, endpoints: Vec<Endpoint>) -> Update {
    let triggered = Some(UNIX_EPOCH + Duration::from_secs(at));
    Update::Slice(Change::Applied(Slice { triggered, ..slice(name, endpoints) }))
}

/// Endpoints 1 and 2 of a Service whose slow start takes 60 s.
fn cluster() -> Cluster {
    let service = keyed(Z).asking(|policy| policy.slow_start = Some("60s".into()));
    let nodes = vec![node("n1", &[(H, "n1"), (Z, "a")]), node("a", &[(Z, "a")])];
    Cluster { now: Some(1_000), ..Cluster::of(nodes, service, all(&[1, 2])) }
}

/// The share of each endpoint on n1, in percent, by the last number of its address.
fn shares(state: &State) -> Vec<(u8, u32)> {
    let routes = topology::routes(state, "n1", Scope::All, None, &id("svc"));
    let mut all = Vec::new();
    for (endpoints, share) in routes[0].shares() {
        let each = (share * 100.0 / endpoints.len() as f64).round() as u32;
        all.extend(endpoints.iter().map(|it| match it.address().ip() {
            std::net::IpAddr::V4(ip) => (ip.octets()[3], each),
            std::net::IpAddr::V6(_) => unreachable!(),
        }));
    }
    all.sort_unstable();
    all
}

fn after(updates: &[Update]) -> State {
    let mut state = cluster().state("n1");
    for update in updates {
        let _ = state.apply(update.clone(), "n1");
    }
    state
}

#[test]
fn a_share_grows_from_a_tenth_to_all_of_its_own() {
    let mut state = after(&[brought("svc-1", 1_000, all(&[1, 2, 3]))]);
    // Of 20 + 20 + 2, 5, 10, 15, 20.
    for (now, third) in
        [(1_000, 5), (1_014, 5), (1_015, 11), (1_030, 20), (1_045, 27), (1_059, 27), (1_060, 33)]
    {
        let _ = state.apply(Update::Time(now), "n1");
        assert_eq!(shares(&state)[2], (3, third), "{now}");
        assert_eq!(shares(&state)[0].1, shares(&state)[1].1, "{now}");
    }
}

/// Young endpoints of all ages among so many.
fn mixed(endpoints: u8) -> Vec<usize> {
    let numbers: Vec<u8> = (1..=endpoints).collect();
    let mut state = after(&[]);
    for number in 2..endpoints {
        let at = 960 + i64::from(number) * 40 / i64::from(endpoints);
        let _ = state.apply(Update::Time(at), "n1");
        let now = all(&numbers[..=usize::from(number)]);
        let _ = state.apply(brought("svc-1", u64::try_from(at).unwrap(), now), "n1");
    }
    let _ = state.apply(Update::Time(1_000), "n1");
    let routes = topology::routes(&state, "n1", Scope::All, None, &id("svc"));
    let Rows { first, second, .. } = apportionment::rows(&routes[0].parts);
    vec![routes[0].parts.len(), first.len() + second.len()]
}

#[test]
fn many_endpoints_of_many_ages_take_no_more_room_than_without() {
    assert_eq!(mixed(200), [2, 200], "two groups, and each endpoint once");
    let [groups, slots] = mixed(16)[..] else { unreachable!() };
    assert!(groups > 2 && slots <= 4 * 16, "{groups} groups in {slots} slots");
}

#[test]
fn it_is_the_time_of_the_api_and_only_of_what_was_not_ready() {
    let young = |state: &State| -> Vec<u8> {
        let mut lately: Vec<_> = state.ready_since(&id("svc")).map(|it| it.0.to_string()).collect();
        lately.sort();
        lately.iter().map(|it| it.rsplit('.').next().unwrap().parse().unwrap()).collect()
    };
    let late =
        |it: Vec<Endpoint>| -> Vec<Endpoint> { it.into_iter().map(|one| one.unready()).collect() };
    for (updates, wanted, shares_are) in [
        // What a listing brings, and what nobody changed.
        (vec![], vec![], vec![(1, 50), (2, 50)]),
        (vec![brought("svc-1", 1_000, all(&[2, 1]))], vec![], vec![(1, 50), (2, 50)]),
        // Half a minute old when this node hears of it; and an hour old.
        (vec![brought("svc-1", 970, all(&[1, 2, 3]))], vec![3], vec![(1, 40), (2, 40), (3, 20)]),
        (vec![brought("svc-1", 1, all(&[1, 2, 3]))], vec![3], vec![(1, 33), (2, 33), (3, 33)]),
        // In another slice; moved there, it is as old as before.
        (vec![brought("svc-2", 1_000, all(&[3]))], vec![3], vec![(1, 48), (2, 48), (3, 5)]),
        (
            vec![
                brought("svc-1", 970, all(&[1, 2, 3])),
                brought("svc-2", 1_000, all(&[3, 2])),
                brought("svc-1", 1_000, all(&[1])),
            ],
            vec![3],
            vec![(1, 40), (2, 40), (3, 20)],
        ),
        // Moved, and removed first; and a slice that is replaced.
        (
            vec![
                brought("svc-1", 970, all(&[1, 2, 3])),
                brought("svc-1", 1_000, all(&[1])),
                brought("svc-2", 1_000, all(&[3, 2])),
            ],
            vec![3],
            vec![(1, 40), (2, 40), (3, 20)],
        ),
        (
            vec![
                Update::Slice(Change::Deleted(slice("svc-1", vec![]).id)),
                brought("svc-2", 1_000, all(&[1, 2])),
            ],
            vec![],
            vec![(1, 50), (2, 50)],
        ),
        // A clock that is late: from when it came.
        (vec![brought("svc-1", 1_030, all(&[1, 2, 3]))], vec![3], vec![(1, 48), (2, 48), (3, 5)]),
        (vec![brought("svc-1", 9_999, all(&[1, 2, 3]))], vec![3], vec![(1, 48), (2, 48), (3, 5)]),
        // Not ready, then ready.
        (
            vec![brought("svc-2", 900, late(all(&[3]))), brought("svc-2", 1_000, all(&[3]))],
            vec![3],
            vec![(1, 48), (2, 48), (3, 5)],
        ),
        // What is alike young is treated alike: nobody refuses, nothing changes.
        (
            vec![brought("svc-1", 999, vec![]), brought("svc-1", 1_000, all(&[7, 8]))],
            vec![7, 8],
            vec![(7, 50), (8, 50)],
        ),
        // A list after the watch was away is like an event.
        (
            vec![Update::Slice(Change::Listed(
                vec![Slice {
                    triggered: Some(UNIX_EPOCH + Duration::from_secs(1_000)),
                    ..slice("svc-1", all(&[1, 2, 3]))
                }],
                vec![],
            ))],
            vec![3],
            vec![(1, 48), (2, 48), (3, 5)],
        ),
        // A slice that says no time: when it came.
        (
            vec![Update::Slice(Change::Applied(slice("svc-1", all(&[1, 2, 3]))))],
            vec![3],
            vec![(1, 48), (2, 48), (3, 5)],
        ),
    ] {
        let state = after(&updates);
        assert_eq!((young(&state), shares(&state)), (wanted, shares_are), "{updates:?}");
    }
    // A listing of an API server: one slice after the other, and then that these are all.
    let mut state = State::default();
    let slices = ["svc-1", "svc-2"].map(|name| brought(name, 990, all(&[1, 2])));
    let _ = state.apply(Update::Service(Change::Listed(cluster().services, vec![])), "n1");
    for update in slices {
        let _ = state.apply(update, "n1");
    }
    assert_eq!(young(&state), [0; 0]);
    // Without the annotation, nothing is kept.
    let plain = Cluster { services: vec![keyed(Z)], ..cluster() };
    let mut state = plain.state("n1");
    let _ = state.apply(brought("svc-1", 1_000, all(&[1, 2, 3])), "n1");
    assert_eq!(state.ready_since(&id("svc")).count(), 0);
}

#[test]
fn weights_and_a_slow_start_multiply() {
    let mut cluster = cluster();
    let far = endpoint("10.0.0.9", "b");
    cluster.slices[0].endpoints = [all(&[1]), vec![far.clone()]].concat();
    cluster.services[0] = service().asking(|policy| {
        policy.slow_start = Some("60s".into());
        policy.weights = Some("topology.kubernetes.io/zone: a=80, b=20".into());
    });
    cluster.nodes =
        vec![node("n1", &[(H, "n1"), (Z, "a")]), node("a", &[(Z, "a")]), node("b", &[(Z, "b")])];
    let mut state = cluster.state("n1");
    assert_eq!(shares(&state), [(1, 80), (9, 20)]);
    // Zone a keeps its share, whoever is young in it.
    let _ = state.apply(brought("svc-1", 1_000, [all(&[1, 2]), vec![far]].concat()), "n1");
    assert_eq!(shares(&state), [(1, 73), (2, 7), (9, 20)]);
}

#[test]
fn an_agent_that_starts_goes_on_and_one_step_is_one_change() {
    let cluster = cluster();
    let mut agent = Reconciler::new("n1".into(), Scope::All, true);
    let updates = [
        Update::Node(Change::Listed(cluster.nodes.clone(), vec![])),
        Update::Service(Change::Listed(cluster.services.clone(), vec![])),
        Update::Slice(Change::Listed(cluster.slices.clone(), vec![])),
    ];
    for update in updates {
        agent.observe(update);
    }
    let settle = |agent: &mut Reconciler| {
        let installed = Installed::new(Capacity::default());
        let plan = agent.plan(&installed);
        agent.carried_out(&plan, &installed);
        agent.starting_slowly()
    };
    assert!(!agent.pass(1_000));
    assert_eq!(settle(&mut agent), 0);
    agent.observe(brought("svc-1", 1_000, all(&[1, 2, 3])));
    assert_eq!(settle(&mut agent), 1);
    let steps: Vec<i64> = (1_001..1_100)
        .filter(|&now| {
            let changes = agent.pass(now);
            if changes {
                settle(&mut agent);
            }
            changes
        })
        .collect();
    assert_eq!(steps, [1_015, 1_030, 1_045, 1_060]);
    assert_eq!(agent.starting_slowly(), 0);

    // A clock that is set back begins its steps anew, and none is forgotten.
    assert!(!agent.pass(1_005));
    agent.observe(brought("svc-1", 1_005, all(&[1, 2, 3, 4])));
    settle(&mut agent);
    assert!(agent.pass(1_004), "the clock was set back");
    settle(&mut agent);
    assert!(agent.pass(1_070));
    assert_eq!(settle(&mut agent), 0);
}

#[test]
fn what_is_wrong_is_said_and_explain_says_the_rest() {
    let ignored = |service| {
        let cluster = Cluster { services: vec![service], ..cluster() };
        cluster.decided("n1", |it| {
            it.policy.ignored.iter().map(ToString::to_string).collect::<Vec<_>>()
        })
    };
    let said =
        |text: &str| ignored(keyed(Z).asking(|policy| policy.slow_start = Some(text.into())));
    assert_eq!(said("off"), [""; 0]);
    assert!(said("5s")[0].contains("is not a time from 10s to 1h"), "{:?}", said("5s"));
    let spilling = ignored(keyed("topology.kubernetes.io/zone,*").asking(|policy| {
        policy.slow_start = Some("60s".into());
        policy.spill = Some("5%".into());
    }));
    assert!(
        spilling[0].contains("`topo-lb.io/spill` divides new connections already"),
        "{spilling:?}"
    );
    let state = after(&[brought("svc-1", 970, all(&[1, 2, 3]))]);
    let report = explain::report(&state, "n1", Scope::All, &[id("svc")]);
    assert_eq!(
        report.services[0].policy.slow_start.as_deref(),
        Some("an endpoint's share grows from 10 % to its own in 60 s after it became Ready")
    );
    let reasons: Vec<_> = report.services[0].endpoints.iter().map(|it| &*it.reason).collect();
    assert!(
        reasons[2].ends_with("; gets 50 % of what others get, as it became Ready lately"),
        "{reasons:?}"
    );
    assert!(!reasons[1].contains("lately"), "{reasons:?}");
}
