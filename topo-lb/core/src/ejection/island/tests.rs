//! An island in a network that the test makes up, second by second.

use std::collections::{BinaryHeap, HashMap};

use proptest::prelude::*;

use super::*;

/// What becomes of a SYN to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Host {
    Accepts,
    Refuses,
    Silent,
}

/// A network, and a node that is an island in it.
struct World {
    island: Island,
    start: Instant,
    now: Instant,
    hosts: HashMap<SocketAddr, Host>,
    /// How probable it is that a SYN, or the answer to it, is lost.
    loss: f64,
    latency: Duration,
    random: u64,
    /// Answers on their way: when, and of which of `probes`.
    coming: BinaryHeap<std::cmp::Reverse<(Instant, usize)>>,
    probes: Vec<(Probe, Answer)>,
    /// Who was ever told dead.
    told: BTreeSet<SocketAddr>,
}

fn service(name: &str) -> ServiceId {
    ServiceId { namespace: "default".into(), name: name.into() }
}

fn at(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::new([10, 1, high, low].into(), 80)
}

fn used(number: u16) -> Watched {
    Watched { address: at(number), locality: Locality::Zone, is_used: true }
}

impl World {
    fn new(seed: u64) -> Self {
        let start = Instant::now();
        Self {
            island: Island::new(seed, start),
            start,
            now: start,
            hosts: HashMap::new(),
            loss: 0.0,
            latency: Duration::from_millis(1),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            coming: BinaryHeap::new(),
            probes: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// One Service, whose endpoints are these.
    fn of(seed: u64, group: Vec<Watched>) -> Self {
        let mut world = Self::new(seed);
        world.watch("web", group);
        world
    }

    fn watch(&mut self, name: &str, group: Vec<Watched>) {
        self.island.watch(&service(name), vec![group], self.now);
    }

    fn set(&mut self, numbers: impl IntoIterator<Item = u16>, host: Host) {
        self.hosts.extend(numbers.into_iter().map(|number| (at(number), host)));
    }

    fn dead(&self) -> Vec<u16> {
        let dead = self.island.dead(&service("web"));
        (0..2_000).filter(|&number| dead.contains(&at(number))).collect()
    }

    fn is_silent(&self) -> bool {
        self.island.is_silent(&service("web"))
    }

    fn is_lost(&mut self) -> bool {
        // As in the island, from another seed.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64 / (1_u64 << 53) as f64) < self.loss
    }

    /// The kernel's SYNs of a probe that begins now, at 0 s and 1 s. Nobody changes within a probe.
    fn ask(&mut self, probe: &Probe) -> (Instant, Answer) {
        for syn in [0, 1] {
            if self.is_lost() {
                continue;
            }
            let comes = self.now + Duration::from_secs(syn) + self.latency;
            match self.hosts.get(&probe.endpoint).unwrap_or(&Host::Accepts) {
                Host::Accepts => return (comes, Answer::Accepted),
                Host::Refuses => return (comes, Answer::Refused),
                Host::Silent => {}
            }
        }
        (self.now + PATIENCE, Answer::Silent)
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let coming = self.coming.peek().map(|next| next.0.0);
            let next = self.island.next(self.now).map(|next| next.max(self.now));
            let Some(next) = [coming, next].into_iter().flatten().min().filter(|at| *at <= until)
            else {
                self.now = until;
                return;
            };
            self.now = next;
            while let Some(std::cmp::Reverse((when, number))) = self.coming.peek().copied()
                && when <= self.now
            {
                self.coming.pop();
                let (probe, answer) = self.probes[number];
                for changed in self.island.answer(&probe, answer, self.now) {
                    self.told.extend(self.island.dead(&changed).iter());
                }
            }
            for probe in self.island.due(self.now) {
                let (comes, answer) = self.ask(&probe);
                self.coming.push(std::cmp::Reverse((comes, self.probes.len())));
                self.probes.push((probe, answer));
            }
        }
    }

    fn pass_seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    /// How many probes of an endpoint have begun.
    fn probes_of(&self, number: u16) -> usize {
        self.probes.iter().filter(|(probe, _)| probe.endpoint == at(number)).count()
    }
}

/// A hundred endpoints: as many as a small island uses.
fn hundred() -> Vec<Watched> {
    (0..100).map(used).collect()
}

#[test]
fn who_dies_is_dead_within_five_seconds_and_alive_again_as_soon_as_it_answers() {
    for host in [Host::Refuses, Host::Silent] {
        for seed in 0..25 {
            let mut world = World::of(seed, hundred());
            // At any time between two of its probes.
            world.pass(Duration::from_millis(10_000 + 157 * seed));
            assert!(world.told.is_empty());
            let who = 4 * u16::try_from(seed).unwrap() + 3;
            world.set([who], host);
            world.pass_seconds(5);
            assert_eq!(world.dead(), [who], "{host:?} {seed}");
            world.pass_seconds(20);
            assert_eq!(world.dead(), [who]);
            world.set([who], Host::Accepts);
            // One probe may have begun just before.
            world.pass_seconds(7);
            assert!(world.dead().is_empty(), "{host:?} {seed}");
            assert_eq!(world.told.len(), 1);
        }
    }
}

#[test]
fn a_network_that_loses_half_of_all_syns_has_nobody_dead() {
    for seed in 1..=2 {
        let mut world = World::of(seed, hundred());
        (world.loss, world.latency) = (0.5, Duration::from_millis(30));
        world.pass_seconds(600);
        assert!(world.told.is_empty(), "{:?}", world.told);
        let silent = world.probes.iter().filter(|(_, answer)| *answer == Answer::Silent).count();
        assert!(
            silent > 3_000 && world.probes.len() > 15_000,
            "{silent} of {}",
            world.probes.len()
        );
        // And who is really dead is still found, in spite of all the others in doubt.
        world.set([7], Host::Silent);
        world.pass_seconds(60);
        assert_eq!(world.dead(), [7]);
    }
}

/// A round of probes ends at the first answer, so of `begun` at most one in 2³⁰ finds somebody dead who is not.
#[test]
fn so_improbable_is_it_to_lose_all_syns_that_it_takes_months() {
    let syns = i32::from(ENOUGH) * 2;
    let once = 0.5_f64.powi(syns);
    assert!(once < 1e-9, "{once}");
    let a_second = PAUSE.as_secs_f64().recip();
    let days = (once * a_second * 86_400.0).recip();
    assert!(days > 240.0, "{days}");
}

#[test]
fn where_nobody_answers_nobody_is_dead() {
    let mut world = World::of(1, hundred());
    world.pass_seconds(10);
    assert!(!world.is_silent());
    world.set(0..100, Host::Silent);
    world.pass_seconds(600);
    assert!(world.dead().is_empty(), "it is our own network that is broken");
    assert!(world.is_silent());
    world.set([3], Host::Accepts);
    world.pass_seconds(7);
    assert_eq!(world.dead().len(), 99);
    assert!(!world.is_silent());
    world.set([3], Host::Refuses);
    world.pass_seconds(7);
    assert!(world.dead().is_empty(), "the last one is not taken out");
}

/// A policy of the network that lets this host reach Pods of its own node alone, or some of those elsewhere.
#[test]
fn a_far_endpoint_that_never_answered_is_not_dead_because_a_near_one_answers() {
    let near = Watched { locality: Locality::Node, ..used(0) };
    let mut world = World::of(1, vec![near, used(1), used(2)]);
    world.set([1, 2], Host::Silent);
    world.pass_seconds(60);
    assert!(world.dead().is_empty());
    world.set([1], Host::Refuses);
    world.pass_seconds(10);
    assert!(world.dead().is_empty(), "so may a policy");
    world.island.suspect(at(1), world.now);
    world.pass_seconds(10);
    assert_eq!(world.dead(), [1], "clients do not reach it, either");
    world.set([1], Host::Accepts);
    world.pass_seconds(10);
    assert!(world.dead().is_empty(), "that another far one answers shows nothing");
    world.set([1], Host::Silent);
    world.pass_seconds(10);
    assert_eq!(world.dead(), [1], "it has answered before");
    world.set([0], Host::Silent);
    world.set([1], Host::Accepts);
    world.pass_seconds(10);
    assert_eq!(world.dead(), [0]);
}

#[test]
fn those_that_could_stand_in_are_probed_while_all_used_ones_are_dead() {
    let stand_in = Watched { locality: Locality::Elsewhere, is_used: false, ..used(9) };
    let mut world = World::of(1, vec![used(0), used(1), stand_in]);
    world.pass_seconds(60);
    assert_eq!(world.probes_of(9), 0);
    world.set([0, 1], Host::Silent);
    // While the stand-in is not judged yet, it is not known that nobody answers.
    for _ in 0..1_200 {
        world.pass(Duration::from_millis(10));
        assert!(!world.is_silent());
    }
    assert_eq!(world.dead(), [0, 1]);
    let before = world.probes_of(9);
    assert!(before > 0);
    // The policy allows no other: it shows all the time that the network works.
    world.pass_seconds(20);
    assert!(world.probes_of(9) >= before + 8);
    world.set([9], Host::Silent);
    world.pass_seconds(10);
    assert!(world.dead().is_empty() && world.is_silent());
    world.set([0], Host::Accepts);
    world.pass_seconds(10);
    assert_eq!(world.dead(), [1]);
    let before = world.probes_of(9);
    world.pass_seconds(60);
    assert_eq!(world.probes_of(9), before);
}

#[test]
fn a_service_that_sleeps_has_no_probes_and_keeps_its_dead() {
    let mut world = World::of(1, vec![used(0), used(1)]);
    world.pass_seconds(10);
    world.set([1], Host::Refuses);
    world.pass_seconds(10);
    world.island.sleep(&service("web"), true, world.now);
    world.pass_seconds(10);
    let before = world.probes.len();
    world.set([1], Host::Accepts);
    world.pass_seconds(600);
    assert_eq!((world.probes.len(), world.dead()), (before, vec![1]));
    world.island.sleep(&service("web"), false, world.now);
    world.pass_seconds(1);
    assert!(world.dead().is_empty());
    // One that another Service uses is probed.
    world.watch("shop", vec![used(1)]);
    world.island.sleep(&service("web"), true, world.now);
    let before = [world.probes_of(0), world.probes_of(1)];
    world.pass_seconds(60);
    assert!(world.probes_of(0) <= before[0] + 1 && world.probes_of(1) > before[1] + 20);
    // What nobody has any more is forgotten.
    for name in ["web", "shop"] {
        world.island.watch(&service(name), Vec::new(), world.now);
    }
    assert!(world.island.endpoints.is_empty() && world.island.services.is_empty());
    assert!(world.island.times.is_empty() && world.island.namespaces.is_empty());
    assert_eq!(world.island.next(world.now).filter(|at| *at > world.now), None);
}

#[test]
fn what_this_host_cannot_ask_stays_as_it_is() {
    let mut world = World::of(1, vec![used(0), used(1)]);
    world.pass_seconds(5);
    world.set([1], Host::Refuses);
    world.pass_seconds(5);
    assert_eq!(world.dead(), [1]);
    for _ in 0..20 {
        let probe = loop {
            let due = world.island.due(world.now);
            if let Some(probe) = due.into_iter().find(|probe| probe.endpoint == at(1)) {
                break probe;
            }
            world.now += PAUSE;
        };
        assert_eq!(world.island.answer(&probe, Answer::Unasked, world.now), []);
        assert_eq!(world.dead(), [1]);
    }
}

#[test]
fn a_connect_that_failed_has_its_endpoint_probed_at_once() {
    let mut world = World::of(1, vec![used(0), used(1)]);
    world.pass_seconds(10);
    let last = world.probes.iter().rposition(|(probe, _)| probe.endpoint == at(1)).unwrap();
    world.pass(Duration::from_millis(100));
    let before = world.probes_of(1);
    assert!(last < world.probes.len());
    world.island.suspect(at(1), world.now);
    world.pass(Duration::from_millis(50));
    assert_eq!(world.probes_of(1), before + 1);
}

#[test]
fn a_slow_endpoint_is_not_in_doubt_each_time() {
    let mut world = World::of(1, vec![used(0)]);
    world.latency = Duration::from_millis(600);
    world.pass_seconds(10);
    let before = world.probes.len();
    world.pass_seconds(60);
    assert!(world.probes.len() - before <= 31, "one every two seconds");
    assert!(world.told.is_empty());
}

/// Half of them dead, and the other half in doubt half of the time.
#[test]
fn probes_are_bounded_and_namespaces_take_turns() {
    let mut world = World::new(3);
    let victim = ServiceId { namespace: "victim".into(), name: "web".into() };
    for number in 0..50 {
        let first = 100 * number;
        let group = (first..first + 100).map(used).collect();
        let evil = ServiceId { namespace: "evil".into(), name: format!("s{number}").into() };
        world.island.watch(&evil, vec![group], world.now);
    }
    assert_eq!(world.island.endpoints.len(), MOST / 2, "one namespace has half of the room");
    world.island.watch(&victim, vec![vec![used(60_000), used(60_001)]], world.now);
    world.set(0..1_000, Host::Silent);
    world.loss = 0.3;
    world.pass_seconds(60);
    world.set([60_001], Host::Silent);
    world.pass_seconds(10);
    assert_eq!(&*world.island.dead(&victim), [at(60_001)], "others hold it up for a turn");
    assert!(world.probes_of(60_000) >= 20, "{}", world.probes_of(60_000));
    let mut times: Vec<_> = world.probes.iter().map(|(probe, _)| probe.begun).collect();
    times.sort();
    let most = times.iter().map(|&first| {
        times.iter().filter(|&&it| it >= first && it < first + Duration::from_secs(1)).count()
    });
    let most = most.max().unwrap();
    assert!(most <= 100 + 2 * BURST as usize, "{most} in a second");
    assert!(world.now - world.start < Duration::from_secs(100));
}

proptest! {
    /// Whatever becomes of hosts, networks and groups: somebody of the group answers who is not dead; enough of its
    /// own probes speak against who is dead; and what is forgotten is not dead.
    #[test]
    fn nobody_is_dead_whom_no_probe_found_dead_and_never_are_all(
        seed in any::<u64>(),
        steps in proptest::collection::vec(
            (0..6_u16, 0..8_u8, 0..4_000_u64), 1..40
        ),
    ) {
        let all: Vec<_> = (0..6).map(|number| Watched {
            locality: if number < 2 { Locality::Node } else { Locality::Zone },
            is_used: number < 4,
            ..used(number)
        }).collect();
        let mut world = World::of(seed, all.clone());
        for (number, what, milliseconds) in steps {
            match what {
                0 | 1 => world.set([number], Host::Silent),
                2 => world.set([number], Host::Refuses),
                3 | 4 => world.set([number], Host::Accepts),
                5 => world.loss = f64::from(number) / 5.0,
                6 => world.watch("web", all[usize::from(number)..].to_vec()),
                _ => world.island.suspect(at(number), world.now),
            }
            world.pass(Duration::from_millis(milliseconds));
            let island = &world.island;
            let dead = island.dead(&service("web"));
            let group = &island.services[&service("web")].groups[0];
            let verdict = |address| island.endpoints.get(&address).map(|one| one.verdict);
            for one in dead.iter() {
                prop_assert!(group.iter().any(|it| it.address == *one));
                prop_assert_eq!(verdict(*one), Some(Verdict::Dead));
                let over = world.probes.iter().enumerate().filter(|(place, (probe, _))| {
                    probe.endpoint == *one
                        && !world.coming.iter().any(|it| it.0.1 == *place)
                });
                let against = over.map(|(_, (_, answer))| match answer {
                    Answer::Refused => REFUSED,
                    Answer::Silent => SILENT,
                    Answer::Accepted | Answer::Unasked => 0,
                });
                prop_assert!(against.map(u32::from).sum::<u32>() >= ENOUGH.into());
            }
            if !dead.is_empty() {
                let mut alive = group.iter().filter(|it| verdict(it.address) == Some(Verdict::Alive));
                prop_assert!(alive.any(|it| !dead.contains(&it.address)));
            }
        }
    }
}
