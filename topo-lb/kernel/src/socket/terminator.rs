//! The thread that ends sockets. The agent task sends it what is gone, and never waits.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_cookie;
use topo_lb_common::exclusion::Treatment;
use tracing::{info, warn};

use super::diag::{Diag, Unable};
use super::holder::held;
use super::homeward::{Home, Homeward, Returning};
use super::message::Seen;
use super::namespace::{Found, NetnsSwitcher};
use super::obstacle::Obstacle;
use super::search::Places;
use super::stale::Stale;
use super::tally::Tally;
use crate::datapath::maps::error::ReadError;
use crate::datapath::maps::excluded::ExcludedMap;
use crate::datapath::maps::members::Members;
use crate::datapath::maps::socket_storage::Connected;
use crate::kube_proxy::Traces;
use topo_lb_core::cluster::{Family, Frontend, Protocol};
use topo_lb_core::homecoming::{Due, Way};
use topo_lb_core::once::Once;
use topo_lb_core::plan::Gone;

/// Which sockets are ended.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the maps are pinned.
    pub pin_dir: PathBuf,
    /// The sockets of processes in this cgroup and below.
    pub cgroup_root: PathBuf,
    /// Whether TCP sockets are ended, too; UDP sockets always are.
    pub tcp: bool,
    /// Whether UDP sockets are ended that connected to a ClusterIP before it was served, unless there is
    /// something of kube-proxy on this host.
    pub early: bool,
}

/// How long endpoints are gathered, so that one search through all namespaces serves many. Also the
/// time in which a `connect` that chose by the previous maps reaches its socket.
const GATHER: Duration = Duration::from_millis(200);
/// Most endpoints that wait for the thread.
const BACKLOG: usize = 65_536;
/// After a search the thread rests this many times as long: at most a fifth of a CPU in use.
const IDLE: u32 = 4;
/// After this time the thread looks whether kube-proxy is gone.
const KUBE_PROXY: Duration = Duration::from_secs(30);
/// How long the agent waits at its end for the last search.
const LAST: Duration = Duration::from_secs(2);
/// Stack of the thread in bytes; it needs little.
const STACK: usize = 256 * 1024;

/// What the agent task sends to the thread.
#[derive(Debug, Default)]
struct Order {
    stale: Stale,
    /// What is due from now on; `None`: as before.
    due: Option<Vec<Due>>,
    /// Connections that these do not lead to any more are to be counted.
    count: Option<Vec<Arc<Way>>>,
}

impl Order {
    fn is_empty(&self) -> bool {
        self.stale.is_empty() && self.due.is_none() && self.count.is_none()
    }
}

/// Sends gone endpoints to the thread, and what connections are to return to a nearer tier.
#[derive(Debug)]
pub struct SocketTerminator {
    /// Has room for one; later endpoints are gathered in `backlog`.
    queue: SyncSender<Order>,
    backlog: Order,
    /// As last sent.
    due: Vec<Due>,
    home: Receiver<Home>,
    done: Receiver<()>,
    protocols: &'static [Protocol],
    early: bool,
    figures: Arc<EndedSockets>,
}

