//! Agents on one network, with a clock and losses of our own.

use proptest::prelude::*;

use super::*;
use crate::peers::status::PeerState;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, number as u8 + 1]
}

fn balancer(family: Family) -> IpAddr {
    let text = if family == Family::V4 { "203.0.113.10" } else { "2001:db8:113::10" };
    text.parse().expect("an address")
}

fn way(number: usize, family: Family) -> Way {
    (NAMES[number].into(), family)
}

fn changes(of: usize) -> Changes {
    let others = (0..NAMES.len()).filter(|other| *other != of);
    let ways = others.flat_map(|other| Family::BOTH.map(|family| way(other, family)));
    Changes {
        nodes: ways.map(|way| (way, Some([10, 0, 0, 1].into()))).collect(),
        frontends: Family::BOTH.map(|family| (balancer(family), true)).into(),
    }
}

fn prover(of: usize, left: &BTreeMap<Peer, u32>, now: Instant) -> Prover {
    let left: Vec<_> = left.iter().map(|(peer, value)| (*peer, *value)).collect();
    let mut prover = Prover::new(NAMES[of].into(), RandomState::new(), left, now);
    prover.take_in(changes(of), now);
    prover
}

/// Agents, each with a card, and what their maps hold.
struct World {
    now: Instant,
    /// `None`: it does not run.
    agents: Vec<Option<Prover>>,
    maps: Vec<BTreeMap<Peer, u32>>,
    /// What each has said about others.
    said: Vec<Vec<Status>>,
    /// The card to which the route to a node leads, if it is not the node's own.
    routes: BTreeMap<usize, [u8; 6]>,
    /// Which frames the network carries: by the sender's number, and the frame.
    carries: fn(usize, &Outgoing) -> bool,
    hellos: usize,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let nothing = BTreeMap::new();
        Self {
            now,
            agents: (0..NAMES.len()).map(|of| Some(prover(of, &nothing, now))).collect(),
            maps: vec![nothing; NAMES.len()],
            said: vec![Vec::new(); NAMES.len()],
            routes: BTreeMap::new(),
            carries: |_, _| true,
            hellos: 0,
        }
    }

    fn agent(&mut self, of: usize) -> &mut Prover {
        self.agents[of].as_mut().expect("it runs")
    }

    fn restart(&mut self, of: usize) {
        self.agents[of] = Some(prover(of, &self.maps[of], self.now));
    }

    /// Delivers a frame, and all that follows from it.
    fn deliver(&mut self, from: usize, frame: Outgoing) {
        if !(self.carries)(from, &frame) {
            return;
        }
        let Some(to) = (0..NAMES.len()).find(|number| mac(*number) == frame.to) else { return };
        let Some(reply) = self.hear(to, mac(from), &frame) else { return };
        self.deliver(to, reply);
    }

    fn hear(&mut self, to: usize, from: [u8; 6], frame: &Outgoing) -> Option<Outgoing> {
        let now = self.now;
        let Outgoing { source, destination, message, .. } = frame;
        let envelope = Envelope { from, to: mac(to), source: *source, destination: *destination };
        let payload = message.encode().expect("a name");
        let reply = self.agents[to].as_mut()?.hear(&envelope, &payload, now).ok().flatten();
        self.write(to);
        let promised = reply.as_ref().and_then(Outgoing::promises);
        assert!(promised.is_none_or(|peer| self.maps[to].contains_key(&peer)), "not in the map");
        reply
    }

    fn write(&mut self, of: usize) {
        for (peer, value) in self.agents[of].as_mut().expect("it runs").changes() {
            match value {
                Some(value) => self.maps[of].insert(peer, value),
                None => self.maps[of].remove(&peer),
            };
        }
        let news = self.agent(of).news();
        self.said[of].extend(news);
    }

    /// All that happens for a while.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for of in 0..NAMES.len() {
                while let Some((way, _)) = self.agents[of].as_ref().and_then(|it| it.due(self.now))
                {
                    let number = NAMES.iter().position(|name| **name == *way.0).expect("a name");
                    let to = self.routes.get(&number).copied().unwrap_or(mac(number));
                    let now = self.now;
                    let hello = self.agent(of).ask(&way, Ok(to), now);
                    self.hellos += 1;
                    self.write(of);
                    if let Some(hello) = hello {
                        self.deliver(of, hello);
                    }
                }
                if self.agents[of].is_some() {
                    let now = self.now;
                    self.agent(of).expire(now);
                    self.write(of);
                }
            }
            let next = self.agents.iter().flatten().filter_map(Prover::next).min();
            // `expire` is to be called once a second.
            let next = next.unwrap_or(end).min(self.now + Duration::from_secs(1));
            if next > end {
                break;
            }
            self.now = next;
        }
        self.now = end;
    }

    /// Which nodes are proved at a node by IPv4, by what its map says.
    fn proved(&self, at: usize) -> Vec<&'static str> {
        self.entries(at, PROVED)
    }

    fn entries(&self, at: usize, bits: u32) -> Vec<&'static str> {
        let value = |of| self.maps[at].get(&peer(mac(of), Family::V4)).copied();
        let is_so = |of: &usize| value(*of).is_some_and(|it| it == tag(NAMES[*of]) | bits);
        (0..NAMES.len()).filter(is_so).map(|of| NAMES[of]).collect()
    }

    /// What a node says of another by IPv4.
    fn reason(&self, at: usize, of: usize) -> String {
        let all = self.agents[at].as_ref().expect("it runs").all();
        let status = all.into_iter().find(|it| *it.node == *NAMES[of] && it.family == Family::V4);
        status.and_then(|status| status.reason).unwrap_or_default()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn nodes_prove_each_other_at_once_and_stay_proved_with_a_hello_in_ten_seconds() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    assert_eq!([0, 1, 2].map(|at| world.proved(at)), [["b", "c"], ["a", "c"], ["a", "b"]]);
    assert_eq!(world.maps[0].len(), 4, "two nodes by two versions of IP");
    world.hellos = 0;
    world.pass(100 * SECOND);
    assert_eq!([0, 1, 2].map(|at| world.proved(at)), [["b", "c"], ["a", "c"], ["a", "b"]]);
    // Three nodes ask two each, by both versions.
    assert!((108..=134).contains(&world.hellos), "{} hellos", world.hellos);
    let states: Vec<_> = world.said[0].iter().map(|status| status.state).collect();
    assert_eq!(states, [PeerState::Proved; 4], "each is said once");
}

