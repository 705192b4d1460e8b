//! Which endpoints a node probes while it hears nothing from its API server, and which of them are dead.
//! Pure: callers pass the time, and make the probes.
//!
//! An endpoint rests for about 1.5 s between two probes; with more than 75 of them, for longer. If one is not answered soon, more follow at
//! once, each with a connection of its own, until any is answered or [`ENOUGH`] are not. So a network that
//! loses packets makes more probes, and nobody dead; see [`ENOUGH`] for how improbable that is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_common::backend::Locality;

use crate::cluster::ServiceId;
use crate::rate::Rate;
use crate::topology::watched::Watched;
use crate::turns::Turns;

/// How long a probe waits for its answer. Within this the kernel has sent two SYNs, at 0 s and at 1 s, and
/// has had another second for the answer to the second one.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How much has to speak against an endpoint, without an answer in between. A probe without an answer counts
/// 1, a refusal 8: so 15 probes, or two refusals.
///
/// A network that loses half of all SYNs or their answers, each by chance, loses the 30 of 15 probes with a
/// probability of 2⁻³⁰: one in a billion each time that a probe begins, every eight months at 50 a second.
/// Then the next probe that is answered brings the endpoint back.
pub const ENOUGH: u8 = 15;
const SILENT: u8 = 1;
const REFUSED: u8 = 8;
/// Shortest and longest rest between two probes of an endpoint.
const REST: [Duration; 2] = [Duration::from_millis(1_400), Duration::from_millis(1_600)];
/// How long the first probes may take to begin, so that the nodes of a site do not begin at once.
const BEGIN: Duration = Duration::from_secs(1);
/// Without an answer for so long, more probes follow. Longer for an endpoint that has answered late.
const SOON: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(1_000)];
/// Pause between two probes of endpoints that rest or are dead, and as much between two of those in doubt: 50 a
/// second of each.
const PAUSE: Duration = Duration::from_millis(20);
/// Most that begin at once.
const BURST: u32 = 2;
/// Most endpoints that are probed. A namespace gets another one only while it has fewer than there is room for:
/// half of them at most.
const MOST: usize = 4_096;

/// A probe that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Which probes of an endpoint belong together.
    round: u64,
    begun: Instant,
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Answer {
    /// A connection. An endpoint that accepts and then says nothing is alive.
    Accepted,
    /// A refusal of its host.
    Refused,
    /// Nothing in time, or that no host is there.
    Silent,
    /// Nothing about the endpoint: this host could not ask.
    Unasked,
}

/// What is known of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Unknown,
    Alive,
    Dead,
}

/// What happens to an endpoint next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It rests until then.
    Rests(Instant),
    /// No Service that has it is used.
    Sleeps,
    /// It waits for its next probe.
    Waits,
    /// A probe has begun. If none is answered until then, it is in doubt.
    Asked(Instant),
    /// It is in doubt, and waits for another probe.
    InDoubt,
    /// Nothing, until its probes are over.
    Ends,
}

#[derive(Debug)]
struct Endpoint {
    /// The Services that have it. At least one.
    services: Vec<ServiceId>,
    /// Whose room it takes.
    namespace: Arc<str>,
    verdict: Verdict,
    /// It has answered this node once.
    was_reached: bool,
    /// Connects of this node's clients to it have failed.
    fails: bool,
    /// That they fail is not in what was said of it.
    is_unsaid: bool,
    /// Probes of another round count no more.
    round: u64,
    /// How many probes of this round have begun.
    begun: u8,
    /// What speaks against it in this round.
    against: u8,
    soon: Duration,
    phase: Phase,
}

#[derive(Debug, Default)]
struct OfService {
    groups: Vec<Vec<Watched>>,
    /// Which of them are probed.
    probed: BTreeSet<SocketAddr>,
    sleeps: bool,
}

/// The endpoints that a node watches over.
#[derive(Debug)]
pub struct Island {
    services: BTreeMap<ServiceId, OfService>,
    endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// How many endpoints each namespace has; only namespaces with any.
    namespaces: HashMap<Arc<str>, usize>,
    /// The ends of the phases that have one.
    times: BTreeSet<(Instant, SocketAddr)>,
    /// Endpoints that wait for their next probe, and those in doubt. They may have another phase meanwhile.
    waiting: Turns<(u64, SocketAddr)>,
    in_doubt: Turns<(u64, SocketAddr)>,
    /// How many have waited so far: of a Service, who has waited longest is first.
    waited: u64,
    rates: [Rate; 2],
    rounds: u64,
    random: u64,
}

