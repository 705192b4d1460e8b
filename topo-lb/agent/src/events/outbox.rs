//! A queue of news with rate limits. Pure: callers pass the time. Merges the news of one Service
//! and topic. Each Service and each namespace has its own rate, and a share of the room.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::concern::{News, Topic};
use topo_lb_core::cluster::ServiceId;
use topo_lb_core::rate::Rate;

/// Most messages that wait.
const ROOM: usize = 64;
/// Per agent; the burst is client-go's per source. Bearable for a cluster of 1,000 nodes.
const ALL: (u32, Duration) = (25, Duration::from_secs(10));
/// Lower than [`ALL`], so that one namespace does not use up everything.
const NAMESPACE: (u32, Duration) = (10, Duration::from_secs(20));
const SERVICE: (u32, Duration) = (3, Duration::from_secs(120));

/// Merged news of one Service and topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The latest news.
    pub news: News,
    /// How many were merged.
    pub times: u32,
    /// When the latest came.
    pub when: SystemTime,
    /// Order of arrival.
    order: u64,
}

/// The queue.
#[derive(Debug)]
pub struct Outbox {
    waiting: BTreeMap<(ServiceId, Topic), Message>,
    all: Rate,
    namespaces: HashMap<Arc<str>, Rate>,
    services: HashMap<ServiceId, Rate>,
    /// Namespaces by their last turn.
    turns: HashMap<Arc<str>, u64>,
    counter: u64,
}

impl Outbox {
    /// An empty queue.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            waiting: BTreeMap::new(),
            all: rate(ALL, now),
            namespaces: HashMap::new(),
            services: HashMap::new(),
            turns: HashMap::new(),
            counter: 0,
        }
    }

    /// Adds news. Returns whether something was dropped for lack of room: these or others.
    pub fn put(&mut self, news: News, when: SystemTime) -> bool {
        self.add(news, 1, when)
    }

    /// Puts back a message that could not be sent. Returns whether something was dropped.
    pub fn put_back(&mut self, message: Message) -> bool {
        let key = (message.news.service.clone(), message.news.topic);
        match self.waiting.get_mut(&key) {
            Some(newer) => {
                newer.times = newer.times.saturating_add(message.times);
                false
            }
            None => self.add(message.news, message.times, message.when),
        }
    }

    fn add(&mut self, news: News, times: u32, when: SystemTime) -> bool {
        let key = (news.service.clone(), news.topic);
        if let Some(message) = self.waiting.get_mut(&key) {
            message.times = message.times.saturating_add(times);
            (message.news, message.when) = (news, when);
            return false;
        }
        let is_full = self.waiting.len() >= ROOM;
        if is_full && !self.make_room(&news.service.namespace) {
            return true;
        }
        self.counter += 1;
        let message = Message { news, times, when, order: self.counter };
        self.waiting.insert(key, message);
        is_full
    }

    /// Drops the latest message of the largest namespace, if at least 2 larger than `namespace`.
    fn make_room(&mut self, namespace: &str) -> bool {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, _) in self.waiting.keys() {
            *counts.entry(&id.namespace).or_default() += 1;
        }
        let own = counts.get(namespace).copied().unwrap_or_default();
        let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return false;
        };
        if count <= own + 1 {
            return false;
        }
        let of_most = self.waiting.iter().filter(|((id, _), _)| &*id.namespace == most);
        let latest = of_most.max_by_key(|(_, message)| message.order).map(|(key, _)| key.clone());
        latest.and_then(|key| self.waiting.remove(&key)).is_some()
    }

    /// The next message to send: the oldest of the namespace with the longest wait since its turn.
    ///
    /// # Errors
    /// No message may be sent now. Has the time of the next try, if any waits.
    pub fn take(&mut self, now: Instant) -> Result<Message, Option<Instant>> {
        self.namespaces.retain(|_, rate| !rate.is_full(now));
        self.services.retain(|_, rate| !rate.is_full(now));
        let mut soonest: Option<Instant> = None;
        let mut first: Option<(u64, u64, &(ServiceId, Topic))> = None;
        for (key, message) in &self.waiting {
            let namespace = &key.0.namespace;
            let rates = [self.namespaces.get(namespace), self.services.get(&key.0)];
            let rates = rates.into_iter().flatten().chain([&self.all]);
            let next = rates.map(|rate| rate.next(now)).max().unwrap_or(now);
            if next > now {
                soonest = Some(soonest.map_or(next, |soonest| soonest.min(next)));
                continue;
            }
            let turn = self.turns.get(namespace).copied().unwrap_or_default();
            let place = (turn, message.order, key);
            first = Some(first.map_or(place, |first| first.min(place)));
        }
        let Some((_, _, key)) = first else { return Err(soonest) };
        let key = key.clone();
        let Some(message) = self.waiting.remove(&key) else { return Err(soonest) };
        let (namespace, service) = (key.0.namespace.clone(), key.0);
        self.all.take(now);
        self.namespaces.entry(namespace.clone()).or_insert_with(|| rate(NAMESPACE, now)).take(now);
        self.services.entry(service).or_insert_with(|| rate(SERVICE, now)).take(now);
        self.counter += 1;
        self.turns.insert(namespace, self.counter);
        let waiting = &self.waiting;
        // Forget the turn of a namespace once nothing of it waits and its rate is full.
        let namespaces = &self.namespaces;
        self.turns.retain(|namespace, _| {
            namespaces.contains_key(namespace)
                || waiting.keys().any(|(id, _)| id.namespace == *namespace)
        });
        Ok(message)
    }
}

