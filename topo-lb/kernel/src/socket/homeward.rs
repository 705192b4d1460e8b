//! Ends idle connections that are to return to a nearer tier, on the thread of the terminator.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_cookie;
use rustix::net::{Shutdown, shutdown};
use tracing::{info, warn};

use super::namespace::NetnsSwitcher;
use super::obstacle::Obstacle;
use super::rest::Activity;
use super::search::{Away, Maps, Places, REST, Search, cpu_time};
use crate::datapath::maps::error::{ReadError, StoreError};
use topo_lb_core::cluster::{Family, Frontend};
use topo_lb_core::homecoming::{Due, Key};
use topo_lb_core::once::Once;
use topo_lb_core::pace::{Batch, Pace, ROUND};

/// What the thread counts of connections that are to return.
#[derive(Debug, Default)]
pub struct Returning {
    /// Connections that ended, so that their clients return to a nearer tier.
    pub ended: AtomicU64,
    /// The bytes that these had moved in both directions.
    pub bytes: AtomicU64,
    /// Of those that are due and still there, as the last search saw: they wait for their turn, they are in use,
    /// and they may not be opened.
    pub away: [AtomicU64; 3],
    /// Processes whose sockets the last search could not look for.
    pub hidden: AtomicU64,
    /// Connections to a wider tier by Service port, `namespace/name:port`, whether or not it asks for their return, as
    /// the last count saw. Service ports of which nobody knows are not in it.
    pub wider: Mutex<BTreeMap<Arc<str>, u64>>,
}

/// A search of a turn has found no connection that could return.
pub type Home = (Key, u64);

/// A connection that may end.
#[derive(Debug)]
struct Candidate {
    away: Away,
    key: Key,
    /// How long nobody is to have spoken.
    silence: Duration,
}

/// What is due, and what is known of its connections.
pub(super) struct Homeward {
    figures: Arc<Returning>,
    home: Sender<Home>,
    due: Vec<Due>,
    search: Search,
    /// Connections that each had to return when it became due, or the most since.
    most: BTreeMap<Key, usize>,
    maps: Option<Maps>,
    pace: Pace<Candidate>,
    next_search: Instant,
    /// How many ended in this round, by Service port.
    ended: BTreeMap<Arc<str>, u64>,
    logged: Once<&'static str>,
}

impl Homeward {
    /// Nothing is due. Which Service ports are home goes to `home`.
    pub(super) fn new(figures: Arc<Returning>, home: Sender<Home>) -> Self {
        Self {
            figures,
            home,
            due: Vec::new(),
            search: Search::default(),
            most: BTreeMap::new(),
            maps: None,
            pace: Pace::new(RandomState::new().hash_one(0)),
            next_search: Instant::now(),
            ended: BTreeMap::new(),
            logged: Once::new(),
        }
    }

    /// This is due now, and nothing else.
    pub(super) fn set(&mut self, due: Vec<Due>) {
        self.due = due;
        self.search.set(self.due.iter().map(|due| Arc::clone(&due.way)).collect());
        let keys: HashSet<&Key> = self.due.iter().map(|due| &due.key).collect();
        self.most.retain(|key, _| keys.contains(key));
        self.pace.retain(|one| keys.contains(&one.key));
        if self.due.is_empty() {
            self.maps = None;
            self.figures.away.iter().for_each(|figure| figure.store(0, Relaxed));
            self.figures.hidden.store(0, Relaxed);
        }
    }

