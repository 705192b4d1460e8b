//! Searches all network namespaces for connections of this node's clients to endpoints in a wider tier.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_cookie;
use rustix::time::{ClockId, clock_gettime};
use topo_lb_common::exclusion::Treatment;

use super::diag::Diag;
use super::holder::{Place, each_held};
use super::message::Seen;
use super::namespace::{Found, NetnsSwitcher};
use super::rest::{Activity, Said};
use crate::datapath::maps::error::{OpenError, ReadError};
use crate::datapath::maps::excluded::ExcludedMap;
use crate::datapath::maps::members::Members;
use crate::datapath::maps::socket_storage::Connected;
use topo_lb_core::cluster::{Family, Frontend};
use topo_lb_core::homecoming::Way;

/// After a search there is none for this many times as long: at most a fiftieth of a CPU in use.
pub(super) const REST: u32 = 49;

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// Where the maps are pinned.
    pub(super) pin_dir: &'a Path,
    /// The connections of processes in this cgroup and below.
    pub(super) cgroup_root: &'a Path,
}

impl Places<'_> {
    /// The processes whose connections are looked for: not those of excluded Pods, which keep what they had before.
    pub(super) fn processes(&self) -> Result<Found, ReadError> {
        let excluded = ExcludedMap::open(self.pin_dir)?;
        let excluded = excluded.of(Treatment::Excluded).collect();
        Ok(Found::outside_of(self.cgroup_root, &excluded))
    }
}

/// The maps that say what a socket dialled, and where new connections go.
pub(super) struct Maps {
    pub(super) dialled: Connected,
    pub(super) membership: Members,
}

impl Maps {
    pub(super) fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self { dialled: Connected::open(pin_dir)?, membership: Members::open(pin_dir)? })
    }
}

/// A connection to an endpoint in a wider tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) cookie: u64,
    pub(super) place: Place,
    pub(super) dialled: Frontend,
    pub(super) endpoint: SocketAddr,
    /// What was said when the endpoint had spoken last, by this look or an earlier one.
    pub(super) heard: Option<Said>,
}

/// What is known of a socket. What it dialled does not change while it is connected.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// It dialled this frontend; and what was said when its endpoint had spoken last.
    Dialled(Frontend, Place, Option<Said>),
    /// It was not translated, or no process holds it.
    NotOurs,
    /// It may not be opened.
    Forbidden,
}

/// What a search could not see.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Sockets that may not be opened: whether they are to be found, nobody knows.
    pub(super) forbidden: usize,
    /// By the place of a way: such a socket may be of it.
    pub(super) doubtful: Vec<bool>,
    /// A network namespace could not be looked at: the first error.
    pub(super) error: Option<io::Error>,
}

/// What to look for, and what is known of its connections.
#[derive(Default)]
pub(super) struct Search {
    ways: Vec<Arc<Way>>,
    /// Endpoints in a wider tier, and of which of `ways`.
    wide: HashMap<SocketAddr, Vec<usize>>,
    known: HashMap<u64, Known>,
}

impl Search {
    /// Looks for connections that these ways do not lead to any more, and for no others.
    pub(super) fn set(&mut self, ways: Vec<Arc<Way>>) {
        self.wide = HashMap::new();
        for (place, way) in ways.iter().enumerate() {
            for endpoint in &*way.wide {
                self.wide.entry(*endpoint).or_default().push(place);
            }
        }
        if self.wide.is_empty() {
            self.known = HashMap::new();
        }
        self.ways = ways;
    }

    /// Whether no endpoint is in a wider tier.
    pub(super) fn is_idle(&self) -> bool {
        self.wide.is_empty()
    }

    /// How many sockets are known.
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }

    /// A socket may be another one by now.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.known.remove(&cookie);
    }

    /// Calls `each` with every connection that processes of `found` have, what it does, and the place of its way.
    pub(super) fn run(
        &mut self,
        found: &Found,
        maps: &Maps,
        switcher: &NetnsSwitcher,
        mut each: impl FnMut(usize, Away, &Activity),
    ) -> Unseen {
        let everyone: Vec<u32> = found.namespaces.values().flatten().copied().collect();
        let mut unseen = Unseen { doubtful: vec![false; self.ways.len()], ..Unseen::default() };
        let mut seen = HashMap::new();
        for (inode, processes) in &found.namespaces {
            let listed = switcher.within(*inode, processes, || self.list());
            let looked = listed.and_then(|all| {
                let processes = processes.iter().chain(&everyone).copied();
                self.look(all, processes, maps, &mut seen, &mut unseen, &mut each)
            });
            match looked {
                // All processes of the namespace have ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => drop(unseen.error.get_or_insert(error)),
                Ok(()) => {}
            }
        }
        self.known = seen;
        unseen
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

    /// Finds out which of these connections dialled what.
    fn look(
        &self,
        all: Vec<(Seen, Activity)>,
        processes: impl Iterator<Item = u32>,
        maps: &Maps,
        seen_now: &mut HashMap<u64, Known>,
        unseen: &mut Unseen,
        each: &mut impl FnMut(usize, Away, &Activity),
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
                    Known::Dialled(frontend, place, None)
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
            let (cookie, endpoint) = (seen.cookie(), seen.peer());
            let known = self.known.get(&cookie).or_else(|| new.get(&cookie)).copied();
            let unheld = if is_forbidden { Known::Forbidden } else { Known::NotOurs };
            let mut known = known.unwrap_or(unheld);
            let ways = || self.wide.get(&endpoint).into_iter().flatten().copied();
            match &mut known {
                Known::Dialled(dialled, place, heard) => {
                    *heard = activity.heard(*heard);
                    let (place, dialled, heard) = (*place, *dialled, *heard);
                    let away = Away { cookie, place, dialled, endpoint, heard };
                    let is_of = |at: &usize| self.ways[*at].frontends.contains(&dialled);
                    ways().filter(is_of).for_each(|at| each(at, away, &activity));
                }
                // Of which Service it is, nobody knows.
                Known::Forbidden => {
                    unseen.forbidden += 1;
                    ways().for_each(|at| unseen.doubtful[at] = true);
                }
                Known::NotOurs => {}
            }
            // What could not be opened may be so later.
            if !matches!(known, Known::Forbidden) {
                seen_now.insert(cookie, known);
            }
        }
        Ok(())
    }
}

/// What this thread has used of a CPU: on a busy node a search takes longer, and no more than on an idle one.
pub(super) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}