#[test]
fn a_network_that_drops_foreign_sources_proves_nothing_and_keeps_peers_empty() {
    let mut world = World::new();
    world.carries = |_, frame| frame.source != client(Family::V4);
    world.pass(SECOND);
    assert_eq!(world.entries(0, 0), [""; 0]);
    assert_eq!(world.proved(0), [""; 0]);
    assert!(world.reason(0, 1).contains("no agent answers at 02:00:00:00:00:02"));
    assert!(world.maps[0].keys().all(|peer| peer.version == 6), "the other version is carried");
    world.hellos = 0;
    world.pass(100 * SECOND);
    assert!(world.hellos < 200, "{} hellos", world.hellos);
    world.carries = |_, _| true;
    world.pass(12 * SECOND);
    assert_eq!(world.proved(0), ["b", "c"]);
}

#[test]
fn a_network_that_drops_answers_proves_nothing() {
    let mut world = World::new();
    world.carries = |_, frame| matches!(frame.message.kind, Kind::Hello);
    world.pass(SECOND);
    assert!(world.maps.iter().all(BTreeMap::is_empty), "nobody has a cookie: {:?}", world.maps);
}

#[test]
fn two_lost_frames_in_a_row_take_no_proof_away_and_three_do() {
    for (lost, wanted) in [(2, &["b", "c"][..]), (3, &["c"])] {
        let mut world = World::new();
        world.pass(Duration::ZERO);
        let mut left = lost;
        world.said[0].clear();
        while left > 0 {
            let next = world.agent(0).next().expect("a hello");
            world.now = next;
            let (due, _) = world.agent(0).due(next).expect("a hello");
            let number = NAMES.iter().position(|name| **name == *due.0).expect("a name");
            let hello = world.agent(0).ask(&due, Ok(mac(number)), next).expect("a hello");
            if due == way(1, Family::V4) {
                left -= 1;
            } else {
                world.deliver(0, hello);
            }
        }
        // At the next turn it is seen that the last one has no answer.
        while world.agent(0).targets[&way(1, Family::V4)].unanswered > 0 {
            let next = world.agent(0).next().expect("a hello");
            world.now = next;
            let (due, _) = world.agent(0).due(next).expect("a hello");
            let number = NAMES.iter().position(|name| **name == *due.0).expect("a name");
            let hello = world.agent(0).ask(&due, Ok(mac(number)), next).expect("a hello");
            world.write(0);
            if due == way(1, Family::V4) {
                break;
            }
            world.deliver(0, hello);
        }
        assert_eq!(world.proved(0), wanted, "{lost} lost");
        let unproved = world.said[0].iter().filter(|it| it.state == PeerState::Unproved).count();
        assert_eq!(unproved, usize::from(lost == 3), "said once");
    }
}

