//! Whom to ask when, what an answer means, and what the map `peers` holds.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_common::hop::{PROVED, Peer};
use topo_lb_common::maps::MOST_PEERS;
use topo_lb_common::members::node_tag;

use super::frame::{Envelope, client};
use super::message::{Kind, Message, NoMessage};
use super::status::{Standing, Status, Unproved};
use super::targets::Changes;
use crate::cluster::Family;
use crate::rate::Rate;

/// How often a node is asked that is proved, and one that long was not.
const INTERVAL: Duration = Duration::from_secs(10);
/// At most so often is any node asked: with more than 2,000 ways, each is asked more rarely.
const APART: Duration = Duration::from_millis(5);
/// After the first hello without an answer; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long a proved node has for each answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many hellos in a row without an answer take a proof away.
const MISSES: u32 = 3;
/// For how long a node is known after its last hello.
const ACQUAINTED: Duration = Duration::from_secs(5 * 60);
/// For how long a proof of the agent before counts, until it is renewed.
const INHERITED: Duration = Duration::from_secs(20);
/// Answers to those that show a cookie, and to all others: a burst, and the time for one more.
const ANSWERS: [(u32, Duration); 2] =
    [(4_000, Duration::from_micros(500)), (1_000, Duration::from_millis(1))];

/// Frames of one card: a burst, and the time for one more.
const OF_A_CARD: (u32, Duration) = (64, Duration::from_millis(10));
/// Cards are counted in so many groups, by chance.
const CARDS: usize = 256;

/// A node, and a version of IP.
pub type Way = (Arc<str>, Family);

/// A frame to send from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub to: [u8; 6],
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// What it says.
    pub message: Message,
}

impl Outgoing {
    /// The entry that `peers` must have before this may be said.
    #[must_use]
    pub fn promises(&self) -> Option<Peer> {
        let knows = matches!(self.message.kind, Kind::Answer { knows: true });
        knows.then(|| peer(self.to, Family::of(self.source)))
    }
}

/// Why a frame means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Ignored {
    /// It is no message.
    Garbage,
    /// It is of another version.
    Version,
    /// It is about no frontend of this node's, an answer to no question, or of no other node.
    Unasked,
    /// There are too many.
    Flood,
}

impl Ignored {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Garbage, Self::Version, Self::Unasked, Self::Flood];
}

/// A node that is asked.
#[derive(Debug)]
struct Target {
    endpoint: IpAddr,
    /// The Ethernet address that was asked last.
    asked: Option<[u8; 6]>,
    /// What it has to repeat.
    nonce: u64,
    /// The last one that it sent.
    cookie: u64,
    /// Hellos since the last answer, and failures to find the way.
    unanswered: u32,
    next: Instant,
    standing: Standing,
}

/// A node that has shown that it gets frames at an Ethernet address.
#[derive(Clone, Copy, Debug)]
struct Acquaintance {
    tag: u32,
    heard: Instant,
    /// Until when a proof of the agent before counts.
    inherited: Option<Instant>,
}

/// Asks other nodes and answers them.
#[derive(Debug)]
pub struct Prover {
    node: Arc<str>,
    /// Makes nonces and cookies: nobody else knows its keys.
    secret: RandomState,
    made: u64,
    targets: BTreeMap<Way, Target>,
    schedule: BTreeSet<(Instant, Way)>,
    nonces: HashMap<u64, Way>,
    frontends: BTreeSet<IpAddr>,
    proved: HashMap<Peer, Way>,
    known: HashMap<Peer, Acquaintance>,
    /// Entries of the map that may have changed.
    touched: BTreeSet<Peer>,
    /// Whose standing has changed.
    news: BTreeSet<Way>,
    answers: [Rate; 2],
    of_cards: Vec<Rate>,
}

fn peer(ethernet: [u8; 6], family: Family) -> Peer {
    let version = if family == Family::V4 { 4 } else { 6 };
    Peer { ethernet, version, reserved: 0 }
}

fn tag(node: &str) -> u32 {
    node_tag(node.as_bytes()).into()
}

/// Whether a node's card can have this address: neither a group nor zero.
fn is_of_a_card(ethernet: [u8; 6]) -> bool {
    ethernet[0] & 1 == 0 && ethernet != [0; 6]
}