fn rate((burst, interval): (u32, Duration), now: Instant) -> Rate {
    Rate::new(burst, interval, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(namespace: &str, name: &str, note: &str) -> News {
        News {
            service: ServiceId { namespace: namespace.into(), name: name.into() },
            uid: None,
            topic: Topic::InvalidPolicy,
            subject: note.to_owned(),
            note: note.to_owned(),
        }
    }

    fn put(outbox: &mut Outbox, namespace: &str, name: &str, note: &str) -> bool {
        outbox.put(news(namespace, name, note), SystemTime::UNIX_EPOCH)
    }

    /// What is sent within `span`, with the number of merged news.
    fn take_within(outbox: &mut Outbox, start: Instant, span: Duration) -> Vec<(String, u32)> {
        let mut now = start;
        let mut all = Vec::new();
        loop {
            match outbox.take(now) {
                Ok(message) => all.push((message.news.service.to_string(), message.times)),
                Err(Some(next)) if next <= start + span => now = next,
                Err(_) => return all,
            }
        }
    }

    #[test]
    fn a_service_that_flips_for_an_hour_is_told_of_seldom_and_nothing_is_lost() {
        let start = Instant::now();
        let mut outbox = Outbox::new(start);
        let (mut told, mut times) = (0, 0);
        for flip in 0..360_000_u64 {
            let now = start + Duration::from_millis(10 * flip);
            assert!(!put(&mut outbox, "storm", "web", &format!("rule {flip}")));
            while let Ok(message) = outbox.take(now) {
                (told, times) = (told + 1, times + message.times);
            }
        }
        assert!((30..=33).contains(&told), "{told} Events in an hour");
        let rest = take_within(&mut outbox, start + Duration::from_secs(3600), SERVICE.1);
        let left: u32 = rest.iter().map(|(_, times)| times).sum();
        assert_eq!(times + left, 360_000);
    }

    #[test]
    fn a_namespace_that_storms_uses_up_its_own_share_only() {
        let start = Instant::now();
        let mut outbox = Outbox::new(start);
        let mut dropped = 0;
        for number in 0..1_000 {
            dropped += u32::from(put(&mut outbox, "storm", &format!("s{number}"), "x"));
        }
        assert_eq!(dropped, 1_000 - ROOM as u32);
        for namespace in ["a", "b", "c"] {
            assert!(put(&mut outbox, namespace, "web", "x"), "one of the storm makes room");
        }
        let told = take_within(&mut outbox, start, Duration::ZERO);
        for namespace in ["a", "b", "c"] {
            let place = told.iter().position(|(name, _)| *name == format!("{namespace}/web"));
            assert!(place.is_some_and(|place| place < 4), "{namespace} is told at once: {told:?}");
        }
        let of_storm = told.iter().filter(|(name, _)| name.starts_with("storm/")).count();
        assert_eq!(of_storm, NAMESPACE.0 as usize);
    }

    #[test]
    fn room_is_shared_between_many_namespaces() {
        let start = Instant::now();
        let mut outbox = Outbox::new(start);
        for number in 0..ROOM {
            put(&mut outbox, "storm", &format!("s{number}"), "x");
        }
        for number in 0..40 {
            put(&mut outbox, "other", &format!("s{number}"), "x");
        }
        let of = |namespace: &str| {
            let ids = outbox.waiting.keys().filter(|(id, _)| &*id.namespace == namespace);
            ids.count()
        };
        assert_eq!((of("storm"), of("other")), (32, 32));
    }

    #[test]
    fn the_latest_news_are_told_with_how_often_there_were_any_also_after_a_failure() {
        let start = Instant::now();
        let mut outbox = Outbox::new(start);
        put(&mut outbox, "a", "web", "old");
        put(&mut outbox, "a", "web", "newer");
        let message = outbox.take(start).unwrap();
        assert_eq!((&*message.news.note, message.times), ("newer", 2));
        assert_eq!(outbox.take(start), Err(None));
        put(&mut outbox, "a", "web", "newest");
        assert!(!outbox.put_back(message));
        let message = outbox.take(start).unwrap();
        assert_eq!((&*message.news.note, message.times), ("newest", 3));
        assert_eq!(outbox.take(start), Err(None));
        assert!(!outbox.put_back(message));
        assert_eq!(take_within(&mut outbox, start, Duration::ZERO), [("a/web".to_owned(), 3)]);
    }
}
