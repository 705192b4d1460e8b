//! Plans and writes what has changed, in portions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use crate::agent_state::AgentState;
use topo_lb_core::cluster::{Frontend, ServiceId};
use topo_lb_core::flag::MAX_SERVICES;
use topo_lb_core::plan::appeared;
use topo_lb_core::plan::commit::{commit, take_over};
use topo_lb_core::plan::sources::{self, SourcePlan};
use topo_lb_core::plan::{Gone, Installed, Lack, Meanwhile, Plan, Step};
use topo_lb_kernel::datapath::maps::bpf::BpfStore;
use topo_lb_kernel::datapath::maps::error::StoreError;
use topo_lb_kernel::datapath::maps::unprogrammed::{self, UnprogrammedMap};

use super::evacuations::EvacuationLog;
use super::quarantine::Quarantine;
use topo_lb_core::once::Once;
use topo_lb_core::rate::Rate;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_kube::source::clock::now;

/// Rate limit for logging which Services lack room: a burst, then one per interval. A Service that
/// changes a hundred times a second must not fill the log.
const LOGGED: (u32, Duration) = (5, Duration::from_secs(30));

/// The kernel's maps and their known content.
pub(super) struct Kernel {
    store: BpfStore,
    pub(super) installed: Installed,
    quarantine: Quarantine,
    unprogrammed: UnprogrammedMap,
    /// Whether it was logged that this map cannot be written.
    unlisted: Once,
    /// The revision of the source ranges for which the maps were written last; `None` if they have to be planned.
    settled_ranges: Option<u64>,
    /// Frontends without room for all their source ranges, as last logged.
    lacking: BTreeSet<Frontend>,
    /// Services, as `namespace/name`, that the last agent left unprogrammed.
    pub(super) unprogrammed_before: Vec<(Arc<str>, Lack)>,
    lacks: LackLog,
    evacuations: EvacuationLog,
    /// Endpoints that stopped serving, until [`take_gone`](Self::take_gone). A set, as a plan that
    /// fails repeatedly names them each time.
    gone: BTreeSet<Gone>,
    /// UDP frontends that have endpoints now, and had none before; all of them at the start.
    appeared: BTreeSet<Frontend>,
}

/// Which Services lack room, as logged. Pure: the caller passes the time.
#[derive(Debug)]
struct LackLog {
    /// As last logged.
    logged: BTreeMap<ServiceId, Lack>,
    rate: Rate,
}

impl LackLog {
    fn new(now: Instant) -> Self {
        let (burst, interval) = LOGGED;
        Self { logged: BTreeMap::new(), rate: Rate::new(burst, interval, now) }
    }

    /// Whether to log these: they differ from what was logged, and the rate limit allows it. If it
    /// does not, a later plan logs them.
    fn log(&mut self, unprogrammed: &BTreeMap<ServiceId, Lack>, now: Instant) -> bool {
        if self.logged == *unprogrammed || !self.rate.take(now) {
            return false;
        }
        self.logged.clone_from(unprogrammed);
        true
    }
}

impl Kernel {
    pub(super) fn read(maps: &Path) -> anyhow::Result<Self> {
        let mut store = BpfStore::open(maps)?;
        let installed = take_over(&mut store)?;
        let unprogrammed_before = unprogrammed::read(maps)?;
        let appeared = appeared::all(&installed).collect();
        Ok(Self {
            store,
            installed,
            appeared,
            quarantine: Quarantine::default(),
            unprogrammed: UnprogrammedMap::open(maps)?,
            unlisted: Once::new(),
            settled_ranges: None,
            lacking: BTreeSet::new(),
            unprogrammed_before,
            lacks: LackLog::new(Instant::now()),
            evacuations: EvacuationLog::new(Instant::now()),
            gone: BTreeSet::new(),
        })
    }

    /// Plans and carries out a portion of what changed, and all that follows from it. Returns the number of steps.
    pub(super) fn settle(&mut self, agent: &mut AgentState) -> Result<usize, StoreError> {
        if !agent.write_gate.may_write() {
            return Ok(0);
        }
        let reconciler = &mut agent.reconciler;
        reconciler.pass(now());
        let mut steps = 0;
        let mut is_more = !reconciler.settled() || self.settled_ranges.is_none();
        while is_more {
            let began = Instant::now();
            let released = self.quarantine.released()?;
            self.free(released)?;
            let mut plan = reconciler.plan(&self.installed);
            if !plan.waiting.is_empty() && !self.quarantine.is_empty() {
                // What no program reads any more may give it room.
                let released = self.quarantine.wait()?;
                self.free(released)?;
                plan = reconciler.plan(&self.installed);
            }
            // Kept even if the plan fails half way: no later plan removes the same members.
            self.gone.extend(reconciler.gone(&plan, &self.installed));
            self.appeared.extend(appeared::appeared(&plan, &self.installed));
            // A Service without room may need what the plan frees, so the plan waits for it.
            let frees = if reconciler.awaits(&plan) { Vec::new() } else { plan.take_frees() };
            let ranges = reconciler.ranges_revision();
            let sources = match self.settled_ranges.take() {
                Some(settled) if settled == ranges => SourcePlan::default(),
                _ => self.plan_sources(reconciler),
            };
            sources.join(&mut plan);
            self.carry_out(&plan)?;
            self.quarantine.add(frees);
            self.settled_ranges = Some(ranges);
            reconciler.carried_out(&plan, &self.installed);
            if !plan.steps.is_empty() {
                debug!(writes = plan.steps.len(), took = ?began.elapsed(), "programmed");
            }
            steps += plan.steps.len();
            is_more = !reconciler.is_between_portions();
        }
        let (objects, services) = reconciler.evacuations();
        self.evacuations.tell(&services);
        agent.telemetry.figures.evacuations.set(objects, services);
        self.tell(reconciler.unprogrammed());
        agent.telemetry.figures.slow_starts.store(reconciler.starting_slowly() as u64, Relaxed);
        agent.telemetry.settled(&mut agent.reconciler, &self.installed, steps);
        Ok(steps)
    }

