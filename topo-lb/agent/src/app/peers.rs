//! Direct return: asks other nodes whether they take packets of clients outside, and answers them
//! ([`topo_lb_core::peers`]). On a thread of its own, which the agent task only tells what has changed.

use std::hash::RandomState;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use super::config::Config;
use crate::metrics::Figures;
use crate::serve::run;
use topo_lb_core::once::Once;
use topo_lb_core::peers::frame::Envelope;
use topo_lb_core::peers::prover::{Ignored, Outgoing, Prover};
use topo_lb_core::peers::status::{PeerState, Status, Unproved};
use topo_lb_core::peers::targets::{Changes, Targets};
use topo_lb_core::rate::Rate;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kernel::datapath::maps::peers::{PeerMap, clear};
use topo_lb_kernel::datapath::maps::probes::{self, HeardFrame};
use topo_lb_kernel::datapath::maps::ring::Ring;
use topo_lb_kernel::device::{Device, Frames, SoleUplink, Ways};

use crate::agent_state::AgentState;

/// Most nodes that are asked at once, and then a pause: so many frames fit into a queue.
const TOGETHER: usize = 32;
const PAUSE: Duration = Duration::from_millis(10);
/// Batches of frames that are taken from the kernel: a burst, and the time for one more. What comes faster, the kernel
/// drops.
const HEARD: (u32, Duration) = (16, Duration::from_millis(1));
/// How often the thread looks whether something is over.
const LOOK: Duration = Duration::from_secs(1);
/// After a change, what is told of nodes is gathered for so long.
const GATHER: Duration = Duration::from_millis(50);
/// Log limit for nodes whose state changes: a burst, then one line per interval.
const LOGGED: (u32, Duration) = (64, Duration::from_secs(10));

/// The uplink, or why there is none.
type Uplink = Result<(Device, [u8; 6]), Arc<str>>;

/// What the agent task tells.
enum Told {
    Services(Changes),
    Uplink(Uplink),
}

/// The agent task's end.
pub(super) struct Peers {
    targets: Targets,
    exposing: Exposing,
    uplink: Option<Uplink>,
    thread: mpsc::UnboundedSender<Told>,
}

impl Peers {
    /// Starts the thread; `None` without direct return. Then the map is emptied, so that nothing is sent on.
    pub(super) fn start(
        config: &Config,
        maps_directory: &Path,
        state: &AgentState,
    ) -> anyhow::Result<Option<Self>> {
        let Some(exposing) = config.exposing.clone().filter(|it| it.direct_return) else {
            clear(maps_directory)?;
            return Ok(None);
        };
        let map = PeerMap::open(maps_directory)?;
        let (secret, now) = (RandomState::new(), Instant::now());
        let prover = Prover::new(Arc::clone(&config.node), secret, map.read()?, now);
        let (thread, told) = mpsc::unbounded_channel();
        let figures = Arc::clone(&state.telemetry.figures);
        figures.peers.set(Vec::new());
        let prober = Prober {
            prover,
            map,
            ways: None,
            uplink: None,
            frames: None,
            figures,
            logged: Rate::new(LOGGED.0, LOGGED.1, now),
            unlogged: 0,
            failing: Once::new(),
            publish: None,
            earliest: now,
            hearing: Rate::new(HEARD.0, HEARD.1, now),
        };
        run("peers", prober.run(told, maps_directory.to_owned()))
            .context("cannot start a thread")?;
        let mut peers = Self { targets: Targets::default(), exposing, uplink: None, thread };
        peers.look(&state.reconciler, state.reconciler.state().services());
        Ok(Some(peers))
    }

    /// Tells what the cluster's changes have made different. Call it before a plan.
    pub(super) fn keep(&mut self, reconciler: &Reconciler) {
        self.look(reconciler, reconciler.changed());
    }

    fn look<'a>(
        &mut self,
        reconciler: &Reconciler,
        services: impl IntoIterator<Item = &'a topo_lb_core::cluster::ServiceId>,
    ) {
        let (state, node) = (reconciler.state(), reconciler.node());
        let changes = self.targets.look(state, node, &self.exposing, services);
        if !changes.is_empty() {
            let _ = self.thread.send(Told::Services(changes));
        }
    }

    /// Tells by which device packets for other nodes leave, if by one alone.
    pub(super) fn lead(&mut self, uplink: Result<&SoleUplink, &str>) {
        let uplink = uplink.map(|it| (it.device.clone(), it.ethernet)).map_err(Into::into);
        if self.uplink.as_ref() != Some(&uplink) {
            let _ = self.thread.send(Told::Uplink(uplink.clone()));
            self.uplink = Some(uplink);
        }
    }
}

