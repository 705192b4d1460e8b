//! `topo-lb.io/evacuate`: what leaves every choice.

use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Exposure, PolicyId, State, TopologyPolicy, Update,
};
use topo_lb_core::explain;
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::evacuated::Evacuated;
use topo_lb_core::topology::{
    NodesByLabel, Scope, Verdict, decide, is_left, reached, reads_other_nodes, routes,
};
use topo_lb_core::what_if::{self, Proxied};

use crate::made::{Asking as _, Cluster, H, Z, endpoint, id, keyed, node, service};

const ZONE_B: &str = "topology.kubernetes.io/zone=b";

/// Three zones with a node and two endpoints each: 1 and 2 in zone a, 3 and 4 in b, 5 and 6 in c.
fn cluster(keys: &str, evacuate: &str) -> Cluster {
    let zones = [("n1", "a"), ("n2", "b"), ("n3", "c")];
    let nodes = zones.map(|(name, zone)| node(name, &[(H, name), (Z, zone)]));
    let on = |host: usize| endpoint(&format!("10.0.0.{host}"), zones[(host - 1) / 2].0);
    let service = if keys.is_empty() { service() } else { keyed(keys) };
    let cluster = Cluster::of(nodes.to_vec(), service, (1..=6).map(on).collect());
    Cluster { cluster_policies: vec![policy("empty", evacuate)], ..cluster }
}

fn policy(name: &str, evacuate: &str) -> ClusterTopologyPolicy {
    let id = PolicyId { name: name.into(), ..PolicyId::default() };
    let mut policy = TopologyPolicy { id, ..TopologyPolicy::default() };
    std::sync::Arc::make_mut(&mut policy.policy).evacuate = Some(evacuate.into());
    ClusterTopologyPolicy(policy)
}

/// The last numbers of the addresses that clients of each node get; "–" where they are refused.
fn hosts(cluster: &Cluster) -> [String; 3] {
    ["n1", "n2", "n3"].map(|node| {
        let all = cluster.chosen(node);
        let last = |it: &String| it.rsplit('.').next().unwrap_or_default().to_owned();
        let all: Vec<String> = all.iter().map(last).collect();
        if all.is_empty() { "–".to_owned() } else { all.join(" ") }
    })
}

#[test]
fn a_zone_leaves_every_choice_and_its_own_clients_follow_their_waterfall() {
    let soft = format!("{H},{Z},*");
    for (keys, evacuate, wanted) in [
        ("", ZONE_B, ["1 2 5 6"; 3]),
        (&*soft, ZONE_B, ["1 2", "1 2 5 6", "5 6"]),
        (Z, ZONE_B, ["1 2", "–", "5 6"]),
        (Z, &format!("{ZONE_B}; allow-strict=*"), ["1 2", "1 2 5 6", "5 6"]),
        // Only who refuses because of it takes the other key.
        ("rack", &format!("{ZONE_B}; allow-strict=*"), ["–", "–", "–"]),
        (Z, &format!("{ZONE_B}; allow-strict=rack"), ["1 2", "–", "5 6"]),
        ("", "kubernetes.io/hostname=n2", ["1 2 5 6"; 3]),
        ("", &format!("{ZONE_B},topology.kubernetes.io/zone=c"), ["1 2"; 3]),
        // Nobody is left: all stay, unless it is forced.
        ("", &format!("{ZONE_B},{Z}=a,{Z}=c"), ["1 2 3 4 5 6"; 3]),
        ("", &format!("{ZONE_B},{Z}=a,{Z}=c; force=true"), ["–"; 3]),
        ("", "rack=nowhere", ["1 2 3 4 5 6"; 3]),
        ("", "rack", ["1 2 3 4 5 6"; 3]),
    ] {
        assert_eq!(hosts(&cluster(keys, evacuate)), wanted, "{keys}: {evacuate}");
    }
}

#[test]
fn two_evacuations_both_count_and_together_they_never_take_all() {
    let mut both = cluster("", ZONE_B);
    both.cluster_policies.push(policy("more", &format!("{Z}=c")));
    assert_eq!(hosts(&both), ["1 2"; 3]);
    both.services[0] =
        both.services[0].clone().asking(|policy| policy.evacuate = Some(format!("{Z}=a").into()));
    assert_eq!(hosts(&both), ["1 2 3 4 5 6"; 3]);
    let reason = both.decided("n1", |it| explain::sentence(it, "n1", true));
    assert!(
        reason.ends_with("; an evacuation leaves it alone, as no ready endpoint would be left"),
        "{reason}"
    );
    // What is only about to go is not left.
    let mut draining = cluster("", ZONE_B);
    for one in &mut draining.slices[0].endpoints {
        if one.node().is_some_and(|name| **name != *"n2") {
            (one.ready, one.serving, one.terminating) = (false, true, true);
        }
    }
    assert_eq!(hosts(&draining), ["3 4"; 3]);
}