impl SocketTerminator {
    /// Starts the thread. If sockets cannot be ended, it logs that once and ends.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(options: Options, figures: Arc<EndedSockets>) -> io::Result<Self> {
        let (queue, orders) = sync_channel(1);
        let (say_done, done) = sync_channel(0);
        let (say_home, home) = channel();
        let protocols: &[_] =
            if options.tcp { &[Protocol::Udp, Protocol::Tcp] } else { &[Protocol::Udp] };
        let (counts, early) = (Arc::clone(&figures), options.early);
        thread::Builder::new().name("sockets".into()).stack_size(STACK).spawn(move || {
            // Dropped when the thread ends; `finish` waits for that.
            let _done: SyncSender<()> = say_done;
            if let Some(worker) = Worker::prepare(options, counts) {
                let homeward = Homeward::new(Arc::clone(&worker.figures.returning), say_home);
                worker.work(&orders, homeward);
            }
        })?;
        let (backlog, due) = (Order::default(), Vec::new());
        Ok(Self { queue, backlog, due, home, done, protocols, early, figures })
    }

    /// Ends the sockets that are connected to gone endpoints, and those that are connected to a
    /// ClusterIP that `appeared`. Returns at once. What does not fit into the queue is sent with the
    /// next call, even if that names nothing.
    pub fn end(&mut self, gone: &[Gone], appeared: Vec<Frontend>) {
        self.backlog.stale.merge(Stale::of(gone, self.protocols));
        self.backlog.stale.add_early(appeared.into_iter().filter(|_| self.early));
        self.send();
    }

    /// Has connections of these Service ports return to a nearer tier, and of no others. Returns at once.
    pub fn bring_home(&mut self, due: Vec<Due>) {
        if due != self.due {
            self.backlog.due = Some(due.clone());
            self.due = due;
            self.send();
        }
    }

    /// Has connections counted once that these ways do not lead to any more. Returns at once.
    pub fn count(&mut self, ways: Vec<Way>) {
        self.backlog.count = Some(ways.into_iter().map(Arc::new).collect());
        self.send();
    }

    /// Which Service ports have no connection any more that could return.
    pub fn home(&self) -> impl Iterator<Item = Home> {
        self.home.try_iter()
    }

    fn send(&mut self) {
        if self.backlog.is_empty() {
            return;
        }
        match self.queue.try_send(std::mem::take(&mut self.backlog)) {
            Err(TrySendError::Full(order)) if order.stale.len() <= BACKLOG => self.backlog = order,
            Err(TrySendError::Full(order)) => {
                self.backlog = Order { stale: Stale::default(), ..order };
                self.figures.failures.fetch_add(1, Relaxed);
                warn!("endpoints go faster than their sockets can be ended; some sockets stay");
            }
            // Without a thread, no socket can be ended.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Waits at most 2 s until the last search is done. Blocks.
    pub fn finish(mut self) {
        self.end(&[], Vec::new());
        drop(self.queue);
        // Nothing is ever sent: either the thread ends, or the wait times out.
        let _ = self.done.recv_timeout(LAST);
    }
}

/// Checks whether the sockets of a cgroup's processes could be ended, on a thread of its own that
/// enters their network namespaces.
///
/// # Errors
/// The first obstacle.
pub fn look(cgroup_root: &Path) -> Result<(), Obstacle> {
    thread::scope(|scope| {
        let look = scope.spawn(|| {
            let switcher = switcher()?;
            let found = Found::in_cgroup(cgroup_root);
            if found.unseen() > 0 {
                return Err(Obstacle::Hidden(found.unseen()));
            }
            let mut namespaces = found.namespaces.iter();
            let is_forbidden = namespaces.any(|(inode, processes)| {
                let entered = switcher.within(*inode, processes, || Ok(()));
                entered.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            });
            if is_forbidden { Err(Obstacle::Forbidden) } else { Ok(()) }
        });
        look.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// A switcher at home in this thread's namespace, if sockets can be ended there.
fn switcher() -> Result<NetnsSwitcher, Obstacle> {
    let no_proc = "/proc does not show this thread's network namespace";
    let switcher =
        NetnsSwitcher::new().map_err(|error| Obstacle::Kernel(format!("{no_proc}: {error}")))?;
    Diag::open().map_err(Unable::from).and_then(|diag| diag.probe())?;
    Ok(switcher)
}

/// What the thread counts.
#[derive(Debug, Default)]
pub struct EndedSockets {
    /// Sockets ended because their endpoint no longer serves: UDP, TCP.
    pub ended: [AtomicU64; 2],
    /// Failed attempts to find or end sockets.
    pub failures: AtomicU64,
    /// Of connections that return to a nearer tier.
    pub returning: Arc<Returning>,
}

struct Worker {
    options: Options,
    figures: Arc<EndedSockets>,
    switcher: NetnsSwitcher,
    /// Each problem is logged once.
    /// Obstacles that were logged.
    logged: Once<&'static str>,
}

struct Search<'a> {
    stale: &'a Stale,
    dialled: Connected,
    membership: Members,
}

impl Worker {
    fn prepare(options: Options, figures: Arc<EndedSockets>) -> Option<Self> {
        let switcher = match switcher() {
            Ok(switcher) => switcher,
            Err(error) => {
                warn!(
                    "sockets to endpoints that are gone stay until their applications give up: {error}"
                );
                return None;
            }
        };
        let mut worker = Self { options, figures, switcher, logged: Once::new() };
        // Problems are reported now, not when a socket must be ended.
        let found = worker.find();
        for (inode, processes) in &found.namespaces {
            match worker.switcher.within(*inode, processes, || Ok(())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => worker.tell(&error),
                _ => {}
            }
        }
        Some(worker)
    }

    fn work(mut self, queue: &Receiver<Order>, mut homeward: Homeward) {
        let mut pause = GATHER;
        let mut tally = Tally::new(Arc::clone(&self.figures.returning));
        // Sockets that connected early, while kube-proxy may translate what they send, and when to look again.
        let mut waiting = Stale::default();
        let mut again: Option<Instant> = None;
        loop {
            let next = [again, homeward.next()].into_iter().flatten().min();
            let received = match next {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => queue.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let Order { mut stale, due, mut count } = match received {
                Ok(order) => order,
                Err(RecvTimeoutError::Timeout) => Order::default(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            due.into_iter().for_each(|due| homeward.set(due));
            if !stale.is_empty() || again.is_some_and(|at| at <= Instant::now()) {
                thread::sleep(pause);
                let began = Instant::now();
                while let Ok(Order { stale: more, due, count: later }) = queue.try_recv() {
                    stale.merge(more);
                    due.into_iter().for_each(|due| homeward.set(due));
                    count = later.or(count);
                }
                stale.merge(std::mem::take(&mut waiting));
                if stale.has_early() && Traces::look() != Traces::default() {
                    waiting.add_early(stale.take_early());
                }
                again = (!waiting.is_empty()).then(|| Instant::now() + KUBE_PROXY);
                if !stale.is_empty() {
                    if let Err(error) = self.sweep(&stale) {
                        self.figures.failures.fetch_add(1, Relaxed);
                        warn!("sockets to endpoints that are gone cannot be looked for: {error}");
                    }
                    pause = GATHER.max(began.elapsed() * IDLE);
                }
            }
            let Options { pin_dir, cgroup_root, .. } = &self.options;
            let places = Places { pin_dir, cgroup_root };
            homeward.go_on(places, &self.switcher);
            count.into_iter().for_each(|ways| tally.count(ways, places, &self.switcher));
        }
    }

    fn find(&mut self) -> Found {
        let found = Found::in_cgroup(&self.options.cgroup_root);
        if found.unseen() > 0 && self.logged.begins("hidden") {
            let obstacle = Obstacle::Hidden(found.unseen());
            let what = "sockets to endpoints that are gone stay where they cannot be found";
            // Without hostPID and --terminate-tcp it is intended: the chart's endSockets is off.
            if found.hidden > 0 || self.options.tcp {
                warn!("{what}: {obstacle}");
            } else {
                info!("{what}: {obstacle}");
            }
        }
        found
    }

    fn sweep(&mut self, stale: &Stale) -> Result<(), ReadError> {
        let search = Search::open(&self.options, stale)?;
        let found = self.find();
        let everyone: Vec<u32> = found.namespaces.values().flatten().copied().collect();
        // Nobody translates what excluded Pods send.
        let others = match stale.has_early() {
            true => {
                let excluded = ExcludedMap::open(&self.options.pin_dir)?;
                let excluded = excluded.of(Treatment::Excluded).collect();
                Found::outside_of(&self.options.cgroup_root, &excluded).namespaces
            }
            false => BTreeMap::new(),
        };
        let (mut ended, mut early) = ([0_u64; 2], 0);
        for (inode, processes) in &found.namespaces {
            let outcome = self.switcher.within(*inode, processes, Diag::open).and_then(|diag| {
                let suspects = search.suspects(&diag)?;
                let clients = others.get(inode).map_or(&[][..], Vec::as_slice);
                early += search.end_early(&diag, &suspects, clients)?;
                search.end(&diag, suspects, processes, &everyone, &mut ended)
            });
            match outcome {
                // All processes of the namespace have ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.figures.failures.fetch_add(1, Relaxed);
                    self.tell(&error);
                }
                Ok(()) => {}
            }
        }
        let [udp, tcp] = ended;
        for (counter, ended) in self.figures.ended.iter().zip([udp + early, tcp]) {
            counter.fetch_add(ended, Relaxed);
        }
        if early > 0 {
            info!(
                udp = early,
                "ended sockets that connected to a Service before it was served here"
            );
        }
        if udp + tcp > 0 {
            info!(udp, tcp, "ended sockets whose endpoint serves no more");
        }
        Ok(())
    }

    /// Logs a problem of one namespace.
    fn tell(&mut self, error: &io::Error) {
        let forbidden = error.kind() == io::ErrorKind::PermissionDenied;
        if forbidden && self.logged.begins("forbidden") {
            let obstacle = Obstacle::Forbidden;
            warn!(
                "sockets to endpoints that are gone stay where this process may not look: {obstacle}"
            );
        } else if !forbidden {
            warn!("sockets to endpoints that are gone stay in a network namespace: {error}");
        }
    }
}

impl<'a> Search<'a> {
    fn open(options: &Options, stale: &'a Stale) -> Result<Self, ReadError> {
        let dialled = Connected::open(&options.pin_dir)?;
        Ok(Self { stale, dialled, membership: Members::open(&options.pin_dir)? })
    }

    /// Sockets of one namespace that may have to be ended.
    fn suspects(&self, diag: &Diag) -> io::Result<Vec<Seen>> {
        let mut suspects = Vec::new();
        for kind in self.stale.kinds() {
            diag.sockets(kind, self.stale.port(), |seen| {
                suspects.extend(Some(seen).filter(|seen| self.stale.suspects(seen)));
            })?;
        }
        Ok(suspects)
    }

    /// Ends those of `suspects` that connected to a ClusterIP before it was served, and that one of these
    /// processes holds. Returns how many.
    fn end_early(&self, diag: &Diag, suspects: &[Seen], processes: &[u32]) -> io::Result<u64> {
        let early = |seen: &&Seen| self.stale.is_early(seen).is_some();
        let inodes: HashSet<u32> = suspects.iter().filter(early).map(|seen| seen.inode).collect();
        let held = held(processes.iter().copied(), inodes)?;
        let mut ended = 0;
        for seen in suspects {
            let (Some(frontend), Some(socket)) = (self.stale.is_early(seen), held.get(&seen.inode))
            else {
                continue;
            };
            // The inode may be another socket's by now.
            let is_it = socket_cookie(socket)? == seen.cookie();
            if is_it
                && self.membership.has_endpoints(&frontend).map_err(io::Error::other)?
                && diag.end(seen)?
            {
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Ends those of `suspects` whose endpoint is gone, and counts them: UDP, TCP.
    fn end(
        &self,
        diag: &Diag,
        suspects: Vec<Seen>,
        processes: &[u32],
        everyone: &[u32],
        ended: &mut [u64; 2],
    ) -> io::Result<()> {
        let inodes: HashSet<u32> = suspects.iter().map(|seen| seen.inode).collect();
        // Processes of the namespace first: nearly always one of them holds the socket.
        let held = held(processes.iter().chain(everyone).copied(), inodes)?;
        for seen in suspects {
            let Some(socket) = held.get(&seen.inode) else { continue };
            if self.is_stale(&seen, socket)? && diag.end(&seen)? {
                ended[usize::from(seen.kind.protocol != Protocol::Udp)] += 1;
            }
        }
        Ok(())
    }

    /// Whether to end a socket. The maps are read after the socket: a socket that connected since
    /// the endpoint came back is not taken for an old one.
    fn is_stale(&self, seen: &Seen, socket: &OwnedFd) -> io::Result<bool> {
        // The inode may be another socket's by now; and an MPTCP socket has its subflow's.
        if socket_cookie(socket)? != seen.cookie() {
            return Ok(false);
        }
        let family = Family::of(seen.peer().ip());
        let dialled = self.dialled.by(socket, family).map_err(io::Error::other)?;
        let Some((frontend, endpoint)) = dialled else { return Ok(false) };
        Ok(self.stale.convicts(seen, &frontend, endpoint)
            && !self.membership.serves(&frontend, endpoint).map_err(io::Error::other)?)
    }
}
