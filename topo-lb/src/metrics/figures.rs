//! What the agent's own tasks count: plain atomics, written without a lock, read by whoever scrapes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use topo_lb_common::maps;

use super::histogram::Histogram;
use crate::cluster::Family;
use crate::plan::Installed;

/// From a watch event to the map: the agent aims at 10 ms for 99 of 100.
const PROGRAMMING: &[f64] =
    &[0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];
/// From a change of a pod to the map: the kubelet, the API server and a controller are part of it.
const NETWORK_PROGRAMMING: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// The maps that plans fill, in the order of [`Figures::uses`].
pub const PLANNED: [&str; 7] = [
    maps::SERVICES4,
    maps::SERVICES6,
    maps::SLOTS4,
    maps::SLOTS6,
    maps::MEMBERS4,
    maps::MEMBERS6,
    maps::NAMES,
];

/// How full a map is.
#[derive(Debug, Default)]
pub struct Use {
    /// Entries that are in use.
    pub used: AtomicU64,
    /// Entries that there is room for; zero until the maps are open.
    pub capacity: AtomicU64,
}

/// What the agent's tasks count.
#[derive(Debug)]
pub struct Figures {
    /// When the agent started.
    pub started: SystemTime,
    epoch: Instant,
    beat: AtomicU64,
    /// From the arrival of an update to the end of the plan that carries it out.
    pub programming: Histogram,
    /// From what the trigger-time annotation of a slice says to the same moment.
    pub network_programming: Histogram,
    /// Steps of plans that were carried out.
    pub writes: AtomicU64,
    /// Plans that could not be carried out.
    pub failed_plans: AtomicU64,
    /// Seconds since 1970 when the last plan was carried out; zero before the first.
    pub last_programmed: AtomicU64,
    /// What was wrong with the source or with objects of it.
    pub troubles: AtomicU64,
    /// Listings of all Services, EndpointSlices and Nodes.
    pub listings: [AtomicU64; 3],
    /// Services there are, the skipped ones too.
    pub services: AtomicU64,
    /// Services that wait for the labels of other Nodes.
    pub waiting: AtomicU64,
    /// Services that lack room in the maps, in the order of `Meanwhile::ALL`.
    pub unprogrammed: [AtomicU64; 4],
    /// Pods whose processes are left alone.
    pub excluded_pods: AtomicU64,
    /// Pods that are to be left alone, and for which the map has no room.
    pub unexcluded_pods: AtomicU64,
    /// Kubernetes Events that the API server took.
    pub events_sent: AtomicU64,
    /// Those that another agent had told already.
    pub events_repeated: AtomicU64,
    /// Attempts that it did not take.
    pub events_failed: AtomicU64,
    /// Those that were too many, or whose Service was gone.
    pub events_dropped: AtomicU64,
    /// Hooks where a program of others runs before ours.
    pub overridden_hooks: AtomicU64,
    /// Cgroups that are known and were not asked in the last look.
    pub unasked_cgroups: AtomicU64,
    /// Sockets that were ended because their endpoint serves no more: UDP, TCP.
    pub ended_sockets: [AtomicU64; 2],
    /// Times that sockets could not be looked for or ended.
    pub unended_sockets: AtomicU64,
    /// How full the maps are, in the order of [`PLANNED`].
    pub uses: [Use; PLANNED.len()],
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            started: SystemTime::now(),
            epoch: Instant::now(),
            beat: AtomicU64::new(0),
            programming: Histogram::new(PROGRAMMING),
            network_programming: Histogram::new(NETWORK_PROGRAMMING),
            writes: AtomicU64::new(0),
            failed_plans: AtomicU64::new(0),
            last_programmed: AtomicU64::new(0),
            troubles: AtomicU64::new(0),
            listings: Default::default(),
            services: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            unprogrammed: Default::default(),
            excluded_pods: AtomicU64::new(0),
            unexcluded_pods: AtomicU64::new(0),
            events_sent: AtomicU64::new(0),
            events_repeated: AtomicU64::new(0),
            events_failed: AtomicU64::new(0),
            events_dropped: AtomicU64::new(0),
            overridden_hooks: AtomicU64::new(0),
            unasked_cgroups: AtomicU64::new(0),
            ended_sockets: Default::default(),
            unended_sockets: AtomicU64::new(0),
            uses: Default::default(),
        }
    }
}

/// Counts one more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Figures {
    /// Notes that the agent task is making progress.
    pub fn beat(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat.store(now, Relaxed);
    }

    /// How long ago that was, to a millisecond.
    #[must_use]
    pub fn since_beat(&self) -> Duration {
        self.epoch.elapsed().saturating_sub(Duration::from_millis(self.beat.load(Relaxed)))
    }

    /// Notes that a plan of so many steps was carried out, and how full the maps are now.
    pub fn programmed(&self, steps: usize, installed: &Installed) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_programmed.store(now.as_secs(), Relaxed);
        self.writes.fetch_add(steps as u64, Relaxed);
        let capacity = installed.capacity();
        let slots = |family| u64::from(capacity.slots - installed.slots(family).available());
        let now: [(u64, u32); PLANNED.len()] = [
            (installed.frontends_in(Family::V4) as u64, capacity.services),
            (installed.frontends_in(Family::V6) as u64, capacity.services),
            (slots(Family::V4), capacity.slots),
            (slots(Family::V6), capacity.slots),
            (installed.members_in(Family::V4) as u64, capacity.members),
            (installed.members_in(Family::V6) as u64, capacity.members),
            (installed.indexes().len() as u64, capacity.services),
        ];
        for (map, (used, capacity)) in self.uses.iter().zip(now) {
            map.used.store(used, Relaxed);
            map.capacity.store(capacity.into(), Relaxed);
        }
    }
}
