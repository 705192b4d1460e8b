//! Finds and ends idle connections that are to return to a nearer tier, on the thread of the terminator.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_cookie;
use rustix::net::{Shutdown, shutdown};
use rustix::time::{ClockId, clock_gettime};
use tracing::{info, warn};

use super::diag::Diag;
use super::holder::{Place, each_held};
use super::message::Seen;
use super::namespace::{Found, NetnsSwitcher};
use super::obstacle::Obstacle;
use super::rest::Activity;
use crate::datapath::maps::error::{ReadError, StoreError};
use crate::datapath::maps::members::Members;
use crate::datapath::maps::socket_storage::Connected;
use topo_lb_core::cluster::{Family, Frontend};
use topo_lb_core::homecoming::{Due, Key};
use topo_lb_core::once::Once;
use topo_lb_core::pace::{Batch, Pace, ROUND};

/// After a search there is none for this many times as long: at most a fiftieth of a CPU in use.
const REST: u32 = 49;
/// While nothing can end, searches are this many times as far apart.
const BUSY: u32 = 3;

/// What the thread counts of connections that are to return.
#[derive(Debug, Default)]
pub struct Returning {
    /// Connections that ended, so that their clients return to a nearer tier.
    pub ended: AtomicU64,
    /// Of those that are due and still there, as the last search saw: they wait for their turn, they are in use,
    /// and they may not be opened.
    pub away: [AtomicU64; 3],
    /// Processes whose sockets the last search could not look for.
    pub hidden: AtomicU64,
}

/// A search of a turn has found no connection that could return.
pub type Home = (Key, u64);

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// Where the maps are pinned.
    pub(super) pin_dir: &'a Path,
    /// The connections of processes in this cgroup and below.
    pub(super) cgroup_root: &'a Path,
}

/// A connection that may end.
#[derive(Debug)]
struct Candidate {
    cookie: u64,
    place: Place,
    dialled: Frontend,
    endpoint: SocketAddr,
    key: Key,
    /// How long nobody is to have spoken.
    silence: Duration,
}

/// What is known of a socket: it does not change while it is connected.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// It dialled this frontend.
    Dialled(Frontend, Place),
    /// It was not translated, or no process holds it.
    NotOurs,
    /// It may not be opened.
    Forbidden,
}

struct Maps {
    dialled: Connected,
    membership: Members,
}

/// What a search has found.
#[derive(Default)]
struct Finding {
    /// By the place among what is due.
    total: Vec<usize>,
    ready: Vec<Vec<Candidate>>,
    forbidden: usize,
    /// A network namespace could not be looked at.
    is_partial: bool,
    known: HashMap<u64, Known>,
}