#[test]
fn an_agent_that_is_stopped_is_unproved_in_14_seconds_and_forgotten_after_5_minutes() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    world.agents[1] = None;
    world.pass(8 * SECOND);
    assert_eq!(world.proved(0), ["b", "c"]);
    world.pass(7 * SECOND);
    assert_eq!((world.proved(0), world.entries(0, 0)), (vec!["c"], vec!["b"]));
    world.pass(270 * SECOND);
    assert_eq!(world.entries(0, 0), ["b"], "what it has sent on before may still come");
    world.pass(20 * SECOND);
    assert_eq!((world.proved(0), world.entries(0, 0)), (vec!["c"], vec![]));
    world.restart(1);
    world.pass(SECOND);
    assert_eq!(world.proved(0), ["b", "c"], "its own hello has it asked at once");
}

#[test]
fn a_proof_outlives_a_restart_of_both_agents() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    for of in [0, 1] {
        world.restart(of);
        assert_eq!(world.proved(of).len(), 2);
        for _ in 0..400 {
            world.pass(SECOND / 10);
            assert_eq!([0, 1, 2].map(|at| world.proved(at).len()), [2; 3]);
        }
    }
    assert!(world.said.iter().flatten().all(|status| status.state == PeerState::Proved));
}

#[test]
fn a_proof_of_the_agent_before_ends_if_nobody_answers_and_is_no_more_if_it_was_none() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    (world.agents[1], world.agents[2]) = (None, None);
    world.restart(0);
    world.pass(15 * SECOND);
    assert_eq!(world.proved(0), ["b", "c"]);
    world.pass(7 * SECOND);
    assert_eq!((world.proved(0), world.entries(0, 0)), (vec![], vec!["b", "c"]));
    world.restart(0);
    world.pass(Duration::ZERO);
    assert_eq!(world.entries(0, 0), ["b", "c"]);
    world.pass(301 * SECOND);
    assert!(world.maps[0].is_empty());
}

