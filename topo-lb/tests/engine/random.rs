//! Random clusters from a tape of bytes; shorter tapes and smaller bytes make simpler clusters.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;
use topo_lb_core::cluster::selector::{Operator, Requirement, Selector};
use topo_lb_core::cluster::service::{PolicySources, Protocol, Skipped};
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Created, Endpoint, Exposure, Labels, Namespace, Node, Placement,
    PolicyId, Port, Service, Slice, SliceId, TopologyPolicy, Update,
};

use crate::made::{Cluster, id};
use crate::naive::Failing;

pub(crate) fn tapes(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..longest)
}

pub(crate) struct Tape<'a>(std::slice::Iter<'a, u8>);

impl<'a> Tape<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes.iter())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    /// A number below `count`; zero at the end of the tape.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0.next().map_or(0, |&byte| usize::from(byte)) % count
    }

    /// True in `percent` of cases; false at the end of the tape.
    fn chance(&mut self, percent: usize) -> bool {
        let byte = self.0.next().map_or(0, |&byte| usize::from(byte));
        byte * 100 >= (100 - percent) * 256
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// `n4` and `n5` exist sometimes, `n6` never.
pub(crate) const NODES: [&str; 6] = ["n1", "n2", "n3", "n4", "n5", "n6"];
const KEYS: [&str; 6] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "rack",
    "example.com/site",
    "apps.openyurt.io/nodepool",
];
const WRONG_KEYS: [&str; 8] = ["", "a b", "a/b/c", "*", "/a", "A/a", "a/", "-"];
const VALUES: [&str; 4] = ["a", "b", "a", "n6"];

pub(crate) fn node(tape: &mut Tape<'_>, name: &str) -> Node {
    let mut labels = Vec::new();
    for key in KEYS {
        if tape.chance(75) {
            let value = match key {
                "kubernetes.io/hostname" if tape.chance(80) => name,
                _ if tape.chance(5) => "",
                _ => tape.one(&VALUES),
            };
            labels.push((key.into(), value.into()));
        }
    }
    if tape.chance(15) {
        labels.push(("apps.openyurt.io/desired-nodepool".into(), tape.one(&VALUES).into()));
    }
    Node { name: name.into(), labels: labels.into_iter().collect() }
}

fn keys(tape: &mut Tape<'_>) -> Vec<Arc<str>> {
    let mut keys: Vec<_> = (0..1 + tape.below(4)).map(|_| tape.one(&KEYS)).collect();
    if tape.chance(90) {
        // Mostly without duplicates.
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(*key));
    }
    if tape.chance(4) {
        keys.push(tape.one(&WRONG_KEYS));
    }
    if tape.chance(1) {
        keys.extend(["k"; 16]);
    }
    if tape.chance(40) {
        keys.push("*");
    }
    keys.into_iter().map(Into::into).collect()
}

/// Mostly a valid value.
fn choose(tape: &mut Tape<'_>, right: &[&str], wrong: &[&str]) -> Arc<str> {
    let of = if tape.chance(8) { wrong } else { right };
    tape.one(of).into()
}

/// Mostly valid weights for the policy.
fn weights(tape: &mut Tape<'_>, policy: &PolicySources) -> String {
    let numbers = if tape.chance(5) { &["-1", "1001", "5%", ""][..] } else { &["80", "15", "1"] };
    if tape.chance(60) {
        // Of tiers: of the keys that are written, or of others.
        let field = policy.spec_topology_keys.join(",");
        let keys = policy.topology_keys.as_deref().unwrap_or(&field);
        let keys = if tape.chance(5) { "rack,*" } else { keys };
        let each = keys.split(',').map(|key| format!("{}: {}", key.trim(), tape.one(numbers)));
        return each.collect::<Vec<_>>().join(tape.one(&[",", " , "]));
    }
    let names = if tape.chance(5) { &["a b", "", "-"][..] } else { &["a", "b", "n6", "*", "c"] };
    let mut seen = BTreeSet::new();
    let each = (0..1 + tape.below(4)).map(|_| tape.one(names)).collect::<Vec<_>>();
    let each = each.into_iter().filter(|name| seen.insert(*name) || tape.chance(5));
    let each = each.collect::<Vec<_>>();
    let numbers = if tape.chance(30) { &["0", "20"][..] } else { numbers };
    let each = each.into_iter().map(|name| format!("{name}={}", tape.one(numbers)));
    let each = each.collect::<Vec<_>>().join(", ");
    format!("{}: {each}", tape.one(&KEYS))
}