#[test]
fn a_service_of_one_node_alone_is_left_to_its_clients_and_load_balancers_are_led_away() {
    let mut local = cluster("", ZONE_B);
    local.services[0].internal_local = true;
    assert_eq!(hosts(&local), ["1 2", "3 4", "5 6"]);
    let mut outside = cluster("", ZONE_B);
    outside.services[0].external_local = true;
    outside.services[0].exposure = Some(Exposure::default().into());
    let reached = |cluster: &Cluster, node: &str| {
        let state = cluster.state(node);
        reached(&state, node, state.service(&id("svc")).unwrap())
    };
    assert_eq!(["n1", "n2", "n3"].map(|node| reached(&outside, node)), [Some(2), Some(0), Some(2)]);
    let left =
        |cluster: &Cluster| ["n1", "n2", "n3"].map(|node| is_left(&cluster.state(node), node));
    assert_eq!(left(&outside), [false, true, false]);
    // Nobody is served elsewhere.
    let everywhere = cluster("", &format!("{ZONE_B},{Z}=a,{Z}=c"));
    assert_eq!(left(&everywhere), [false; 3]);
    // One for some Services is none of the node.
    let Cluster { services, .. } = &mut outside;
    services[0] = services[0].clone().asking(|policy| policy.evacuate = Some(ZONE_B.into()));
    outside.cluster_policies.clear();
    assert_eq!(left(&outside), [false; 3]);
    assert_eq!(reached(&outside, "n2"), Some(0));
}

#[test]
fn it_ends_by_the_clock_on_one_node_after_the_other() {
    let until = |options: &str| format!("{ZONE_B}; until=1970-01-01T00:16:40Z{options}");
    let at = |now: i64, text: &str| Cluster { now: Some(now), ..cluster("", text) };
    assert_eq!(hosts(&at(999, &until(""))), ["1 2 5 6"; 3]);
    assert_eq!(hosts(&at(1_000, &until(""))), ["1 2 3 4 5 6"; 3]);
    // The places of n1, n2 and n3 are 73.56 %, 1.58 % and 97.9 %.
    let ramp = until("; ramp=100s");
    for (now, holds) in [
        (999, [true; 3]),
        (1_020, [true, true, false]),
        (1_027, [false, true, false]),
        (1_100, [false; 3]),
    ] {
        let wanted = holds.map(|holds| if holds { "1 2 5 6" } else { "1 2 3 4 5 6" });
        assert_eq!(hosts(&at(now, &ramp)), wanted, "{now}");
        // Nodes that are grouped as alike are.
        let cluster = at(now, &ramp);
        let state = cluster.state("");
        let nodes = NodesByLabel::of(&state);
        let service = state.service(&id("svc")).unwrap();
        for alike in nodes.alike(service, &decide(&state, "", Scope::All, &id("svc")), &[]) {
            let of = |node| cluster.chosen(node);
            assert!(alike.iter().all(|node| of(node) == of(alike[0])), "{now}: {alike:?}");
        }
    }
    // An agent plans again when it ends on its node, and not before.
    let cluster = cluster("", &ramp);
    let mut agent = Reconciler::new("n1".into(), Scope::All, false);
    for update in [
        Update::Node(Change::Listed(cluster.nodes, vec![])),
        Update::Service(Change::Listed(cluster.services, vec![])),
        Update::Slice(Change::Listed(cluster.slices, vec![])),
        Update::ClusterTopologyPolicy(Change::Listed(cluster.cluster_policies, vec![])),
    ] {
        agent.observe(update);
    }
    assert!(!agent.pass(900));
    let turns: Vec<i64> = (901..1_200).filter(|now| agent.pass(*now)).collect();
    assert_eq!(turns, [1_027]);
    assert!(agent.pass(1_000) && !agent.pass(1_001), "the clock was set back");
}