#[test]
fn a_route_that_leads_elsewhere_takes_the_proof_away_at_once() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    world.routes.insert(1, mac(2));
    world.pass(12 * SECOND);
    assert_eq!(world.proved(0), ["c"]);
    assert_eq!(world.reason(0, 1), "02:00:00:00:00:03, its next hop, is node c");
    world.routes.clear();
    world.pass(12 * SECOND);
    assert_eq!(world.proved(0), ["b", "c"]);
    let now = world.now;
    let elsewhere = Unproved::Elsewhere([10, 0, 0, 1].into(), "wg0".into());
    assert_eq!(world.agent(0).ask(&way(1, Family::V4), Err(elsewhere), now), None);
    world.write(0);
    assert_eq!(world.proved(0), ["c"]);
    assert_eq!(world.reason(0, 1), "the route to its endpoint 10.0.0.1 leaves by wg0");
    // A neighbour that is not found is as a lost frame.
    for times in 1..=4 {
        let unknown = Unproved::NoNeighbour([10, 0, 0, 1].into());
        world.agent(0).ask(&way(2, Family::V4), Err(unknown), now);
        world.write(0);
        assert_eq!(world.proved(0), if times < 4 { &["c"][..] } else { &[] }, "{times}");
    }
}

#[test]
fn a_card_that_goes_to_another_node_is_no_longer_the_first_ones() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    // The network gives the address of b's card to c.
    world.agents[1] = None;
    let key = peer(mac(1), Family::V4);
    let now = world.now;
    let hello = world.agent(0).ask(&way(2, Family::V4), Ok(mac(1)), now).expect("a hello");
    let reply = world.hear(2, mac(0), &hello).expect("an answer");
    assert!(world.hear(0, mac(1), &reply).is_some(), "it does not give the cookie back");
    assert_eq!(world.maps[0][&key], tag("c") | PROVED);
    assert_eq!(world.reason(0, 1), "02:00:00:00:00:02, its next hop, is node c");
}

#[test]
fn endpoints_and_frontends_that_go_take_their_nodes_with_them() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    let now = world.now;
    let gone = Changes { nodes: [(way(1, Family::V4), None)].into(), ..Changes::default() };
    world.agent(0).take_in(gone, now);
    world.write(0);
    assert_eq!((world.proved(0), world.entries(0, 0)), (vec!["c"], vec!["b"]), "b still asks");
    let frontends = [(balancer(Family::V4), false)].into();
    world.agent(1).take_in(Changes { frontends, ..Changes::default() }, now);
    world.pass(15 * SECOND);
    assert_eq!(world.proved(2), ["a"], "b answers for its frontends alone");
    assert_eq!(world.agent(0).nonces.len(), world.agent(0).targets.len());
    assert_eq!(world.agent(0).schedule.len(), world.agent(0).targets.len());
}

#[test]
fn with_another_uplink_all_begins_again() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    let now = world.now;
    world.agent(0).begin_again(now);
    world.write(0);
    assert!(world.maps[0].is_empty());
    world.pass(Duration::ZERO);
    assert_eq!(world.proved(0), ["b", "c"]);
}

fn hello(node: &str, cookie: u64) -> Outgoing {
    Outgoing {
        to: mac(0),
        source: client(Family::V4),
        destination: balancer(Family::V4),
        message: Message { kind: Kind::Hello, node: node.into(), nonce: 7, cookie },
    }
}

#[test]
fn a_stranger_gets_nothing_into_the_map_for_an_address_at_which_it_gets_no_frames() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    let before = world.maps[0].clone();
    let victim = [2, 9, 9, 9, 9, 9];
    // It knows its own cookie, and guesses.
    let own = world.hear(0, mac(7), &hello("b", 0)).expect("an answer").message.cookie;
    for cookie in [0, 1, own, !own, own.rotate_left(1), u64::MAX] {
        let answer = world.hear(0, victim, &hello("b", cookie)).expect("an answer");
        assert_eq!((answer.to, &answer.message.kind), (victim, &Kind::Answer { knows: false }));
    }
    assert_eq!(world.maps[0], before);
    // By its own card it may say what it likes, but no packet is sent on to it for that.
    world.hear(0, mac(7), &hello("b", own));
    assert_eq!(world.maps[0][&peer(mac(7), Family::V4)], tag("b"));
}

