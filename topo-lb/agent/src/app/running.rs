//! The owner's loop: takes in changes, updates the kernel's maps, answers queries.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::devices::Devices;
use super::ejector::Ejector;
use super::gather::gather;
use super::guard::{Finding, Guard};
use super::kernel::Kernel;
use super::lookout::Lookout;
use super::observer::Observer;
use super::peers::Peers;
use super::prove::prove;
use super::resolver::Resolver;
use super::retry::{Retry, Turn, next_turn};
use super::source::Events;
use super::untranslated::Counting;
use super::wanted::WantedNodes;
use super::wider::Wider;
use crate::admin::SocketFile;
use crate::agent_state::AgentState;
use crate::readiness::SelfProbe;
use topo_lb_core::homecoming::Homecoming;
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::maps::{share, usage};
use topo_lb_kernel::socket::terminator::SocketTerminator;
use topo_lb_kube::heap;
use topo_lb_kube::source::clock::now;

/// Interval at which the agent checks its pins and links.
pub(super) const INSPECTION: Duration = Duration::from_secs(1);

/// An agent with attached programs.
pub(super) struct Running {
    pub(super) state: AgentState,
    pub(super) kernel: Kernel,
    pub(super) datapath: Datapath,
    pub(super) events: Events,
    pub(super) wanted: WantedNodes,
    pub(super) devices: Devices,
    /// `None` without `--direct-return auto`.
    pub(super) peers: Option<Peers>,
    pub(super) terminator: SocketTerminator,
    pub(super) homecoming: Homecoming,
    pub(super) wider: Wider,
    /// `None` if the programs translate.
    pub(super) observer: Option<Observer>,
    /// `None` without `--count all`.
    pub(super) counting: Option<Counting>,
    pub(super) ejector: Ejector,
    pub(super) lookout: Lookout,
    /// `None` without `--dns`.
    pub(super) resolver: Option<Resolver>,
    pub(super) socket_file: SocketFile,
    pub(super) cgroup_root: PathBuf,
}

impl Running {
    /// Runs until `stop`, then leaves the datapath in place.
    pub(super) async fn run(
        mut self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> anyhow::Result<()> {
        let figures = Arc::clone(&self.state.telemetry.figures);
        let (mut retry, mut guard) = (Retry::default(), Guard::default());
        let mut inspection = tokio::time::interval(INSPECTION);
        inspection.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut listed = false;
            tokio::select! {
                turn = next_turn(&mut inspection, self.events.next(), &retry) => match turn {
                    Turn::Inspect => {
                        figures.beat();
                        if !self.inspect(&mut guard) {
                            continue;
                        }
                    }
                    Turn::Plan(None) => {}
                    Turn::Plan(Some(event)) => {
                        let event = event.context("the source of the cluster's state has ended")?;
                        listed = gather(event, &mut self.events, &mut self.state).await;
                    }
                },
                Some(question) = self.state.telemetry.questions.recv() => {
                    let (reconciler, names) = (&self.state.reconciler, self.devices.names());
                    let installed = &self.kernel.installed;
                    self.state.telemetry.answer(question, reconciler, installed, names);
                    continue;
                }
                heard = self.ejector.next() => {
                    self.lookout.suspect(heard.failing());
                    if !self.ejector.take_in(heard, &mut self.state, &self.kernel.installed) {
                        continue;
                    }
                }
                heard = self.lookout.next() => {
                    if !self.lookout.take_in(heard, &mut self.state) {
                        continue;
                    }
                }
                ended = Counting::next(&mut self.counting) => {
                    if let Some(counting) = &mut self.counting {
                        counting.look(&self.state.reconciler, ended);
                    }
                    continue;
                }
                result = self.devices.changed() => {
                    result.context("the device notification socket failed")?;
                    self.attach();
                    continue;
                }
                () = self.state.saver.due() => {
                    self.state.saver.save(self.state.reconciler.snapshot());
                    continue;
                }
                () = &mut stop => {
                    // First: the kernel leads to the cluster DNS again before the sockets close.
                    drop(self.resolver.take());
                    self.state.saver.finish(self.state.reconciler.snapshot()).await;
                    self.terminator.finish();
                    self.socket_file.remove();
                    return Ok(());
                }
            }
            self.settle(&mut retry);
            if listed {
                heap::trim();
            }
        }
    }