/// Load balancer IPs, one of each family.
const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

pub(crate) fn service(tape: &mut Tape<'_>, name: &str) -> Service {
    let mut policy = PolicySources::default();
    match tape.below(8) {
        0..=2 => {
            let separator = tape.one(&[",", ", ", " ,\t"]);
            let keys = keys(tape);
            policy.topology_keys = Some(keys.join(separator).into());
        }
        3 => policy.spec_topology_keys = keys(tape),
        4 => {
            policy.openyurt = Some(
                tape.one(&[
                    "openyurt.io/nodepool",
                    "kubernetes.io/hostname",
                    "kubernetes.io/zone",
                    "openyurt.io/nodepool,kubernetes.io/hostname",
                    "",
                    "topology.kubernetes.io/zone",
                ])
                .into(),
            );
            if tape.chance(30) {
                policy.spec_topology_keys = keys(tape);
            }
        }
        _ => {}
    }
    let by_keys = policy.topology_keys.is_some() || !policy.spec_topology_keys.is_empty();
    if tape.chance(if by_keys { 40 } else { 3 }) {
        let texts = ["2", "50%", "3", "2,2", "1,2,3", "2,30%,1,1", " 2 ", "1,1", "9 %"];
        let wrong = ["0", "x", "2,", "65536", "1,2,3,4,5,6", "101%", "0%"];
        policy.min_endpoints = Some(choose(tape, &texts, &wrong));
    }
    if tape.chance(if by_keys { 50 } else { 3 }) {
        let texts = ["auto", "0%", " auto ", "0.01%", "33.33%", "auto", "5%"];
        policy.spill = Some(choose(tape, &texts, &["101%", "5", "1.234%", ""]));
    }
    if tape.chance(if by_keys { 45 } else { 40 }) {
        policy.weights = Some(weights(tape, &policy).into());
    }
    policy.hints_asked = tape.chance(20);
    trial(tape, &mut policy, 4);
    apart(tape, &mut policy, 10);
    let four: IpAddr = Ipv4Addr::new(10, 96, 0, 1).into();
    let six: IpAddr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1).into();
    let cluster_ips = match tape.below(4) {
        0 | 1 => vec![four],
        2 => vec![six],
        _ => vec![six, four],
    };
    let mut ports = vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }];
    if tape.chance(15) {
        ports.push(Port { name: "dns".into(), port: 53, protocol: Protocol::Udp });
        ports.drain(..usize::from(tape.chance(20)));
    }
    let mut skipped = tape.chance(3).then_some(Skipped::Headless);
    let mut cluster_ips = cluster_ips;
    if tape.chance(12) {
        skipped = Some(tape.one(&[Skipped::Headless, Skipped::HeadlessLabel]));
        cluster_ips.clear();
        policy.dns = Some(choose(tape, &["true", " true "], &["false", "yes"]));
        if tape.chance(45) {
            policy.weights = Some(weights(tape, &policy).into());
        }
    }
    let exposure = Exposure {
        load_balancer_ips: OUTSIDE.map(|address| address.parse().unwrap()).into(),
        ..Exposure::default()
    };
    Service {
        id: id(name),
        uid: None,
        cluster_ips,
        ports,
        labels: labels(tape),
        policy: policy.into(),
        internal_local: tape.chance(8),
        external_local: tape.chance(6),
        affinity_seconds: tape.chance(10).then_some(600),
        skipped,
        exposure: tape.chance(50).then(|| exposure.into()),
        created: Created::UNKNOWN,
    }
}

/// Labels that selectors may name.
fn labels(tape: &mut Tape<'_>) -> Labels {
    let mut labels = Vec::new();
    for key in ["app", "team"] {
        if tape.chance(60) {
            labels.push((key.into(), tape.one(&VALUES).into()));
        }
    }
    labels.into_iter().collect()
}