/// The thread's state.
struct Prober {
    prover: Prover,
    map: PeerMap,
    ways: Option<Ways>,
    /// `None`: not known yet.
    uplink: Option<Uplink>,
    /// The socket at the uplink, once it is open, or why it is not.
    frames: Option<Result<Frames, Arc<str>>>,
    figures: Arc<Figures>,
    logged: Rate,
    /// Changes that the log does not have.
    unlogged: usize,
    failing: Once<&'static str>,
    /// When what is told of nodes is due.
    publish: Option<Instant>,
    /// When nodes may be asked next.
    earliest: Instant,
    hearing: Rate,
}

impl Prober {
    /// Runs until the agent task ends.
    async fn run(mut self, mut told: mpsc::UnboundedReceiver<Told>, maps_directory: PathBuf) {
        let mut probes = match probes::ring(&maps_directory) {
            Ok(ring) => Some(ring),
            Err(error) => {
                warn!("no frames of other nodes can be heard, for direct return: {error}");
                None
            }
        };
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = self.prover.next().filter(|_| self.uplink.is_some());
            let ask = next.map(|next| next.max(self.earliest)).into_iter();
            let due = ask.chain(self.publish).min().unwrap_or_else(|| Instant::now() + LOOK);
            let mut heard = Vec::new();
            tokio::select! {
                told = told.recv() => match told {
                    None => return,
                    Some(told) => self.take_in(told),
                },
                _ = look.tick() => {
                    self.prover.expire(Instant::now());
                    self.open();
                }
                () = sleep_until(due.into()) => {}
                frames = hear(probes.as_mut(), self.hearing.next(Instant::now())) => match frames {
                    Ok(frames) => heard = frames,
                    Err(error) if self.failing.begins("hear") => {
                        warn!("frames of other nodes are heard once a second, for direct return: {error}");
                    }
                    Err(_) => {}
                },
            }
            if !heard.is_empty() {
                self.hearing.take(Instant::now());
            }
            for HeardFrame { device, bytes } in heard {
                if matches!(&self.uplink, Some(Ok((uplink, _))) if uplink.index == device) {
                    self.hear(&bytes);
                }
            }
            if self.uplink.is_some() && Instant::now() >= self.earliest {
                self.ask();
            }
            self.write();
            self.tell();
        }
    }

    fn take_in(&mut self, told: Told) {
        let now = Instant::now();
        match told {
            Told::Services(changes) => {
                self.prover.take_in(changes, now);
                self.publish.get_or_insert(now + GATHER);
            }
            Told::Uplink(uplink) => {
                match self.uplink.replace(uplink) {
                    Some(Ok(_)) => self.prover.begin_again(now),
                    _ => self.prover.ask_all(now),
                }
                self.frames = None;
                self.open();
            }
        }
    }

    /// Opens the socket at the uplink, if it is not.
    fn open(&mut self) {
        let Some(Ok((device, _))) = &self.uplink else { return };
        if !matches!(self.frames, Some(Ok(_))) {
            let opened = Frames::open(device).map_err(|error| {
                format!("no frames can be sent at {} (CAP_NET_RAW): {error}", device.name)
            });
            self.frames = Some(opened.map_err(Into::into));
        }
    }

    fn hear(&mut self, frame: &[u8]) {
        let now = Instant::now();
        let read = Envelope::read(frame).ok_or(Ignored::Garbage);
        let result = read.and_then(|(envelope, payload)| self.prover.hear(&envelope, payload, now));
        match result {
            Ok(None) => {}
            Ok(Some(outgoing)) => {
                self.write();
                self.send(&outgoing);
            }
            Err(why) => {
                let place = Ignored::ALL.iter().position(|it| *it == why);
                let counter = place.and_then(|place| self.figures.peers.ignored.get(place));
                counter.map(|counter| counter.fetch_add(1, Relaxed));
            }
        }
    }

    fn ask(&mut self) {
        for _ in 0..TOGETHER {
            let now = Instant::now();
            let Some((way, endpoint)) = self.prover.due(now) else { return };
            let to = self.way_to(endpoint);
            if let Some(hello) = self.prover.ask(&way, to, now) {
                self.send(&hello);
            }
        }
        self.earliest = Instant::now() + PAUSE;
    }

    fn way_to(&mut self, endpoint: std::net::IpAddr) -> Result<[u8; 6], Unproved> {
        let (device, _) = match &self.uplink {
            Some(Ok(uplink)) => uplink,
            Some(Err(why)) => return Err(Unproved::NoUplink(Arc::clone(why))),
            None => return Err(Unproved::NoUplink("the uplink is not known yet".into())),
        };
        if let Some(Err(why)) = &self.frames {
            return Err(Unproved::NoUplink(Arc::clone(why)));
        }
        if self.ways.is_none() {
            let none = |error: io::Error| Unproved::NoRoute(endpoint, error.to_string().into());
            self.ways = Some(Ways::open().map_err(none)?);
        }
        let found = self.ways.as_ref().map(|ways| ways.to(endpoint, device));
        // After an error, answers to another question may be in the socket.
        if matches!(found, Some(Err(Unproved::NoRoute(..)))) {
            self.ways = None;
        }
        found.unwrap_or(Err(Unproved::NoNeighbour(endpoint)))
    }

    /// Sends a frame, unless it would say that this node knows one whose entry could not be written.
    fn send(&mut self, outgoing: &Outgoing) {
        let (Some(Ok((_, from))), Some(Ok(frames))) = (&self.uplink, &self.frames) else { return };
        let Outgoing { to, source, destination, message } = outgoing;
        let (from, to) = (*from, *to);
        let envelope = Envelope { from, to, source: *source, destination: *destination };
        let is_true = outgoing.promises().is_none_or(|peer| self.map.has(peer));
        let payload = message.encode().filter(|_| is_true);
        let frame = payload.and_then(|payload| envelope.write(&payload));
        let sent = frame.map(|frame| frames.send(&frame));
        match sent {
            // As a lost frame: it is sent again.
            Some(Err(error)) if self.failing.begins("send") => {
                warn!("a frame to another node cannot be sent, for direct return: {error}");
            }
            Some(Ok(())) => drop(self.failing.ends(&"send")),
            _ => {}
        }
    }

    fn write(&mut self) {
        let mut failure = None;
        for (peer, value) in self.prover.changes() {
            if let Err(error) = self.map.write(peer, value) {
                self.prover.retry(peer);
                failure = Some(error);
            }
        }
        match failure {
            None => drop(self.failing.ends(&"write")),
            Some(error) if self.failing.begins("write") => {
                warn!("{error}; connections to endpoints of some nodes get source NAT");
            }
            Some(_) => {}
        }
    }

    /// Says what has changed of nodes.
    fn tell(&mut self) {
        let now = Instant::now();
        let news = self.prover.news();
        if !news.is_empty() {
            self.publish.get_or_insert(now + GATHER);
        }
        for Status { node, family, state, ethernet, reason, .. } in news {
            let is_told = state != PeerState::Asking;
            if is_told && !self.logged.take(now) {
                self.unlogged += 1;
                continue;
            }
            match (ethernet, reason) {
                (Some(ethernet), _) => info!(
                    node = &*node,
                    family = <&str>::from(family),
                    ethernet,
                    "packets of clients outside are sent on to node {node}, which answers them itself"
                ),
                (None, Some(why)) => info!(
                    node = &*node,
                    family = <&str>::from(family),
                    "connections of clients outside to endpoints on node {node} get source NAT: {why}"
                ),
                (None, None) => {}
            }
        }
        if self.unlogged > 0 && self.logged.is_full(now) {
            info!("the log lacks {} changes of whether nodes are proved", self.unlogged);
            self.unlogged = 0;
        }
        if self.publish.is_some_and(|at| at <= now) {
            self.publish = None;
            self.figures.peers.set(self.prover.all());
        }
    }
}

/// Waits for frames, `from` a time on; for ever if they cannot be heard.
async fn hear(ring: Option<&mut Ring<HeardFrame>>, from: Instant) -> io::Result<Vec<HeardFrame>> {
    let Some(ring) = ring else { return std::future::pending().await };
    sleep_until(from.into()).await;
    // More than one batch may have come. The kernel wakes nobody for what is added to something that is left.
    let left = ring.take();
    if !left.is_empty() {
        return Ok(left);
    }
    let heard = ring.next().await;
    if heard.is_err() {
        sleep(LOOK).await;
    }
    heard
}