#[test]
fn the_cluster_without_evacuations_is_as_if_nobody_had_said_any() {
    let until = format!("{ZONE_B}; until=1970-01-01T00:16:40Z");
    let mut cluster = Cluster { now: Some(900), ..cluster("", &until) };
    cluster.services[0] = cluster.services[0]
        .clone()
        .asking(|policy| policy.evacuate = Some(format!("{Z}=c").into()));
    let mut own = policy("own", &format!("{Z}=a; until=1970-01-01T00:00:00Z")).0;
    own.id.namespace = "default".into();
    cluster.policies.push(own);
    let state = cluster.state("n1");
    let restored = what_if::restored(&state).unwrap();
    assert_eq!(restored.evacuations().count(), 0);
    let endpoints =
        |state: &State| routes(state, "n1", Scope::All, None, &id("svc"))[0].endpoints.len();
    assert_eq!([&state, &restored].map(endpoints), [2, 6]);
    // Those that have ended change nothing.
    cluster.services[0] = cluster.services[0].clone().asking(|policy| policy.evacuate = None);
    cluster.now = Some(1_000);
    assert!(what_if::restored(&cluster.state("n1")).is_none());
}

/// As metrics tell it.
#[test]
fn an_agent_knows_what_is_evacuated_until_when_and_of_how_many_services() {
    let mut cluster = cluster("", &format!("{ZONE_B}; until=1970-01-01T00:16:40Z"));
    let mut elsewhere = service();
    elsewhere.id = id("elsewhere");
    let mut local = service();
    (local.id, local.internal_local) = (id("local"), true);
    cluster.services.extend([elsewhere, local]);
    cluster.cluster_policies.push(policy("nowhere", "rack=none"));
    let mut agent = Reconciler::new("n1".into(), Scope::All, false);
    let mut after = |update: Update, now: i64| -> Vec<String> {
        agent.observe(update);
        agent.pass(now);
        let room = Capacity { services: 16, slots: 64, members: 64, ..Capacity::default() };
        agent.expect_all(&Installed::new(room));
        let (objects, services) = agent.evacuations();
        assert_eq!(objects, services.len());
        let told = |(it, count): (&Evacuated, &usize)| {
            format!("{}={} {} {count}", it.key, it.value, it.end())
        };
        services.iter().map(told).collect()
    };
    let _ = after(Update::Node(Change::Listed(cluster.nodes.clone(), vec![])), 900);
    let _ = after(Update::Service(Change::Listed(cluster.services.clone(), vec![])), 900);
    let _ = after(Update::Slice(Change::Listed(cluster.slices.clone(), vec![])), 900);
    let policies = Change::Listed(cluster.cluster_policies.clone(), vec![]);
    let wanted = ["rack=none  0", "topology.kubernetes.io/zone=b 1970-01-01T00:16:40Z 1"];
    assert_eq!(after(Update::ClusterTopologyPolicy(policies), 901), wanted);
    let mut empty = cluster.slices[0].clone();
    empty.endpoints.truncate(2);
    let wanted = ["rack=none  0", "topology.kubernetes.io/zone=b 1970-01-01T00:16:40Z 0"];
    assert_eq!(after(Update::Slice(Change::Applied(empty)), 902), wanted);
    assert_eq!(
        after(Update::Slice(Change::Applied(cluster.slices[0].clone())), 1_000),
        wanted[..1]
    );
}

#[test]
fn only_what_its_labels_need_is_read_of_other_nodes() {
    let reads = |evacuate: &str| {
        let state = cluster("", evacuate).state("n1");
        reads_other_nodes(&state, "n1", Scope::All, &id("svc")).map(str::to_owned)
    };
    assert_eq!(reads("rack=r1").as_deref(), Some("rack"));
    assert_eq!(reads("kubernetes.io/hostname=n2"), None);
    assert_eq!(reads("rack"), None, "it is ignored");
}

#[test]
fn explain_says_who_evacuates_what_until_when() {
    let text = format!("{ZONE_B}; until=1970-01-01T00:16:40Z; allow-strict=*");
    let state = cluster(Z, &text).state("n2");
    let report = explain::report(&state, "n2", Scope::All, &[id("svc")]);
    let port = &report.services[0];
    let wanted = format!(
        "{ZONE_B} by ClusterTopologyPolicy empty, until 1970-01-01T00:16:40Z; strict policies take `*`"
    );
    assert_eq!(port.policy.evacuations, [wanted]);
    assert_eq!(port.endpoints[2].reason, format!("evacuated: {ZONE_B}"));
    assert!(port.decision.reason.contains("; 2 evacuated"), "{}", port.decision.reason);
}