impl Island {
    /// A node that begins to be an island. `seed`: of its own, so that nodes differ.
    #[must_use]
    pub fn new(seed: u64, now: Instant) -> Self {
        Self {
            services: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            namespaces: HashMap::new(),
            times: BTreeSet::new(),
            waiting: Turns::default(),
            in_doubt: Turns::default(),
            waited: 0,
            rates: [Rate::new(BURST, PAUSE, now); 2],
            // What comes of probes of an earlier island counts no more.
            rounds: seed >> 1,
            random: seed | 1,
        }
    }

    /// Watches over the endpoints of a Service, in [groups](crate::topology::watched::groups); over none, if
    /// there is no group.
    pub fn watch(&mut self, service: &ServiceId, groups: Vec<Vec<Watched>>, now: Instant) {
        let of = self.services.entry(service.clone()).or_default();
        of.groups = groups;
        self.choose(service, now);
    }

    /// Sets whether a Service sleeps: nobody uses it, so its endpoints are not probed, and what is known of them
    /// stays.
    pub fn sleep(&mut self, service: &ServiceId, sleeps: bool, now: Instant) {
        let Some(of) = self.services.get_mut(service) else { return };
        if std::mem::replace(&mut of.sleeps, sleeps) == sleeps || sleeps {
            return;
        }
        for address in of.probed.clone() {
            if self.endpoints.get(&address).is_some_and(|one| one.phase == Phase::Sleeps) {
                self.set(address, Phase::Rests(now));
            }
        }
    }

    /// Probes an endpoint next, as connects of this node's clients to it failed.
    pub fn suspect(&mut self, endpoint: SocketAddr, now: Instant) {
        let Some(one) = self.endpoints.get_mut(&endpoint) else { return };
        one.is_unsaid |= !std::mem::replace(&mut one.fails, true);
        if let Phase::Rests(_) = one.phase {
            self.set(endpoint, Phase::Rests(now));
        }
    }