    /// When there is something to do; `None`: never.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.due.is_empty() {
            return None;
        }
        Some(self.pace.next().unwrap_or(self.next_search))
    }

    /// Does what is to be done by now.
    pub(super) fn go_on(&mut self, places: Places<'_>, switcher: &NetnsSwitcher) {
        while let Some(candidate) = self.pace.take(Instant::now()) {
            match self.end(&candidate) {
                Ok(Some(bytes)) => {
                    self.figures.ended.fetch_add(1, Relaxed);
                    self.figures.bytes.fetch_add(bytes, Relaxed);
                    let due = self.due.iter().find(|due| due.key == candidate.key);
                    if let Some(due) = due {
                        *self.ended.entry(Arc::clone(&due.way.name)).or_default() += 1;
                    }
                }
                // It is in use, or is not what it was.
                Ok(None) => self.search.forget(candidate.away.cookie),
                Err(error) => self.tell(&error),
            }
        }
        if self.pace.next().is_some() || self.due.is_empty() {
            return;
        }
        self.say();
        if self.next_search <= Instant::now() {
            let began = cpu_time();
            let begun = self.search(places, switcher).unwrap_or_else(|error| {
                warn!(
                    "connections that are to return to a nearer tier cannot be looked for: {error}"
                );
                0
            });
            let took = cpu_time().saturating_sub(began);
            tracing::debug!(
                ?took,
                begun,
                known = self.search.known(),
                "looked for connections that return"
            );
            // Not later if nothing can end now: keepalive probes, of Go every 15 s, hide who has spoken last.
            self.next_search = Instant::now() + ROUND.max(took * REST);
        }
    }

    /// Says what has ended in this round.
    fn say(&mut self) {
        let ended = mem::take(&mut self.ended);
        if ended.is_empty() {
            return;
        }
        let names: Vec<&str> = ended.keys().take(8).map(|name| &**name).collect();
        let others = if ended.len() > names.len() { " and others" } else { "" };
        info!(
            connections = ended.values().sum::<u64>(),
            "ended idle connections to a wider tier, as a nearer one is back, of {}{others}",
            names.join(", ")
        );
    }

    /// Looks for what is due, and begins a round. Returns how many connections are to end in it.
    fn search(&mut self, places: Places<'_>, switcher: &NetnsSwitcher) -> Result<usize, ReadError> {
        let maps = Maps::open(places.pin_dir)?;
        let found = places.processes()?;
        self.figures.hidden.store(found.unseen() as u64, Relaxed);
        if found.unseen() > 0 && self.logged.begins("hidden") {
            let obstacle = Obstacle::Hidden(found.unseen());
            warn!("connections to a wider tier stay where they cannot be found: {obstacle}");
        }
        // By the place among what is due: all, and those that can end.
        let mut total = vec![0; self.due.len()];
        let mut ready: Vec<Vec<Candidate>> = self.due.iter().map(|_| Vec::new()).collect();
        let due = &self.due;
        let unseen = self.search.run(&found, &maps, switcher, |at, away, activity| {
            total[at] += 1;
            let silence = due[at].way.silence();
            if activity.is_at_rest(silence, away.heard) {
                ready[at].push(Candidate { away, key: due[at].key.clone(), silence });
            }
        });
        let is_whole = unseen.error.is_none() && unseen.forbidden == 0;
        if let Some(error) = &unseen.error {
            self.tell(error);
        }
        if unseen.forbidden > 0 {
            self.tell(&io::ErrorKind::PermissionDenied.into());
        }
        self.maps = Some(maps);
        let idle = ready.iter().map(Vec::len).sum::<usize>();
        let busy = total.iter().sum::<usize>() - idle;
        for (figure, now) in self.figures.away.iter().zip([idle, busy, unseen.forbidden]) {
            figure.store(now as u64, Relaxed);
        }
        let mut batches = Vec::new();
        for ((due, total), ready) in self.due.iter().zip(total).zip(ready) {
            let most = self.most.entry(due.key.clone()).or_default();
            *most = total.max(*most);
            batches.push(Batch { of: *most, ready });
            if total == 0 && is_whole {
                // The agent ends before this thread: then nobody needs to know.
                let _ = self.home.send((due.key.clone(), due.turn));
            }
        }
        batches.retain(|batch| !batch.ready.is_empty());
        Ok(self.pace.begin(batches, Instant::now()))
    }

    /// Ends a connection, if it is still at rest, and new ones go elsewhere. Returns how many bytes it has moved.
    fn end(&self, Candidate { away, silence, .. }: &Candidate) -> io::Result<Option<u64>> {
        let Away { cookie, place, dialled, endpoint, heard } = away;
        let Some(maps) = &self.maps else { return Ok(None) };
        let socket = match place.duplicate() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // The process has closed it, or has ended.
            Err(_) => return Ok(None),
            Ok(socket) => socket,
        };
        // Another file may have this number by now.
        if socket_cookie(&socket) != Ok(*cookie) {
            return Ok(None);
        }
        let is_same = |dialled_now: Option<(Frontend, SocketAddr)>| {
            dialled_now == Some((*dialled, *endpoint))
        };
        let failed = |error: StoreError| io::Error::other(error);
        let family = Family::of(endpoint.ip());
        if !is_same(maps.dialled.by(&socket, family).map_err(failed)?)
            || !maps.membership.avoids(dialled, *endpoint).map_err(failed)?
        {
            return Ok(None);
        }
        // Last: the application may use it at any time.
        let activity = Activity::of(&socket)?;
        if !activity.is_at_rest(*silence, *heard) || shutdown(&socket, Shutdown::Both).is_err() {
            return Ok(None);
        }
        Ok(Some(activity.moved()))
    }

    /// Logs a problem; what is forbidden, once.
    fn tell(&mut self, error: &io::Error) {
        let forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        if forbidden && self.logged.begins("forbidden") {
            let obstacle = Obstacle::Forbidden;
            warn!("connections to a wider tier stay where this process may not look: {obstacle}");
        } else if !forbidden && self.logged.begins("other") {
            warn!("connections to a wider tier stay: {error}");
        }
    }
}

impl std::fmt::Debug for Homeward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Homeward").field("due", &self.due.len()).finish_non_exhaustive()
    }
}
