//! Names of Events. Agents with the same news derive the same name, and share one object. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::concern::{News, Topic};
use super::outbox::Message;
use topo_lb_core::cluster::ServiceId;

/// Most Events of one Service and topic per span, for any number of nodes and subjects.
pub const SUBJECTS: u32 = 32;

/// News within this time share one Event.
const fn span(topic: Topic) -> Duration {
    match topic {
        Topic::InvalidPolicy | Topic::NodeRefused => Duration::from_secs(600),
        Topic::ClientsRefused | Topic::EndpointEjected | Topic::NoRoom | Topic::HealthCheck => {
            Duration::from_secs(3600)
        }
    }
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create an Event of this name, with this count.
    Create(String, u32),
    /// Set the count of this agent's Event of this name.
    Count(String, u32),
    /// No request: another agent created the Event.
    Nothing,
}

/// Service, topic and hash of the subject.
type Key = (ServiceId, Topic, u32);

#[derive(Debug)]
struct Event {
    name: String,
    made: Instant,
    /// `None` if another agent created it.
    times: Option<u32>,
}

/// Recent Events that this agent created or found.
#[derive(Debug, Default)]
pub struct Written(HashMap<Key, Event>);

impl Written {
    /// The request for a message.
    pub fn request(&mut self, message: &Message, now: Instant, wall: SystemTime) -> Request {
        self.0.retain(|(_, topic, _), event| now < event.made + span(*topic));
        match self.0.get(&key(&message.news)) {
            None => Request::Create(name(&message.news, wall), message.times),
            Some(Event { name, times: Some(times), .. }) => {
                Request::Count(name.clone(), times.saturating_add(message.times))
            }
            Some(Event { times: None, .. }) => Request::Nothing,
        }
    }

    /// Records a request that succeeded.
    pub fn done(&mut self, news: &News, request: Request, now: Instant) {
        match request {
            Request::Create(name, times) => {
                self.0.insert(key(news), Event { name, made: now, times: Some(times) });
            }
            Request::Count(_, times) => {
                if let Some(event) = self.0.get_mut(&key(news)) {
                    event.times = Some(times);
                }
            }
            Request::Nothing => {}
        }
    }

    /// Records that another agent created the Event.
    pub fn found(&mut self, news: &News, name: String, now: Instant) {
        self.0.insert(key(news), Event { name, made: now, times: None });
    }

    /// Records that the API server no longer has the Event.
    pub fn lost(&mut self, news: &News) {
        self.0.remove(&key(news));
    }
}

fn key(news: &News) -> Key {
    (news.service.clone(), news.topic, crc32fast::hash(news.subject.as_bytes()) % SUBJECTS)
}

/// The Event's name: the same on every node within a span.
fn name(news: &News, wall: SystemTime) -> String {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let turn = since.as_secs() / span(news.topic).as_secs();
    let (_, topic, subject) = key(news);
    let uid = news.uid.map(|uid| uid.to_string()).unwrap_or_default();
    let rest = crc32fast::hash(format!("{uid} {topic} {subject}").as_bytes());
    format!("{}.topo-lb-{turn:x}-{rest:08x}", news.service.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::events::outbox::Outbox;

    const WALL: SystemTime = SystemTime::UNIX_EPOCH;

    fn message(subject: &str) -> Message {
        let news = News {
            service: ServiceId { namespace: "shop".into(), name: "web".into() },
            uid: None,
            topic: Topic::NodeRefused,
            subject: subject.to_owned(),
            note: "refused".to_owned(),
        };
        let now = Instant::now();
        let mut outbox = Outbox::new(now);
        outbox.put(news, WALL);
        outbox.take(now).expect("it waits")
    }

    fn created(request: &Request) -> &str {
        match request {
            Request::Create(name, 1) => name,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_of_two_agents_is_one_event() {
        let now = Instant::now();
        let ask = |subject, wall| Written::default().request(&message(subject), now, wall);
        let first = ask("pool=a", WALL);
        assert_eq!(first, ask("pool=a", WALL + Duration::from_secs(599)));
        assert_ne!(first, ask("pool=a", WALL + Duration::from_secs(600)));
        assert_ne!(first, ask("pool=b", WALL));
        let name = created(&first);
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        assert!(name.chars().all(is_allowed), "{name}");
    }

    #[test]
    fn nodes_without_number_are_few_events() {
        let now = Instant::now();
        let names: BTreeSet<_> = (0..5_000)
            .map(|node| {
                let message = message(&format!("node-{node}"));
                created(&Written::default().request(&message, now, WALL)).to_owned()
            })
            .collect();
        assert_eq!(names.len(), SUBJECTS as usize);
    }

    #[test]
    fn the_same_again_counts_in_the_first_event() {
        let now = Instant::now();
        let (mut written, message) = (Written::default(), message("pool=a"));
        let first = written.request(&message, now, WALL);
        let name = created(&first).to_owned();
        written.done(&message.news, first, now);
        // Even if the wall clock is in the next span.
        let again = written.request(&message, now, WALL + Duration::from_secs(599));
        assert_eq!(again, Request::Count(name.clone(), 2));
        written.done(&message.news, again, now);
        assert_eq!(written.request(&message, now, WALL), Request::Count(name.clone(), 3));
        written.lost(&message.news);
        assert_eq!(written.request(&message, now, WALL), Request::Create(name, 1));
    }

    #[test]
    fn what_another_agent_has_told_is_not_asked_again() {
        let now = Instant::now();
        let (mut written, message) = (Written::default(), message("pool=a"));
        let name = created(&written.request(&message, now, WALL)).to_owned();
        written.found(&message.news, name, now);
        assert_eq!(written.request(&message, now, WALL), Request::Nothing);
        let later = now + Duration::from_secs(600);
        let wall = WALL + Duration::from_secs(600);
        created(&written.request(&message, later, wall));
    }
}