    /// When [`due`](Self::due) has the next probe; `None`: not before something else happens.
    #[must_use]
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let [calm, doubtful] = &self.rates;
        let waiting = (!self.waiting.is_empty()).then(|| calm.next(now));
        let in_doubt = (!self.in_doubt.is_empty()).then(|| doubtful.next(now));
        let first = self.times.first().map(|(time, _)| *time);
        [waiting, in_doubt, first].into_iter().flatten().min()
    }

    /// The probes to begin now, in turns of namespaces and Services.
    pub fn due(&mut self, now: Instant) -> Vec<Probe> {
        while let Some(&(time, address)) = self.times.first()
            && time <= now
        {
            self.pass(address);
        }
        let mut all = Vec::new();
        for place in [0, 1] {
            let queue = |it: &mut Self| match place {
                0 => it.waiting.take(|_| true),
                _ => it.in_doubt.take(|_| true),
            };
            let wanted = if place == 0 { Phase::Waits } else { Phase::InDoubt };
            while self.rates[place].next(now) <= now
                && let Some((_, (_, address))) = queue(self)
            {
                let phase = self.endpoints.get(&address).map(|one| one.phase);
                if phase == Some(wanted) {
                    self.rates[place].take(now);
                    all.extend(self.begin(address, now));
                }
            }
        }
        all
    }

    /// Takes in what came of a probe. Returns the Services for which the dead may differ now.
    pub fn answer(&mut self, probe: &Probe, answer: Answer, now: Instant) -> Vec<ServiceId> {
        let address = probe.endpoint;
        let found = self.endpoints.get_mut(&address).filter(|one| one.round == probe.round);
        let Some(one) = found else { return Vec::new() };
        let before = (one.verdict, one.was_reached);
        match answer {
            Answer::Unasked => {}
            Answer::Accepted => {
                (one.verdict, one.was_reached, one.fails) = (Verdict::Alive, true, false);
                let took = now.saturating_duration_since(probe.begun);
                one.soon = (2 * took).clamp(SOON[0], SOON[1]);
            }
            Answer::Refused | Answer::Silent => {
                let is_refusal = answer == Answer::Refused;
                one.against = one.against.saturating_add(if is_refusal { REFUSED } else { SILENT });
                let is_dead = one.verdict == Verdict::Dead || one.against >= ENOUGH;
                if !is_dead {
                    // A refusal is an answer of its host: no need to wait whether one comes.
                    if is_refusal && matches!(one.phase, Phase::Asked(_)) {
                        self.doubt(address);
                    }
                    return Vec::new();
                }
                one.verdict = Verdict::Dead;
            }
        }
        let after = (one.verdict, one.was_reached);
        let is_unsaid = std::mem::take(&mut one.is_unsaid);
        let services = one.services.clone();
        self.rest(address, now);
        if before == after && !is_unsaid {
            return Vec::new();
        }
        for service in &services {
            self.choose(service, now);
        }
        services
    }

    /// The endpoints of a Service that are dead, sorted: none, where no other endpoint answers. Policies of the
    /// network may keep this host from some Pods of other nodes, by silence or by a refusal, while its clients
    /// reach them. So a far one is dead only if it has answered this host before, or if connects of clients to it
    /// have failed.
    #[must_use]
    pub fn dead(&self, service: &ServiceId) -> Arc<[SocketAddr]> {
        let mut all = BTreeSet::new();
        for group in self.services.get(service).into_iter().flat_map(|of| &of.groups) {
            let known = || {
                let of = |one: &Watched| Some((*one, self.endpoints.get(&one.address)?));
                group.iter().filter_map(of)
            };
            let is_far = |one: &Watched| one.locality != Locality::Node;
            if !known().any(|(_, it)| it.verdict == Verdict::Alive) {
                continue;
            }
            let dead = known().filter(|(one, it)| {
                let is_shown = it.was_reached || it.fails || !is_far(one);
                it.verdict == Verdict::Dead && is_shown
            });
            all.extend(dead.map(|(one, _)| one.address));
        }
        all.into_iter().collect()
    }

    /// Whether all endpoints of a port of a Service that are probed were found dead: [nobody](Self::dead) is dead there.
    #[must_use]
    pub fn is_silent(&self, service: &ServiceId) -> bool {
        let groups = self.services.get(service).map_or(&[][..], |of| &of.groups);
        groups.iter().any(|group| {
            let known = group.iter().filter_map(|one| self.endpoints.get(&one.address));
            let mut is_dead = known.map(|one| one.verdict == Verdict::Dead);
            is_dead.next() == Some(true) && is_dead.all(|it| it)
        })
    }

    /// Whether an endpoint has answered its last probes.
    #[must_use]
    pub fn answers(&self, endpoint: SocketAddr) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|one| one.verdict == Verdict::Alive)
    }

    /// Chooses which endpoints of a Service are probed: the used ones, and while all of them are dead, those that
    /// could stand in.
    fn choose(&mut self, service: &ServiceId, now: Instant) {
        let Some(of) = self.services.get(service) else { return };
        let mut wanted = BTreeSet::new();
        for group in &of.groups {
            let is_dead = |one: &&Watched| {
                let known = self.endpoints.get(&one.address);
                known.is_some_and(|it| it.verdict == Verdict::Dead)
            };
            let mut used = group.iter().filter(|one| one.is_used).peekable();
            let all_dead = used.peek().is_some() && used.all(|one| is_dead(&one));
            let probed = group.iter().filter(|one| one.is_used || all_dead);
            wanted.extend(probed.map(|one| one.address));
        }
        let before = of.probed.clone();
        for address in before.difference(&wanted) {
            self.leave(*address, service);
        }
        let mut probed: BTreeSet<_> = before.intersection(&wanted).copied().collect();
        for address in wanted.difference(&before) {
            if self.join(*address, service, now) {
                probed.insert(*address);
            }
        }
        if let Some(of) = self.services.get_mut(service) {
            of.probed = probed;
            if of.groups.is_empty() {
                self.services.remove(service);
            }
        }
    }

    /// Probes an endpoint for a Service, too. Returns whether there is room.
    fn join(&mut self, address: SocketAddr, service: &ServiceId, now: Instant) -> bool {
        if let Some(one) = self.endpoints.get_mut(&address) {
            one.services.push(service.clone());
            if one.phase == Phase::Sleeps {
                self.set(address, Phase::Rests(now));
            }
            return true;
        }
        let (namespace, room) = (&service.namespace, MOST - self.endpoints.len());
        if self.namespaces.get(namespace).is_some_and(|&own| own >= room) || room == 0 {
            return false;
        }
        *self.namespaces.entry(Arc::clone(namespace)).or_default() += 1;
        self.rounds += 1;
        let one = Endpoint {
            services: vec![service.clone()],
            namespace: Arc::clone(namespace),
            verdict: Verdict::Unknown,
            was_reached: false,
            fails: false,
            is_unsaid: false,
            round: self.rounds,
            begun: 0,
            against: 0,
            soon: SOON[0],
            phase: Phase::Sleeps,
        };
        self.endpoints.insert(address, one);
        let first = now + BEGIN.mul_f64(self.chance());
        self.set(address, Phase::Rests(first));
        true
    }

    fn leave(&mut self, address: SocketAddr, service: &ServiceId) {
        let Some(one) = self.endpoints.get_mut(&address) else { return };
        one.services.retain(|other| other != service);
        if one.services.is_empty() {
            self.set(address, Phase::Ends);
            let namespace = self.endpoints.remove(&address).map(|one| one.namespace);
            let own = namespace.and_then(|it| Some((self.namespaces.remove(&it)?, it)));
            if let Some((own @ 2.., namespace)) = own {
                self.namespaces.insert(namespace, own - 1);
            }
        }
    }

    /// Ends the phase of an endpoint whose time is over.
    fn pass(&mut self, address: SocketAddr) {
        let Some(one) = self.endpoints.get(&address) else {
            self.times.retain(|(_, other)| *other != address);
            return;
        };
        let sleeps = |id| self.services.get(id).is_some_and(|of| of.sleeps);
        match one.phase {
            Phase::Asked(_) => self.doubt(address),
            _ if one.services.iter().all(sleeps) => self.set(address, Phase::Sleeps),
            _ => {
                self.waited += 1;
                self.waiting.put(&one.services[0], (self.waited, address));
                self.set(address, Phase::Waits);
            }
        }
    }

    fn doubt(&mut self, address: SocketAddr) {
        if let Some(one) = self.endpoints.get(&address) {
            self.waited += 1;
            self.in_doubt.put(&one.services[0], (self.waited, address));
            self.set(address, Phase::InDoubt);
        }
    }

    /// Begins a probe of an endpoint that waits for it.
    fn begin(&mut self, address: SocketAddr, now: Instant) -> Option<Probe> {
        let one = self.endpoints.get_mut(&address)?;
        one.begun += 1;
        let probe = Probe { endpoint: address, round: one.round, begun: now };
        let (was, soon) = (one.phase, one.soon);
        if one.verdict == Verdict::Dead || one.begun >= ENOUGH {
            self.set(address, Phase::Ends);
        } else if was == Phase::InDoubt {
            self.doubt(address);
        } else {
            self.set(address, Phase::Asked(now + soon));
        }
        Some(probe)
    }

    /// Ends a round.
    fn rest(&mut self, address: SocketAddr, now: Instant) {
        self.rounds += 1;
        let (round, [least, most]) = (self.rounds, REST);
        let until = now + least + (most - least).mul_f64(self.chance());
        if let Some(one) = self.endpoints.get_mut(&address) {
            (one.round, one.begun, one.against) = (round, 0, 0);
            self.set(address, Phase::Rests(until));
        }
    }

    fn set(&mut self, address: SocketAddr, phase: Phase) {
        let Some(one) = self.endpoints.get_mut(&address) else { return };
        if let Phase::Rests(time) | Phase::Asked(time) = one.phase {
            self.times.remove(&(time, address));
        }
        one.phase = phase;
        if let Phase::Rests(time) | Phase::Asked(time) = phase {
            self.times.insert((time, address));
        }
    }

    /// A number from 0 to 1, evenly (xorshift).
    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