fn selector(tape: &mut Tape<'_>) -> Selector {
    let requirement = |tape: &mut Tape<'_>| Requirement {
        key: tape.one(&["app", "team", "kubernetes.io/metadata.name"]).into(),
        operator: tape.one(&[
            Operator::In,
            Operator::NotIn,
            Operator::Exists,
            Operator::DoesNotExist,
        ]),
        values: (0..tape.below(3)).map(|_| tape.one(&["a", "b", "default"]).into()).collect(),
    };
    Selector((0..tape.below(3)).map(|_| requirement(tape)).collect())
}

fn sources(tape: &mut Tape<'_>) -> PolicySources {
    let mut policy = PolicySources::default();
    if tape.chance(75) {
        policy.spec_topology_keys = keys(tape);
    }
    if tape.chance(25) {
        policy.min_endpoints = Some(choose(tape, &["2", "34%", "2,2"], &["0", "x"]));
    }
    if tape.chance(25) {
        policy.spill = Some(choose(tape, &["auto", "33.33%", "auto"], &["101%", ""]));
    }
    if tape.chance(15) {
        policy.weights = Some(weights(tape, &policy).into());
    }
    trial(tape, &mut policy, 15);
    apart(tape, &mut policy, 10);
    policy
}

/// What does not refine keys, each in `percent` of cases.
fn apart(tape: &mut Tape<'_>, policy: &mut PolicySources, percent: usize) {
    if tape.chance(2 * percent) {
        let keys = keys(tape);
        policy.external_topology_keys = Some(keys.join(tape.one(&[",", " , "])).into());
    }
    if tape.chance(percent) {
        let texts = ["3", "1,5s", " 15 , 10 m ", "3, 600s, 1 %", "2,1m,100%"];
        let wrong = ["0", "16", "3,", "3,30", "3,601s", "3,30s,0%", "3,30s,50%,", ""];
        policy.ejection = Some(choose(tape, &texts, &wrong));
    }
    if tape.chance(2 * percent) {
        // Often by a key of the policy, whose tiers then run empty. Not by host names, which are assumed to be those
        // of Nodes.
        let field = policy.spec_topology_keys.join(",");
        let own = policy.topology_keys.as_deref().unwrap_or(&field).split(',').next();
        let own =
            own.map(str::trim).filter(|own| KEYS[1..].contains(own)).unwrap_or(KEYS[1]).to_owned();
        let labels =
            [&own, &own, "rack", KEYS[4]].map(|key| format!("{key}={}", tape.one(&VALUES)));
        let first = &labels[[0, 1, 0, 1, 2, 3][tape.below(6)]];
        let more = match tape.below(4) {
            0 => format!(" , {}", labels[1]),
            1 => format!(",{own}=a, {own}=b"),
            _ => String::new(),
        };
        // The clusters' time is 1,000 s.
        let options = [
            "",
            "; until=1970-01-01T00:16:41Z",
            ";until=1970-01-01T00:16:40Z",
            "; ramp=100s; until=1970-01-01T00:15:50Z ;",
            "; force = true",
            "; allow-strict=*",
            ";allow-strict=*;until=1970-01-01T00:16:41Z",
            "; allow-strict = *;",
            "; ramp=100s; allow-strict=*",
            " ;allow-strict = topology.kubernetes.io/region",
        ];
        let wrong =
            ["=", ",", "; until=now", "; force=no", "; ramp=1d", "; allow-strict=", "; x=1"];
        policy.evacuate = Some(format!("{first}{more}{}", choose(tape, &options, &wrong)).into());
    }
    if tape.chance(percent) {
        let texts = ["10m", "off", " 5 s ", "24h"];
        policy.return_after = Some(choose(tape, &texts, &["4s", "10", "25h", ""]));
    }
    if tape.chance(2 * percent) {
        let texts = ["100s", "60m", " 1h ", "100 s", "off"];
        policy.slow_start = Some(choose(tape, &texts, &["9s", "2h", ""]));
    }
    if tape.chance(percent) {
        policy.refusal = Some(choose(tape, &["intended", " intended "], &["meant", ""]));
    }
    if tape.chance(2 * percent) {
        let texts = ["refuse", "steer", " refuse ", "allow", " steer "];
        policy.direct = Some(choose(tape, &texts, &["count", ""]));
    }
    if tape.chance(2 * percent) {
        policy.direct_return = Some(choose(tape, &["false", "true", " false "], &["no", ""]));
    }
    if tape.chance(percent) {
        policy.choice = Some(choose(tape, &["consistent", " random "], &["maglev", ""]));
    }
    if tape.chance(percent / 2) {
        policy.handle = Some(choose(tape, &["false", "true", " false "], &["no", ""]));
    }
}