#[test]
fn the_page_says_who_refuses_who_stays_and_who_carries_more() {
    let mut all = cluster(Z, "rack=none");
    all.cluster_policies.clear();
    let mut soft = service();
    soft.id = id("soft");
    soft = soft.asking(|policy| policy.topology_keys = Some(format!("{Z},*").into()));
    let mut only = service();
    only.id = id("only");
    let slice = |service: &str, hosts: &[usize]| {
        let mut slice = all.slices[0].clone();
        slice.id.name = format!("{service}-1").into();
        slice.service = Some(id(service));
        slice.endpoints =
            hosts.iter().map(|&host| all.slices[0].endpoints[host - 1].clone()).collect();
        slice
    };
    let more = [slice("soft", &[1, 3, 5]), slice("only", &[3, 4])];
    all.slices.extend(more);
    all.services.extend([soft, only]);
    let before = all.state("");
    let mut after = before.clone();
    what_if::evacuate(&mut after, ZONE_B).unwrap();
    let (before, after) = (Proxied::of(before, Scope::All), Proxied::of(after, Scope::All));
    let report = what_if::compare(&before, &after, Z, &std::collections::BTreeSet::new(), None);
    let evacuation = topo_lb_core::topology::evacuation::Evacuation::read(ZONE_B).unwrap();
    let done = what_if::rehearse(&before, &after, &evacuation, &report);
    assert_eq!((done.nodes, done.endpoints, done.services), (1, 3, 2));
    assert_eq!(done.left_alone, ["default/only"]);
    assert_eq!(done.refused.len(), 1);
    assert_eq!(
        (done.refused[0].port.as_str(), &done.refused[0].nodes[..]),
        ("default/svc 80 (http)", &["n2".to_owned()][..])
    );
    let tier = &done.tiers[0];
    assert_eq!((tier.nodes, tier.key.before.as_str(), tier.key.after.as_str()), (1, Z, "*"));
    assert_eq!(done.tiers.len(), 1);
    // `soft` has three clients; those of zone b go to a and c, half each. `svc` loses the clients of zone b.
    let carried = |value: &str| (done.carried[value].before, done.carried[value].after);
    assert_eq!([carried("a"), carried("b"), carried("c")], [(2.0, 2.5), (2.0, 0.0), (2.0, 2.5)]);
    assert!(
        done.busier.iter().all(|it| it.port == "default/soft 80 (http)" && it.times == Some(1.5))
    );
    assert_eq!(done.busier.len(), 2);
    let page = what_if::without_table(&done, &report, false);
    for line in
        ["REFUSE", "STAY", "GO FARTHER", "CARRY", "BUSIER", "3 endpoints of 2 Services on 1 node"]
    {
        assert!(page.contains(line), "{line}:\n{page}");
    }
    // Nothing else changes than what says so.
    assert!(report.services.iter().all(|port| port.name != "only"), "it stays as it was");
}

/// kube-proxy reads neither evacuations nor the keys of policies.
#[test]
fn what_is_left_to_kube_proxy_changes_nothing_and_counts_nowhere() {
    let mut left = cluster("", "rack=none");
    left.services[0] =
        left.services[0].clone().asking(|policy| policy.handle = Some("false".into()));
    std::sync::Arc::make_mut(&mut left.cluster_policies[0].0.policy).topology_keys = Some(Z.into());
    let before = left.state("");
    let mut after = before.clone();
    what_if::evacuate(&mut after, ZONE_B).unwrap();
    let (before, after) = (Proxied::of(before, Scope::All), Proxied::of(after, Scope::All));
    let report = what_if::compare(&before, &after, Z, &[id("svc")].into(), None);
    assert_eq!((report.totals.service_ports, report.totals.changed), (1, 0));
    let served = report.services[0].served.after.as_ref().unwrap();
    assert_eq!((served.by, served.policy.kind), ("kube-proxy", "none"));
    let endpoints = &report.services[0].endpoints;
    assert!(endpoints.len() == 6 && endpoints.iter().all(|it| it.load.before == it.load.after));
}

#[test]
fn objects_that_come_and_go_a_hundred_times_end_as_they_are() {
    let mut cluster = cluster("", ZONE_B);
    let mut state: State = cluster.state("n1");
    for _ in 0..100 {
        let gone = Change::Deleted(policy("empty", "").0.id);
        let changed = state.apply(Update::ClusterTopologyPolicy(gone), "n1");
        assert_eq!(changed.services, [id("svc")].into());
        let changed = state
            .apply(Update::ClusterTopologyPolicy(Change::Applied(policy("empty", ZONE_B))), "n1");
        assert_eq!(changed.services, [id("svc")].into());
    }
    let route = &routes(&state, "n1", Scope::All, None, &id("svc"))[0];
    assert_eq!((route.verdict, route.endpoints.len(), route.serving.len()), (Verdict::Route, 4, 2));
    cluster.cluster_policies.clear();
    assert_eq!(hosts(&cluster), ["1 2 3 4 5 6"; 3]);
}