    /// Restores what other processes removed, and attaches to devices that were missed. Returns whether
    /// there is something to plan.
    fn inspect(&mut self, guard: &mut Guard) -> bool {
        let repairs = self.datapath.repair();
        self.state.telemetry.lacks_outside(repairs.outside.as_ref());
        match guard.take(repairs, Instant::now()) {
            Finding::Quiet => {}
            Finding::Disturbed(why) => self.state.telemetry.prover()(SelfProbe::Failed(why)),
            // Only now: a probe without our programs attached would prove nothing.
            Finding::Over => drop(prove(&self.state.telemetry, &self.cgroup_root)),
        }
        self.ejector.probe(&self.state);
        self.attach();
        self.terminator.end(&[], Vec::new());
        self.bring_home();
        if self.observer.is_none() {
            let maps = self.datapath.maps_directory();
            self.wider.look(&self.state.reconciler, maps, &mut self.terminator);
        }
        self.look_at_tables();
        if self.datapath.forget_killed_tracer() {
            info!("a `topo-lb trace` was killed, and connections are not told to it any more");
        }
        if let Some(observer) = &self.observer {
            observer.look(&self.state.reconciler);
        }
        if let Some(counting) = &mut self.counting {
            counting.look(&self.state.reconciler, Vec::new());
        }
        let passed = self.state.reconciler.pass(now());
        let is_told = self.lookout.look(&mut self.state, &self.kernel.installed);
        let is_led = self.resolver.as_mut().is_some_and(|resolver| resolver.look(&mut self.state));
        is_led || is_told || passed
    }

    /// Says whether a table of connections is full, or someone's share of it. What cannot be read now, the next
    /// inspection reads.
    fn look_at_tables(&mut self) {
        let maps = self.datapath.maps_directory();
        if let Ok(Some(tables)) = usage::read(maps) {
            let telemetry = &mut self.state.telemetry;
            telemetry.tables(&tables, |was| share::used_up(maps, &tables, was).ok().flatten());
        }
    }

    /// Attaches to the devices that there are now.
    fn attach(&mut self) {
        self.devices.attach(&mut self.datapath);
        if let Some(peers) = &mut self.peers {
            peers.lead(self.datapath.direct_uplink());
        }
        self.state.telemetry.leaves_unserved(self.devices.unserved());
    }

    /// Has idle connections return to a nearer tier that has been in force for long enough.
    fn bring_home(&mut self) {
        let now = Instant::now();
        for (service, ways) in self.state.reconciler.take_returning() {
            self.homecoming.take_in(service, ways, now);
        }
        for (key, turn) in self.terminator.home() {
            self.homecoming.is_home(&key, turn);
        }
        self.terminator.bring_home(self.homecoming.due(now));
    }

    fn settle(&mut self, retry: &mut Retry) {
        self.lookout.keep(&mut self.state);
        self.ejector.keep(&mut self.state);
        if let Some(resolver) = &mut self.resolver {
            resolver.keep(&self.state);
        }
        if let Some(peers) = &mut self.peers {
            peers.keep(&self.state.reconciler);
        }
        let Some(settled) = retry.attempt(|| self.kernel.settle(&mut self.state)) else { return };
        self.wanted.want(&self.state.reconciler);
        match settled {
            Ok(_) => {
                let appeared = self.kernel.take_appeared(&self.state);
                self.terminator.end(&self.kernel.take_gone(), appeared);
                self.bring_home();
                if self.state.has_more_to_write() {
                    retry.go_on();
                } else {
                    self.lookout.settled(&self.state);
                }
            }
            Err((error, pause)) => {
                self.state.telemetry.failed(&error.to_string());
                warn!("{error}; every Service stays as it was or as planned; retries in {pause:?}");
            }
        }
    }
}