impl Prover {
    /// For this node; `left`: what the agent before has left in the map.
    pub fn new(
        node: Arc<str>,
        secret: RandomState,
        left: impl IntoIterator<Item = (Peer, u32)>,
        now: Instant,
    ) -> Self {
        let acquaintance = |value| Acquaintance {
            tag: value & !PROVED,
            heard: now,
            inherited: (value & PROVED != 0).then(|| now + INHERITED),
        };
        Self {
            node,
            secret,
            made: 0,
            targets: BTreeMap::new(),
            schedule: BTreeSet::new(),
            nonces: HashMap::new(),
            frontends: BTreeSet::new(),
            proved: HashMap::new(),
            known: left.into_iter().map(|(peer, value)| (peer, acquaintance(value))).collect(),
            touched: BTreeSet::new(),
            news: BTreeSet::new(),
            answers: ANSWERS.map(|(burst, interval)| Rate::new(burst, interval, now)),
            of_cards: vec![Rate::new(OF_A_CARD.0, OF_A_CARD.1, now); CARDS],
        }
    }

    /// Takes in what has changed about Services.
    pub fn take_in(&mut self, changes: Changes, now: Instant) {
        for (frontend, is_one) in changes.frontends {
            match is_one {
                true => self.frontends.insert(frontend),
                false => self.frontends.remove(&frontend),
            };
        }
        for (way, endpoint) in changes.nodes {
            match (endpoint, self.targets.get_mut(&way)) {
                (None, _) => self.drop_target(&way),
                (Some(endpoint), Some(target)) => target.endpoint = endpoint,
                (Some(endpoint), None) => {
                    let target = Target {
                        endpoint,
                        asked: None,
                        nonce: 0,
                        cookie: 0,
                        unanswered: 0,
                        next: now,
                        standing: Standing::Asking,
                    };
                    self.schedule.insert((now, way.clone()));
                    self.targets.insert(way, target);
                }
            }
        }
    }

    fn drop_target(&mut self, way: &Way) {
        self.stand(way, Standing::Asking);
        self.news.remove(way);
        if let Some(target) = self.targets.remove(way) {
            self.schedule.remove(&(target.next, way.clone()));
            self.nonces.remove(&target.nonce);
        }
    }

    /// Forgets all proofs and acquaintances: the uplink is another one.
    pub fn begin_again(&mut self, now: Instant) {
        self.touched.extend(self.known.drain().map(|(peer, _)| peer));
        for way in self.targets.keys().cloned().collect::<Vec<_>>() {
            self.stand(&way, Standing::Asking);
        }
        self.ask_all(now);
    }

    /// All are asked now: there is an uplink.
    pub fn ask_all(&mut self, now: Instant) {
        for way in self.targets.keys().cloned().collect::<Vec<_>>() {
            if let Some(target) = self.targets.get_mut(&way) {
                (target.asked, target.unanswered) = (None, 0);
            }
            self.put_off(&way, now);
        }
    }