/// Mode and ramp, each in `percent` of cases.
fn trial(tape: &mut Tape<'_>, policy: &mut PolicySources, percent: usize) {
    if tape.chance(percent) {
        policy.mode = Some(choose(tape, &["observe", "enforce", " observe "], &["on", ""]));
    }
    if tape.chance(percent) {
        policy.ramp = Some(choose(tape, &["50%", "75.5%", "0%", "100%"], &["101%", "many"]));
    }
}

pub(crate) fn namespace(tape: &mut Tape<'_>, name: &str) -> Namespace {
    let mut policy = if tape.chance(40) { sources(tape) } else { PolicySources::default() };
    let keys = std::mem::take(&mut policy.spec_topology_keys);
    policy.topology_keys = (!keys.is_empty()).then(|| keys.join(",").into());
    Namespace { name: name.into(), labels: labels(tape), policy: policy.into() }
}

pub(crate) fn policy(tape: &mut Tape<'_>, namespace: &str, name: &str) -> TopologyPolicy {
    TopologyPolicy {
        id: PolicyId { namespace: namespace.into(), name: name.into() },
        created: match tape.chance(50) {
            true => tape.one(&["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]).into(),
            false => Created::UNKNOWN,
        },
        precedence: i32::try_from(tape.below(3)).unwrap() - 1,
        namespaces: if namespace.is_empty() { selector(tape) } else { Selector::default() },
        services: selector(tape),
        policy: sources(tape).into(),
        ..TopologyPolicy::default()
    }
}

fn endpoint(tape: &mut Tape<'_>, v6: bool) -> Endpoint {
    // Few addresses, so that slices have some in common.
    let last = u8::try_from(tape.below(16)).unwrap();
    let (ready, serving, terminating) = match tape.below(10) {
        0..=5 => (true, true, false),
        6 => (false, false, false),
        7 => (false, true, true),
        8 => (false, false, true),
        _ => (tape.chance(50), tape.chance(50), tape.chance(50)),
    };
    let mut labels = Labels::default();
    if tape.chance(25) {
        labels = [(tape.one(&KEYS).into(), tape.one(&VALUES).into())].into();
    }
    let address = if v6 {
        Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(10, 244, 0, last).into()
    };
    let node = (!tape.chance(10)).then(|| tape.one(&NODES).into());
    let place = Placement { node, labels, ..Placement::default() };
    let has_hostname = tape.chance(4);
    Endpoint { ready, serving, terminating, has_hostname, ..Endpoint::new(address, place) }
}

/// `v6` is the probability of an IPv6 slice, in percent.
pub(crate) fn slice(tape: &mut Tape<'_>, name: &str, services: &[&str], v6: usize) -> Slice {
    let v6 = tape.chance(v6);
    let mut endpoints: Vec<_> = (0..1 + tape.below(8)).map(|_| endpoint(tape, v6)).collect();
    if tape.chance(30) {
        // Hints as a controller sets them, sometimes with a gap.
        let (nodes, zones) = (tape.chance(50), tape.chance(80));
        for endpoint in &mut endpoints {
            let place = Arc::make_mut(endpoint.place.get_or_insert_default());
            if nodes && !tape.chance(10) {
                place.for_nodes = (0..=tape.below(2)).map(|_| tape.one(&NODES).into()).collect();
            }
            if zones && !tape.chance(10) {
                place.for_zones = (0..=tape.below(2)).map(|_| tape.one(&VALUES).into()).collect();
            }
        }
    }
    let mut ready_since = Vec::new();
    if tape.chance(40) {
        // The clusters' time is 1,000 s: new, at the edge of a step, grown, of a clock ahead.
        let times = [1_000, 990, 975, 974, 960, 950, 900, 500, -2_601, 1_050, 1_101, 5_000];
        for endpoint in endpoints.iter().filter(|it| it.ready) {
            if tape.chance(60) {
                ready_since.push((endpoint.address, tape.one(&times)));
            }
        }
    }
    let mut ports = Vec::new();
    let port = |name: &str, port, protocol| Port { name: name.into(), port, protocol };
    if !tape.chance(5) {
        ports.push(port("http", tape.one(&[9376, 9376, 8080]), Protocol::Tcp));
    }
    if tape.chance(15) {
        ports.push(port("dns", 53, tape.one(&[Protocol::Udp, Protocol::Udp, Protocol::Tcp])));
    }
    Slice {
        id: SliceId { namespace: "default".into(), name: name.into() },
        service: (!tape.chance(3)).then(|| id(tape.one(services))),
        ports,
        endpoints,
        headless: tape.chance(5),
        mirrored: tape.chance(20),
        triggered: None,
        ready_since,
    }
}

/// A cluster with one Service `svc`, and the node to decide for.
pub(crate) fn cluster(bytes: &[u8]) -> (Cluster, &'static str) {
    let tape = &mut Tape::of(bytes);
    let this_node = tape.one(&NODES);
    let service = service(tape, "svc");
    let mut cluster = Cluster::default();
    if tape.chance(50) {
        cluster.namespaces = vec![namespace(tape, "default")];
        let mut named = |namespace: &str| -> Vec<_> {
            let names = ["p", "q", "r"];
            names[..tape.below(4)].iter().map(|name| policy(tape, namespace, name)).collect()
        };
        // Those of another namespace say nothing here.
        cluster.policies = [named("default"), named("other")].concat();
        cluster.cluster_policies = named("").into_iter().map(ClusterTopologyPolicy).collect();
    }
    let known = 3 + tape.below(3);
    let nodes = NODES[..known].iter().map(|name| node(tape, name)).collect();
    let sixes = service.cluster_ips.iter().filter(|address| address.is_ipv6()).count();
    let v6 = match service.cluster_ips.len() {
        0 => 40,
        all => 10 + 80 * sixes / all,
    };
    let slices = ["svc-a", "svc-b", "svc-c"];
    let slices =
        slices[..=tape.below(3)].iter().map(|name| slice(tape, name, &["svc"], v6)).collect();
    let now = Some(1_000);
    (Cluster { nodes, services: vec![service], slices, now, ..cluster }, this_node)
}

/// Adds Services of the same namespace, of which some have endpoints of `svc`, too; from the tape of [`cluster`].
pub(crate) fn neighbours(bytes: &[u8], cluster: &mut Cluster) {
    let every_third: Vec<u8> = bytes.iter().step_by(3).copied().collect();
    let tape = &mut Tape::of(&every_third);
    for name in ["other", "third"] {
        if tape.chance(30) {
            cluster.services.push(service(tape, name));
            let slices = (0..=tape.below(2)).map(|at| format!("{name}-{at}"));
            cluster.slices.extend(slices.map(|slice_name| slice(tape, &slice_name, &[name], 30)));
        }
    }
}

/// The same, of which no object says `handle` or `refusal`.
pub(crate) fn cluster_of_ours(bytes: &[u8]) -> Cluster {
    let (mut cluster, _) = cluster(bytes);
    let policies = cluster.policies.iter_mut().map(|it| &mut it.policy);
    let policies = policies.chain(cluster.cluster_policies.iter_mut().map(|it| &mut it.0.policy));
    let policies = policies.chain(cluster.namespaces.iter_mut().map(|it| &mut it.policy));
    for policy in policies.chain(cluster.services.iter_mut().map(|it| &mut it.policy)) {
        let policy = Arc::make_mut(policy);
        (policy.handle, policy.refusal) = (None, None);
    }
    cluster
}

/// Some endpoints of a cluster in any order, and a percentage, from the end of the tape of [`cluster`].
pub(crate) fn failing(bytes: &[u8], cluster: &Cluster) -> Failing {
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let tape = &mut Tape::of(&reversed);
    let most = tape.one(&[50, 100, 1, 34, 99, 100]);
    let mut failing = Vec::new();
    if tape.chance(70) {
        for slice in &cluster.slices {
            for (port, endpoint) in slice
                .ports
                .iter()
                .flat_map(|it| slice.endpoints.iter().map(move |endpoint| (it, endpoint)))
            {
                let at = SocketAddr::new(endpoint.address, port.port);
                if tape.chance(70) && !failing.contains(&at) {
                    failing.insert(tape.below(failing.len() + 1), at);
                }
            }
        }
    }
    let island = tape.chance(20).then(|| {
        let all = failing.iter().copied();
        all.filter(|_| tape.chance(60)).collect()
    });
    Failing { most, endpoints: failing, island }
}

/// A sequence of updates about three Services, and the node to decide for.
pub(crate) fn updates(bytes: &[u8]) -> (Vec<Update>, &'static str) {
    const SERVICES: [&str; 3] = ["svc", "other", "third"];
    const SLICES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let tape = &mut Tape::of(bytes);
    let this_node = tape.one(&NODES);
    let mut updates = Vec::new();
    while !tape.is_over() {
        updates.push(match tape.below(22) {
            16 => {
                let name = tape.one(&["default", "other"]);
                Update::Namespace(Change::Applied(namespace(tape, name)))
            }
            17 => Update::Namespace(Change::Deleted("default".into())),
            18 => {
                let name = tape.one(&["p", "q"]);
                Update::TopologyPolicy(Change::Applied(policy(tape, "default", name)))
            }
            19 => {
                let name = tape.one(&["p", "q"]);
                let policy = ClusterTopologyPolicy(policy(tape, "", name));
                Update::ClusterTopologyPolicy(Change::Applied(policy))
            }
            20 => {
                let id = PolicyId { namespace: "default".into(), name: "p".into() };
                Update::TopologyPolicy(match tape.chance(50) {
                    true => Change::Deleted(id),
                    false => Change::Listed(vec![policy(tape, "default", "q")], vec![id]),
                })
            }
            21 => {
                let id = PolicyId { namespace: "".into(), name: "p".into() };
                Update::ClusterTopologyPolicy(match tape.chance(50) {
                    true => Change::Deleted(id),
                    false => Change::Listed(Vec::new(), vec![id]),
                })
            }
            0..=2 => {
                let name = tape.one(&SERVICES);
                Update::Service(Change::Applied(service(tape, name)))
            }
            3 => Update::Service(Change::Deleted(id(tape.one(&SERVICES)))),
            4..=7 => {
                let name = tape.one(&SLICES);
                Update::Slice(Change::Applied(slice(tape, name, &SERVICES, 30)))
            }
            8 => Update::Slice(Change::Deleted(SliceId {
                namespace: "default".into(),
                name: tape.one(&SLICES).into(),
            })),
            9..=11 => {
                let name = tape.one(&NODES);
                Update::Node(Change::Applied(node(tape, name)))
            }
            12 => Update::Node(Change::Deleted(tape.one(&NODES).into())),
            13 => {
                let (some, rest) = SERVICES.split_at(tape.below(4));
                let unread = rest[..tape.below(rest.len() + 1)].iter().map(|name| id(name));
                Update::Service(Change::Listed(
                    some.iter().map(|name| service(tape, name)).collect(),
                    unread.collect(),
                ))
            }
            14 => {
                let (some, rest) = SLICES.split_at(tape.below(5));
                let unread = rest[..tape.below(rest.len() + 1)].iter();
                let id =
                    |name: &&str| SliceId { namespace: "default".into(), name: (*name).into() };
                let unread = unread.map(id).collect();
                let some = some.iter().map(|name| slice(tape, name, &SERVICES, 30));
                Update::Slice(Change::Listed(some.collect(), unread))
            }
            _ => {
                let (some, rest) = NODES.split_at(tape.below(5));
                let unread = rest[..tape.below(rest.len() + 1)].iter();
                let unread = unread.map(|&name| name.into()).collect();
                Update::Node(Change::Listed(
                    some.iter().map(|name| node(tape, name)).collect(),
                    unread,
                ))
            }
        });
    }
    (updates, this_node)
}