    /// Returns the endpoints that stopped serving since the last call and are out of the maps.
    pub(super) fn take_gone(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.gone).into_iter().collect()
    }

    /// Returns the ClusterIPs that UDP clients can dial since the last call, and could not before.
    pub(super) fn take_appeared(&mut self, agent: &AgentState) -> Vec<Frontend> {
        let all = std::mem::take(&mut self.appeared).into_iter();
        all.filter(|frontend| agent.reconciler.is_cluster_ip(frontend)).collect()
    }

    fn free(&mut self, released: Vec<Step>) -> Result<(), StoreError> {
        self.carry_out(&Plan { steps: released, ..Plan::default() })
    }

    /// Carries out a plan. After a failure, reads the maps again.
    fn carry_out(&mut self, plan: &Plan) -> Result<(), StoreError> {
        let result = commit(plan, &mut self.store, &mut self.installed);
        if result.is_err() {
            self.installed = take_over(&mut self.store)?;
            // The state just read has those slots as free.
            self.quarantine = Quarantine::default();
        }
        result
    }

    fn plan_sources(&mut self, reconciler: &Reconciler) -> SourcePlan {
        let room = self.installed.capacity().sources;
        if room == 0 {
            // Only ClusterIPs are served.
            return SourcePlan::default();
        }
        let ranges = reconciler.source_ranges().map(|(frontend, ranges)| (frontend, &**ranges));
        let plan = sources::plan(ranges, self.installed.sources(), room);
        if plan.lacking != self.lacking {
            if let Some(first) = plan.lacking.first() {
                warn!(
                    count = plan.lacking.len(),
                    "the map of source ranges is full: some sources that may dial {first} are denied; \
                     start the agent with a larger {MAX_SERVICES}"
                );
            }
            self.lacking.clone_from(&plan.lacking);
        }
        plan
    }

    /// Lists and logs which Services lack room, if that has changed.
    fn tell(&mut self, unprogrammed: &BTreeMap<ServiceId, Lack>) {
        match self.unprogrammed.write(unprogrammed) {
            Ok(()) => self.unlisted.clear(),
            Err(error) if self.unlisted.begins(()) => {
                warn!("`topo-lb list` does not show which Services lack room: {error}");
            }
            Err(_) => {}
        }
        if !self.lacks.log(unprogrammed, Instant::now()) {
            return;
        }
        if unprogrammed.is_empty() {
            info!("every Service has room in the maps again");
            return;
        }
        for (is_too_large, meanwhile) in
            [false, true].into_iter().flat_map(|it| Meanwhile::ALL.map(|meanwhile| (it, meanwhile)))
        {
            let is_so =
                |lack: &Lack| lack.of.is_too_large() == is_too_large && lack.meanwhile == meanwhile;
            let of: Vec<_> = unprogrammed.iter().filter(|(_, lack)| is_so(lack)).collect();
            if of.is_empty() {
                continue;
            }
            let names: Vec<String> = of.iter().take(8).map(|(id, _)| id.to_string()).collect();
            let others =
                if of.len() > names.len() { " and others (`topo-lb list services`)" } else { "" };
            let why = match is_too_large {
                false => "the maps are full",
                true => "too large, with all their ports, addresses and endpoints",
            };
            let what = match meanwhile {
                Meanwhile::KubeProxy => "left to kube-proxy are",
                Meanwhile::Narrowed => {
                    "at most 6 of their endpoints (4 over IPv6), other ones on each node, are used at random by"
                }
                Meanwhile::LastGood => "the last endpoints, which may be out of date, are kept by",
                Meanwhile::DirectDials => {
                    "served, but direct dials are neither refused nor steered, are"
                }
                Meanwhile::Nobody => "served by nobody on this node are",
                Meanwhile::Refused => "refused, as their policy is strict, are",
            };
            let flags: BTreeSet<_> = of.iter().map(|(_, lack)| lack.of.flag()).collect();
            let flags: Vec<_> = flags.into_iter().rev().collect();
            warn!(
                count = of.len(),
                "{why}: {what} {}{others}; start the agent with a larger {}",
                names.join(", "),
                flags.join(" and ")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use topo_lb_core::plan::Shortage;

    use super::*;

    #[test]
    fn a_service_that_flips_for_an_hour_does_not_fill_the_log() {
        let (start, mut lines) = (Instant::now(), 0);
        let mut log = LackLog::new(start);
        let id = ServiceId { namespace: "storm".into(), name: "web".into() };
        let lack = Lack { of: Shortage::Endpoints, meanwhile: Meanwhile::KubeProxy };
        let (none, one) = (BTreeMap::new(), BTreeMap::from([(id, lack)]));
        assert!(!log.log(&none, start), "that all have room at first goes without saying");
        for flip in 0..360_000_u64 {
            let unprogrammed = if flip % 2 == 0 { &one } else { &none };
            lines += u32::from(log.log(unprogrammed, start + Duration::from_millis(10 * flip)));
        }
        assert!((60..=130).contains(&lines), "{lines} lines in an hour");
        let later = start + Duration::from_secs(7_200);
        let said = [log.log(&one, later), log.log(&none, later)];
        assert!(said.contains(&true), "what comes at last is said");
    }
}