    /// When a node is to be asked next.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.schedule.first().map(|(next, _)| *next)
    }

    /// The first node that is to be asked by now, and an endpoint of it: look the way up, and call
    /// [`ask`](Self::ask).
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<(Way, IpAddr)> {
        let (_, way) = self.schedule.first().filter(|(next, _)| *next <= now)?;
        Some((way.clone(), self.targets.get(way)?.endpoint))
    }

    /// Asks a node at the Ethernet address to which its endpoint's route leads.
    pub fn ask(
        &mut self,
        way: &Way,
        route: Result<[u8; 6], Unproved>,
        now: Instant,
    ) -> Option<Outgoing> {
        let nonce = self.number();
        let target = self.targets.get_mut(way)?;
        let hello = match route {
            Ok(to) => {
                if target.asked != Some(to) {
                    (target.asked, target.unanswered, target.cookie) = (Some(to), 0, 0);
                    self.nonces.remove(&target.nonce);
                    target.nonce = nonce;
                    self.nonces.insert(nonce, way.clone());
                    // What was proved is not where packets go now.
                    if target.standing != Standing::Proved(to) {
                        self.stand(way, Standing::Asking);
                    }
                } else if target.unanswered >= MISSES {
                    self.stand(way, Standing::Unproved(Unproved::NoAnswer(to)));
                }
                self.hello(way)
            }
            Err(why) => {
                if why.is_certain() {
                    target.asked = None;
                }
                if why.is_certain() || target.unanswered >= MISSES {
                    self.stand(way, Standing::Unproved(why));
                }
                None
            }
        };
        let target = self.targets.get_mut(way)?;
        target.unanswered = target.unanswered.saturating_add(1);
        let next = now + self.pause(way);
        self.put_off(way, next);
        hello
    }

    fn hello(&self, (node, family): &Way) -> Option<Outgoing> {
        let target = self.targets.get(&(Arc::clone(node), *family))?;
        let any = match family {
            Family::V4 => IpAddr::from([0_u8; 4]),
            Family::V6 => IpAddr::from([0_u8; 16]),
        };
        let first = self.frontends.range(any..).next().filter(|it| Family::of(**it) == *family);
        let (nonce, cookie) = (target.nonce, target.cookie);
        Some(Outgoing {
            to: target.asked?,
            source: client(*family),
            destination: *first?,
            message: Message { kind: Kind::Hello, node: Arc::clone(&self.node), nonce, cookie },
        })
    }

    /// How long a node has to answer.
    fn pause(&self, way: &Way) -> Duration {
        let Some(target) = self.targets.get(way) else { return INTERVAL };
        match target.standing {
            Standing::Proved(_) => PATIENCE,
            _ => {
                let doubled = 1 << target.unanswered.saturating_sub(1).min(10);
                (FIRST_PAUSE * doubled).min(self.interval())
            }
        }
    }

    /// How long until a node is asked again: between nine and eleven tenths, so that no two agents stay in step.
    fn interval(&self) -> Duration {
        let jitter = self.secret.hash_one(self.made) % 201;
        INTERVAL.max(APART * self.targets.len() as u32) * (900 + jitter as u32) / 1_000
    }

    fn put_off(&mut self, way: &Way, next: Instant) {
        if let Some(target) = self.targets.get_mut(way) {
            self.schedule.remove(&(target.next, way.clone()));
            target.next = next;
            self.schedule.insert((next, way.clone()));
        }
    }

    /// A number that nobody guesses.
    fn number(&mut self) -> u64 {
        self.made += 1;
        self.secret.hash_one(("nonce", self.made))
    }

    /// Not zero, and always the same for an address.
    fn cookie(&self, peer: &Peer) -> u64 {
        self.secret.hash_one(("cookie", peer.ethernet, peer.version)).max(1)
    }

    /// Whether a hello of this card without a cookie is to be answered: a flood that comes by a router takes nothing from
    /// nodes. One with a cookie comes from who gets frames at this card: a Pod that sends by it takes nothing from that.
    fn admits(&mut self, card: [u8; 6], now: Instant) -> bool {
        let group = self.secret.hash_one(("card", card)) as usize % CARDS;
        self.of_cards.get_mut(group).is_none_or(|rate| rate.take(now))
    }

    /// Takes in a frame of another node, and returns what to say to that.
    ///
    /// # Errors
    /// It means nothing.
    pub fn hear(
        &mut self,
        envelope: &Envelope,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Outgoing>, Ignored> {
        let message = Message::decode(payload).map_err(|error| match error {
            NoMessage::Version => Ignored::Version,
            NoMessage::Garbage => Ignored::Garbage,
        })?;
        let outside = client(envelope.family());
        let (by_client, frontend) = match message.kind {
            Kind::Hello => (envelope.source, envelope.destination),
            Kind::Answer { .. } => (envelope.destination, envelope.source),
        };
        let is_other = message.node != self.node && is_of_a_card(envelope.from);
        if by_client != outside || !self.frontends.contains(&frontend) || !is_other {
            return Err(Ignored::Unasked);
        }
        match message.kind {
            Kind::Hello => self.answer(envelope, message, now).map(Some),
            Kind::Answer { knows } => self.take_answer(envelope, &message, knows, now),
        }
    }

    fn answer(
        &mut self,
        envelope: &Envelope,
        hello: Message,
        now: Instant,
    ) -> Result<Outgoing, Ignored> {
        let family = envelope.family();
        let peer = peer(envelope.from, family);
        let cookie = self.cookie(&peer);
        let gets_frames_there = hello.cookie == cookie;
        let is_admitted = gets_frames_there || self.admits(envelope.from, now);
        if !is_admitted || !self.answers[usize::from(!gets_frames_there)].take(now) {
            return Err(Ignored::Flood);
        }
        if gets_frames_there {
            self.meet(peer, &hello.node, now);
            self.ask_soon(&(hello.node, family), now);
        }
        let knows = self.value(&peer).is_some();
        Ok(Outgoing {
            to: envelope.from,
            source: envelope.destination,
            destination: envelope.source,
            message: Message {
                kind: Kind::Answer { knows },
                node: Arc::clone(&self.node),
                nonce: hello.nonce,
                cookie,
            },
        })
    }

    fn meet(&mut self, peer: Peer, node: &str, now: Instant) {
        // Nobody takes the room of nodes that are asked.
        let room = (MOST_PEERS as usize).saturating_sub(self.targets.len());
        let has_room = self.known.len() < room || self.proved.contains_key(&peer);
        if let Some(known) = self.known.get_mut(&peer) {
            if known.tag != tag(node) {
                known.inherited = None;
            }
            (known.tag, known.heard) = (tag(node), now);
        } else if has_room {
            let known = Acquaintance { tag: tag(node), heard: now, inherited: None };
            self.known.insert(peer, known);
        }
        self.touched.insert(peer);
    }

    /// The agent of this node runs now: it is asked at once if it did not answer before.
    fn ask_soon(&mut self, way: &Way, now: Instant) {
        let is_unproved = |target: &&Target| !matches!(target.standing, Standing::Proved(_));
        let target = self.targets.get(way).filter(is_unproved);
        if target.is_some_and(|target| target.next > now + PATIENCE) {
            self.put_off(way, now);
        }
    }

    fn take_answer(
        &mut self,
        envelope: &Envelope,
        answer: &Message,
        knows: bool,
        now: Instant,
    ) -> Result<Option<Outgoing>, Ignored> {
        let way = self.nonces.get(&answer.nonce).cloned().ok_or(Ignored::Unasked)?;
        let nonce = self.number();
        let target = self.targets.get_mut(&way).ok_or(Ignored::Unasked)?;
        if target.asked != Some(envelope.from) || way.1 != envelope.family() {
            return Err(Ignored::Unasked);
        }
        self.nonces.remove(&target.nonce);
        target.nonce = nonce;
        self.nonces.insert(nonce, way.clone());
        let is_new = std::mem::replace(&mut target.cookie, answer.cookie) != answer.cookie;
        let is_the_node = answer.node == way.0;
        // Only once that has its cookie back, it knows this node by what this node has shown.
        let says_more = is_the_node && is_new;
        target.unanswered = u32::from(says_more);
        match (is_the_node, knows) {
            (true, true) => self.stand(&way, Standing::Proved(envelope.from)),
            (true, false) if says_more => {}
            (true, false) => self.stand(&way, Standing::Unproved(Unproved::NotTaken)),
            (false, _) => {
                let why = Unproved::Another(envelope.from, Arc::clone(&answer.node));
                self.stand(&way, Standing::Unproved(why));
            }
        }
        if says_more {
            let next = now + self.pause(&way);
            self.put_off(&way, next);
            return Ok(self.hello(&way));
        }
        let next = now + self.interval();
        self.put_off(&way, next);
        Ok(None)
    }

    /// Gives a node another standing.
    fn stand(&mut self, way: &Way, standing: Standing) {
        let Some(target) = self.targets.get_mut(way) else { return };
        if target.standing == standing {
            return;
        }
        let before = std::mem::replace(&mut target.standing, standing.clone());
        self.news.insert(way.clone());
        if let Standing::Proved(ethernet) = before {
            let peer = peer(ethernet, way.1);
            if self.proved.get(&peer) == Some(way) {
                self.proved.remove(&peer);
            }
            self.touched.insert(peer);
        }
        if let Standing::Proved(ethernet) = standing {
            let peer = peer(ethernet, way.1);
            self.touched.insert(peer);
            if let Some(known) = self.known.get_mut(&peer) {
                known.inherited = None;
            }
            if let Some(other) = self.proved.insert(peer, way.clone()) {
                let why = Unproved::Another(ethernet, Arc::clone(&way.0));
                self.stand(&other, Standing::Unproved(why));
            }
        }
    }

    /// Forgets who has not said hello for long, and proofs of the agent before that were not renewed. Call it about once
    /// a second.
    pub fn expire(&mut self, now: Instant) {
        let touched = &mut self.touched;
        self.known.retain(|peer, known| {
            let stays = now.saturating_duration_since(known.heard) < ACQUAINTED;
            let is_over = known.inherited.is_some_and(|until| until <= now);
            if !stays || is_over {
                touched.insert(*peer);
                known.inherited = None;
            }
            stays
        });
    }

    /// What the map is to hold at a key.
    fn value(&self, peer: &Peer) -> Option<u32> {
        if let Some((node, _)) = self.proved.get(peer) {
            return Some(tag(node) | PROVED);
        }
        let known = self.known.get(peer)?;
        Some(known.tag | if known.inherited.is_some() { PROVED } else { 0 })
    }

    /// The entries of the map that may have changed since the last call, and what they are to be.
    pub fn changes(&mut self) -> Vec<(Peer, Option<u32>)> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().map(|peer| (peer, self.value(&peer))).collect()
    }

    /// The next call of [`changes`](Self::changes) has this entry again: it could not be written.
    pub fn retry(&mut self, peer: Peer) {
        self.touched.insert(peer);
    }

    /// The nodes whose standing has changed since the last call.
    pub fn news(&mut self) -> Vec<Status> {
        let news = std::mem::take(&mut self.news);
        news.iter().filter_map(|way| self.status(way)).collect()
    }

    /// What is known of all nodes.
    #[must_use]
    pub fn all(&self) -> Vec<Status> {
        self.targets.keys().filter_map(|way| self.status(way)).collect()
    }

    fn status(&self, way: &Way) -> Option<Status> {
        Some(Status::new(&way.0, way.1, &self.targets.get(way)?.standing))
    }
}