/// What is due, and what is known of its connections.
pub(super) struct Homeward {
    figures: Arc<Returning>,
    home: Sender<Home>,
    due: Vec<Due>,
    /// Endpoints in a wider tier, and for which of `due`.
    wide: HashMap<SocketAddr, Vec<usize>>,
    /// Connections that each had to return when it became due, or the most since.
    most: BTreeMap<Key, usize>,
    known: HashMap<u64, Known>,
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
            wide: HashMap::new(),
            most: BTreeMap::new(),
            known: HashMap::new(),
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
        self.wide.clear();
        for (place, due) in self.due.iter().enumerate() {
            for endpoint in &*due.way.wide {
                self.wide.entry(*endpoint).or_default().push(place);
            }
        }
        let keys: HashSet<&Key> = self.due.iter().map(|due| &due.key).collect();
        self.most.retain(|key, _| keys.contains(key));
        self.pace.retain(|one| keys.contains(&one.key));
        if self.due.is_empty() {
            self.known = HashMap::new();
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
                Ok(true) => {
                    self.figures.ended.fetch_add(1, Relaxed);
                    let due = self.due.iter().find(|due| due.key == candidate.key);
                    if let Some(due) = due {
                        *self.ended.entry(Arc::clone(&due.way.name)).or_default() += 1;
                    }
                }
                // It is in use, or is not what it was.
                Ok(false) => drop(self.known.remove(&candidate.cookie)),
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
                known = self.known.len(),
                "looked for connections that return"
            );
            let pause = if begun == 0 { ROUND * BUSY } else { ROUND };
            self.next_search = Instant::now() + pause.max(took * REST);
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
        let maps = Maps {
            dialled: Connected::open(places.pin_dir)?,
            membership: Members::open(places.pin_dir)?,
        };
        let found = Found::in_cgroup(places.cgroup_root);
        self.figures.hidden.store(found.unseen() as u64, Relaxed);
        if found.unseen() > 0 && self.logged.begins("hidden") {
            let obstacle = Obstacle::Hidden(found.unseen());
            warn!("connections to a wider tier stay where they cannot be found: {obstacle}");
        }
        let everyone: Vec<u32> = found.namespaces.values().flatten().copied().collect();
        let mut finding = Finding {
            total: vec![0; self.due.len()],
            ready: self.due.iter().map(|_| Vec::new()).collect(),
            ..Finding::default()
        };
        for (inode, processes) in &found.namespaces {
            let listed = switcher.within(*inode, processes, || self.list());
            let looked = listed.and_then(|all| {
                let processes = processes.iter().chain(&everyone).copied();
                self.look(all, processes, &maps, &mut finding)
            });
            match looked {
                // All processes of the namespace have ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    finding.is_partial = true;
                    self.tell(&error);
                }
                Ok(()) => {}
            }
        }
        if finding.forbidden > 0 {
            self.tell(&io::ErrorKind::PermissionDenied.into());
        }
        self.maps = Some(maps);
        Ok(self.begin(finding))
    }

    /// Connections of this namespace to an endpoint in a wider tier.
    fn list(&self) -> io::Result<Vec<(Seen, Activity)>> {
        let diag = Diag::open()?;
        let mut ports = self.wide.keys().map(SocketAddr::port);
        let first = ports.next();
        let port = first.filter(|first| ports.all(|port| port == *first));
        let mut all = Vec::new();
        // Peers of IPv6 sockets may be IPv4-mapped.
        let has_v4 = self.wide.keys().any(SocketAddr::is_ipv4);
        let families = [(libc::AF_INET, has_v4), (libc::AF_INET6, true)];
        for (family, _) in families.into_iter().filter(|(_, is_meant)| *is_meant) {
            diag.active(family as u8, port, |seen, activity| {
                let is_wide = self.wide.contains_key(&seen.peer());
                all.extend(is_wide.then_some((seen, activity)));
            })?;
        }
        Ok(all)
    }

    /// Finds out which of these connections are due, and which of them can end.
    fn look(
        &self,
        all: Vec<(Seen, Activity)>,
        processes: impl Iterator<Item = u32>,
        maps: &Maps,
        finding: &mut Finding,
    ) -> io::Result<()> {
        let unknown = all.iter().map(|(seen, _)| seen);
        let unknown: HashMap<u32, &Seen> = unknown
            .filter(|seen| !self.known.contains_key(&seen.cookie()))
            .map(|seen| (seen.inode, seen))
            .collect();
        let mut new = HashMap::new();
        let inodes = unknown.keys().copied().collect();
        let held = each_held(processes, inodes, |inode, place, socket| {
            let Some(seen) = unknown.get(&inode) else { return };
            // The inode may be another socket's by now; and an MPTCP socket has its subflow's.
            let is_it = socket_cookie(&socket).is_ok_and(|cookie| cookie == seen.cookie());
            let family = Family::of(seen.peer().ip());
            let dialled = maps.dialled.by(&socket, family);
            let known = match dialled {
                Ok(Some((frontend, endpoint))) if is_it && endpoint == seen.peer() => {
                    Known::Dialled(frontend, place)
                }
                _ => Known::NotOurs,
            };
            new.insert(seen.cookie(), known);
        });
        let is_forbidden = match held {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => true,
            held => held.map(|()| false)?,
        };
        for (seen, activity) in all {
            let cookie = seen.cookie();
            let known = self.known.get(&cookie).or_else(|| new.get(&cookie)).copied();
            let unheld = if is_forbidden { Known::Forbidden } else { Known::NotOurs };
            let known = known.unwrap_or(unheld);
            match known {
                Known::Dialled(dialled, place) => {
                    let endpoint = seen.peer();
                    for &at in self.wide.get(&endpoint).into_iter().flatten() {
                        let Some(due) = self.due.get(at) else { continue };
                        if !due.way.frontends.contains(&dialled) {
                            continue;
                        }
                        finding.total[at] += 1;
                        let silence = due.way.silence();
                        if activity.is_at_rest(silence) {
                            let key = due.key.clone();
                            finding.ready[at].push(Candidate {
                                cookie,
                                place,
                                dialled,
                                endpoint,
                                key,
                                silence,
                            });
                        }
                    }
                }
                // Whether it is of a Service that is due, nobody knows.
                Known::Forbidden => finding.forbidden += 1,
                Known::NotOurs => {}
            }
            // What could not be opened may be so later.
            if !matches!(known, Known::Forbidden) {
                finding.known.insert(cookie, known);
            }
        }
        Ok(())
    }

    fn begin(&mut self, finding: Finding) -> usize {
        let Finding { total, ready, forbidden, is_partial, known } = finding;
        self.known = known;
        let sum = |counts: &mut dyn Iterator<Item = usize>| counts.sum::<usize>() as u64;
        let idle = sum(&mut ready.iter().map(Vec::len));
        let busy = sum(&mut total.iter().copied()) - idle;
        for (figure, now) in self.figures.away.iter().zip([idle, busy, forbidden as u64]) {
            figure.store(now, Relaxed);
        }
        let mut batches = Vec::new();
        for ((due, total), ready) in self.due.iter().zip(total).zip(ready) {
            let most = self.most.entry(due.key.clone()).or_default();
            *most = total.max(*most);
            batches.push(Batch { of: *most, ready });
            if total == 0 && !is_partial && forbidden == 0 {
                // The agent ends before this thread: then nobody needs to know.
                let _ = self.home.send((due.key.clone(), due.turn));
            }
        }
        batches.retain(|batch| !batch.ready.is_empty());
        self.pace.begin(batches, Instant::now())
    }

    /// Ends a connection, if it is still at rest, and new ones go elsewhere. Returns whether it did.
    fn end(&self, candidate: &Candidate) -> io::Result<bool> {
        let Candidate { cookie, place, dialled, endpoint, silence, .. } = candidate;
        let Some(maps) = &self.maps else { return Ok(false) };
        let socket = match place.duplicate() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // The process has closed it, or has ended.
            Err(_) => return Ok(false),
            Ok(socket) => socket,
        };
        // Another file may have this number by now.
        if socket_cookie(&socket) != Ok(*cookie) {
            return Ok(false);
        }
        let is_same = |dialled_now: Option<(Frontend, SocketAddr)>| {
            dialled_now == Some((*dialled, *endpoint))
        };
        let failed = |error: StoreError| io::Error::other(error);
        let family = Family::of(endpoint.ip());
        if !is_same(maps.dialled.by(&socket, family).map_err(failed)?)
            || !maps.membership.avoids(dialled, *endpoint).map_err(failed)?
        {
            return Ok(false);
        }
        // Last: the application may use it at any time.
        if !Activity::of(&socket)?.is_at_rest(*silence) {
            return Ok(false);
        }
        Ok(shutdown(&socket, Shutdown::Both).is_ok())
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

/// What this thread has used of a CPU: on a busy node a search takes longer, and no more than on an idle one.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

impl std::fmt::Debug for Homeward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Homeward").field("due", &self.due.len()).finish_non_exhaustive()
    }
}