#[test]
fn nothing_is_heard_of_groups_of_this_node_itself_or_about_other_addresses() {
    let mut world = World::new();
    let now = world.now;
    let right = Envelope {
        from: mac(1),
        to: mac(0),
        source: client(Family::V4),
        destination: balancer(Family::V4),
    };
    let payload = |name| hello(name, 0).message.encode().expect("a name");
    let mut hear =
        |envelope: Envelope, payload: &[u8]| world.agent(0).hear(&envelope, payload, now);
    assert!(hear(right, &payload("b")).is_ok());
    for wrong in [
        Envelope { from: [3, 0, 0, 0, 0, 1], ..right },
        Envelope { from: [0; 6], ..right },
        Envelope { source: [192, 0, 2, 2].into(), ..right },
        Envelope { destination: [203, 0, 113, 11].into(), ..right },
        Envelope { source: right.destination, destination: right.source, ..right },
    ] {
        assert_eq!(hear(wrong, &payload("b")), Err(Ignored::Unasked), "{wrong:?}");
    }
    assert_eq!(hear(right, &payload("a")), Err(Ignored::Unasked));
    assert_eq!(hear(right, b"what"), Err(Ignored::Garbage));
    let mut other = payload("b");
    other[8] += 1;
    assert_eq!(hear(right, &other), Err(Ignored::Version));
}

#[test]
fn an_answer_counts_once_from_the_card_that_was_asked() {
    let mut world = World::new();
    let now = world.now;
    let hello = world.agent(0).ask(&way(1, Family::V4), Ok(mac(1)), now).expect("a hello");
    let mut answer = world.hear(1, mac(0), &hello).expect("an answer");
    answer.message.kind = Kind::Answer { knows: true };
    let heard = |world: &mut World, from, answer: &Outgoing| {
        world.hear(0, from, answer);
        world.proved(0).len()
    };
    assert_eq!(heard(&mut world, mac(2), &answer), 0, "from another card");
    let mut guessed = answer.clone();
    guessed.message.nonce ^= 1;
    assert_eq!(heard(&mut world, mac(1), &guessed), 0, "to no question");
    assert_eq!(heard(&mut world, mac(1), &answer), 1);
    world.agent(0).begin_again(now);
    world.write(0);
    assert_eq!(heard(&mut world, mac(1), &answer), 0, "again");
}

#[test]
fn a_flood_of_strangers_gets_few_answers_and_keeps_none_from_nodes() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    let (mut answers, entries) = (0, world.maps[0].len());
    for number in 0_u32..100_000 {
        let [_, a, b, c] = number.to_be_bytes();
        let from = [2, 1, 1, a, b, c];
        answers += usize::from(world.hear(0, from, &hello("x", number.into())).is_some());
    }
    assert_eq!(answers, 1_000 - 4, "the burst, without what nodes used of it");
    assert_eq!(world.maps[0].len(), entries);
    world.pass(100 * SECOND);
    assert_eq!(world.proved(1), ["a", "c"]);
}

#[test]
fn a_flood_of_one_card_leaves_the_others_theirs() {
    let now = Instant::now();
    let mut prover = Prover::new("a".into(), RandomState::new(), [], now);
    let mut admitted = |card, now| (0..1_000).filter(|_| prover.admits(card, now)).count();
    assert_eq!(admitted(mac(1), now), 64);
    assert_eq!(admitted(mac(1), now + SECOND), 64);
    let all = (2..60).map(|number| admitted(mac(number), now)).filter(|taken| *taken > 0).count();
    assert!(all > 30, "{all}");
}

/// A Pod can send by the card of its node.
#[test]
fn what_others_send_by_a_node_s_card_ends_no_proof() {
    let mut world = World::new();
    world.pass(Duration::ZERO);
    for _ in 0..60 {
        for number in 0..1_000 {
            world.hear(0, mac(1), &hello("x", number));
        }
        world.pass(SECOND);
    }
    assert_eq!(world.proved(0), ["b", "c"]);
}

#[test]
fn the_map_is_never_too_full_and_a_node_without_room_says_so() {
    let mut world = World::new();
    let now = world.now;
    let prover = world.agent(0);
    // It asks nobody.
    let nodes = changes(0).nodes.into_keys().map(|way| (way, None)).collect();
    prover.take_in(Changes { nodes, ..Changes::default() }, now);
    for number in 0_u32..20_000 {
        let [_, _, a, b] = number.to_be_bytes();
        prover.meet(peer([2, 1, 1, 1, a, b], Family::V4), "x", now);
    }
    assert_eq!(prover.known.len(), MOST_PEERS as usize);
    world.write(0);
    world.pass(SECOND);
    assert_eq!(world.proved(1), ["c"]);
    assert!(world.reason(1, 0).contains("has no room for another node"));
    assert_eq!(world.maps[0].len(), MOST_PEERS as usize);
    world.pass(400 * SECOND);
    assert_eq!(world.proved(1), ["a", "c"]);
}

#[test]
fn with_many_nodes_each_is_asked_more_rarely() {
    let now = Instant::now();
    let mut prover = Prover::new("a".into(), RandomState::new(), [], now);
    let ways = (0..10_000)
        .map(|number| ((format!("n{number}").into(), Family::V4), Some([10, 0, 0, 1].into())));
    prover.take_in(Changes { nodes: ways.collect(), ..Changes::default() }, now);
    let interval = prover.interval();
    assert!((45 * SECOND..=55 * SECOND).contains(&interval), "{interval:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Frames are lost, late, twice, or come from a stranger with an address of another.
    #[test]
    fn whatever_the_network_does_the_map_has_true_entries_alone(
        steps in prop::collection::vec((0_u8..10, any::<prop::sample::Index>(), 0_usize..4), 1..200),
    ) {
        let mut world = World::new();
        let mut frames: Vec<(usize, Outgoing)> = Vec::new();
        for (step, which, other) in steps {
            match step {
                0..3 => for of in 0..NAMES.len() {
                    let now = world.now;
                    while let Some((way, _)) = world.agent(of).due(now) {
                        let to = NAMES.iter().position(|name| **name == *way.0).expect("a name");
                        let hello = world.agent(of).ask(&way, Ok(mac(to)), now);
                        frames.extend(hello.map(|hello| (of, hello)));
                    }
                    world.write(of);
                },
                // One arrives, and may again.
                3..7 if !frames.is_empty() => {
                    let (from, frame) = which.get(&frames).clone();
                    let to = (0..NAMES.len()).find(|number| mac(*number) == frame.to);
                    let reply = to.and_then(|to| Some((to, world.hear(to, mac(from), &frame)?)));
                    frames.extend(reply);
                }
                // A stranger sends what it has seen by an address of its choice. It sees no frame to others, but
                // hellos that it was sent itself by mistake.
                7 if !frames.is_empty() => {
                    let (_, mut frame) = which.get(&frames).clone();
                    if matches!(frame.message.kind, Kind::Hello) {
                        frame.message.node = "x".into();
                        for to in 0..NAMES.len() {
                            world.hear(to, mac(40 + other), &frame);
                        }
                    }
                }
                _ => {
                    world.now += Duration::from_millis(700) * other as u32;
                    for of in 0..NAMES.len() {
                        let now = world.now;
                        world.agent(of).expire(now);
                        world.write(of);
                    }
                }
            }
            for map in &world.maps {
                for (key, value) in map {
                    let of = (0..NAMES.len()).find(|number| mac(*number) == key.ethernet);
                    prop_assert_eq!(of.map(|of| tag(NAMES[of])), Some(value & !PROVED));
                }
            }
        }
    }
}
